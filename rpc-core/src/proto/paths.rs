//! When a client tries for a second path, and which way new calls go meanwhile.
//!
//! ```text
//!               ask            offered              connected
//!   Due ──────────► Asking ──────────► Connecting ────────────► Up
//!    ▲                 │ refused            │ failed             │ lost
//!    │ its time        ▼                    ▼                    ▼
//!    └────────────── Waiting ◄──────────────┴────────────────────┘
//! ```
//!
//! `Never` is where it begins if the policy or this build rules a second path out, and nothing follows from it. Owns the state of
//! one first path, the reason why there is no second one, and the time of the next attempt; neither asks nor connects. There is at
//! most one attempt at a time, since nothing but `Due` leads to one.
//!
//! Failures are further and further apart, by chance a bit more or less, so that neither a server nor its devices see a
//! storm. The delays begin anew only after a path that [lasted](LASTING): one that comes up and breaks at once, again and
//! again, costs its calls each time.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::config::Random;
use crate::transport::{Beside, Path};

/// How long a second path has to last for the delays to begin anew after it.
pub const LASTING: Duration = Duration::from_secs(10);

/// Which ways a channel's calls may go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathPolicy {
    /// Over RDMA when there is a path, else over TCP.
    #[default]
    Auto,
    /// Over RDMA alone: calls wait for that path until their deadline, and the channel is
    /// [`Connecting`](crate::ConnectivityState::Connecting) until there is one, also while it is connected over TCP.
    RequireRdma,
    /// Over TCP alone.
    TcpOnly,
    /// Encrypted alone: over TLS, and never over RDMA, which does not encrypt.
    RequireEncryption,
}

impl PathPolicy {
    /// Refuses a target that can never lead to the path that calls must take.
    ///
    /// # Errors
    ///
    /// Why, and what to do.
    pub fn check_beside(self, beside: Option<&Beside>) -> Result<(), String> {
        match (self, beside) {
            (Self::RequireRdma, Some(Beside::Nothing(why))) => {
                Err(format!("the policy is RequireRdma, and there is no RDMA on this side: {why}"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a connection that stays without a second path although calls must take that.
    ///
    /// # Errors
    ///
    /// Why, and what to do.
    pub fn check_alone(self, beside: Option<&Beside>) -> Result<(), &'static str> {
        match (self, beside) {
            (Self::RequireRdma, Some(_)) => Err(
                "the policy is RequireRdma, and a channel of one connection stays on its first path: use connect(), or an rdma:// target",
            ),
            _ => Ok(()),
        }
    }

    /// Refuses a first path that calls must not go over.
    ///
    /// # Errors
    ///
    /// Why, and what to do.
    pub fn check_first(self, path: &Path) -> Result<(), String> {
        if self != Self::RequireEncryption || path.transport == "tls" {
            return Ok(());
        }
        Err(format!(
            "the policy is RequireEncryption, and {} does not encrypt: connect to a tls:// target, or to an auto:// one with TLS settings",
            path.transport
        ))
    }

    /// Why there can be no second path, whatever the server says.
    fn rules_out(self) -> Option<&'static str> {
        match self {
            Self::Auto | Self::RequireRdma => None,
            Self::TcpOnly => Some("the channel's policy is TcpOnly"),
            Self::RequireEncryption => Some(
                "the channel's policy is RequireEncryption, and payload over RDMA is not encrypted",
            ),
        }
    }
}

/// Shortest time until a server is asked again that will not offer a path while it runs. 60 s: it may be another one by then.
const LASTING_REFUSAL: Duration = Duration::from_secs(60);

/// The second path of a first one.
#[derive(Debug)]
pub struct PathRule {
    state: State,
    /// Why there is no second path, or was none before.
    why_not: String,
    backoff: Backoff,
    longest: Duration,
    random: Random,
    failures: u32,
    switches: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Never,
    /// An attempt is due then; `failures` tells the first one from those that wait.
    Due(Instant),
    Asking,
    Connecting,
    Up(Instant),
}

/// What to do about the second path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing, ever.
    Never,
    /// Ask the server then.
    AskAt(Instant),
    /// Nothing, until what is under way has ended.
    Busy,
    /// Nothing, until the path is lost.
    Up,
}

/// How soon it is worth to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// What was wrong may be over at any time; not before this, where the server says it.
    Soon(Option<Duration>),
    /// It stays until somebody changes the server: its build, its settings.
    Lasting,
}

impl PathRule {
    /// The rule for a first path that was just connected. `available` says why this side has no transport for a second; the
    /// delays are those after the first failure, and at most.
    pub fn new(
        now: Instant,
        policy: PathPolicy,
        available: Result<(), &str>,
        (first, longest): (Duration, Duration),
        random: Random,
    ) -> Self {
        let ruled_out = policy.rules_out().map_or(available, Err);
        let (state, why_not) = match ruled_out {
            Ok(()) => (State::Due(now), "the server was not asked yet".to_owned()),
            Err(why) => (State::Never, why.to_owned()),
        };
        let backoff = Backoff::new(first, longest, random.clone());
        Self { state, why_not, backoff, longest, random, failures: 0, switches: 0 }
    }

