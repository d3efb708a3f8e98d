//! Work that must finish although its caller is gone.

use std::future::Future;
use std::panic;

/// Runs `work` to its end, also when the future that awaits it is dropped.
///
/// A handler is dropped at its next await once its caller cancels or the deadline passes. What must not
/// stop in the middle, a commit for example, goes inside `shield`: it runs as a task of its own, and
/// dropping the returned future only gives up the wait. It serves the same call as the handler, so calls that it
/// makes inherit the deadline; one that must outlast it is [detached](crate::Request::detached).
///
/// ```
/// # use verbwire_core as verbwire;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let committed = verbwire::shield(async { 7 }).await;
/// assert_eq!(committed, 7);
/// # }
/// ```
///
/// # Panics
///
/// Outside of a tokio runtime, and with the panic of `work` where it panics. If the runtime shuts down
/// while `work` runs, the returned future stays pending; it is dropped with the runtime.
///
/// # Cancel safety
///
/// Once polled, `work` goes on whatever happens to this future. Not polled, it never begins.
pub async fn shield<F>(work: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match crate::spawn(work).await {
        Ok(output) => output,
        Err(error) => match error.try_into_panic() {
            Ok(payload) => panic::resume_unwind(payload),
            // Only a runtime that shuts down cancels a task that nobody holds a handle to.
            Err(_shutdown) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn shielded_work_outlives_the_future_that_awaits_it() {
        let (begin, begun) = oneshot::channel::<()>();
        let (finish, finished) = oneshot::channel();
        let mut waiting = Box::pin(shield(async move {
            begun.await.expect("begin is sent");
            finish.send(7).expect("the test waits");
        }));
        tokio::select! {
            biased;
            () = &mut waiting => panic!("the work waits for its begin"),
            () = tokio::task::yield_now() => {}
        }
        drop(waiting);
        begin.send(()).expect("the work goes on");
        assert_eq!(finished.await, Ok(7));
    }
}
