//! A bound on the memory of several pools together.
//!
//! Where untrusted peers have a protection domain and a landing pool each, one pool's cap bounds nothing. Slabs that
//! nobody uses are given up by all of them when one needs room.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::memory::{NoMemory, Poison, Pool, Slab};
use crate::nic::NicError;

/// A pool that can give up what it does not use.
pub(super) trait Idle: Send + Sync {
    /// Gives up slabs that nobody uses.
    fn give_up_idle(&self);
}

/// See the module.
pub struct Budget {
    cap: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    slabs: Vec<Weak<Slab>>,
    pools: Vec<Weak<dyn Idle>>,
}

impl Budget {
    /// So many bytes of slabs for all pools.
    pub fn new(cap: usize) -> Arc<Self> {
        Arc::new(Self { cap, known: Mutex::default() })
    }

    pub(super) fn join(&self, pool: Weak<dyn Idle>) {
        let mut known = self.known();
        known.pools.retain(|pool| pool.strong_count() > 0);
        known.pools.push(pool);
    }

    /// A slab, if there is room for it.
    pub(super) fn slab(&self, chunk_len: usize, chunks: usize) -> Result<Arc<Pool>, NicError> {
        if let Some(pool) = self.try_slab(chunk_len, chunks)? {
            return Ok(pool);
        }
        let pools: Vec<_> = self.known().pools.iter().filter_map(Weak::upgrade).collect();
        pools.iter().for_each(|pool| pool.give_up_idle());
        let pool = self.try_slab(chunk_len, chunks)?;
        pool.ok_or_else(|| NicError {
            verb: "allocating a slab",
            reason: format!(
                "{} bytes more would exceed the {} that all peers with domains of their own have together: \
                 raise landing.size.cap",
                chunk_len.saturating_mul(chunks),
                self.cap
            ),
        })
    }

    fn try_slab(&self, chunk_len: usize, chunks: usize) -> Result<Option<Arc<Pool>>, NicError> {
        let mut known = self.known();
        known.slabs.retain(|slab| slab.strong_count() > 0);
        let slabs: Vec<_> = known.slabs.iter().filter_map(Weak::upgrade).collect();
        let held: usize = slabs.iter().map(|slab| slab.len()).sum();
        let room = self.cap.saturating_sub(held) >= chunk_len.saturating_mul(chunks);
        let made = room.then(|| Slab::try_new(chunk_len, chunks)).transpose();
        let made = made.map(|slab| slab.map(|slab| Pool::new(slab, Poison::Off)));
        if let Ok(Some(pool)) = &made {
            known.slabs.push(Arc::downgrade(pool.slab()));
        }
        drop(known);
        // Should one of them be the last hold on its slab: not under the lock.
        drop(slabs);
        made.map_err(|error: NoMemory| NicError {
            verb: "allocating a slab",
            reason: format!("{error}: lower the pool's cap"),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Hoard(Mutex<Option<Arc<Pool>>>);

    impl Idle for Hoard {
        fn give_up_idle(&self) {
            self.0.lock().expect("not poisoned").take();
        }
    }

    #[test]
    fn what_one_pool_does_not_use_makes_room_for_another() {
        let budget = Budget::new(4 << 12);
        let idle = budget.slab(4096, 3).expect("room");
        let hoard: Arc<dyn Idle> = Arc::new(Hoard(Mutex::new(Some(idle))));
        budget.join(Arc::downgrade(&hoard));
        let slab = budget.slab(4096, 2).expect("the other one gives its slab up");
        let error = budget.slab(4096, 3).expect_err("the rest is in use").to_string();
        assert!(error.contains("12288 bytes more would exceed the 16384"), "{error}");
        drop(slab);
        assert!(budget.slab(4096, 4).is_ok());
    }
}
