//! The task that polls a reactor's completion queues.
//!
//! ```text
//!   poll until empty ─► poll again a few times ([`Spin`]) ─► arm ─► poll ─► wait for an event ─► poll ...
//! ```
//!
//! They are armed only before it waits, the queue of sends only while somebody awaits sends, and polled once more
//! after that: what came between makes no event. An event is a hint to look, and nothing else.
//!
//! **Watchdog.** The kernel drops an event when it finds no memory for it, and says nothing. So while there are
//! connections the queues are polled every half second even without an event. If that finds completions, and their
//! event has not come a moment later, it is lost: that is counted, and the queues are armed anew.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::Reactor;
use super::table::{BATCH, Look};
use crate::config::Polling;
use crate::nic::{Cqs, NicError};
use crate::proto::spin::Spin;

/// Batches taken in one poll of the task before other tasks have their turn.
const ROUNDS: usize = 8;

/// How often the watchdog looks. 500 ms: rare enough to cost nothing, and a lost event is no outage.
const WATCHDOG: Duration = Duration::from_millis(500);

/// How much later than its completion an event may come. 10 ms: the runtime has looked at its descriptors by then.
const GRACE: Duration = Duration::from_millis(10);

/// Polls the queues until nobody shares them or can do so any more, or until one is lost. Dropped before, with its
/// runtime, it tells all who share them.
pub(super) struct Task {
    reactor: Arc<Reactor>,
    polling: Polling,
    spin: Spin,
    recv: Armed,
    send: Armed,
    /// `None` while nobody shares the queues.
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

/// What the task does next.
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
        let (recv, send, watchdog) = (Armed::No, Armed::No, None);
        Self { reactor, polling, spin, recv, send, watchdog, suspects: false }
    }

    /// Ready when a queue is lost.
    fn poll_queues(&mut self, cx: &mut Context<'_>) -> Poll<NicError> {
        let ticked = self.poll_watchdog(cx);
        let mut found = 0;
        for _ in 0..ROUNDS {
            let round = self.poll_events(cx).and_then(|()| {
                let taken = self.reactor.turn(Look::Needed)?;
                found += taken;
                self.step(taken)
            });
            match round {
                Ok(Next::Poll) => {}
                Ok(Next::Yield) => break,
                Ok(Next::Wait) => {
                    self.spin.wait();
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

    /// Takes the events of queues that are armed; such a queue is not armed any more. Where there is none, it wakes
    /// this task when it comes.
    fn poll_events(&mut self, cx: &mut Context<'_>) -> Result<(), NicError> {
        let Cqs { send, recv } = &self.reactor.cqs;
        for (cq, armed) in [(recv, &mut self.recv), (send, &mut self.send)] {
            if *armed == Armed::No {
                continue;
            }
            if let Poll::Ready(event) = cq.poll_event(cx) {
                event?;
                *armed = Armed::No;
                self.suspects = false;
                self.reactor.counters.events.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// What comes after a turn that took so many.
    fn step(&mut self, taken: usize) -> Result<Next, NicError> {
        if taken > 0 {
            self.spin.found();
        }
        if taken >= BATCH {
            return Ok(Next::Poll);
        }
        if self.is_busy() {
            return Ok(Next::Yield);
        }
        let awaits_sends = self.reactor.table().awaits_sends();
        if self.recv == Armed::Yes && (self.send == Armed::Yes || !awaits_sends) {
            return Ok(if taken == 0 { Next::Wait } else { Next::Poll });
        }
        // Less than a batch: the queues were empty a moment ago.
        if self.spin.poll_again() {
            return Ok(Next::Yield);
        }
        self.arm(awaits_sends)?;
        Ok(Next::Poll)
    }

    /// Whether it never waits at the moment.
    fn is_busy(&self) -> bool {
        self.polling == Polling::Busy && self.reactor.table().shares() > 0
    }

    /// Arms what is needed and is not armed.
    fn arm(&mut self, awaits_sends: bool) -> Result<(), NicError> {
        let Cqs { send, recv } = &self.reactor.cqs;
        if self.recv == Armed::No {
            recv.arm()?;
            self.recv = Armed::Yes;
        }
        if awaits_sends && self.send == Armed::No {
            send.arm()?;
            self.send = Armed::Yes;
        }
        Ok(())
    }

    /// Says whether it is time to look. Nothing is watched while nobody shares the queues, so that an idle transport
    /// sleeps.
    fn poll_watchdog(&mut self, cx: &mut Context<'_>) -> Ticked {
        if self.is_busy() || self.reactor.table().shares() == 0 {
            self.watchdog = None;
            return Ticked::No;
        }
        let watchdog = self.watchdog.get_or_insert_with(|| Box::pin(sleep(WATCHDOG)));
        if watchdog.as_mut().poll(cx).is_pending() {
            return Ticked::No;
        }
        self.watch(WATCHDOG, cx);
        if std::mem::take(&mut self.suspects) {
            self.reactor.counters.lost_events.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("a completion queue lost an event: is the kernel out of memory?");
            // They are armed and polled once more before this task waits again, as always.
            (self.recv, self.send) = (Armed::No, Armed::No);
        }
        Ticked::Yes
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
        self.poll_queues(cx).map(|lost| {
            tracing::debug!(%lost, "a completion queue is lost");
            self.reactor.lose(&lost);
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Changes nothing where a queue was lost before, or nobody shares them.
        self.reactor.lose(&NicError {
            verb: "ibv_poll_cq",
            reason: "the runtime that polled this connection's completions has shut down; connect on one that lives"
                .into(),
        });
    }
}
