//! To which of several endpoints a call goes.
//!
//! Owns whose turn it is. What is known of an endpoint it is told for each that it looks at, and it looks at few: at one, or at two, as
//! long as they are usable.

use crate::config::Random;

/// How calls are spread over endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// Of two that chance chooses, the one with fewer calls under way: near to the least loaded one of all, and clients that know nothing of
    /// each other do not all choose the same.
    LeastLoaded,
}

/// An endpoint that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    /// Calls may go there.
    Usable {
        /// How many are under way there.
        outstanding: usize,
    },
    /// Only if there is no usable one: too many calls have failed there.
    LastResort,
    /// No call can go there now.
    Unusable,
}

/// Picks endpoints, by their indices.
#[derive(Debug)]
pub struct Picker {
    balance: Balance,
    next: usize,
    random: Random,
}

impl Picker {
    /// Picks by `balance`.
    pub fn new(balance: Balance, random: Random) -> Self {
        Self { balance, next: 0, random }
    }

    /// One of `count` endpoints, of each of which `look` says what it is; `None` if no call can go to any.
    pub fn pick(
        &mut self,
        count: usize,
        mut look: impl FnMut(usize) -> Candidate,
    ) -> Option<usize> {
        if count == 0 {
            return None;
        }
        let start = match self.balance {
            Balance::RoundRobin => self.next % count,
            Balance::LeastLoaded => match self.pick_of_two(count, &mut look) {
                Ok(picked) => return Some(picked),
                Err(start) => start,
            },
        };
        let mut last_resort = None;
        for index in (start..count).chain(0..start) {
            match look(index) {
                Candidate::Usable { .. } => {
                    self.next = index + 1;
                    return Some(index);
                }
                Candidate::LastResort => last_resort = last_resort.or(Some(index)),
                Candidate::Unusable => {}
            }
        }
        self.next = last_resort.map_or(self.next, |index| index + 1);
        last_resort
    }

    /// The less loaded of two. `Err` with where to look for another if none of both is usable.
    fn pick_of_two(
        &mut self,
        count: usize,
        look: &mut impl FnMut(usize) -> Candidate,
    ) -> Result<usize, usize> {
        let one = self.below(count);
        // Another one, if there is another.
        let other = (one + 1 + self.below((count - 1).max(1))) % count;
        let load = |candidate| match candidate {
            Candidate::Usable { outstanding } => Some(outstanding),
            Candidate::LastResort | Candidate::Unusable => None,
        };
        match (load(look(one)), load(look(other))) {
            (Some(ones), Some(others)) => Ok(if others < ones { other } else { one }),
            (Some(_), None) => Ok(one),
            (None, Some(_)) => Ok(other),
            (None, None) => Err(one),
        }
    }

    fn below(&self, count: usize) -> usize {
        let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.random.next_u64() % count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Candidate = Candidate::Usable { outstanding: 0 };
    const BUSY: Candidate = Candidate::Usable { outstanding: 9 };

    fn picks(balance: Balance, endpoints: &[Candidate], count: usize) -> Vec<Option<usize>> {
        let mut picker = Picker::new(balance, Random::from_seed(3));
        (0..count).map(|_| picker.pick(endpoints.len(), |index| endpoints[index])).collect()
    }

    #[test]
    fn each_has_its_turn_and_who_is_not_usable_is_passed_over() {
        use Candidate::{LastResort, Unusable};
        let of = |endpoints: &[Candidate]| {
            picks(Balance::RoundRobin, endpoints, 4)
                .into_iter()
                .map(|one| one.map_or(9, |one| one))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[FREE, BUSY, FREE]), [0, 1, 2, 0]);
        assert_eq!(of(&[Unusable, FREE, FREE]), [1, 2, 1, 2]);
        assert_eq!(of(&[LastResort, FREE, Unusable]), [1, 1, 1, 1]);
        assert_eq!(of(&[LastResort, Unusable, LastResort]), [0, 2, 0, 2]);
        assert_eq!(of(&[Unusable, Unusable]), [9, 9, 9, 9]);
        assert_eq!(of(&[]), [9, 9, 9, 9]);
    }

    #[test]
    fn the_less_loaded_of_two_is_picked() {
        for (endpoints, count) in [(vec![BUSY, FREE], 2), (vec![FREE, BUSY], 2)] {
            let expected = endpoints.iter().position(|one| *one == FREE);
            assert_eq!(picks(Balance::LeastLoaded, &endpoints, 50), vec![expected; 50], "{count}");
        }
        // A busy one of many is picked only where both that chance chose were busy.
        let endpoints = [BUSY, BUSY, FREE, FREE, FREE, FREE];
        let picked = picks(Balance::LeastLoaded, &endpoints, 3000);
        let busy = picked.iter().filter(|one| one.is_some_and(|one| one < 2)).count();
        assert!((100..320).contains(&busy), "{busy} of 3000, about 200 expected");
        let mut free: Vec<_> = picked.into_iter().flatten().filter(|one| *one >= 2).collect();
        free.sort_unstable();
        free.dedup();
        assert_eq!(free, [2, 3, 4, 5]);
    }

    #[test]
    fn with_load_or_without_what_is_usable_is_found_wherever_it_is() {
        use Candidate::{LastResort, Unusable};
        for place in 0..9 {
            let mut endpoints = [Unusable; 9];
            endpoints[(place + 4) % 9] = LastResort;
            let found = picks(Balance::LeastLoaded, &endpoints, 20);
            assert_eq!(found, [Some((place + 4) % 9); 20]);
            endpoints[place] = BUSY;
            assert_eq!(picks(Balance::LeastLoaded, &endpoints, 20), [Some(place); 20]);
        }
        assert_eq!(picks(Balance::LeastLoaded, &[FREE], 3), [Some(0); 3]);
        assert_eq!(picks(Balance::LeastLoaded, &[], 3), [None; 3]);
    }
}
