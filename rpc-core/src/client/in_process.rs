//! A call to a service in the same process: encode, dispatch and decode in the caller's task.
//!
//! No transport and no task of its own: polling the call polls the handler, dropping it drops the handler. Where there
//! are streams, the handler polls the caller's and the caller polls the handler's.

mod open;
mod streams;

use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::due::Due;
use super::link::expired_before_sending;
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::proto::entrance::{Entrance, stop};
use crate::request::{Origin, Received, Request, Response};
use crate::server::Handler;
use crate::service::{Service, StreamInput, StreamOutput, entrance_of};
use crate::status::{Executed, Status};

pub(super) use open::{InProcessOpen, OpenReply};
pub(super) use streams::InProcessReplies;

/// A future of what the handler of a method without streams returns.
pub(super) type InProcessCall = InProcess<Body>;

/// A future of what the handler of a method with streams returns.
pub(super) type InProcessStreaming = InProcess<StreamInput>;

/// A future of what a handler that is called with `I` returns.
pub(super) struct InProcess<I: Input> {
    stage: Stage<I>,
    due: Due,
}

/// What is called.
pub(super) struct Target {
    pub(super) service: Arc<dyn Service>,
    pub(super) method: usize,
    /// Where the method does not say it.
    pub(super) path: Option<Arc<str>>,
}

enum Stage<I: Input> {
    /// Not polled yet.
    Ready {
        target: Target,
        input: I,
        metadata: Option<Box<MetadataMap>>,
    },
    Running(Handler<I::Output>, Option<Arc<Entrance>>),
    Over,
}

/// What a handler is called with.
pub(super) trait Input: Sized {
    /// What it returns.
    type Output;

    /// What a caller is told whose deadline came first.
    const EXPIRED: &str;

    fn enter(
        service: &dyn Service,
        method: usize,
        request: Request<Self>,
        deadline: Instant,
    ) -> Handler<Self::Output>;

    fn poll(
        handler: &mut Handler<Self::Output>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Self::Output>, Status>>;
}

impl Input for Body {
    type Output = Self;

    const EXPIRED: &str = "the deadline passed before the handler returned";

    fn enter(
        service: &dyn Service,
        method: usize,
        request: Request<Self>,
        deadline: Instant,
    ) -> Handler {
        Handler::enter(service, method, request, deadline)
    }

    fn poll(handler: &mut Handler, cx: &mut Context<'_>) -> Poll<Result<Response<Self>, Status>> {
        handler.poll(cx)
    }
}

impl Input for StreamInput {
    type Output = StreamOutput;

    /// Of its replies as well, which go on when the handler has returned.
    const EXPIRED: &str = "the deadline passed before the handler was done";

    fn enter(
        service: &dyn Service,
        method: usize,
        request: Request<Self>,
        deadline: Instant,
    ) -> Handler<StreamOutput> {
        Handler::enter_streaming(service, method, request, deadline)
    }

    fn poll(
        handler: &mut Handler<StreamOutput>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<StreamOutput>, Status>> {
        handler.poll(cx)
    }
}

impl<I: Input> InProcess<I> {
    pub(super) fn new(
        target: Target,
        input: I,
        metadata: Option<Box<MetadataMap>>,
        deadline: Instant,
    ) -> Self {
        let stage = Stage::Ready { target, input, metadata };
        Self { stage, due: Due::new(deadline) }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.due.at()
    }

    /// Ends the call; its handler is dropped.
    pub(super) fn cancel(&mut self) -> Status {
        cancelled(self.stop())
    }

    /// Drops the handler. Says whether it was entered.
    fn stop(&mut self) -> Executed {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Ready { .. } => Executed::No,
            Stage::Running(handler, entrance) => {
                // First, so that nothing is entered while it is dropped.
                let executed = stop(entrance.as_deref());
                drop(handler);
                executed
            }
            // Its outcome said it.
            Stage::Over => Executed::Maybe,
        }
    }

    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<I::Output>, Status>> {
        if let Err(status) = self.enter() {
            return Poll::Ready(Err(status));
        }
        let Stage::Running(handler, _) = &mut self.stage else {
            unreachable!("a call is not polled after it has ended");
        };
        if let Poll::Ready(outcome) = I::poll(handler, cx) {
            self.stage = Stage::Over;
            return Poll::Ready(outcome);
        }
        std::task::ready!(self.due.poll(cx));
        let executed = self.stop();
        Poll::Ready(Err(expired::<I>(executed)))
    }

    /// Enters the handler, if that has not been done.
    fn enter(&mut self) -> Result<(), Status> {
        if !matches!(self.stage, Stage::Ready { .. }) {
            return Ok(());
        }
        let ready = std::mem::replace(&mut self.stage, Stage::Over);
        if self.due.is_over() {
            return Err(expired_before_sending());
        }
        if let Stage::Ready { target, input, metadata } = ready {
            let Target { service, method, path } = target;
            let deadline = self.due.at();
            let received = Received { deadline, origin: Origin::InProcess };
            let mut request = Request::received(input, received, metadata);
            request.set_called_path(path);
            let entrance = entrance_of(&*service);
            request.set_entrance(entrance.clone());
            self.stage = Stage::Running(I::enter(&*service, method, request, deadline), entrance);
        }
        Ok(())
    }
}

fn expired<I: Input>(executed: Executed) -> Status {
    Status::deadline_exceeded(I::EXPIRED).with_executed(executed)
}

fn cancelled(executed: Executed) -> Status {
    Status::cancelled("the call was cancelled by its caller").with_executed(executed)
}
