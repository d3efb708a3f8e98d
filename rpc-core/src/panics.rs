//! Keeps a panic of what users hand over where it belongs: with its call.
//!
//! Handlers and streams panic as they are polled, and as they are dropped. Neither may take the task away that owes their
//! caller an answer.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

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
    Contained::new(pin!(future)).await
}

/// A user's future, whose panics stay in it, also where it is dropped before its end.
///
/// As a future its output is that of the user's, or the panic.
pub(crate) struct Contained<F>(Option<F>);

impl<F> Contained<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(future))
    }
}

impl<F: Future + Unpin> Future for Contained<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.0.as_mut().expect("there until it is dropped");
        match catch_unwind(AssertUnwindSafe(|| Pin::new(future).poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl<F> Drop for Contained<F> {
    fn drop(&mut self) {
        if let Err(panic) = dropped(self.0.take()) {
            tracing::error!(
                panic = panic_message(&*panic),
                "a future of the application panicked as it was dropped"
            );
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Panics as it is dropped.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "as the test wants it");
        }
    }

    #[tokio::test]
    async fn a_contained_future_may_panic_as_it_is_polled_and_as_it_is_dropped() {
        let armed = || {
            Contained::new(Box::pin(async {
                let _bomb = Bomb;
                std::future::pending::<()>().await;
            }))
        };
        drop(armed());
        let mut waiting = armed();
        let is_pending = poll_fn(|cx| Poll::Ready(Pin::new(&mut waiting).poll(cx).is_pending()));
        assert!(is_pending.await);
        drop(waiting);
        let polled = Contained::new(Box::pin(async { panic!("within") as u32 })).await;
        assert_eq!(panic_message(&*polled.expect_err("it panicked")), "within");
    }
}
