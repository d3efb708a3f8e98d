//! Whether the peer is still there.
//!
//! A peer that is frozen, or behind a network that is cut, says nothing, and neither does one that has nothing to say. So
//! who has heard nothing for a while asks (PING), and whoever is asked answers (PONG), whatever its handlers do. Any message
//! is a sign of life; what does not come in time ends the connection.
//!
//! ```text
//!   Listening ──silent for the interval──► Asked ──still silent for the timeout──► dead
//!       ▲                                    │
//!       └──────────any message───────────────┘
//! ```
//!
//! A peer is asked only if its HELLO has [`KEEP_ALIVE`]. Owns no timer: who uses it asks when to look, and looks then. That
//! something came is noted without a clock, because it happens with each batch.

use std::time::Duration;

use tokio::time::Instant;

use super::deadlines::deadline_after;
use crate::config::KeepAlive;

/// HELLO's feature bit of a side that answers PING.
pub const KEEP_ALIVE: u64 = 1;

/// Shortest interval and timeout: what is looked at more often keeps a processor busy.
const SHORTEST: Duration = Duration::from_millis(1);

/// What one side knows of the other's life.
#[derive(Debug)]
pub struct Watch {
    settings: KeepAlive,
    look_at: Instant,
    /// When it is over, if the peer was asked.
    over_at: Option<Instant>,
    /// Whether something came since the last look.
    heard: bool,
}

/// What a look gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing is to be done before [`Watch::next`].
    Wait,
    /// The peer is to be asked.
    Ask,
    /// It did not answer in time.
    Dead,
}

impl Watch {
    /// Watches from now on.
    pub fn new(settings: KeepAlive, now: Instant) -> Self {
        let KeepAlive { interval, timeout } = settings;
        let settings =
            KeepAlive { interval: interval.max(2 * SHORTEST), timeout: timeout.max(SHORTEST) };
        let mut watch = Self { settings, look_at: now, over_at: None, heard: false };
        watch.look_later(now);
        watch
    }

    /// Something came from the peer.
    pub fn handle_heard(&mut self) {
        self.heard = true;
    }

    /// When [`look`](Self::look) has something to do.
    pub fn next(&self) -> Instant {
        self.over_at.map_or(self.look_at, |over_at| over_at.min(self.look_at))
    }

    /// Looks. To be called after what has arrived was received: a process that was stopped itself finds in its sockets
    /// what came meanwhile.
    pub fn look(&mut self, now: Instant) -> Found {
        if now < self.next() {
            return Found::Wait;
        }
        self.look_later(now);
        if std::mem::take(&mut self.heard) {
            self.over_at = None;
            return Found::Wait;
        }
        match self.over_at {
            Some(over_at) if over_at <= now => Found::Dead,
            Some(_) => Found::Wait,
            None => {
                self.over_at = Some(deadline_after(now, self.settings.timeout));
                Found::Ask
            }
        }
    }

    /// What one of these looks found dead: since when it is silent, in words.
    pub fn why_dead(&self) -> String {
        let KeepAlive { interval, timeout } = self.settings;
        format!(
            "the peer was silent for keep_alive.interval of {interval:?}, and did not answer within keep_alive.timeout of \
             {timeout:?} when it was asked: it is frozen, or the network between is cut"
        )
    }

    /// Two looks per interval: one that finds the peer silent knows only that it was since the last.
    fn look_later(&mut self, now: Instant) {
        self.look_at = deadline_after(now, self.settings.interval / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn settings() -> KeepAlive {
        KeepAlive { interval: 10 * SECOND, timeout: 4 * SECOND }
    }

    /// Looks whenever it is due until `end`; returns what was found, and when, in milliseconds.
    fn run(watch: &mut Watch, begin: Instant, end: Duration) -> Vec<(u128, Found)> {
        let mut found = Vec::new();
        while watch.next() <= begin + end {
            let now = watch.next();
            let this = watch.look(now);
            if this != Found::Wait {
                found.push(((now - begin).as_millis(), this));
            }
            if this == Found::Dead {
                break;
            }
        }
        found
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_asked_and_then_dead_within_interval_and_timeout() {
        let begin = Instant::now();
        let mut watch = Watch::new(settings(), begin);
        assert_eq!(watch.look(begin), Found::Wait);
        // The latest that it can be: something came right after a look.
        watch.handle_heard();
        let found = run(&mut watch, begin, 60 * SECOND);
        assert_eq!(found, [(10_000, Found::Ask), (14_000, Found::Dead)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_answers_lives_and_is_asked_again_only_when_silent_again() {
        let begin = Instant::now();
        let mut watch = Watch::new(settings(), begin);
        assert_eq!(run(&mut watch, begin, 5 * SECOND), [(5000, Found::Ask)]);
        watch.handle_heard();
        assert_eq!(run(&mut watch, begin, 13 * SECOND), []);
        assert_eq!(run(&mut watch, begin, 15 * SECOND), [(14_000, Found::Ask)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_something_in_time_is_never_asked() {
        let begin = Instant::now();
        let mut watch = Watch::new(settings(), begin);
        for second in (0..600).step_by(5) {
            watch.handle_heard();
            assert_eq!(run(&mut watch, begin, second * SECOND), [], "{second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn extreme_settings_neither_spin_nor_overflow() {
        let begin = Instant::now();
        let none = KeepAlive { interval: Duration::ZERO, timeout: Duration::ZERO };
        let mut watch = Watch::new(none, begin);
        assert_eq!(watch.next() - begin, SHORTEST);
        assert_eq!(run(&mut watch, begin, SECOND), [(1, Found::Ask), (2, Found::Dead)]);
        let never = KeepAlive { interval: Duration::MAX, timeout: Duration::MAX };
        assert!(Watch::new(never, begin).next() - begin > 86_400 * SECOND);
    }
}
