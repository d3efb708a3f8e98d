//! The task that polls a completion queue.
//!
//! ```text
//!   poll until empty ─► poll again a few times ([`Spin`]) ─► arm ─► poll ─► wait for an event ─► poll ...
//! ```
//!
//! It is armed only before it waits, and polls once more after that: what came between makes no event. An event
//! is a hint that it looks after whatever happens.
//!
//! **Watchdog.** The kernel drops an event when it finds no memory for it, and says nothing. So while there are
//! connections the queue is polled every half second even without an event. If that finds completions, and their event
//! has not come a moment later, it is lost: that is counted, and the queue is armed anew.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::Reactor;
use crate::config::Polling;
use crate::nic::NicError;
use crate::proto::spin::Spin;

/// Batches taken in one poll of the task before other tasks have their turn.
const ROUNDS: usize = 8;

/// How often the watchdog looks. 500 ms: rare enough to cost nothing, and a lost event is no outage.
const WATCHDOG: Duration = Duration::from_millis(500);

/// How much later than its completion an event may come. 10 ms: the runtime has looked at its descriptors by then.
const GRACE: Duration = Duration::from_millis(10);

/// Polls the queue until it is closed and nobody shares it, or until it is lost. Dropped before, with its runtime,
/// it tells all who share the queue.
pub(super) struct Task {
    reactor: Arc<Reactor>,
    polling: Polling,
    spin: Spin,
    armed: Armed,
    /// `None` while nobody shares the queue.
    watchdog: Option<Pin<Box<Sleep>>>,
    /// The watchdog has found completions, and no event has come since.
    suspects: bool,
}

/// Whether the next completion makes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    Yes,
    No,
}

/// Whether it is time for the watchdog to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ticked {
    Yes,
    No,
}

/// What the task does after a look at an empty queue.
enum Next {
    Poll,
    /// Lets other tasks run, then polls.
    Yield,
    /// Waits for an event.
    Wait,
}

impl Task {
    pub(super) fn new(reactor: Arc<Reactor>, polling: Polling) -> Self {
        let spin = Spin::new(match polling {
            Polling::Events | Polling::Busy => 0,
            Polling::Adaptive { most } => most,
        });
        let (armed, watchdog) = (Armed::No, None);
        Self { reactor, polling, spin, armed, watchdog, suspects: false }
    }

    /// Ready when the queue is lost.
    fn poll_queue(&mut self, cx: &mut Context<'_>) -> Poll<NicError> {
        let ticked = match self.poll_watchdog(cx) {
            Ok(ticked) => ticked,
            Err(lost) => return Poll::Ready(lost),
        };
        let mut found = 0;
        for _ in 0..ROUNDS {
            let next = match self.reactor.turn() {
                Ok(0) => self.step(cx),
                Ok(taken) => {
                    found += taken;
                    self.spin.found();
                    Ok(Next::Poll)
                }
                Err(lost) => Err(lost),
            };
            match next {
                Ok(Next::Poll) => {}
                Ok(Next::Yield) => break,
                Ok(Next::Wait) => {
                    if ticked == Ticked::Yes && found > 0 {
                        self.suspects = true;
                        self.watch(GRACE, cx);
                    }
                    return Poll::Pending;
                }
                Err(lost) => return Poll::Ready(lost),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether it never waits at the moment.
    fn is_busy(&self) -> bool {
        self.polling == Polling::Busy && self.reactor.table().shares() > 0
    }

    /// The queue is empty.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<Next, NicError> {
        if self.is_busy() {
            return Ok(Next::Yield);
        }
        if self.armed == Armed::No {
            if self.spin.poll_again() {
                return Ok(Next::Yield);
            }
            self.reactor.cq.arm()?;
            self.armed = Armed::Yes;
            return Ok(Next::Poll);
        }
        match self.reactor.cq.poll_event(cx) {
            Poll::Ready(event) => {
                event?;
                self.reactor.counters.events.fetch_add(1, Ordering::Relaxed);
                self.armed = Armed::No;
                self.suspects = false;
                Ok(Next::Poll)
            }
            Poll::Pending => {
                self.spin.wait();
                Ok(Next::Wait)
            }
        }
    }

    /// Says whether it is time to look. Nothing is watched while nobody shares the queue, so that an idle transport
    /// sleeps.
    fn poll_watchdog(&mut self, cx: &mut Context<'_>) -> Result<Ticked, NicError> {
        if self.is_busy() || self.reactor.table().shares() == 0 {
            self.watchdog = None;
            return Ok(Ticked::No);
        }
        let watchdog = self.watchdog.get_or_insert_with(|| Box::pin(sleep(WATCHDOG)));
        if watchdog.as_mut().poll(cx).is_pending() {
            return Ok(Ticked::No);
        }
        self.watch(WATCHDOG, cx);
        if std::mem::take(&mut self.suspects) {
            self.reactor.counters.lost_events.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("a completion queue lost an event: is the kernel out of memory?");
            // The queue was armed for the event that is lost. It is polled after this, as always.
            self.reactor.cq.arm()?;
        }
        Ok(Ticked::Yes)
    }

    /// Looks again after this time.
    fn watch(&mut self, after: Duration, cx: &mut Context<'_>) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.as_mut().reset(Instant::now() + after);
            // Only a timer that was polled wakes this task.
            let _pending = watchdog.as_mut().poll(cx);
        }
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Before anything is looked at, so that what changes meanwhile wakes this task again.
        self.reactor.set_task(cx.waker());
        {
            let table = self.reactor.table();
            if table.is_closed() && table.shares() == 0 {
                return Poll::Ready(());
            }
        }
        self.poll_queue(cx).map(|lost| {
            tracing::debug!(%lost, "a completion queue is lost");
            self.reactor.lose(&lost);
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Changes nothing where the queue was lost before, or is closed.
        self.reactor.lose(&NicError {
            verb: "ibv_poll_cq",
            reason: "the runtime that polled the completion queue has shut down; connect on one that lives"
                .into(),
        });
    }
}
