//! Endpoints at which calls fail one after the other are left alone for a while.
//!
//! Owns what is known of one endpoint, and the rule. Time is a parameter.

use std::time::Duration;

use tokio::time::Instant;

use super::deadlines::deadline_after;
use crate::status::{Code, Executed, Status};

/// When an endpoint of a balanced channel is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutlierLimits {
    /// After how many calls that failed one after the other, with `Unavailable` or at their deadlines. 5: chance makes that many rarely.
    /// `u32::MAX` for never.
    pub consecutive_failures: u32,
    /// For how long, the first time. 30 s: a restart is over by then. Each time that follows is as much longer.
    pub ejection: Duration,
    /// For how long at most. 300 s. Who behaves for that long begins anew.
    pub longest_ejection: Duration,
    /// How many of all endpoints at a time, in hundredths; one is always possible where there are several. 50: the others have to carry
    /// all that these did.
    pub most_ejected_percent: u32,
}

impl Default for OutlierLimits {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            ejection: Duration::from_secs(30),
            longest_ejection: Duration::from_secs(300),
            most_ejected_percent: 50,
        }
    }
}

impl OutlierLimits {
    /// Whether one more of `all` endpoints may be left alone, where `ejected` are.
    pub fn may_eject(&self, ejected: usize, all: usize) -> bool {
        let percent = usize::try_from(self.most_ejected_percent).unwrap_or(usize::MAX).min(100);
        all > 1 && ejected < (all * percent / 100).max(1)
    }
}

/// What is known of an endpoint.
#[derive(Debug, Default)]
pub struct Outlier {
    failures: u32,
    /// Times in a row that it was left alone.
    in_a_row: u32,
    until: Option<Instant>,
    ejections: u64,
}

impl Outlier {
    /// A call succeeded there, or failed in a way that is not the endpoint's.
    pub fn handle_success(&mut self) {
        self.failures = 0;
    }

    /// A call failed there. Says whether the endpoint is to be left alone, if it may be.
    pub fn handle_failure(&mut self, limits: &OutlierLimits) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures >= limits.consecutive_failures
    }

    /// It is left alone from now on.
    pub fn handle_ejected(&mut self, now: Instant, limits: &OutlierLimits) {
        if self
            .until
            .is_some_and(|until| now.saturating_duration_since(until) > limits.longest_ejection)
        {
            self.in_a_row = 0;
        }
        self.failures = 0;
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.ejections += 1;
        let time = limits.ejection.saturating_mul(self.in_a_row).min(limits.longest_ejection);
        self.until = Some(deadline_after(now, time));
    }

    /// Whether it is left alone.
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// How often it was, in all.
    pub fn ejections(&self) -> u64 {
        self.ejections
    }
}

/// Whether an endpoint has failed where a call ended so: what a handler says of its own work does not count.
pub fn is_failure(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => true,
        // One that was never sent says nothing of its endpoint.
        Code::DeadlineExceeded => status.executed() != Executed::No,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn failures_count_only_one_after_the_other() {
        let limits = OutlierLimits::default();
        let mut outlier = Outlier::default();
        for _ in 0..3 {
            assert!((0..4).all(|_| !outlier.handle_failure(&limits)));
            outlier.handle_success();
        }
        assert!((0..4).all(|_| !outlier.handle_failure(&limits)));
        assert!(outlier.handle_failure(&limits));
        let never = OutlierLimits { consecutive_failures: u32::MAX, ..limits };
        assert!(!outlier.handle_failure(&never));
    }

    #[test]
    fn it_is_left_alone_for_longer_each_time_and_who_behaves_begins_anew() {
        let (limits, now) = (OutlierLimits::default(), Instant::now());
        let mut outlier = Outlier::default();
        let mut at = now;
        for expected in [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300] {
            outlier.handle_ejected(at, &limits);
            assert!(outlier.is_ejected(at + expected * SECOND - SECOND / 1000), "{expected}");
            assert!(!outlier.is_ejected(at + expected * SECOND), "{expected}");
            at += expected * SECOND;
        }
        at += limits.longest_ejection + SECOND;
        outlier.handle_ejected(at, &limits);
        assert!(!outlier.is_ejected(at + limits.ejection));
        assert_eq!(outlier.ejections(), 12);
    }

    #[test]
    fn a_share_of_all_may_be_left_alone_and_never_the_only_one() {
        let limits = OutlierLimits::default();
        for (ejected, all, may) in [
            (0, 0, false),
            (0, 1, false),
            (0, 2, true),
            (1, 2, false),
            (0, 3, true),
            (1, 3, false),
            (4, 10, true),
            (5, 10, false),
        ] {
            assert_eq!(limits.may_eject(ejected, all), may, "{ejected} of {all}");
        }
        let all = OutlierLimits { most_ejected_percent: 1000, ..limits };
        assert!(all.may_eject(9, 10) && !all.may_eject(10, 10));
    }

    #[test]
    fn what_a_handler_says_of_its_own_work_is_no_failure_of_its_endpoint() {
        for (status, expected) in [
            (Status::unavailable(""), true),
            (Status::deadline_exceeded("").with_executed(Executed::Maybe), true),
            (Status::deadline_exceeded("").with_executed(Executed::No), false),
            (Status::internal(""), false),
            (Status::resource_exhausted(""), false),
            (Status::cancelled(""), false),
        ] {
            assert_eq!(is_failure(&status), expected, "{status:?}");
        }
    }
}
