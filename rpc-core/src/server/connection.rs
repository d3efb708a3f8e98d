//! One connection as its handlers see it: run a call, answer it.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::error;

use super::handler::Handler;
use super::intake::{Calls, Intake};
use super::router::Route;
use super::workers::Workers;
use crate::buf::Body;
use crate::compression::Compression;
use crate::message::{CallId, Head, Message, SlotUse};
use crate::metadata::MetadataMap;
use crate::panics::{Panic, caught, panic_message};
use crate::proto::server::{Answer, Entry, Forms};
use crate::request::{ConnectionOrigin, Origin, Received, Request, Response};
use crate::service::entrance_of;
use crate::status::{Code, Executed, Status};
use crate::transport::{Connection, Flush, Outgoing, SendError, SendHints};
use crate::wire;

/// What the driver and the handlers of a connection share.
pub(super) struct Peer {
    pub(super) connection: Arc<dyn Connection>,
    pub(super) intake: Arc<Intake>,
    pub(super) origin: Arc<ConnectionOrigin>,
    /// Where unary calls run.
    pub(super) workers: Workers,
    /// What is done with replies.
    pub(super) compression: Compression,
}

/// A call that was admitted.
pub(super) struct Job {
    pub(super) call: CallId,
    pub(super) route: Route,
    pub(super) forms: Forms,
    pub(super) deadline: Instant,
    pub(super) body: Body,
    pub(super) metadata: Option<Box<MetadataMap>>,
    pub(super) slot: Option<Box<SlotUse>>,
}

impl Peer {
    /// Runs a call: enters its handler, unless it has ended meanwhile, and sends the answer.
    pub(super) async fn run(&self, job: Job) {
        let call = job.call;
        if let Err(panic) = caught(self.run_to_answer(job)).await {
            self.answer(call, Err(unwound(&panic))).await;
        }
    }

    async fn run_to_answer(&self, job: Job) {
        let Job { call, route, forms, deadline, body, metadata, slot } = job;
        let entrance = entrance_of(&*route.service);
        let enter = |calls: &mut Calls| calls.enter(Instant::now(), call, entrance.as_ref());
        if self.intake.with_calls(enter) == Entry::Stop {
            return;
        }
        if slot.is_some()
            && let Err(status) = self.intake.check_slot()
        {
            return self.answer(call, Err(status)).await;
        }
        let origin = Origin::Connection(Arc::clone(&self.origin));
        let received = Received { deadline, origin };
        let mut request = Request::received(body, received, metadata);
        request.receive_slot(slot);
        request.set_entrance(entrance);
        request.set_called_path(route.path().cloned());
        let mut handler = Handler::enter(&*route.service, route.index(forms), request, deadline);
        let outcome = poll_fn(|cx| handler.poll(cx)).await;
        self.answer(call, outcome).await;
    }

    /// Sends a handler's answer, if it is still wanted. Waits while the peer takes no more.
    pub(super) async fn answer(&self, call: CallId, outcome: Result<Response<Body>, Status>) {
        let returned = self.intake.with_calls(|calls| calls.handle_returned(call));
        let Answer::Send { in_flight, messages } = returned else {
            return;
        };
        let flush = if in_flight == 0 { Flush::Now } else { Flush::Batch };
        let reply = catch_unwind(AssertUnwindSafe(|| self.response(call, outcome, messages)));
        let message = reply.unwrap_or_else(|panic| self.failure(call, &unwound(&panic), messages));
        let mut outgoing = Outgoing { message, hints: SendHints::flush(flush) };
        // An ended connection has no one to answer.
        while let Err(SendError::Full(back)) = self.connection.try_send(outgoing) {
            poll_fn(|cx| self.connection.poll_ready(cx)).await;
            outgoing = *back;
        }
    }

    fn response(
        &self,
        call: CallId,
        outcome: Result<Response<Body>, Status>,
        messages: Option<u32>,
    ) -> Message {
        match outcome.and_then(|response| self.reply(response)) {
            Ok((body, metadata)) => {
                let head =
                    Head::Response { call, code: Code::Ok, executed: Executed::Yes, messages };
                Message::with_body(head, body).with_metadata(metadata)
            }
            Err(status) => self.failure(call, &status, messages),
        }
    }

    /// A reply's body and metadata, within the client's limits.
    fn reply(&self, response: Response<Body>) -> Result<(Body, Bytes), Status> {
        let (body, metadata) = response.into_parts();
        let body = self.outgoing(body)?;
        let metadata = metadata.map_or_else(Bytes::new, |block| block.encode());
        self.origin.check_metadata(metadata.len())?;
        Ok((body, metadata))
    }

    /// A message as it is sent, within the client's limits.
    pub(super) fn outgoing(&self, body: Body) -> Result<Body, Status> {
        let check = |len| self.origin.check_reply(len);
        let prepared = self.origin.takes.prepare(body, self.compression, check);
        prepared.map_err(|status| status.with_executed(Executed::Yes))
    }

    /// The RESPONSE that carries a status, and ends the call at once.
    pub(super) fn refusal(&self, call: CallId, status: &Status) -> Message {
        self.failure(call, status, None)
    }

    fn failure(&self, call: CallId, status: &Status, messages: Option<u32>) -> Message {
        // A handler that fails with `Ok` has no reply to send, so that cannot be what it meant.
        let code = if status.code() == Code::Ok { Code::Unknown } else { status.code() };
        let head = Head::Response { call, code, executed: status.executed(), messages };
        let metadata = wire::metadata::encode(&MetadataMap::new(), status.metadata());
        let Err(too_much) = self.origin.check_metadata(metadata.len()) else {
            let body = wire::status::encode(status, self.origin.max_reply);
            return Message::with_body(head, body).with_metadata(metadata);
        };
        let words = format!("{} (left out: {})", status.message(), too_much.message());
        let status = status.clone().with_message(words);
        Message::with_body(head, wire::status::encode(&status, self.origin.max_reply))
    }
}

/// What a call ends with whose task was left by a panic: of memory or metadata that its handler gave, as it was dropped.
pub(super) fn unwound(panic: &Panic) -> Status {
    error!(panic = panic_message(&**panic), "what a handler gave panicked");
    Status::internal("what the handler gave panicked as it was dropped; the server's log says why")
        .with_executed(Executed::Maybe)
}
