//! When a call that failed is made again because its caller asked for that.
//!
//! Owns the rule, and the budget that keeps retries from making an outage worse. Time and chance are [`Backoff`](crate::backoff::Backoff)'s.

use std::time::Duration;

use crate::proto::resend::Repeatable;
use crate::status::{Code, Executed, Origin, Status};

/// Which failed calls are made again, how often and when.
///
/// Only those of which a repeat is safe: calls that were not executed, those of idempotent methods, and those with a slot that may have run.
/// Never one whose request is a stream of which anything was read, nor one whose replies have begun. All attempts end by the call's deadline.
/// A server that says when to try again, in a [`RetryInfo`](crate::error_details::RetryInfo), is not asked earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Attempts in all. 3: a second failure is as often chance as the first, a third is not.
    pub max_attempts: u32,
    /// How long to wait before the second attempt, and at most; in between each wait is three fifths longer, and each a fifth shorter or
    /// longer by chance. 50 ms and 1 s.
    pub backoff: (Duration, Duration),
    /// Codes after which a call is made again. `Unavailable`.
    pub codes: Vec<Code>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        let backoff = (Duration::from_millis(50), Duration::from_secs(1));
        Self { max_attempts: 3, backoff, codes: vec![Code::Unavailable] }
    }
}

impl RetryPolicy {
    /// The same with so many attempts in all.
    #[must_use]
    pub fn max_attempts(self, max_attempts: u32) -> Self {
        Self { max_attempts, ..self }
    }

    /// The same with these waits: see the field.
    #[must_use]
    pub fn backoff(self, first: Duration, longest: Duration) -> Self {
        Self { backoff: (first, longest), ..self }
    }

    /// The same after these codes.
    #[must_use]
    pub fn codes(self, codes: impl Into<Vec<Code>>) -> Self {
        Self { codes: codes.into(), ..self }
    }

    /// Whether a call that failed so counts as one that the server could not serve.
    pub fn is_failure(&self, status: &Status) -> bool {
        // What this side refuses is refused again.
        status.origin() != Origin::Local && self.codes.contains(&status.code())
    }

    /// Whether another attempt may follow the `made` ones, of which the last ended with `status`.
    pub fn allows(&self, status: &Status, made: u32, repeatable: Repeatable) -> bool {
        let is_safe = match (status.executed(), repeatable) {
            (_, Repeatable::Never) => false,
            (Executed::No, _) | (_, Repeatable::Always) => true,
            // One that ran would only be answered the same.
            (Executed::Maybe, Repeatable::BySlot) => true,
            _ => false,
        };
        is_safe && made < self.max_attempts && self.is_failure(status)
    }
}

/// How many retries a channel may make: each failure costs a token, each success gives a tenth of one back, and with half of them spent there
/// are none. So where most calls fail, retries add little to the load; the rule and its figures are gRPC's, `retryThrottling`.
#[derive(Debug)]
pub struct RetryBudget {
    /// In thousandths.
    tokens: u32,
}

impl RetryBudget {
    const FULL: u32 = 100_000;
    const FAILURE: u32 = 1000;
    const SUCCESS: u32 = 100;

    /// A call succeeded.
    pub fn handle_success(&mut self) {
        self.tokens = (self.tokens + Self::SUCCESS).min(Self::FULL);
    }

    /// An attempt failed. Says whether another one may follow.
    pub fn handle_failure(&mut self) -> bool {
        self.tokens = self.tokens.saturating_sub(Self::FAILURE);
        self.tokens > Self::FULL / 2
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { tokens: Self::FULL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: Code, origin: Origin, executed: Executed) -> Status {
        Status::new(code, "as told").with_origin(origin).with_executed(executed)
    }

    #[test]
    fn only_what_is_safe_is_repeated() {
        use Executed::{Maybe, No, Yes};
        use Repeatable::{Always, BySlot, IfNotExecuted, Never};
        let policy = RetryPolicy::default();
        for (executed, rows) in [
            (No, [(Never, false), (IfNotExecuted, true), (BySlot, true), (Always, true)]),
            (Maybe, [(Never, false), (IfNotExecuted, false), (BySlot, true), (Always, true)]),
            (Yes, [(Never, false), (IfNotExecuted, false), (BySlot, false), (Always, true)]),
        ] {
            for (repeatable, expected) in rows {
                let status = failed(Code::Unavailable, Origin::Peer, executed);
                assert_eq!(
                    policy.allows(&status, 1, repeatable),
                    expected,
                    "{executed:?} {repeatable:?}"
                );
            }
        }
    }

    #[test]
    fn only_the_codes_that_it_names_are_repeated_and_only_so_often() {
        let policy = RetryPolicy::default().max_attempts(4).codes([Code::Aborted]);
        let of = |code, origin, made| {
            policy.allows(&failed(code, origin, Executed::No), made, Repeatable::Always)
        };
        assert!(of(Code::Aborted, Origin::Peer, 1) && of(Code::Aborted, Origin::Transport, 3));
        assert!(!of(Code::Aborted, Origin::Peer, 4) && !of(Code::Aborted, Origin::Local, 1));
        assert!(!of(Code::Unavailable, Origin::Peer, 1));
    }

    #[test]
    fn where_most_calls_fail_retries_stop_and_successes_bring_them_back() {
        let mut budget = RetryBudget::default();
        let allowed = (0..1000).filter(|_| budget.handle_failure()).count();
        assert_eq!(allowed, 49);
        for _ in 0..520 {
            budget.handle_success();
        }
        assert!(budget.handle_failure());
        let mut budget = RetryBudget::default();
        for _ in 0..10_000 {
            // One of twenty fails.
            (0..19).for_each(|_| budget.handle_success());
            assert!(budget.handle_failure(), "some failures are borne");
        }
    }
}