    /// What to do.
    pub fn next(&self) -> Next {
        match self.state {
            State::Never => Next::Never,
            State::Due(at) => Next::AskAt(at),
            State::Asking | State::Connecting => Next::Busy,
            State::Up(_) => Next::Up,
        }
    }

    /// How often a second path came up.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Why there is no second path, in words, with what happens next; where there is one, why there was none before.
    pub fn why_not(&self, now: Instant) -> String {
        let why = &self.why_not;
        match self.state {
            State::Never | State::Up(_) => why.clone(),
            State::Asking if self.failures == 0 => "the server is being asked for one".to_owned(),
            State::Connecting if self.failures == 0 => "it is being connected".to_owned(),
            State::Asking => format!("{why}; the server is being asked again"),
            State::Connecting => format!("{why}; it is being connected again"),
            State::Due(_) if self.failures == 0 => why.clone(),
            State::Due(at) => {
                let after = at.saturating_duration_since(now);
                let failures = self.failures;
                format!("{why}; the next try is in {after:.1?}, failed so far in a row: {failures}")
            }
        }
    }

    /// The server is asked now.
    pub fn handle_ask(&mut self) {
        if matches!(self.state, State::Due(_)) {
            self.state = State::Asking;
        }
    }

    /// It offers a path, which is connected now.
    pub fn handle_offer(&mut self) {
        if self.state == State::Asking {
            self.state = State::Connecting;
        }
    }

    /// It offers none, or could not be asked.
    pub fn handle_refused(&mut self, now: Instant, outlook: Outlook, why: String) {
        if self.state != State::Asking {
            return;
        }
        let delay = self.fail(why);
        let delay = match outlook {
            Outlook::Soon(least) => delay.max(least.unwrap_or(Duration::ZERO)),
            Outlook::Lasting => {
                let random = self.random.clone();
                let delay = self.longest.max(LASTING_REFUSAL);
                Backoff::new(delay, delay, random).handle_failure()
            }
        };
        self.wait(now, delay);
    }

    /// The path that was offered could not be connected.
    pub fn handle_failed(&mut self, now: Instant, why: String) {
        if self.state == State::Connecting {
            let delay = self.fail(why);
            self.wait(now, delay);
        }
    }

    /// The path stands: new calls take it.
    pub fn handle_connected(&mut self, now: Instant) {
        if self.state == State::Connecting {
            self.state = State::Up(now);
            self.switches += 1;
        }
    }

    /// The path has ended: new calls take the first.
    pub fn handle_lost(&mut self, now: Instant, why: String) {
        let State::Up(since) = self.state else { return };
        if now.saturating_duration_since(since) >= LASTING {
            self.backoff.handle_success();
            self.failures = 0;
        }
        let delay = self.fail(why);
        self.wait(now, delay);
    }

    fn fail(&mut self, why: String) -> Duration {
        self.why_not = why;
        self.failures = self.failures.saturating_add(1);
        self.backoff.handle_failure()
    }

    fn wait(&mut self, now: Instant, delay: Duration) {
        // Delays end at a minute, or where a server says so: a day is as good as never.
        let delay = delay.min(Duration::from_secs(24 * 60 * 60));
        self.state = State::Due(now + delay);
    }
}

#[cfg(test)]
mod tests;
