//! Whose queue pairs share receives, by number.
//!
//! The device uses the number of a destroyed queue pair again, and a completion of a shared receive says nothing else but
//! which receives these are. So a number is remembered for its receives, with where they were posted when its queue pair was
//! destroyed: until all before that have completed, one may be on its way that names the old queue pair.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::nic::{Qp, QpNumber};
use crate::shared::{Place, SharedReceives};
use crate::work::ConnectionNumber;

/// Numbers that are remembered before those are looked for that need not be.
const REMEMBERED: usize = 256;

/// A number of a queue pair, and which receives it takes. Two that take different ones cannot be taken for each other.
type Key = (QpNumber, ConnectionNumber);

/// See the module.
#[derive(Default)]
pub(super) struct Numbers {
    known: BTreeMap<Key, Bound>,
    /// Those that had a number before.
    before: BTreeMap<Key, Before>,
    /// How many of them there were, twice, when the last ones were forgotten.
    enough: usize,
}

/// A queue pair.
pub(super) struct Bound {
    /// Whose it is.
    pub(super) connection: ConnectionNumber,
    shared: Weak<SharedReceives>,
    receives: ConnectionNumber,
    qp: Weak<dyn Qp>,
    /// Completions that may wait for its connection.
    allowed: usize,
}

/// A queue pair that is destroyed.
struct Before {
    shared: Weak<SharedReceives>,
    mark: Place,
}

impl Bound {
    pub(super) fn new(
        connection: ConnectionNumber,
        shared: &Arc<SharedReceives>,
        qp: &Arc<dyn Qp>,
        allowed: usize,
    ) -> Self {
        let (receives, qp) = (shared.number(), Arc::downgrade(qp));
        Self { connection, shared: Arc::downgrade(shared), receives, qp, allowed }
    }

    /// Whether so many completions that wait are more than there can be.
    pub(super) fn is_overrun(&self, waiting: usize) -> bool {
        waiting > self.allowed
    }

    pub(super) fn qp(&self) -> Option<Arc<dyn Qp>> {
        self.qp.upgrade()
    }

    /// One of its receives has completed. May be said under a lock: who is bound keeps the receives, so that this is never
    /// the last reference to them.
    pub(super) fn arrived(&self, sequence: u64) {
        self.shared.upgrade().into_iter().for_each(|shared| shared.arrived(sequence));
    }
}

impl Numbers {
    /// The queue pair of this number, if it takes these receives.
    pub(super) fn find(&self, number: QpNumber, receives: ConnectionNumber) -> Option<&Bound> {
        self.known.get(&(number, receives))
    }

    /// Where these receives were posted when the one was destroyed that had this number before.
    pub(super) fn before(&self, number: QpNumber, receives: ConnectionNumber) -> Option<Place> {
        self.before.get(&(number, receives)).map(|before| before.mark)
    }

    /// Makes one known. `settled` is what [`before`](Self::before) gave, of which no completion is to come. `false` if there
    /// is one of this number, or was one since.
    pub(super) fn bind(&mut self, number: QpNumber, bound: Bound, settled: Option<Place>) -> bool {
        let key = (number, bound.receives);
        if self.known.contains_key(&key) || self.before(number, bound.receives) != settled {
            return false;
        }
        self.before.remove(&key);
        self.known.insert(key, bound);
        true
    }

    /// One is destroyed, when receives had been posted up to `mark`, and all before `settled` had completed.
    pub(super) fn leave(
        &mut self,
        number: QpNumber,
        shared: &Arc<SharedReceives>,
        (mark, settled): (Place, Place),
    ) {
        let receives = shared.number();
        self.known.remove(&(number, receives));
        if self.before.len() >= self.enough.max(REMEMBERED) {
            // The memory of others is gone, and with it all that their queue pairs could have taken.
            self.before.retain(|(_, of), before| {
                before.shared.strong_count() > 0 && (*of != receives || before.mark > settled)
            });
            self.enough = 2 * self.before.len();
        }
        let shared = Arc::downgrade(shared);
        self.before.insert((number, receives), Before { shared, mark });
    }

    /// The receives of this number, of whoever is known to take them.
    pub(super) fn receives(&self, number: ConnectionNumber) -> Option<Arc<SharedReceives>> {
        let known = self.known.iter().map(|((_, receives), bound)| (*receives, &bound.shared));
        let before = self.before.iter().map(|((_, receives), before)| (*receives, &before.shared));
        let (_, shared) = known.chain(before).find(|(receives, _)| *receives == number)?;
        shared.upgrade()
    }
}

#[cfg(all(test, feature = "fabric"))]
mod tests;
