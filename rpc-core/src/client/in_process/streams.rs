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
    /// `None` when the call was ended from this side: the handler is dropped then, whoever still holds this.
    replies: Option<Box<dyn Messages>>,
    due: Due,
}

impl InProcessReplies {
    pub(in crate::client) fn new(replies: Box<dyn Messages>, deadline: Instant) -> Self {
        Self { replies: Some(replies), due: Due::new(deadline) }
    }

    /// Ends the call, as a handle asks.
    pub(in crate::client) fn cancel(&mut self) -> Status {
        self.replies = None;
        cancelled(Executed::Yes)
    }

    fn expire(&mut self) -> Poll<Option<Result<Body, Status>>> {
        self.replies = None;
        Poll::Ready(Some(Err(expired::<StreamInput>(Executed::Yes))))
    }

    pub(in crate::client) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Body, Status>>> {
        let Some(replies) = &mut self.replies else { return Poll::Ready(None) };
        // First, since a stream that is always ready must end as well.
        if self.due.is_over() {
            return self.expire();
        }
        if let Poll::Ready(item) = replies.poll_message(cx) {
            return Poll::Ready(item);
        }
        std::task::ready!(self.due.poll(cx));
        self.expire()
    }

    pub(in crate::client) fn take_trailers(&mut self) -> MetadataMap {
        self.replies.as_mut().map(|replies| replies.take_trailers()).unwrap_or_default()
    }
}
