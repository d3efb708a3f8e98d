//! The future of a call whose reply is a stream.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cancel::{CancelHandle, Flag};
use super::in_process::{InProcessReplies, InProcessStreaming};
use super::intercepted::InterceptedStreaming;
use super::remote::RemoteCall;
use super::replies::{Replies, ReplyWay};
use crate::request::Response;
use crate::service::{StreamOutput, wrong_output};
use crate::status::Status;
use crate::streaming::{Messages, Streaming};

/// A call whose reply is a stream: a future of it, ready when the handler has taken the call.
///
/// It begins when it is first polled. Its deadline runs from the moment the client method was called, and covers the
/// stream to its end.
///
/// # Errors
///
/// As for [`Call`](super::Call), if the handler returned no stream. Later errors are the stream's last item.
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
pub struct StreamingCall<Reply> {
    kind: Kind,
    cancel: Option<Arc<Flag>>,
    reply: PhantomData<fn() -> Reply>,
}

pub(super) enum Kind {
    /// Failed before it could begin.
    Failed(Option<Status>),
    Remote(RemoteCall),
    InProcess(InProcessStreaming),
    Intercepted(InterceptedStreaming),
}

impl<Reply> StreamingCall<Reply> {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, cancel: None, reply: PhantomData }
    }

    /// A handle that cancels this call from elsewhere.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        CancelHandle::new(Arc::clone(self.cancel.get_or_insert_default()))
    }

    /// The same call, which whoever raises `cancel` cancels.
    pub(super) fn cancelled_by(self, cancel: Option<Arc<Flag>>) -> Self {
        Self { cancel, ..self }
    }

    /// Ready when the replies begin, which are not decoded.
    pub(super) fn poll_replies(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Box<dyn Messages>>, Status>> {
        let response = std::task::ready!(self.poll_way(cx))?;
        let cancel = self.cancel.clone();
        let replies = |way| Box::new(Replies { way, cancel }) as Box<dyn Messages>;
        Poll::Ready(Ok(response.map(replies)))
    }

    fn poll_way(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<ReplyWay>, Status>> {
        let cancelled = self.cancel.as_ref().is_some_and(|flag| flag.is_asked(cx.waker()));
        match &mut self.kind {
            Kind::Failed(status) => {
                Poll::Ready(Err(status.take().expect("a call is not polled after it has ended")))
            }
            Kind::Remote(call) => {
                if cancelled {
                    call.cancel()?;
                }
                let replies = std::task::ready!(call.poll_replies(cx));
                Poll::Ready(match replies {
                    Ok(response) => Ok(response.map(ReplyWay::Remote)),
                    Err(status) => Err(status.with_peer(call.peer())),
                })
            }
            Kind::Intercepted(call) => {
                if cancelled && let Some(status) = call.cancel() {
                    return Poll::Ready(Err(status));
                }
                let boxed = |replies| ReplyWay::Intercepted(Box::new(replies));
                call.poll(cx).map_ok(|response| response.map(boxed))
            }
            Kind::InProcess(call) if cancelled => Poll::Ready(Err(call.cancel())),
            Kind::InProcess(call) => {
                let response = std::task::ready!(call.poll(cx))?;
                let (output, metadata) = response.into_parts();
                Poll::Ready(match output {
                    StreamOutput::Stream(replies) => {
                        let replies = InProcessReplies::new(replies, call.deadline());
                        Ok(Response::with_block(ReplyWay::InProcess(replies), metadata))
                    }
                    StreamOutput::Whole(_) => Err(wrong_output()),
                })
            }
        }
    }
}

impl<Reply> Future for StreamingCall<Reply> {
    type Output = Result<Response<Streaming<Reply>>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = std::task::ready!(self.poll_replies(cx))?;
        Poll::Ready(Ok(response.map(Streaming::of_replies)))
    }
}

impl<Reply> fmt::Debug for StreamingCall<Reply> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match &self.kind {
            Kind::Failed(_) => "failed",
            Kind::Remote(_) => "remote",
            Kind::InProcess(_) => "in process",
            Kind::Intercepted(_) => "intercepted",
        };
        write!(f, "StreamingCall({way})")
    }
}
