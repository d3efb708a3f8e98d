//! The streams of a call in the same process.

use std::task::{Context, Poll};

use tokio::time::Instant;

use super::super::due::Due;
use super::{cancelled, expired};
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::service::StreamInput;
use crate::status::{Executed, Status};
use crate::streaming::Messages;

/// The replies of a call in this process.
pub(in crate::client) struct InProcessReplies {
    replies: Box<dyn Messages>,
    due: Due,
}

impl InProcessReplies {
    pub(in crate::client) fn new(replies: Box<dyn Messages>, deadline: Instant) -> Self {
        Self { replies, due: Due::new(deadline) }
    }

    /// The status of replies that a handle ends.
    pub(in crate::client) fn cancelled() -> Status {
        cancelled(Executed::Yes)
    }

    pub(in crate::client) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Body, Status>>> {
        // First, since a stream that is always ready must end as well.
        if self.due.is_over() {
            return Poll::Ready(Some(Err(expired::<StreamInput>())));
        }
        if let Poll::Ready(item) = self.replies.poll_message(cx) {
            return Poll::Ready(item);
        }
        std::task::ready!(self.due.poll(cx));
        Poll::Ready(Some(Err(expired::<StreamInput>())))
    }

    pub(in crate::client) fn take_trailers(&mut self) -> MetadataMap {
        self.replies.take_trailers()
    }
}
