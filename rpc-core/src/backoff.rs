//! How long to wait before the next attempt. Owns the delay of the attempt to come; does not wait.

use std::time::Duration;

use crate::config::Random;

/// Delays that grow by three fifths from the first to the longest, each a fifth shorter or longer by chance, so that clients who
/// lost the same server do not all come back at one moment.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// Without chance.
    next: Duration,
    random: Random,
}

impl Backoff {
    /// Delays from `first` to `longest`; where `first` is the longer of the two, all are `longest`.
    pub fn new(first: Duration, longest: Duration, random: Random) -> Self {
        Self { first, longest, next: first.min(longest), random }
    }

    /// The same delays by another chance.
    #[must_use]
    pub fn with_random(self, random: Random) -> Self {
        Self { random, ..self }
    }

    /// The same chance for other delays.
    #[must_use]
    pub fn with_delays(self, first: Duration, longest: Duration) -> Self {
        Self::new(first, longest, self.random)
    }

    /// An attempt failed: how long to wait for the next one.
    pub fn handle_failure(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_add(delay / 5 * 3).min(self.longest);
        // From 800 to 1200 thousandths.
        let thousandths = 800 + u32::try_from(self.random.next_u64() % 401).unwrap_or(0);
        (delay / 1000).saturating_mul(thousandths)
    }

    /// An attempt succeeded.
    pub fn handle_success(&mut self) {
        self.next = self.first.min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(backoff: &mut Backoff, count: usize) -> Vec<Duration> {
        (0..count).map(|_| backoff.handle_failure()).collect()
    }

    #[test]
    fn delays_grow_to_the_longest_and_begin_anew_after_a_success() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(10), Random::from_seed(7));
        let expected = [1.0, 1.6, 2.56, 4.096, 6.5536, 10.0, 10.0];
        for (delay, expected) in delays(&mut backoff, 7).into_iter().zip(expected) {
            let share = delay.as_secs_f64() / expected;
            assert!((0.799..=1.201).contains(&share), "{delay:?} for {expected} s");
        }
        backoff.handle_success();
        assert!(backoff.handle_failure() <= Duration::from_millis(1200));
    }

    #[test]
    fn the_same_seed_gives_the_same_delays_and_another_one_others() {
        let of = |seed| {
            let second = Duration::from_secs(1);
            delays(&mut Backoff::new(second, second, Random::from_seed(seed)), 20)
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let mut different = of(1);
        different.dedup();
        assert!(different.len() > 10, "chance has no part in {different:?}");
    }

    #[test]
    fn delays_of_any_length_are_taken() {
        let max = Duration::MAX;
        let mut backoff = Backoff::new(max, max, Random::from_seed(1));
        assert!(delays(&mut backoff, 3).iter().all(|delay| *delay > max / 2));
        let mut backoff = Backoff::new(max, Duration::ZERO, Random::from_seed(1));
        assert_eq!(delays(&mut backoff, 2), [Duration::ZERO; 2]);
    }
}
