//! A call to a service in the same process: encode, dispatch and decode in the caller's task.
//!
//! No transport and no task of its own: polling the call polls the handler, dropping it drops the handler.

mod streaming;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use super::link::expired_before_sending;
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::proto::client::Outcome;
use crate::request::{Origin, Received, Request};
use crate::server::Handler;
use crate::service::Service;
use crate::status::{Executed, Status};

pub(super) use streaming::{InProcessReplies, InProcessRequests, InProcessStreaming};

/// A future of a reply, its body not decoded.
pub(super) struct InProcessCall {
    stage: Stage,
    deadline: Instant,
    /// Made only for handlers that wait.
    timer: Option<Pin<Box<Sleep>>>,
}

enum Stage {
    /// Not polled yet.
    Ready {
        service: Arc<dyn Service>,
        method: usize,
        body: Body,
        metadata: Option<Box<MetadataMap>>,
    },
    Running(Handler),
    Over,
}

impl InProcessCall {
    pub(super) fn new(
        service: Arc<dyn Service>,
        method: usize,
        body: Body,
        metadata: Option<Box<MetadataMap>>,
        deadline: Instant,
    ) -> Self {
        Self { stage: Stage::Ready { service, method, body, metadata }, deadline, timer: None }
    }

    /// Ends the call; its handler is dropped.
    pub(super) fn cancel(&mut self) -> Status {
        let executed = self.executed();
        self.stage = Stage::Over;
        Status::cancelled("the call was cancelled by its caller").with_executed(executed)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        if matches!(self.stage, Stage::Ready { .. }) {
            if Instant::now() >= self.deadline {
                self.stage = Stage::Over;
                return Poll::Ready(Err(expired_before_sending()));
            }
            self.enter();
        }
        let handler = match &mut self.stage {
            Stage::Running(handler) => handler,
            _ => unreachable!("a call is not polled after it has ended"),
        };
        if let Poll::Ready(outcome) = handler.poll(cx) {
            self.stage = Stage::Over;
            return Poll::Ready(outcome);
        }
        let deadline = self.deadline;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        std::task::ready!(timer.as_mut().poll(cx));
        let executed = self.executed();
        self.stage = Stage::Over;
        let status = Status::deadline_exceeded("the deadline passed before the handler returned");
        Poll::Ready(Err(status.with_executed(executed)))
    }

    fn enter(&mut self) {
        if let Stage::Ready { service, method, body, metadata } =
            std::mem::replace(&mut self.stage, Stage::Over)
        {
            let received = Received { deadline: self.deadline, origin: Origin::InProcess };
            let request = Request::received(body, received, metadata);
            self.stage = Stage::Running(Handler::enter(&*service, method, request, self.deadline));
        }
    }

    fn executed(&self) -> Executed {
        match self.stage {
            Stage::Ready { .. } => Executed::No,
            Stage::Running(_) | Stage::Over => Executed::Yes,
        }
    }
}
