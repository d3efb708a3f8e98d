//! When to look for expired calls.
//!
//! Calls have deadlines, but nearly all end long before. So there is no queue of deadlines to keep in
//! order: this remembers one moment, not later than the earliest deadline of any running call. When it
//! comes, whoever owns the calls looks at all of them, ends the expired ones, and says which deadline is
//! the earliest of the rest. A call costs a comparison when it begins and nothing when it ends; with a
//! usual deadline of a minute, the look comes once a minute.

use std::time::Duration;

use tokio::time::Instant;

use crate::status::{Executed, Status};

/// Stands for timeouts that no clock reaches.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The deadline of a call that may take `timeout`, capped at a year: the number may be a peer's.
pub fn deadline_after(now: Instant, timeout: Duration) -> Instant {
    now + timeout.min(YEAR)
}

/// The status of a call whose time was over when its handler was to be entered.
pub(crate) fn expired_before_execution() -> Status {
    Status::deadline_exceeded("the deadline passed before the handler was entered")
        .with_executed(Executed::No)
}

/// The moment of the next look.
#[derive(Debug, Default)]
pub struct Deadlines {
    next: Option<Instant>,
}

/// Whether the timer of whoever waits for [`Deadlines::next`] must be set again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// The timer is early enough.
    Keep,
    /// The next look is earlier than before.
    Rearm,
}

impl Deadlines {
    /// When to look, if there is anything to wait for.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// A call with this deadline begins.
    pub fn handle_begin(&mut self, deadline: Instant) -> Timer {
        if self.next.is_some_and(|next| next <= deadline) {
            return Timer::Keep;
        }
        self.next = Some(deadline);
        Timer::Rearm
    }

    /// Whether it is time to look.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// The look was taken; `earliest` is the earliest deadline of the calls that go on.
    pub fn handle_looked(&mut self, earliest: Option<Instant>) {
        self.next = earliest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_earlier_deadline_rearms_the_timer() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut deadlines = Deadlines::default();
        assert!(!deadlines.is_due(at(1000)));
        assert_eq!(deadlines.handle_begin(at(50)), Timer::Rearm);
        assert_eq!(deadlines.handle_begin(at(60)), Timer::Keep);
        assert_eq!(deadlines.handle_begin(at(50)), Timer::Keep);
        assert_eq!(deadlines.handle_begin(at(40)), Timer::Rearm);
        assert!(!deadlines.is_due(at(39)));
        assert!(deadlines.is_due(at(40)));
        deadlines.handle_looked(Some(at(60)));
        assert_eq!(deadlines.next(), Some(at(60)));
        deadlines.handle_looked(None);
        assert_eq!(deadlines.handle_begin(at(90)), Timer::Rearm);
    }
}
