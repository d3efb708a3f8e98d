//! A user's messages whose panics end them with a status: those of their polls, and of their end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use tracing::error;

use super::Messages;
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::panics::{dropped, panic_message};
use crate::status::Status;

/// Messages that are not polled again once they have ended, failed or panicked.
pub(crate) struct Guarded<F> {
    messages: Option<Box<dyn Messages>>,
    trailers: MetadataMap,
    /// The status that a panic becomes.
    panicked: F,
}

impl<F: Fn(&(dyn Any + Send)) -> Status> Guarded<F> {
    pub(crate) fn new(messages: Box<dyn Messages>, panicked: F) -> Self {
        Self { messages: Some(messages), trailers: MetadataMap::new(), panicked }
    }
}

impl<F: Fn(&(dyn Any + Send)) -> Status + Send> Messages for Guarded<F> {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let Some(messages) = &mut self.messages else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let polled = messages.poll_message(cx);
            if let Poll::Ready(None) = polled {
                self.trailers = messages.take_trailers();
            }
            polled
        }));
        let item = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(item)) => item,
            Err(panic) => Some(Err((self.panicked)(&*panic))),
        };
        if let Some(Ok(_)) = item {
            return Poll::Ready(item);
        }
        let ended = dropped(self.messages.take());
        Poll::Ready(match ended {
            // A status that there is already says what came first.
            Err(panic) if item.is_none() => Some(Err((self.panicked)(&*panic))),
            _ => item,
        })
    }

    fn take_trailers(&mut self) -> MetadataMap {
        std::mem::take(&mut self.trailers)
    }
}

impl<F> Drop for Guarded<F> {
    fn drop(&mut self) {
        // Nobody waits for them any more who could be told.
        if let Err(panic) = dropped(self.messages.take()) {
            error!(panic = panic_message(&*panic), "a stream panicked as it was dropped");
        }
    }
}
