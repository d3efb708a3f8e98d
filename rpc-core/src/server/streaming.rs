//! A call that has streams, as its handler sees it: run it, read its requests, send its replies.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::Instant;

use super::connection::{Job, Peer, unwound};
use super::handler::Handler;
use super::intake::Calls;
use super::router::Route;
use crate::buf::Body;
use crate::message::{CallId, Form, Head, Message, ReplyForm};
use crate::panics::caught;
use crate::proto::server::{Entry, Forms};
use crate::proto::stream::{Next, Over};
use crate::request::{Origin, Received, Request, Response};
use crate::service::{StreamInput, StreamOutput, entrance_of, wrong_output};
use crate::status::{Executed, Status};
use crate::streaming::{Fed, Messages, One, Outlet, Single, WindowPost, feed, send};
use crate::transport::{Connection, Flush};
use crate::wire::metadata::Block;

impl Peer {
    /// Runs a call that has streams, to the end of its replies.
    pub(super) async fn run_streaming(self: Arc<Self>, job: Job) {
        let call = job.call;
        if let Err(panic) = caught(self.run_streaming_to_answer(job)).await {
            self.answer(call, Err(unwound(&panic))).await;
            self.let_go();
        }
    }

    async fn run_streaming_to_answer(self: &Arc<Self>, job: Job) {
        let Job { call, route, forms, deadline, body, metadata, slot } = job;
        let method = route.method(forms);
        let input = match (method.request, forms.request) {
            (Form::Whole, Form::Whole) => StreamInput::Whole(body),
            (Form::Stream, Form::Stream) => {
                StreamInput::Stream(Box::new(Requests::new(self, call)))
            }
            // Its caller does not know the method's form.
            (Form::Stream, Form::Whole) => StreamInput::Stream(Box::new(One::new(body))),
            (Form::Whole, Form::Stream) => match self.collect(call).await {
                Some(body) => StreamInput::Whole(body),
                None => return,
            },
        };
        let entrance = entrance_of(&*route.service);
        let enter = |calls: &mut Calls| calls.enter(Instant::now(), call, entrance.as_ref());
        if self.intake.with_calls(enter) == Entry::Stop {
            return;
        }
        if slot.is_some() {
            return self.answer(call, Err(no_slots_for_streams())).await;
        }
        let origin = Origin::Connection(Arc::clone(&self.origin));
        let mut request = Request::received(input, Received { deadline, origin }, metadata);
        request.set_called_path(route.path().cloned());
        request.set_entrance(entrance);
        let outcome = run_handler(&route, forms, request, deadline).await;
        let outcome = match outcome.map(Response::into_parts) {
            Ok((StreamOutput::Whole(body), metadata)) if forms.reply != ReplyForm::Stream => {
                self.intake.with_calls(|calls| calls.reply_whole(call));
                Ok(Response::with_block(body, metadata))
            }
            Ok((StreamOutput::Stream(replies), metadata)) if forms.reply != ReplyForm::Whole => {
                match self.reply_all(call, replies, metadata).await {
                    Some(outcome) => outcome,
                    None => return,
                }
            }
            Ok(_) => Err(wrong_output()),
            Err(status) => Err(status),
        };
        self.answer(call, outcome).await;
        self.let_go();
    }

    /// The only message of a stream of requests. `None` where it is not that, and the call has ended.
    async fn collect(self: &Arc<Self>, call: CallId) -> Option<Body> {
        let mut single = Single::new(Box::new(Requests::new(self, call)));
        let not = match poll_fn(|cx| single.poll(cx)).await {
            Ok(body) => return Some(body),
            Err(not) => not,
        };
        let stopped = self.intake.with_calls(|calls| calls.stop(call))?;
        let status = not.of_request().with_executed(stopped.executed);
        // An ended connection has no one to answer.
        let _sent = send(&*self.connection, self.refusal(call, &status), Flush::Batch).await;
        self.let_go();
        None
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
        let headers = Message::bare(Head::Headers { call }).with_metadata(metadata);
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

/// Runs the handler of a call that has streams, although its method may have none.
async fn run_handler(
    route: &Route,
    forms: Forms,
    request: Request<StreamInput>,
    deadline: Instant,
) -> Result<Response<StreamOutput>, Status> {
    let (service, index) = (&*route.service, route.index(forms));
    match request.split() {
        (request, StreamInput::Whole(body)) if !route.method(forms).has_streams() => {
            let request = request.map(|()| body);
            let mut handler = Handler::enter(service, index, request, deadline);
            let reply = poll_fn(|cx| handler.poll(cx)).await?;
            Ok(reply.map(StreamOutput::Whole))
        }
        (request, input) => {
            let request = request.map(|()| input);
            let mut handler = Handler::enter_streaming(service, index, request, deadline);
            poll_fn(|cx| handler.poll(cx)).await
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

    fn outgoing(&self, body: Body) -> Result<Body, Status> {
        self.peer.outgoing(body)
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

    fn poll_len(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        self.window.post(&*self.peer.connection, self.call, cx);
        let next = self.peer.intake.with_calls(|calls| calls.poll_next(self.call, cx.waker()));
        // Without the lock: of one that is compressed, it is work.
        next.map(|next| next.map(|body| body.decompressed_len()))
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.peer.intake.with_calls(|calls| calls.close_requests(self.call));
    }
}
