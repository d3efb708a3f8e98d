//! Calls of methods whose form the caller does not know.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::cancel::{CancelHandle, Flag};
use super::channel::{Channel, IN_PROCESS_TIMEOUT, Way};
use super::in_process::{InProcessOpen, OpenReply};
use super::intercepted::{InterceptedReply, InterceptedStreaming};
use super::remote::{RemoteCall, RemoteReply};
use super::replies::{Replies, ReplyWay};
use super::sending::Method;
use super::stub::{check_path, check_server, not_offered, refuse_slot, remote, sent_as};
use crate::interceptor::Payload;
use crate::message::{MethodId, ReplyForm};
use crate::request::{Request, Response};
use crate::service::{Service, StreamInput, StreamOutput};
use crate::status::Status;
use crate::streaming::Messages;

/// A call by path: a future of its encoded reply, ready when that is there, or when it begins as a stream.
///
/// It begins when it is first polled. Its deadline runs from [`Channel::call`], and covers a stream to its end.
///
/// # Errors
///
/// As for [`Call`](super::Call). Errors behind the beginning of a stream are its last item.
///
/// # Panics
///
/// As for [`Call`](super::Call).
///
/// # Cancel safety
///
/// Dropping the call, or the stream before its end, cancels it. [`cancel_handle`](Self::cancel_handle) cancels from
/// elsewhere, also when the stream is there.
#[must_use = "a call does nothing until it is awaited or polled"]
pub struct OpenCall {
    kind: Kind,
    cancel: Option<Arc<Flag>>,
}

enum Kind {
    /// Failed before it could begin.
    Failed(Option<Status>),
    Remote(RemoteCall),
    InProcess(Box<InProcessOpen>),
    Intercepted(InterceptedStreaming),
}

/// A reply whose stream, if it is one, has not been boxed.
enum Found {
    Whole(crate::Body),
    Stream(ReplyWay),
}

impl Channel {
    /// Calls the method at `path`, `/package.Service/Method`, with an encoded request in whichever form, and takes the
    /// reply in the form that the method has. For bridges and proxies, which do not know the methods that they hand on;
    /// generated clients know theirs, and cost less.
    ///
    /// A method that takes a stream gets a request of one message as a stream of one. A method that takes one request gets
    /// a stream as its only message, once that has ended; with none or more the call fails with `Unimplemented`, not executed.
    ///
    /// A task on the channel's runtime polls a stream of requests. Paths are given numbers as those of generated clients are, up
    /// to 1024 on a connection; the rest are sent with every call.
    pub fn call(&self, path: impl Into<Arc<str>>, request: Request<StreamInput>) -> OpenCall {
        self.call_by_path(path.into(), request, None)
    }

    /// The same; whoever raises `cancel` cancels it.
    pub(super) fn call_by_path(
        &self,
        path: Arc<str>,
        request: Request<StreamInput>,
        cancel: Option<Arc<Flag>>,
    ) -> OpenCall {
        let started = match &self.0 {
            Way::Link(_) | Way::Managed(_) => over(self, path, request).map(Kind::Remote),
            Way::InProcess(service) => in_process(service, &path, request).map(Kind::InProcess),
            Way::Intercepted(layer) => {
                let cancel = cancel.unwrap_or_default();
                let call = layer.open(path, request.map(Payload::from), Arc::clone(&cancel));
                return OpenCall { kind: Kind::Intercepted(call), cancel: Some(cancel) };
            }
        };
        let kind = started.unwrap_or_else(|status| Kind::Failed(Some(status)));
        OpenCall { kind, cancel }
    }
}

fn over(
    channel: &Channel,
    path: Arc<str>,
    request: Request<StreamInput>,
) -> Result<RemoteCall, Status> {
    let (mut options, input) = request.split();
    let begin = || {
        if let StreamInput::Stream(_) = input {
            refuse_slot(&options, "a stream of requests")?;
        }
        check_server(channel, &options)?;
        check_path(&path)?;
        let (body, mut streams) = sent_as(input, ReplyForm::Either);
        let number = match &channel.0 {
            Way::Link(link) => link.number(&path),
            Way::Managed(managed) => managed.number(&path),
            Way::InProcess(_) | Way::Intercepted(_) => MethodId::NONE,
        };
        streams.path = Some(path);
        let method = Method { number, path: None, idempotent: false };
        Ok(remote(channel, method, &mut options, body, Some(streams)))
    };
    begin().map_err(|status: Status| status.with_peer(channel.peer()))
}

fn in_process(
    service: &Arc<dyn Service>,
    path: &Arc<str>,
    request: Request<StreamInput>,
) -> Result<Box<InProcessOpen>, Status> {
    let (mut options, input) = request.split();
    refuse_slot(&options, "a service in this process, which keeps no sessions")?;
    let deadline = options.due(IN_PROCESS_TIMEOUT);
    let call = InProcessOpen::new(service, path, input, options.take_metadata(), deadline);
    call.map(Box::new).ok_or_else(|| not_offered(service, path))
}

impl OpenCall {
    /// A handle that cancels this call from elsewhere.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        CancelHandle::new(Arc::clone(self.cancel.get_or_insert_default()))
    }

    fn poll_found(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Found>, Status>> {
        let cancelled = self.cancel.as_ref().is_some_and(|flag| flag.is_asked(cx.waker()));
        match &mut self.kind {
            Kind::Failed(status) => {
                Poll::Ready(Err(status.take().expect("a call is not polled after it has ended")))
            }
            Kind::Remote(call) => {
                if cancelled {
                    call.cancel()?;
                }
                let reply =
                    ready!(call.poll_reply(cx)).map_err(|status| status.with_peer(call.peer()))?;
                Poll::Ready(Ok(reply.map(|reply| match reply {
                    RemoteReply::Whole(body) => Found::Whole(body),
                    RemoteReply::Stream(replies) => Found::Stream(ReplyWay::Remote(replies)),
                })))
            }
            Kind::InProcess(call) if cancelled => Poll::Ready(Err(call.cancel())),
            Kind::InProcess(call) => call.poll(cx).map_ok(|response| {
                response.map(|reply| match reply {
                    OpenReply::Whole(body) => Found::Whole(body),
                    OpenReply::Stream(replies) => Found::Stream(ReplyWay::InProcess(replies)),
                })
            }),
            Kind::Intercepted(call) => {
                if cancelled && let Some(status) = call.cancel() {
                    return Poll::Ready(Err(status));
                }
                call.poll_reply(cx).map_ok(|response| {
                    response.map(|reply| match reply {
                        InterceptedReply::Whole(body) => Found::Whole(body),
                        InterceptedReply::Stream(replies) => {
                            Found::Stream(ReplyWay::Intercepted(Box::new(replies)))
                        }
                    })
                })
            }
        }
    }
}

impl Future for OpenCall {
    type Output = Result<Response<StreamOutput>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let found = ready!(self.poll_found(cx))?;
        let cancel = self.cancel.take();
        Poll::Ready(Ok(found.map(|found| match found {
            Found::Whole(body) => StreamOutput::Whole(body),
            Found::Stream(way) => {
                StreamOutput::Stream(Box::new(Replies { way, cancel }) as Box<dyn Messages>)
            }
        })))
    }
}

impl fmt::Debug for OpenCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match &self.kind {
            Kind::Failed(_) => "failed",
            Kind::Remote(_) => "remote",
            Kind::InProcess(_) => "in process",
            Kind::Intercepted(_) => "intercepted",
        };
        write!(f, "OpenCall({way})")
    }
}
