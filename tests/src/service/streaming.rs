//! The handlers that have streams.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use verbwire::Status;
use verbwire::codegen::Stream;

use super::{Desk, Visit, Witness};
use crate::pattern;
use crate::proto::conformance::step::Act;
use crate::proto::conformance::{Blob, DigestReply, ScanRequest, Step};
use crate::streams::steps;

/// Replies.
pub(crate) type BlobStream = Pin<Box<dyn Stream<Item = Result<Blob, Status>> + Send>>;

/// How a step leaves its call.
enum Then {
    GoesOn,
    Ends,
}

/// What a handler that fails says.
pub(super) fn failure() -> Status {
    Status::data_loss("a step that fails")
}

/// Does what is asked. What panics or hangs does so here.
#[expect(clippy::panic, reason = "what the cases about panics ask for")]
async fn act(witness: &Witness, act: Act, ticket: u64) -> Result<Then, Status> {
    match act {
        Act::Take | Act::Deafen => Ok(Then::GoesOn),
        Act::Answer => Ok(Then::Ends),
        Act::Fail => Err(failure()),
        Act::Panic => std::panic::panic_any("a step that panics"),
        Act::Gate => {
            witness.pass(ticket).await;
            Ok(Then::GoesOn)
        }
        Act::Hang => std::future::pending().await,
    }
}

/// Requests of a native stub, or of one that tonic generated.
pub(crate) trait Steps:
    Stream<Item = Result<Step, Status>> + Unpin + Send + 'static
{
}

impl<S: Stream<Item = Result<Step, Status>> + Unpin + Send + 'static> Steps for S {}

async fn next_step(requests: &mut impl Steps) -> Result<Option<Step>, Status> {
    poll_fn(|cx| Pin::new(&mut *requests).poll_next(cx)).await.transpose()
}

impl Desk {
    pub(crate) async fn collected(&self, mut requests: impl Steps) -> Result<DigestReply, Status> {
        let (mut reply, mut all) = (DigestReply::default(), Vec::new());
        let mut visit = None;
        while let Some(step) = next_step(&mut requests).await? {
            visit.get_or_insert_with(|| Visit::enter(&self.witness, step.ticket));
            match act(&self.witness, step.act(), step.ticket).await? {
                Then::GoesOn => {}
                Then::Ends => break,
            }
            reply.messages += 1;
            reply.len += step.payload.len() as u64;
            all.extend_from_slice(&step.payload);
        }
        reply.checksum = pattern::checksum(&all);
        visit.into_iter().for_each(Visit::finish);
        Ok(reply)
    }
}

struct Scan {
    witness: Arc<Witness>,
    request: ScanRequest,
    visit: Visit,
    given: u64,
}

pub(crate) fn scan(witness: &Arc<Witness>, request: ScanRequest) -> BlobStream {
    let visit = Visit::enter(witness, request.ticket);
    let state = Some(Scan { witness: Arc::clone(witness), request, visit, given: 0 });
    Box::pin(steps(state, |state| async {
        let mut scan = state?;
        if scan.given < scan.request.count {
            let blob = scan.next_blob();
            return Some((Ok(blob), Some(scan)));
        }
        let then = scan.request.then();
        match act(&scan.witness, then, scan.request.ticket).await {
            Ok(_) => {
                scan.visit.finish();
                None
            }
            Err(status) => Some((Err(status), None)),
        }
    }))
}

impl Scan {
    fn next_blob(&mut self) -> Blob {
        let lens = &self.request.lens;
        let turn = usize::try_from(self.given).expect("few") % lens.len().max(1);
        let len = lens.get(turn).copied().unwrap_or_default();
        let payload = pattern::payload(usize::try_from(len).expect("short"), self.given);
        self.given += 1;
        self.witness.log.send_modify(|log| log.produced += len);
        Blob { payload }
    }
}

struct Talk<S> {
    witness: Arc<Witness>,
    requests: Option<S>,
    visit: Option<Visit>,
}

pub(crate) fn talk(witness: &Arc<Witness>, requests: impl Steps) -> BlobStream {
    let witness = Arc::clone(witness);
    let state = Some(Talk { witness, requests: Some(requests), visit: None });
    Box::pin(steps(state, |state| async {
        let mut talk = state?;
        match talk.answer().await {
            Ok(Some(payload)) => Some((Ok(Blob { payload }), Some(talk))),
            Ok(None) => {
                talk.visit.into_iter().for_each(Visit::finish);
                None
            }
            Err(status) => Some((Err(status), None)),
        }
    }))
}

impl<S: Steps> Talk<S> {
    async fn answer(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(requests) = &mut self.requests else { return std::future::pending().await };
        let Some(step) = next_step(requests).await? else { return Ok(None) };
        self.visit.get_or_insert_with(|| Visit::enter(&self.witness, step.ticket));
        if step.act() == Act::Deafen {
            self.requests = None;
        }
        match act(&self.witness, step.act(), step.ticket).await? {
            Then::GoesOn => Ok(Some(step.payload)),
            Then::Ends => Ok(None),
        }
    }
}
