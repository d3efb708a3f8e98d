//! When a channel connects to its server, and what it is meanwhile.
//!
//! ```text
//!  Idle ──attempt──► Connecting ──connected──► Ready
//!                      │     ▲                   │ left: its server goes away, or it is lost
//!               failed │     │ attempt           │
//!                      ▼     │                   │
//!               TransientFailure ◄───────────────┴──► Connecting
//!                            a connection that was       a connection that was good
//!                            good for nothing
//! ```
//!
//! `Shutdown` follows from each of them, and nothing follows from it. Owns the state, the delay of the next attempt and when
//! it is due; does not connect, and does not wait.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::deadlines::deadline_after;
use crate::backoff::Backoff;

/// How long a connection has to last to be good for something although no call succeeded on it: the delays begin anew then.
/// Without that, a server that takes connections and drops them would be asked again without any delay.
pub const LASTING: Duration = Duration::from_secs(10);

/// What a channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectivityState {
    /// It connects when the first call comes.
    Idle,
    /// It connects. Calls wait for that. Or it is connected, and a path is missing that its policy requires.
    Connecting,
    /// Calls go out at once.
    Ready,
    /// It could not connect, and tries again by itself after a while. Until then calls fail at once, unless they
    /// [wait](crate::Request::set_wait_for_ready).
    TransientFailure,
    /// It connects no more: the runtime that it lives on is gone, or it is a channel of one connection, which has ended.
    Shutdown,
}

/// The connections of a channel to one address, one after the other.
#[derive(Debug)]
pub struct Reconnect {
    state: ConnectivityState,
    backoff: Backoff,
    connected_at: Option<Instant>,
    next_attempt: Option<Instant>,
    failures: u64,
    /// Whether it was `TransientFailure` since it was last connected.
    has_failed: bool,
}

/// Whether a call succeeded on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// At least one.
    Yes,
    /// None.
    No,
}

impl Reconnect {
    /// Nothing has been tried yet.
    pub fn new(backoff: Backoff) -> Self {
        let state = ConnectivityState::Idle;
        Self {
            state,
            backoff,
            connected_at: None,
            next_attempt: None,
            failures: 0,
            has_failed: false,
        }
    }

    /// What the channel is.
    pub fn state(&self) -> ConnectivityState {
        self.state
    }

    /// When the next attempt is to be made; `None` while there is none to make.
    pub fn next_attempt(&self) -> Option<Instant> {
        self.next_attempt
    }

    /// How often it became `TransientFailure`. Who waits while it connects looks at this, since a state may be over before it
    /// is seen.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Whether it became `TransientFailure` since it was last connected: who has another choice waits for it no more.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The first attempt is to be made; nothing where that has been said before.
    pub fn handle_demand(&mut self, now: Instant) {
        if self.state == ConnectivityState::Idle {
            self.state = ConnectivityState::Connecting;
            self.next_attempt = Some(now);
        }
    }

    /// An attempt begins.
    pub fn handle_attempt(&mut self) {
        if self.state != ConnectivityState::Shutdown {
            self.state = ConnectivityState::Connecting;
            self.next_attempt = None;
        }
    }

    /// It succeeded.
    pub fn handle_connected(&mut self, now: Instant) {
        if self.state != ConnectivityState::Shutdown {
            self.state = ConnectivityState::Ready;
            self.connected_at = Some(now);
            self.has_failed = false;
            self.next_attempt = None;
        }
    }

    /// It failed.
    pub fn handle_failure(&mut self, now: Instant) {
        if self.state == ConnectivityState::Shutdown {
            return;
        }
        let delay = self.backoff.handle_failure();
        self.state = ConnectivityState::TransientFailure;
        self.next_attempt = Some(deadline_after(now, delay));
        self.failures += 1;
        self.has_failed = true;
    }

    /// The connection takes no more calls. The next attempt is due at once if it was good for something.
    pub fn handle_left(&mut self, now: Instant, served: Served) {
        let Some(since) = self.connected_at.take() else { return };
        if served == Served::No && now.saturating_duration_since(since) < LASTING {
            return self.handle_failure(now);
        }
        if self.state != ConnectivityState::Shutdown {
            self.backoff.handle_success();
            self.state = ConnectivityState::Connecting;
            self.next_attempt = Some(now);
        }
    }

