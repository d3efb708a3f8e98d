//! A call with streams to a service in the same process. Everything runs in the caller's task: the handler polls the
//! caller's stream, and the caller polls the handler's.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use super::super::link::expired_before_sending;
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::request::{Origin, Received, Request, Response};
use crate::server::Handler;
use crate::service::{Service, StreamInput, StreamOutput};
use crate::status::{Executed, Status};
use crate::streaming::{BodyStream, Messages};

/// A future of what the handler returns.
pub(in crate::client) struct InProcessStreaming {
    stage: Stage,
    timer: Timer,
}

/// What the handler is called with.
type Input = (StreamInput, Option<Box<MetadataMap>>);

enum Stage {
    /// Not polled yet.
    Ready {
        service: Arc<dyn Service>,
        method: usize,
        input: Input,
    },
    Running(Handler<StreamOutput>),
    Over,
}

/// The deadline of a call. Made only for those that wait.
struct Timer {
    deadline: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl InProcessStreaming {
    pub(in crate::client) fn new(
        service: Arc<dyn Service>,
        method: usize,
        input: Input,
        deadline: Instant,
    ) -> Self {
        let stage = Stage::Ready { service, method, input };
        Self { stage, timer: Timer { deadline, sleep: None } }
    }

    pub(in crate::client) fn deadline(&self) -> Instant {
        self.timer.deadline
    }

    /// Ends the call; its handler is dropped.
    pub(in crate::client) fn cancel(&mut self) -> Status {
        let executed = match self.stage {
            Stage::Ready { .. } => Executed::No,
            Stage::Running(_) | Stage::Over => Executed::Yes,
        };
        self.stage = Stage::Over;
        Status::cancelled("the call was cancelled by its caller").with_executed(executed)
    }

    pub(in crate::client) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<StreamOutput>, Status>> {
        if let Stage::Ready { .. } = self.stage
            && let Err(status) = self.enter()
        {
            return Poll::Ready(Err(status));
        }
        let Stage::Running(handler) = &mut self.stage else {
            unreachable!("a call is not polled after it has ended");
        };
        if let Poll::Ready(outcome) = handler.poll(cx) {
            self.stage = Stage::Over;
            return Poll::Ready(outcome);
        }
        std::task::ready!(self.timer.poll(cx));
        self.stage = Stage::Over;
        Poll::Ready(Err(expired()))
    }

    fn enter(&mut self) -> Result<(), Status> {
        let Stage::Ready { service, method, input } =
            std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Ok(());
        };
        let deadline = self.timer.deadline;
        if Instant::now() >= deadline {
            return Err(expired_before_sending());
        }
        let received = Received { deadline, origin: Origin::InProcess };
        let (input, metadata) = input;
        let request = Request::received(input, received, metadata);
        self.stage = Stage::Running(Handler::enter_streaming(&*service, method, request, deadline));
        Ok(())
    }
}

/// The replies of a call in this process.
pub(in crate::client) struct InProcessReplies {
    replies: BodyStream,
    timer: Timer,
}

impl InProcessReplies {
    pub(in crate::client) fn new(replies: BodyStream, deadline: Instant) -> Self {
        Self { replies, timer: Timer { deadline, sleep: None } }
    }

    /// The status of replies that a handle ends.
    pub(in crate::client) fn cancelled() -> Status {
        Status::cancelled("the call was cancelled by its caller").with_executed(Executed::Yes)
    }

    pub(in crate::client) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Body, Status>>> {
        // First, since a stream that is always ready must end as well.
        if self.timer.is_over() {
            return Poll::Ready(Some(Err(expired())));
        }
        if let Poll::Ready(item) = self.replies.as_mut().poll_next(cx) {
            return Poll::Ready(item);
        }
        std::task::ready!(self.timer.poll(cx));
        Poll::Ready(Some(Err(expired())))
    }
}

/// The requests of a call in this process: what the caller's stream gives.
pub(in crate::client) struct InProcessRequests(pub(in crate::client) BodyStream);

impl Messages for InProcessRequests {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl Timer {
    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        sleep.as_mut().poll(cx)
    }
}

fn expired() -> Status {
    Status::deadline_exceeded("the deadline passed before the handler was done")
        .with_executed(Executed::Yes)
}
