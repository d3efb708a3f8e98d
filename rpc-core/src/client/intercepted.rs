//! A call through a channel with an interceptor.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cancel::Flag;
use super::channel::Channel;
use super::due::Due;
use super::stub::Client;
use crate::buf::Body;
use crate::interceptor::{
    self, Begun, Called, Dynamic, Handover, InterceptedReplies, Next, Opened, Opening, Payload,
    Progress, Rest, Side,
};
use crate::message::{Form, ReplyForm};
use crate::metadata::MetadataMap;
use crate::proto::client::Outcome;
use crate::request::{Request, Response};
use crate::service::{MethodDescriptor, StreamOutput, open_method};
use crate::status::{Executed, Status};
use crate::streaming::Messages;
use crate::transport::BoxFuture;

/// A channel and the interceptor before it.
pub(super) struct Layer {
    pub(super) channel: Channel,
    interceptor: Arc<dyn Dynamic>,
}

/// What is called, and who makes the call behind the interceptor: a client of the layer's channel.
pub(super) struct Through {
    pub(super) client: Client,
    pub(super) index: usize,
    pub(super) method: &'static MethodDescriptor,
    /// Whoever raises it cancels the call.
    pub(super) cancel: Arc<Flag>,
}

/// A call that goes through an interceptor: a future of a reply, its body not decoded.
pub(super) struct InterceptedCall {
    running: Option<BoxFuture<'static, interceptor::Outcome>>,
    progress: Arc<Progress>,
    due: Due,
}

/// The same where replies are, or may be, a stream: a future of them.
pub(super) struct InterceptedStreaming {
    opening: Option<Opening>,
    progress: Arc<Progress>,
    due: Due,
}

/// The call behind the interceptor.
pub(super) struct Behind {
    pub(super) through: Through,
    /// Where its replies go, if they are a stream.
    pub(super) replies: Option<Handover>,
}

/// The call behind the interceptor, by path.
struct BehindPath {
    channel: Channel,
    path: Arc<str>,
    /// Of the requests that the caller gave.
    form: Form,
    cancel: Arc<Flag>,
    /// Where its replies go, if they are a stream.
    replies: Handover,
}

/// A reply in the form in which it came round the interceptor.
pub(super) enum InterceptedReply {
    Whole(Body),
    Stream(Replies),
}

impl Layer {
    pub(super) fn new(channel: Channel, interceptor: Arc<dyn Dynamic>) -> Self {
        Self { channel, interceptor }
    }

    /// A call with one reply.
    pub(super) fn call(&self, through: Through, request: Request<Payload>) -> InterceptedCall {
        let called = Called { method: through.method, path: None };
        let behind = Behind { through, replies: None };
        let (running, progress, due) = self.run(called, behind, request);
        InterceptedCall { running: Some(running), progress, due }
    }

    /// A call with a stream of replies.
    pub(super) fn streaming(
        &self,
        through: Through,
        request: Request<Payload>,
    ) -> InterceptedStreaming {
        let (handover, opened) = Handover::new();
        let called = Called { method: through.method, path: None };
        let behind = Behind { through, replies: Some(handover) };
        let (running, progress, due) = self.run(called, behind, request);
        let opening = Some(Opening::new(running, opened, Arc::clone(&progress)));
        InterceptedStreaming { opening, progress, due }
    }

    /// A call by path, which whoever raises `cancel` cancels.
    pub(super) fn open(
        &self,
        path: Arc<str>,
        request: Request<Payload>,
        cancel: Arc<Flag>,
    ) -> InterceptedStreaming {
        let (replies, opened) = Handover::new();
        let form = if request.get_ref().is_stream() { Form::Stream } else { Form::Whole };
        let method = open_method(form, ReplyForm::Either);
        let called = Called { method, path: Some(Arc::clone(&path)) };
        let channel = self.channel.clone();
        let behind = BehindPath { channel, path, form, cancel, replies };
        let (running, progress, due) = self.run(called, behind, request);
        let opening = Some(Opening::new(running, opened, Arc::clone(&progress)));
        InterceptedStreaming { opening, progress, due }
    }

    fn run(
        &self,
        called: Called,
        behind: impl Rest,
        request: Request<Payload>,
    ) -> (BoxFuture<'static, interceptor::Outcome>, Arc<Progress>, Due) {
        let deadline = request.due(self.channel.default_timeout());
        let request = request.with_due(deadline);
        let (next, progress) = Next::new(called, Side::Client, Arc::new(behind));
        let running = Arc::clone(&self.interceptor).run(request, next);
        (running, progress, Due::new(deadline))
    }
}

impl Rest for Behind {
    fn run(
        &self,
        request: Request<Payload>,
        begun: Option<Begun>,
    ) -> BoxFuture<'static, interceptor::Outcome> {
        let Through { client, index, method, cancel } = &self.through;
        let (index, cancel) = (*index, cancel.child());
        if let Some(handover) = &self.replies {
            let call = request.try_map(|payload| payload.into_input(method.request));
            let call = call.map(|request| client.raw_replying(index, request, cancel));
            let handover = handover.clone();
            return Box::pin(async move {
                let mut call = call?;
                handover.pass(poll_fn(|cx| call.poll_replies(cx)).await?, begun).await
            });
        }
        if method.reply != ReplyForm::Whole {
            let message = "replies in a stream have nobody here to go to: use the method of a client for them";
            let status = Status::unimplemented(message).with_executed(Executed::No);
            return Box::pin(std::future::ready(Err(status)));
        }
        let call = match method.request {
            Form::Whole => request
                .try_map(Payload::into_whole)
                .map(|request| client.raw(index, request, cancel)),
            Form::Stream => request
                .try_map(|payload| payload.into_input(Form::Stream))
                .map(|request| client.raw_client_streaming(index, request, cancel)),
        };
        Box::pin(async move {
            let mut call = call?;
            match poll_fn(|cx| call.poll_outcome(cx)).await {
                Ok(response) => Ok(response.map(Payload::from)),
                Err(status) => Err(call.named(status)),
            }
        })
    }

    fn can_run(&self) -> bool {
        self.replies.as_ref().is_none_or(Handover::is_free)
    }
}

