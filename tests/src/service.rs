//! The services that cases call, and the witness of what their handlers did.
//!
//! A case never waits for time to pass: it waits until the [`Witness`] has seen what it expects.

pub(crate) mod streaming;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};
use verbwire::{Code, Request, Response, Status, Streaming, shield};

use crate::fixture::{LONG, Late};
use crate::pattern;
use crate::proto::conformance::conformance_server::Conformance;
use crate::proto::conformance::panic_request::Moment;
use crate::proto::conformance::second_server::Second;
use crate::proto::conformance::{
    Blob, DigestReply, FailRequest, InlineRequest, InspectReply, Nothing, PanicRequest,
    ProduceRequest, ScanRequest, Step, Ticket,
};

use streaming::BlobStream;

/// What handlers with a ticket did, for tests in the same process.
#[derive(Debug, Default)]
pub struct Witness {
    log: watch::Sender<Log>,
    gates: Mutex<BTreeMap<u64, Arc<Semaphore>>>,
}

/// What a [`Witness`] has seen.
#[derive(Debug, Default, Clone)]
pub struct Log {
    /// Tickets whose handlers were entered.
    pub entered: BTreeSet<u64>,
    /// Tickets whose handlers came to their end.
    pub finished: BTreeSet<u64>,
    /// Tickets whose handlers were dropped before their end.
    pub dropped: BTreeSet<u64>,
    /// Entries, so that a ticket that ran twice shows.
    pub entries: usize,
    /// Calls of `Fail`.
    pub failures: usize,
    /// Handlers that are running.
    pub running: usize,
    /// Most handlers that ever ran at a time.
    pub most_running: usize,
    /// Bytes of all replies that `Produce` made.
    pub produced: u64,
    /// Bytes of those that somebody still holds.
    pub held: u64,
    /// Most bytes of them that were ever held at a time.
    pub most_held: u64,
}

impl Witness {
    /// What was seen so far.
    pub fn log(&self) -> Log {
        self.log.borrow().clone()
    }

    /// Waits until `seen` holds.
    ///
    /// # Panics
    ///
    /// If it does not come to hold in a long time.
    pub async fn until(&self, seen: impl FnMut(&Log) -> bool) {
        let mut log = self.log.subscribe();
        let is_seen = timeout(LONG, log.wait_for(seen)).await.is_ok();
        assert!(is_seen, "not seen within {LONG:?}: {:#?}", self.log());
    }

    /// Whether the handler of `ticket` was entered before a call, which has ended by now, reached its deadline.
    ///
    /// # Errors
    ///
    /// It was not, see [`in_time`](crate::fixture::in_time).
    pub fn entered_in_time(&self, ticket: u64) -> Result<(), Late> {
        let was_entered = self.log.borrow().entered.contains(&ticket);
        was_entered.then_some(()).ok_or(Late("no handler was entered"))
    }

    /// Lets one handler through the gate of `ticket`, now or when it comes.
    pub fn open(&self, ticket: u64) {
        self.gate(ticket).add_permits(1);
    }

    fn gate(&self, ticket: u64) -> Arc<Semaphore> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        let gate = gates.entry(ticket).or_insert_with(|| Arc::new(Semaphore::new(0)));
        Arc::clone(gate)
    }

    pub(crate) async fn pass(&self, ticket: u64) {
        let gate = self.gate(ticket);
        let permit = gate.acquire().await.expect("gates are never closed");
        permit.forget();
    }
}

/// A handler from its entry to its end; notes which of the two ends it was.
pub(crate) struct Visit {
    witness: Arc<Witness>,
    ticket: u64,
    is_finished: bool,
}

impl Visit {
    pub(crate) fn enter(witness: &Arc<Witness>, ticket: u64) -> Self {
        witness.log.send_modify(|log| {
            log.entered.insert(ticket);
            log.entries += 1;
            log.running += 1;
            log.most_running = log.most_running.max(log.running);
        });
        Self { witness: Arc::clone(witness), ticket, is_finished: false }
    }

    pub(crate) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.witness.log.send_modify(|log| {
            log.running -= 1;
            let ends = if self.is_finished { &mut log.finished } else { &mut log.dropped };
            ends.insert(self.ticket);
        });
    }
}

/// A reply's memory until the last one who holds it lets go.
struct Held {
    witness: Arc<Witness>,
    memory: Bytes,
}

impl Held {
    fn new(witness: &Arc<Witness>, memory: Bytes) -> Self {
        let len = memory.len() as u64;
        witness.log.send_modify(|log| {
            log.produced += len;
            log.held += len;
            log.most_held = log.most_held.max(log.held);
        });
        Self { witness: Arc::clone(witness), memory }
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.witness.log.send_modify(|log| log.held -= self.memory.len() as u64);
    }
}

