//! A user's messages whose panics end them with a status.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use super::Messages;
use crate::buf::Body;
use crate::metadata::MetadataMap;
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
        let polled = catch_unwind(AssertUnwindSafe(|| messages.poll_message(cx)));
        let item = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(item)) => item,
            Err(panic) => Some(Err((self.panicked)(&*panic))),
        };
        if item.is_none() {
            self.trailers = messages.take_trailers();
        }
        if !matches!(item, Some(Ok(_))) {
            self.messages = None;
        }
        Poll::Ready(item)
    }

    fn take_trailers(&mut self) -> MetadataMap {
        std::mem::take(&mut self.trailers)
    }
}

/// What a panic says.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)")
}