impl Rest for BehindPath {
    fn run(
        &self,
        request: Request<Payload>,
        begun: Option<Begun>,
    ) -> BoxFuture<'static, interceptor::Outcome> {
        let (path, cancel) = (Arc::clone(&self.path), self.cancel.child());
        let request = request.try_map(|payload| payload.into_input(self.form));
        let call = request.map(|request| self.channel.call_by_path(path, request, Some(cancel)));
        let replies = self.replies.clone();
        Box::pin(async move {
            let (reply, block) = call?.await?.into_parts();
            match reply {
                StreamOutput::Whole(body) => Ok(Response::with_block(Payload::from(body), block)),
                StreamOutput::Stream(messages) => {
                    replies.pass(Response::with_block(messages, block), begun).await
                }
            }
        })
    }

    fn can_run(&self) -> bool {
        self.replies.is_free()
    }
}

/// The end of the call was asked for. The call behind the interceptor sees that by itself, so that its
/// outcome is exact; where there is none, here is the outcome.
fn cancelled(progress: &Progress) -> Option<Status> {
    if progress.is_running() {
        return None;
    }
    let message = "the call was cancelled while no call behind its interceptor ran";
    Some(progress.status(Status::cancelled(message)))
}

fn expired(progress: &Progress) -> Status {
    let message = "the deadline passed before the call and its interceptors were done";
    progress.status(Status::deadline_exceeded(message))
}

impl InterceptedCall {
    pub(super) fn cancel(&mut self) -> Option<Status> {
        let status = cancelled(&self.progress)?;
        self.running = None;
        Some(status)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let running = self.running.as_mut().expect("a call is not polled after it has ended");
        let outcome = match running.as_mut().poll(cx) {
            Poll::Ready(outcome) => outcome.and_then(|response| {
                let (payload, block) = response.into_parts();
                Ok(Response::with_block(payload.into_whole()?, block))
            }),
            Poll::Pending => {
                std::task::ready!(self.due.poll(cx));
                // Its end says whether the call behind was sent.
                self.running = None;
                return Poll::Ready(Err(expired(&self.progress)));
            }
        };
        self.running = None;
        Poll::Ready(outcome.map_err(|status| self.progress.status(status)))
    }
}

impl InterceptedStreaming {
    pub(super) fn cancel(&mut self) -> Option<Status> {
        let status = cancelled(&self.progress)?;
        self.opening = None;
        Some(status)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Replies>, Status>> {
        let opened = std::task::ready!(self.poll_with(cx, Opening::poll))?;
        Poll::Ready(Ok(opened.map(|replies| self.replies(replies))))
    }

    /// The same where the reply may be one message.
    pub(super) fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<InterceptedReply>, Status>> {
        let opened = std::task::ready!(self.poll_with(cx, Opening::poll_reply))?;
        Poll::Ready(Ok(opened.map(|opened| match opened {
            Opened::Whole(body) => InterceptedReply::Whole(body),
            Opened::Stream(replies) => InterceptedReply::Stream(self.replies(replies)),
        })))
    }

    fn poll_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Opening, &mut Context<'_>) -> Poll<Result<T, Status>>,
    ) -> Poll<Result<T, Status>> {
        let opening = self.opening.as_mut().expect("a call is not polled after it has ended");
        let opened = match poll(opening, cx) {
            Poll::Ready(opened) => opened,
            Poll::Pending => {
                std::task::ready!(self.due.poll(cx));
                self.opening = None;
                return Poll::Ready(Err(expired(&self.progress)));
            }
        };
        self.opening = None;
        Poll::Ready(opened)
    }

    fn replies(&self, replies: InterceptedReplies) -> Replies {
        Replies { replies, due: Due::new(self.due.at()) }
    }
}

/// Replies that go round an interceptor.
pub(super) struct Replies {
    replies: InterceptedReplies,
    due: Due,
}

impl Replies {
    /// The end of the call was asked for; see [`cancelled`].
    pub(super) fn cancel(&self) -> Option<Status> {
        let message = "the call was cancelled while its interceptor was not done";
        (!self.replies.is_open()).then(|| Status::cancelled(message).with_executed(Executed::Yes))
    }

    pub(super) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Body, Status>>> {
        if let Poll::Ready(item) = self.replies.poll_message(cx) {
            return Poll::Ready(item);
        }
        // The replies keep the deadline as well, and the interceptor does not.
        std::task::ready!(self.due.poll(cx));
        let message =
            "the deadline passed before the replies and the call's interceptors were done";
        Poll::Ready(Some(Err(Status::deadline_exceeded(message).with_executed(Executed::Yes))))
    }

    pub(super) fn take_trailers(&mut self) -> MetadataMap {
        self.replies.take_trailers()
    }
}
