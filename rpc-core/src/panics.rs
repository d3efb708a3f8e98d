//! Keeps a panic of what users hand over where it belongs: with its call.
//!
//! Handlers and streams panic as they are polled, and as they are dropped. Neither may take the task away that owes their
//! caller an answer.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// What a panic carries.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Drops a user's value.
///
/// # Errors
///
/// It panicked.
pub(crate) fn dropped<T>(value: T) -> Result<(), Panic> {
    catch_unwind(AssertUnwindSafe(|| drop(value)))
}

/// Runs `future` to its end.
///
/// # Errors
///
/// It panicked, and has not come to its end.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Panic> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// What a panic says.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)")
}
