//! The call that a task serves: its deadline, and the news that nobody waits for it any more.
//!
//! While a handler is polled, its thread knows that call, so that calls which the handler makes end with it
//! without anyone passing a deadline along. Owns what is known and for how long; costs a handler that asks
//! for nothing a few moves per poll, and no memory.
//!
//! A new task knows no call, as tokio has nothing to tell it: [`spawn`] and [`shield`](crate::shield()) do.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::transport::BoxFuture;

thread_local! {
    /// Plain values, which every poll of a handler changes.
    static KNOWN: Cell<Known> = const { Cell::new(Known { deadline: None, has_gone: false }) };
    /// Touched only where somebody has asked for it: it has a destructor, which makes each access dear.
    static GONE: Cell<Option<Gone>> = const { Cell::new(None) };
}

/// True when nobody waits for the call any more.
type Gone = watch::Sender<bool>;

/// What the current call is.
#[derive(Debug, Clone, Copy)]
struct Known {
    deadline: Option<Instant>,
    /// Whether there is something in `GONE`.
    has_gone: bool,
}

/// What a task knows of the call that it serves.
#[derive(Debug, Clone)]
struct Ambient {
    deadline: Option<Instant>,
    /// Made for the first one who asks.
    gone: Option<Gone>,
}

/// A call as its handler's task knows it, from the entry to the return.
///
/// Dropped before [`finish`](Self::finish), it tells those who asked for it that the call is cancelled.
#[derive(Debug)]
pub(crate) struct Scope(Ambient);

impl Scope {
    pub(crate) fn new(deadline: Instant) -> Self {
        Self(Ambient { deadline: Some(deadline), gone: None })
    }

    /// Runs `work`, which knows the call.
    #[inline]
    pub(crate) fn enter<R>(&mut self, work: impl FnOnce() -> R) -> R {
        self.0.enter(work)
    }

    /// What is known goes on elsewhere.
    pub(crate) fn take(&mut self) -> Self {
        Self(Ambient { deadline: self.0.deadline, gone: self.0.gone.take() })
    }

    /// The handler has come to its end: nobody is told anything.
    pub(crate) fn finish(&mut self) {
        self.0.gone = None;
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(gone) = &self.0.gone {
            gone.send_replace(true);
        }
    }
}

/// What was there before, and who gets what became of the rest: in a drop, since the work may panic.
struct Restore<'a> {
    own: &'a mut Ambient,
    outer: Known,
    outer_gone: Option<Gone>,
}

impl Ambient {
    /// Runs `work` with what this says, and keeps what became of it.
    #[inline]
    fn enter<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let own = Known { deadline: self.deadline, has_gone: self.gone.is_some() };
        let outer = KNOWN.replace(own);
        let outer_gone = match outer.has_gone || own.has_gone {
            true => GONE.replace(self.gone.take()),
            false => None,
        };
        let _restore = Restore { own: self, outer, outer_gone };
        work()
    }
}

impl Drop for Restore<'_> {
    #[inline]
    fn drop(&mut self) {
        let own = KNOWN.replace(self.outer);
        if own.has_gone || self.outer.has_gone {
            self.own.gone = GONE.replace(self.outer_gone.take());
        }
    }
}

/// What tells of the end of the current call; `None` in a task that serves none.
fn gone() -> Option<Gone> {
    let known = KNOWN.get();
    known.deadline?;
    let gone = GONE.take().unwrap_or_else(|| watch::Sender::new(false));
    GONE.set(Some(gone.clone()));
    KNOWN.set(Known { has_gone: true, ..known });
    Some(gone)
}

/// When the call that this task serves must be done; `None` in a task that serves none.
pub(crate) fn deadline() -> Option<Instant> {
    KNOWN.get().deadline
}

/// See [`Request::cancelled`](crate::Request::cancelled).
pub(crate) fn cancelled() -> Cancelled {
    let gone = gone().map(|gone| gone.subscribe());
    Cancelled(Box::pin(async move {
        if let Some(mut gone) = gone
            && gone.wait_for(|gone| *gone).await.is_ok()
        {
            return;
        }
        pending().await
    }))
}

/// Resolves when nobody waits any more for the call that a handler serves: its caller cancelled it or went away,
/// or its deadline passed. Stays pending once the handler has returned.
#[must_use = "it says nothing until it is awaited"]
pub struct Cancelled(BoxFuture<'static, ()>);

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cancelled")
    }
}

/// Spawns a task that serves the same call as this one: calls that it makes inherit the deadline of the handler,
/// and [`Request::cancelled`](crate::Request::cancelled) works in it.
///
/// The task is not stopped with the handler. In a task that serves no call this is `tokio::spawn`.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    // Made now: afterwards the handler's own would be another.
    let mut own = Ambient { deadline: deadline(), gone: gone() };
    tokio::spawn(async move {
        let mut future = pin!(future);
        poll_fn(|cx| own.enter(|| future.as_mut().poll(cx))).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    fn after(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[test]
    fn the_innermost_call_counts_and_the_outer_one_comes_back() {
        let (outer, inner) = (after(2), after(1));
        let mut scope = Scope::new(outer);
        assert_eq!(deadline(), None);
        scope.enter(|| {
            Scope::new(inner).enter(|| assert_eq!(deadline(), Some(inner)));
            assert_eq!(deadline(), Some(outer));
        });
        assert_eq!(deadline(), None);
    }

    #[test]
    fn a_panic_leaves_no_call_behind() {
        let mut scope = Scope::new(after(1));
        let panic = catch_unwind(AssertUnwindSafe(|| scope.enter(|| panic!("as told"))));
        assert!(panic.is_err());
        assert_eq!(deadline(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_dropped_call_is_cancelled() {
        for is_finished in [false, true] {
            let mut scope = Scope::new(after(1));
            let mut told = scope.enter(cancelled);
            let mut elsewhere = scope.enter(|| spawn(async { cancelled().await }));
            tokio::task::yield_now().await;
            if is_finished {
                scope.finish();
            }
            drop(scope);
            let patience = Duration::from_secs(1);
            let (told, elsewhere) = tokio::join!(
                tokio::time::timeout(patience, &mut told),
                tokio::time::timeout(patience, &mut elsewhere)
            );
            assert_eq!((told.is_ok(), elsewhere.is_ok()), (!is_finished, !is_finished));
        }
    }

    #[tokio::test]
    async fn a_spawned_task_knows_the_call_and_a_plain_one_does_not() {
        let at = after(1);
        let mut scope = Scope::new(at);
        let (ours, plain) = scope.enter(|| {
            let known = async {
                tokio::task::yield_now().await;
                deadline()
            };
            (spawn(known), tokio::spawn(async { deadline() }))
        });
        assert_eq!(ours.await.expect("no panic"), Some(at));
        assert_eq!(plain.await.expect("no panic"), None);
    }
}
