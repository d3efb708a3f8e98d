//! A call that has streams, as its handler sees it: run it, read its requests, send its replies.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::Instant;

use super::connection::{Job, Peer};
use super::handler::Handler;
use crate::buf::Body;
use crate::message::{CallId, Form, Head, Message};
use crate::proto::server::Entry;
use crate::proto::stream::{Next, Over};
use crate::request::{Origin, Received, Request, Response};
use crate::service::{StreamInput, StreamOutput};
use crate::status::{Executed, Status};
use crate::streaming::{Fed, Messages, Outlet, WindowPost, feed, send};
use crate::transport::{Connection, Flush};
use crate::wire::metadata::Block;

impl Peer {
    /// Runs a call that has streams, to the end of its replies.
    pub(super) async fn run_streaming(self: Arc<Self>, job: Job) {
        let Job { call, route, deadline, body, metadata, slot } = job;
        if self.intake.with_calls(|calls| calls.enter(Instant::now(), call)) == Entry::Stop {
            return;
        }
        if slot.is_some() {
            return self.answer(call, Err(no_slots_for_streams())).await;
        }
        let input = match route.method().request {
            Form::Whole => StreamInput::Whole(body),
            Form::Stream => StreamInput::Stream(Box::new(Requests::new(&self, call))),
        };
        let origin = Origin::Connection(Arc::clone(&self.origin));
        let request = Request::received(input, Received { deadline, origin }, metadata);
        let mut handler = Handler::enter_streaming(&*route.service, route.index, request, deadline);
        let outcome = std::future::poll_fn(|cx| handler.poll(cx)).await;
        drop(handler);
        let outcome = match outcome.map(Response::into_parts) {
            Ok((StreamOutput::Whole(body), metadata)) => Ok(Response::with_block(body, metadata)),
            Ok((StreamOutput::Stream(replies), metadata)) => {
                match self.reply_all(call, replies, metadata).await {
                    Some(outcome) => outcome,
                    None => return,
                }
            }
            Err(status) => Err(status),
        };
        self.answer(call, outcome).await;
        self.let_go();
    }

    /// Sends the replies. What ends them; `None` if nobody waits for them any more.
    async fn reply_all(
        &self,
        call: CallId,
        mut replies: Box<dyn Messages>,
        metadata: Option<Box<Block>>,
    ) -> Option<Result<Response<Body>, Status>> {
        let metadata = metadata.map_or_else(Bytes::new, |block| block.encode());
        if let Err(status) = self.origin.check_metadata(metadata.len()) {
            return Some(Err(status));
        }
        let headers = Message { metadata, ..Message::bare(Head::Headers { call }) };
        send(&*self.connection, headers, Flush::Batch).await.ok()?;
        let outlet = Replies { peer: self, call };
        match feed(&mut *replies, &outlet).await {
            Fed::Whole => {
                let mut end = Response::new(Body::new());
                *end.trailers_mut() = replies.take_trailers();
                Some(Ok(end))
            }
            Fed::Failed(status) => Some(Err(status)),
            Fed::Over => None,
        }
    }

    /// Drops what calls with streams have left, and wakes who waits on it.
    pub(super) fn let_go(&self) {
        for mut streams in self.intake.with_calls(|calls| calls.take_over()) {
            streams.wakers().for_each(|waker| waker.wake());
        }
    }
}

fn no_slots_for_streams() -> Status {
    let message = "a call of a method that has streams cannot have a slot: it is not repeated";
    Status::invalid_argument(message).with_executed(Executed::No)
}

/// The replies of a call.
struct Replies<'a> {
    peer: &'a Peer,
    call: CallId,
}

impl Outlet for Replies<'_> {
    fn poll_window(&self, cx: &mut Context<'_>) -> Poll<Result<(), Over>> {
        self.peer.intake.with_calls(|calls| calls.poll_window(self.call, cx.waker()))
    }

    fn number(&self, len: usize) -> Result<(Head, Next), Over> {
        let numbered = self.peer.intake.with_calls(|calls| calls.number(self.call, len));
        let (number, next) = numbered.ok_or(Over)?;
        Ok((Head::Message { call: self.call, number }, next))
    }

    fn check_size(&self, len: usize) -> Result<(), Status> {
        self.peer.origin.check_reply(len)
    }

    fn connection(&self) -> &dyn Connection {
        &*self.peer.connection
    }
}

/// The requests of a call.
struct Requests {
    peer: Arc<Peer>,
    call: CallId,
    window: WindowPost,
}

impl Requests {
    fn new(peer: &Arc<Peer>, call: CallId) -> Self {
        Self { peer: Arc::clone(peer), call, window: WindowPost::default() }
    }
}

impl Messages for Requests {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let polled = self.peer.intake.with_calls(|calls| calls.poll_message(self.call, cx.waker()));
        if let Poll::Ready(Some(Ok(taken))) = &polled {
            self.window.grant(taken.granted);
        }
        self.window.post(&*self.peer.connection, self.call, cx);
        polled.map(|item| item.map(|taken| taken.map(|taken| taken.message)))
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.peer.intake.with_calls(|calls| calls.close_requests(self.call));
    }
}
