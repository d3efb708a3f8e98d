//! The future of a call.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cancel::{CancelHandle, Flag};
use super::in_process::{InProcessCall, InProcessStreaming};
use super::intercepted::InterceptedCall;
use super::remote::RemoteCall;
use crate::codec::{Codec, Prost};
use crate::proto::client::Outcome;
use crate::request::Response;
use crate::service::{StreamOutput, wrong_output};
use crate::status::{Executed, Status};

/// A call: a future of its reply.
///
/// It begins when it is first polled, and its deadline runs from the moment the client method was called.
///
/// # Errors
///
/// The status that the handler returned, or one that says what kept the call from its handler. Its
/// [`executed`](Status::executed) says whether the handler ran.
///
/// # Panics
///
/// If it is polled outside of a tokio runtime and has to wait for its turn on the connection, or, in process,
/// for its handler.
///
/// # Cancel safety
///
/// Dropping a call cancels it: the server drops the handler at its next await. Nothing is lost but the
/// reply. [`cancel_handle`](Self::cancel_handle) cancels from elsewhere and still gives an outcome.
#[must_use = "a call does nothing until it is awaited or polled"]
pub struct Call<Reply> {
    kind: Kind,
    cancel: Option<Arc<Flag>>,
    reply: PhantomData<fn() -> Reply>,
}

pub(super) enum Kind {
    /// Failed before it could begin.
    Failed(Option<Status>),
    Remote(RemoteCall),
    InProcess(InProcessCall),
    Intercepted(InterceptedCall),
    /// With a stream of requests.
    InProcessStreaming(InProcessStreaming),
}

impl<Reply> Call<Reply> {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, cancel: None, reply: PhantomData }
    }

    /// The same call, which whoever raises `cancel` cancels.
    pub(super) fn cancelled_by(self, cancel: Option<Arc<Flag>>) -> Self {
        Self { cancel, ..self }
    }

    /// A handle that cancels this call from elsewhere.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        CancelHandle::new(Arc::clone(self.cancel.get_or_insert_default()))
    }

    /// A status with the address that the call went to.
    pub(super) fn named(&self, status: Status) -> Status {
        match &self.kind {
            Kind::Remote(call) => status.with_peer(call.peer()),
            Kind::Failed(_)
            | Kind::InProcess(_)
            | Kind::InProcessStreaming(_)
            | Kind::Intercepted(_) => status,
        }
    }

    pub(super) fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let cancelled = self.cancel.as_ref().is_some_and(|flag| flag.is_asked(cx.waker()));
        match &mut self.kind {
            Kind::Failed(status) => {
                Poll::Ready(Err(status.take().expect("a call is not polled after it has ended")))
            }
            Kind::Remote(call) => {
                if cancelled {
                    call.cancel()?;
                }
                call.poll(cx)
            }
            Kind::Intercepted(call) => {
                if cancelled && let Some(status) = call.cancel() {
                    return Poll::Ready(Err(status));
                }
                call.poll(cx)
            }
            Kind::InProcess(call) if cancelled => Poll::Ready(Err(call.cancel())),
            Kind::InProcess(call) => call.poll(cx),
            Kind::InProcessStreaming(call) if cancelled => Poll::Ready(Err(call.cancel())),
            Kind::InProcessStreaming(call) => call.poll(cx).map(|response| {
                let (output, metadata) = response?.into_parts();
                match output {
                    StreamOutput::Whole(body) => Ok(Response::with_block(body, metadata)),
                    StreamOutput::Stream(_) => Err(wrong_output()),
                }
            }),
        }
    }
}

impl<Reply> Future for Call<Reply>
where
    Prost: Codec<Reply>,
{
    type Output = Result<Response<Reply>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = std::task::ready!(self.poll_outcome(cx));
        let (body, metadata) = outcome.map_err(|status| self.named(status))?.into_parts();
        let reply: Result<Reply, Status> = Prost.decode(body);
        Poll::Ready(match reply {
            Ok(reply) => Ok(Response::with_block(reply, metadata)),
            Err(status) => Err(self.named(status.with_executed(Executed::Yes))),
        })
    }
}

impl<Reply> fmt::Debug for Call<Reply> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match &self.kind {
            Kind::Failed(_) => "failed",
            Kind::Remote(_) => "remote",
            Kind::InProcess(_) | Kind::InProcessStreaming(_) => "in process",
            Kind::Intercepted(_) => "intercepted",
        };
        write!(f, "Call({way})")
    }
}
