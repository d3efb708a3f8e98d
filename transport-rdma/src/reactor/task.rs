//! The task that polls a reactor's completion queues.
//!
//! ```text
//!   wait for an event ─► poll a few times ([`Spin`]) ─► arm ─► poll until nothing is left ─► wait ...
//! ```
//!
//! A queue that holds completions when it is armed makes no event for them. So it is armed before the last look at
//! it, never after. The queue of sends is armed only while somebody awaits sends. An event is a hint to look, and
//! nothing else.
//!
//! **Watchdog.** The kernel drops an event when it finds no memory for it, and says nothing. So while there are
//! connections the queues are polled every half second even without an event. If that finds completions, and their
//! event has not come a moment later, it is lost: that is counted, and the queues are armed anew. Sends that nobody
//! awaits are taken then as well, so that their memory comes back also where nothing is received.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};
use verbwire_core::transport::news::News;

use super::Reactor;
use super::table::{BATCH, Look, Standing};
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
    /// Whether the watchdog has to be asked.
    rung: News,
    /// Events taken so far.
    events: u64,
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
        let (recv, send, watchdog, rung) = (Armed::No, Armed::No, None, News::default());
        Self { reactor, polling, spin, recv, send, watchdog, rung, events: 0, suspects: false }
    }

    /// Ready when a queue is lost. What changes after `standing` was taken wakes this task again.
    fn poll_queues(&mut self, standing: Standing, cx: &mut Context<'_>) -> Poll<NicError> {
        let before = self.events;
        // First, so that the watchdog does not miss an event that is there.
        let mut next = self.take_events(cx).map(|_taken| Next::Poll);
        let ticked = self.poll_watchdog(standing, cx);
        if ticked == Ticked::Yes && self.send == Armed::No {
            next = next.and_then(|next| self.reactor.turn(Look::Sends).map(|_taken| next));
        }
        let mut found = 0;
        for _ in 0..ROUNDS {
            next = next.and_then(|_poll| self.round(standing, cx, &mut found));
            match next {
                Ok(Next::Poll) => {}
                Ok(Next::Yield) => break,
                Ok(Next::Wait) => {
                    self.spin.wait();
                    // What had an event is no reason to suspect that one was lost.
                    if ticked == Ticked::Yes && found > 0 && self.events == before {
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

    /// One look at the queues, and what comes after it.
    fn round(
        &mut self,
        standing: Standing,
        cx: &mut Context<'_>,
        found: &mut usize,
    ) -> Result<Next, NicError> {
        let is_busy = self.is_busy(standing);
        // Before the look: what comes after it makes an event, so that a look which leaves nothing is the last.
        if !self.spin.is_open() && !is_busy {
            self.arm(standing)?;
        }
        // Where nothing is waited for, one look more costs nothing.
        let look = if is_busy { Look::Both } else { Look::Needed };
        let taken = self.reactor.turn(look)?;
        if taken > 0 {
            self.spin.found();
            *found += taken;
        }
        if taken >= BATCH {
            return Ok(Next::Poll);
        }
        if is_busy {
            return Ok(Next::Yield);
        }
        if !self.is_armed(standing) {
            return Ok(if self.spin.poll_again() { Next::Yield } else { Next::Poll });
        }
        Ok(if self.take_events(cx)? { Next::Poll } else { Next::Wait })
    }

    /// Takes the events of queues that are armed, and says whether there were some; such a queue is not armed any
    /// more. The others wake this task when one comes.
    fn take_events(&mut self, cx: &mut Context<'_>) -> Result<bool, NicError> {
        let Cqs { send, recv } = &self.reactor.cqs;
        let mut taken = 0;
        for (cq, armed) in [(recv, &mut self.recv), (send, &mut self.send)] {
            if *armed == Armed::Yes
                && let Poll::Ready(event) = cq.poll_event(cx)
            {
                event?;
                *armed = Armed::No;
                taken += 1;
            }
        }
        if taken > 0 {
            self.suspects = false;
            self.events += taken;
            self.reactor.counters.events.fetch_add(taken, Ordering::Relaxed);
        }
        Ok(taken > 0)
    }

    /// Whether it never waits at the moment.
    fn is_busy(&self, standing: Standing) -> bool {
        self.polling == Polling::Busy && standing.is_shared
    }

    /// Whether all queues are armed that have to be.
    fn is_armed(&self, standing: Standing) -> bool {
        self.recv == Armed::Yes && (self.send == Armed::Yes || !standing.awaits_sends)
    }

    /// Arms those that are not.
    fn arm(&mut self, standing: Standing) -> Result<(), NicError> {
        let Cqs { send, recv } = &self.reactor.cqs;
        if self.recv == Armed::No {
            recv.arm()?;
            self.recv = Armed::Yes;
        }
        if self.send == Armed::No && standing.awaits_sends {
            send.arm()?;
            self.send = Armed::Yes;
        }
        Ok(())
    }

    /// Says whether it is time to look. Nothing is watched while nobody shares the queues, so that an idle transport
    /// sleeps.
    fn poll_watchdog(&mut self, standing: Standing, cx: &mut Context<'_>) -> Ticked {
        if self.is_busy(standing) || !standing.is_shared {
            self.watchdog = None;
            return Ticked::No;
        }
        if self.watchdog.is_none() {
            self.watch(WATCHDOG, cx);
        }
        let Some(watchdog) = &mut self.watchdog else { return Ticked::No };
        if self.rung.poll(cx, |cx| watchdog.as_mut().poll(cx)).is_pending() {
            return Ticked::No;
        }
        self.watch(WATCHDOG, cx);
        if std::mem::take(&mut self.suspects) {
            self.reactor.counters.lost_events.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("a completion queue lost an event: is the kernel out of memory?");
            // They are armed anew before the next look.
            (self.recv, self.send) = (Armed::No, Armed::No);
        }
        Ticked::Yes
    }

    /// Looks again after this time.
    fn watch(&mut self, after: Duration, cx: &mut Context<'_>) {
        let watchdog = self.watchdog.get_or_insert_with(|| Box::pin(sleep(after)));
        watchdog.as_mut().reset(Instant::now() + after);
        self.rung.renew();
        // Only a timer that was polled wakes this task.
        let _pending = self.rung.poll(cx, |cx| watchdog.as_mut().poll(cx));
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Before anything is looked at, so that what changes meanwhile wakes this task again.
        self.reactor.task.register(cx.waker());
        let standing = self.reactor.table().standing();
        if standing.is_closed && !standing.is_shared {
            return Poll::Ready(());
        }
        self.poll_queues(standing, cx).map(|lost| {
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
