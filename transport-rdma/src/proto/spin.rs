//! How often an empty completion queue is polled again before its poller waits for an event.
//!
//! Polling again finds a completion sooner than an event does, and costs a processor. So the number adapts: it
//! grows while polling again finds something, shrinks while it does not, and is tried anew now and then. Counts
//! polls, not time, so that it needs no clock.

/// Waits for an event in a row after which polling again is tried anew. 32: a trial costs less than one in
/// thirty of what it may save.
const RETRY_AFTER: u32 = 32;

/// What a trial begins with, in polls.
const TRIAL: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Spin {
    most: u32,
    /// Polls allowed at the moment.
    allowed: u32,
    /// Polls in vain since something was found.
    spent: u32,
    /// Waits since `allowed` became 0.
    waits: u32,
}

impl Spin {
    /// At most this many polls in vain; 0 for none.
    pub(crate) fn new(most: u32) -> Self {
        Self { most, allowed: most.min(TRIAL), spent: 0, waits: 0 }
    }

    /// Whether polling in vain is allowed.
    pub(crate) fn is_open(&self) -> bool {
        self.spent < self.allowed
    }

    /// The queue was found empty: whether to poll it again at once.
    pub(crate) fn poll_again(&mut self) -> bool {
        let is_open = self.is_open();
        self.spent += u32::from(is_open);
        is_open
    }

    /// The queue had something.
    pub(crate) fn found(&mut self) {
        if self.spent > 0 {
            self.allowed = self.allowed.saturating_mul(2).min(self.most);
        }
        self.spent = 0;
    }

    /// Nothing was found: an event is waited for.
    pub(crate) fn wait(&mut self) {
        if self.spent > 0 {
            self.allowed /= 2;
            self.waits = 0;
        }
        self.spent = 0;
        self.waits += 1;
        if self.allowed == 0 && self.waits >= RETRY_AFTER {
            self.allowed = self.most.min(TRIAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls in vain until it gives up; returns how many.
    fn give_up(spin: &mut Spin) -> u32 {
        let polls = (0..).take_while(|_| spin.poll_again()).count();
        spin.wait();
        u32::try_from(polls).expect("few")
    }

    #[test]
    fn none_are_allowed_at_zero() {
        let mut spin = Spin::new(0);
        for _ in 0..100 {
            assert_eq!(give_up(&mut spin), 0);
            spin.found();
        }
    }

    #[test]
    fn what_finds_something_is_done_more_up_to_the_most() {
        let mut spin = Spin::new(100);
        for _ in 0..10 {
            assert!(spin.poll_again());
            spin.found();
        }
        assert_eq!(give_up(&mut spin), 100);
    }

    #[test]
    fn what_finds_nothing_ends_and_is_tried_again_later() {
        let mut spin = Spin::new(100);
        let polls: Vec<u32> = (0..40).map(|_| give_up(&mut spin)).collect();
        assert_eq!(polls[..4], [4, 2, 1, 0]);
        let trials: Vec<u32> = polls[4..].iter().copied().filter(|polls| *polls > 0).collect();
        assert_eq!(trials, [4, 2, 1]);
    }

    #[test]
    fn completions_that_come_without_polling_again_teach_nothing() {
        let mut spin = Spin::new(100);
        spin.found();
        assert_eq!(give_up(&mut spin), TRIAL);
    }
}