    /// No attempt is made any more.
    pub fn handle_shutdown(&mut self) {
        self.state = ConnectivityState::Shutdown;
        self.connected_at = None;
        self.next_attempt = None;
    }
}

impl fmt::Display for ConnectivityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::TransientFailure => "failing",
            Self::Shutdown => "shut down",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Random;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(3);

    fn idle() -> (Reconnect, Instant) {
        let backoff = Backoff::new(FIRST, LONGEST, Random::from_seed(5));
        (Reconnect::new(backoff), Instant::now())
    }

    fn fail(reconnect: &mut Reconnect, now: Instant) -> Duration {
        reconnect.handle_attempt();
        reconnect.handle_failure(now);
        reconnect.next_attempt().expect("it tries again") - now
    }

    fn fail_nine_times(reconnect: &mut Reconnect, now: Instant) {
        for _ in 0..9 {
            fail(reconnect, now);
        }
    }

    #[test]
    fn the_first_attempt_is_due_when_somebody_wants_it_and_only_once() {
        let (mut reconnect, now) = idle();
        assert_eq!((reconnect.state(), reconnect.next_attempt()), (ConnectivityState::Idle, None));
        reconnect.handle_demand(now);
        reconnect.handle_demand(now + LASTING);
        assert_eq!(reconnect.state(), ConnectivityState::Connecting);
        assert_eq!(reconnect.next_attempt(), Some(now));
    }

    #[test]
    fn failures_are_further_and_further_apart_and_are_counted() {
        let (mut reconnect, now) = idle();
        let delays: Vec<_> = (0..9).map(|_| fail(&mut reconnect, now)).collect();
        assert!(delays[0] < FIRST * 2 && delays[8] > LONGEST / 2, "{delays:?}");
        assert_eq!(reconnect.failures(), 9);
        assert_eq!(reconnect.state(), ConnectivityState::TransientFailure);
    }

    #[test]
    fn a_connection_on_which_a_call_succeeded_is_followed_by_another_at_once() {
        let (mut reconnect, now) = idle();
        fail_nine_times(&mut reconnect, now);
        reconnect.handle_attempt();
        reconnect.handle_connected(now);
        assert_eq!(reconnect.state(), ConnectivityState::Ready);
        reconnect.handle_left(now, Served::Yes);
        assert_eq!(reconnect.state(), ConnectivityState::Connecting);
        assert_eq!(reconnect.next_attempt(), Some(now));
        assert!(fail(&mut reconnect, now) < FIRST * 2, "the delays began anew");
    }

    #[test]
    fn one_that_lasted_counts_as_good_and_a_short_one_as_a_failure() {
        for (lasted, is_good) in [(LASTING, true), (LASTING - FIRST, false)] {
            let (mut reconnect, now) = idle();
            fail_nine_times(&mut reconnect, now);
            reconnect.handle_attempt();
            reconnect.handle_connected(now);
            reconnect.handle_left(now + lasted, Served::No);
            let due = reconnect.next_attempt().expect("it tries again") - (now + lasted);
            assert_eq!(due.is_zero(), is_good, "{due:?} after {lasted:?}");
            assert_eq!(due > LONGEST / 2, !is_good, "the delays went on: {due:?}");
        }
    }

    #[test]
    fn the_end_of_a_connection_is_heard_once() {
        let (mut reconnect, now) = idle();
        reconnect.handle_attempt();
        reconnect.handle_connected(now);
        reconnect.handle_left(now, Served::Yes);
        reconnect.handle_left(now, Served::No);
        assert_eq!((reconnect.state(), reconnect.failures()), (ConnectivityState::Connecting, 0));
    }

    #[test]
    fn nothing_follows_a_shutdown() {
        let (mut reconnect, now) = idle();
        reconnect.handle_shutdown();
        reconnect.handle_demand(now);
        reconnect.handle_attempt();
        reconnect.handle_connected(now);
        reconnect.handle_failure(now);
        reconnect.handle_left(now, Served::Yes);
        let state = (reconnect.state(), reconnect.next_attempt(), reconnect.failures());
        assert_eq!(state, (ConnectivityState::Shutdown, None, 0));
    }
}