/// The implementation of both services.
#[derive(Debug, Default, Clone)]
pub struct Desk {
    witness: Arc<Witness>,
}

impl Desk {
    /// What its handlers did.
    pub fn witness(&self) -> &Arc<Witness> {
        &self.witness
    }
}

impl Conformance for Desk {
    async fn collect(
        &self,
        request: Request<Streaming<Step>>,
    ) -> Result<Response<DigestReply>, Status> {
        self.collected(request.into_inner()).await.map(Response::new)
    }

    type ScanStream = BlobStream;

    async fn scan(&self, request: Request<ScanRequest>) -> Result<Response<BlobStream>, Status> {
        Ok(Response::new(streaming::scan(&self.witness, request.into_inner())))
    }

    type TalkStream = BlobStream;

    async fn talk(
        &self,
        request: Request<Streaming<Step>>,
    ) -> Result<Response<BlobStream>, Status> {
        Ok(Response::new(streaming::talk(&self.witness, request.into_inner())))
    }

    async fn echo(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn echo_inline(&self, request: Request<InlineRequest>) -> Result<Response<Blob>, Status> {
        let InlineRequest { payload, yields } = request.into_inner();
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        Ok(Response::new(Blob { payload }))
    }

    async fn fail(&self, request: Request<FailRequest>) -> Result<Response<Nothing>, Status> {
        self.witness.log.send_modify(|log| log.failures += 1);
        let FailRequest { code, message, details } = request.into_inner();
        Err(Status::new(Code::from(code), message).with_details(details))
    }

    async fn gate(&self, request: Request<Ticket>) -> Result<Response<Ticket>, Status> {
        let ticket = request.into_inner();
        let visit = Visit::enter(&self.witness, ticket.number);
        self.witness.pass(ticket.number).await;
        visit.finish();
        Ok(Response::new(ticket))
    }

    async fn hang(&self, request: Request<Ticket>) -> Result<Response<Nothing>, Status> {
        let _visit = Visit::enter(&self.witness, request.get_ref().number);
        std::future::pending().await
    }

    async fn shielded(&self, request: Request<Ticket>) -> Result<Response<Ticket>, Status> {
        let ticket = request.into_inner();
        let witness = Arc::clone(&self.witness);
        let reply = shield(async move {
            let visit = Visit::enter(&witness, ticket.number);
            witness.pass(ticket.number).await;
            visit.finish();
            ticket
        });
        Ok(Response::new(reply.await))
    }

    async fn panic(&self, request: Request<PanicRequest>) -> Result<Response<Nothing>, Status> {
        fall(request.into_inner()).await
    }

    async fn panic_inline(
        &self,
        request: Request<PanicRequest>,
    ) -> Result<Response<Nothing>, Status> {
        fall(request.into_inner()).await
    }

    async fn produce(&self, request: Request<ProduceRequest>) -> Result<Response<Blob>, Status> {
        let ProduceRequest { len, seed } = *request.get_ref();
        let len = usize::try_from(len).map_err(|_| Status::out_of_range("no such length"))?;
        let mut buffer = request.alloc(len).await?;
        pattern::fill(&mut buffer, seed);
        let payload = Bytes::from_owner(Held::new(&self.witness, buffer.freeze()));
        Ok(Response::new(Blob { payload }))
    }

    async fn digest(&self, request: Request<Blob>) -> Result<Response<DigestReply>, Status> {
        let payload = &request.get_ref().payload;
        Ok(Response::new(DigestReply {
            len: payload.len() as u64,
            checksum: pattern::checksum(payload),
            address: payload.as_ptr().addr() as u64,
            messages: 1,
        }))
    }

    async fn inspect(&self, request: Request<Nothing>) -> Result<Response<InspectReply>, Status> {
        let deadline = request.deadline().expect("a received request has one");
        let left = deadline.saturating_duration_since(Instant::now());
        Ok(Response::new(InspectReply {
            left_us: u64::try_from(left.as_micros()).unwrap_or(u64::MAX),
            transport: request.path().map_or_else(String::new, |path| path.transport.to_owned()),
        }))
    }
}

impl Second for Desk {
    /// Unlike the other's, in front of the payload stands which service it was.
    async fn echo(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        let payload = [b"second ", &request.get_ref().payload[..]].concat();
        Ok(Response::new(Blob { payload: Bytes::from(payload) }))
    }

    type TalkStream = Streaming<Blob>;

    async fn talk(
        &self,
        request: Request<Streaming<Blob>>,
    ) -> Result<Response<Streaming<Blob>>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

#[expect(clippy::panic, reason = "what the cases about panics ask for")]
async fn fall(request: PanicRequest) -> Result<Response<Nothing>, Status> {
    if request.moment() == Moment::AfterAwait {
        tokio::task::yield_now().await;
    }
    std::panic::panic_any(request.secret)
}
