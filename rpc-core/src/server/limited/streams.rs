//! Calls that have streams, within bounds.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::gate::{Gate, Held, NoRoom, Taken};
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::status::Status;
use crate::streaming::Messages;
use crate::transport::BoxFuture;

/// Replies of a call that runs until they have ended, or nobody needs them.
pub(super) struct Holding {
    replies: Box<dyn Messages>,
    held: Option<Held>,
}

impl Holding {
    pub(super) fn new(replies: Box<dyn Messages>, held: Held) -> Self {
        Self { replies, held: Some(held) }
    }
}

impl Messages for Holding {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let item = ready!(self.replies.poll_message(cx));
        if !matches!(item, Some(Ok(_))) {
            self.held = None;
        }
        Poll::Ready(item)
    }

    fn take_trailers(&mut self) -> MetadataMap {
        self.replies.take_trailers()
    }
}

/// Requests of which a handler gets one at a time, as there is room for its bytes.
pub(super) struct Admitted {
    requests: Box<dyn Messages>,
    gate: Arc<Gate>,
    /// Of the message that the handler has. It is done with that when it asks for the next.
    held: Option<Taken>,
    /// A message that has no room yet.
    waiting: Option<(Body, BoxFuture<'static, Option<Taken>>)>,
}

impl Admitted {
    pub(super) fn new(requests: Box<dyn Messages>, gate: Arc<Gate>) -> Self {
        Self { requests, gate, held: None, waiting: None }
    }

    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Option<Body>> {
        let Some((_, room)) = &mut self.waiting else { return Poll::Ready(None) };
        self.held = ready!(room.as_mut().poll(cx));
        Poll::Ready(self.waiting.take().map(|(body, _)| body))
    }
}

impl Messages for Admitted {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        self.held = None;
        if let Some(body) = ready!(self.poll_waiting(cx)) {
            return Poll::Ready(Some(Ok(body)));
        }
        let body = match ready!(self.requests.poll_message(cx)) {
            Some(Ok(body)) => body,
            end => return Poll::Ready(end),
        };
        match self.gate.room_now(body.len()) {
            Ok(held) => {
                self.held = held;
                Poll::Ready(Some(Ok(body)))
            }
            Err(NoRoom) => {
                let (gate, len) = (Arc::clone(&self.gate), body.len());
                self.waiting = Some((body, Box::pin(async move { gate.room(len).await })));
                self.poll_waiting(cx).map(|body| body.map(Ok))
            }
        }
    }

    fn take_trailers(&mut self) -> MetadataMap {
        self.requests.take_trailers()
    }
}
