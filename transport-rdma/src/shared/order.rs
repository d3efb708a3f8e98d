//! In which order receives were posted, and which of them are overdue.
//!
//! A queue gives its receives out in the order of posting. So one that has not completed although a later one has was
//! taken: by a message that is still coming in, or by a queue pair that is dead. Pure.

use std::collections::VecDeque;

/// A place in the order of posting. Never reused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The first place in `done`.
    first: u64,
    /// For each place from there on, whether it has completed.
    done: VecDeque<bool>,
    /// Behind the last place that has completed.
    reached: u64,
    /// Places in front of `reached` that have not, given up ones included.
    missing: u32,
    /// Of these, in front of `first`.
    given_up: u32,
}

/// How many places are watched at most for each that is waited for. 4: what has not completed while its queue went round
/// four times will not.
const ROUNDS: usize = 4;

impl Order {
    /// Where the next one will be.
    pub(super) fn next(&self) -> Place {
        Place(self.first + self.done.len() as u64)
    }

    /// One more is posted.
    pub(super) fn posted(&mut self) -> Place {
        let place = self.next();
        self.done.push_back(false);
        place
    }

    /// One has completed.
    pub(super) fn completed(&mut self, place: Place) {
        let Some(at) = place.0.checked_sub(self.first) else {
            // It was given up too early.
            self.given_up = self.given_up.saturating_sub(1);
            self.missing = self.missing.saturating_sub(1);
            return;
        };
        let Some(done) = usize::try_from(at).ok().and_then(|at| self.done.get_mut(at)) else {
            return;
        };
        if std::mem::replace(done, true) {
            return;
        }
        if place.0 < self.reached {
            self.missing -= 1;
        } else {
            self.missing += u32::try_from(place.0 - self.reached).unwrap_or(u32::MAX);
            self.reached = place.0 + 1;
        }
        self.forget();
    }

    /// Receives that are overdue.
    pub(super) fn missing(&self) -> u32 {
        self.missing
    }

    /// All before this place have completed. The first one, once any was given up.
    pub(super) fn settled(&self) -> Place {
        if self.given_up == 0 { Place(self.first) } else { Place::default() }
    }

    /// Forgets what has completed, and what never will.
    fn forget(&mut self) {
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.first += 1;
        }
        let waiting = self.done.len() - usize::try_from(self.reached - self.first).unwrap_or(0);
        while self.done.len() > ROUNDS * (waiting + self.missing as usize).max(64) {
            if self.done.pop_front() == Some(false) {
                self.given_up += 1;
            }
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(order: &mut Order, count: usize) -> Vec<Place> {
        (0..count).map(|_| order.posted()).collect()
    }

    #[test]
    fn what_completes_in_order_is_never_missing() {
        let mut order = Order::default();
        let mut places = VecDeque::from(posted(&mut order, 8));
        for _ in 0..1000 {
            order.completed(places.pop_front().expect("posted"));
            places.push_back(order.posted());
            assert_eq!((order.missing(), order.done.len()), (0, 8));
        }
    }

    #[test]
    fn one_is_missing_from_when_a_later_one_completes_until_it_does() {
        let mut order = Order::default();
        let places = posted(&mut order, 4);
        order.completed(places[2]);
        assert_eq!(order.missing(), 2);
        assert!(order.settled() < places[1]);
        order.completed(places[0]);
        assert_eq!(order.missing(), 1);
        assert_eq!(order.settled(), places[1]);
        order.completed(places[1]);
        order.completed(places[1]);
        assert_eq!(order.missing(), 0);
        assert_eq!(order.settled(), places[3]);
    }

    #[test]
    fn one_that_never_completes_stays_missing_and_costs_no_memory() {
        let mut order = Order::default();
        let lost = order.posted();
        let mut places = VecDeque::from(posted(&mut order, 8));
        for _ in 0..10_000 {
            order.completed(places.pop_front().expect("posted"));
            places.push_back(order.posted());
            assert_eq!(order.missing(), 1);
        }
        assert!(order.done.len() <= ROUNDS * 64, "{}", order.done.len());
        assert!(order.settled() < places[0], "whose it was may still be heard of");
        order.completed(lost);
        assert_eq!(order.missing(), 0);
        assert!(order.settled() >= places[0]);
    }
}
