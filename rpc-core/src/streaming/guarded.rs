//! A user's stream whose panics end it with a status.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::BodyStream;
use crate::buf::Body;
use crate::status::Status;

/// A stream that is not polled again once it has ended, failed or panicked.
pub(crate) struct Guarded<F> {
    stream: Option<BodyStream>,
    /// The status that a panic becomes.
    panicked: F,
}

impl<F: Fn(&(dyn Any + Send)) -> Status> Guarded<F> {
    pub(crate) fn new(stream: BodyStream, panicked: F) -> Self {
        Self { stream: Some(stream), panicked }
    }
}

impl<F: Fn(&(dyn Any + Send)) -> Status + Unpin> Stream for Guarded<F> {
    type Item = Result<Body, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| stream.as_mut().poll_next(cx)));
        let item = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(item)) => item,
            Err(panic) => Some(Err((self.panicked)(&*panic))),
        };
        if !matches!(item, Some(Ok(_))) {
            self.stream = None;
        }
        Poll::Ready(item)
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
