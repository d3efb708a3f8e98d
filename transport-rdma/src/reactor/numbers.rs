//! Whose queue pairs share receives, by number.
//!
//! The device uses the number of a destroyed queue pair again, and a completion of a shared receive says nothing else. So a
//! number is remembered, with where receives were posted when its queue pair was destroyed: until all before that
//! have completed, one may be on its way that names the old queue pair.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::nic::{Qp, QpNumber};
use crate::shared::{Place, SharedReceives};
use crate::work::ConnectionNumber;

/// Numbers that are remembered before those are looked for that need not be.
const REMEMBERED: usize = 256;

/// See the module.
#[derive(Default)]
pub(super) struct Numbers {
    known: BTreeMap<QpNumber, Bound>,
    /// Those that had a number before.
    before: BTreeMap<QpNumber, Before>,
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
#[derive(Clone)]
pub(super) struct Before {
    shared: Weak<SharedReceives>,
    receives: ConnectionNumber,
    mark: Place,
}

impl Before {
    /// Whether none of its completions is to come. Not to be asked under a lock.
    pub(super) fn is_settled(&self) -> bool {
        self.shared.upgrade().is_none_or(|shared| shared.is_settled(self.mark))
    }
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
}

impl Numbers {
    /// The queue pair of this number, if it takes these receives.
    pub(super) fn find(&self, number: QpNumber, receives: ConnectionNumber) -> Option<&Bound> {
        self.known.get(&number).filter(|bound| bound.receives == receives)
    }

    /// The one that had this number before.
    pub(super) fn before(&self, number: QpNumber) -> Option<Before> {
        self.before.get(&number).cloned()
    }

    /// Makes one known; `false` if there is one of this number.
    pub(super) fn bind(&mut self, number: QpNumber, bound: Bound) -> bool {
        if self.known.contains_key(&number) {
            return false;
        }
        self.before.remove(&number);
        self.known.insert(number, bound);
        true
    }

    /// One is destroyed, when receives had been posted up to here.
    pub(super) fn leave(
        &mut self,
        number: QpNumber,
        (shared, mark): (&Arc<SharedReceives>, Place),
    ) {
        self.known.remove(&number);
        if self.before.len() >= REMEMBERED {
            // Their memory is gone, and with it all that their queue pairs could have taken.
            self.before.retain(|_, before| before.shared.strong_count() > 0);
        }
        let (receives, shared) = (shared.number(), Arc::downgrade(shared));
        self.before.insert(number, Before { shared, receives, mark });
    }

    /// The receives of this number, of whoever is known to take them.
    pub(super) fn receives(&self, number: ConnectionNumber) -> Option<Arc<SharedReceives>> {
        let known = self.known.values().map(|bound| (bound.receives, &bound.shared));
        let before = self.before.values().map(|before| (before.receives, &before.shared));
        let (_, shared) = known.chain(before).find(|(receives, _)| *receives == number)?;
        shared.upgrade()
    }
}
