//! Which chunks of a slab are free.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::buf::CpuBuf;
use super::slab::Slab;

/// Chunks of one slab, each with one owner at a time.
///
/// # Invariants
///
/// An index is in `free` or in exactly one buffer, or its buffer was leaked. `new` puts each there once,
/// `take` removes it before it makes the buffer, and only the buffer's drop calls `give_back`. This is the
/// slab's invariant 2.
pub struct Pool {
    slab: Arc<Slab>,
    free: Mutex<Vec<usize>>,
    leaked: AtomicUsize,
    poison: Poison,
}

/// Whether a buffer is filled with a pattern while a NIC may write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poison {
    /// No: real NICs, where filling would cost what zero copy saves.
    Off,
    /// Yes: the software NIC, so that early reads and missing writes show.
    WhileNicOwns,
}

impl Pool {
    /// A pool of all chunks of `slab`.
    pub fn new(slab: Slab, poison: Poison) -> Arc<Self> {
        // Taken from the end, so that the first buffer is the first chunk.
        let free = (0..slab.chunks()).rev().collect();
        let slab = Arc::new(slab);
        Arc::new(Self { slab, free: Mutex::new(free), leaked: AtomicUsize::new(0), poison })
    }

    /// A free chunk, the one given back last: its memory is still in the cache.
    pub fn take(self: &Arc<Self>) -> Option<CpuBuf> {
        let index = self.lock().pop()?;
        Some(CpuBuf::new(Arc::clone(self), index))
    }

    /// Chunks that are free.
    pub fn free(&self) -> usize {
        self.lock().len()
    }

    /// Chunks that were dropped while a NIC owned them. They are lost; a healthy connection loses none.
    pub fn leaked(&self) -> usize {
        self.leaked.load(Ordering::Relaxed)
    }

    /// The memory. Only the pool makes buffers of it, whoever else holds it.
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    pub(super) fn poisons(&self) -> bool {
        self.poison == Poison::WhileNicOwns
    }

    pub(super) fn give_back(&self, index: usize) {
        self.lock().push(index);
    }

    pub(super) fn count_leaked(&self) {
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("slab", &self.slab)
            .field("free", &self.free())
            .field("leaked", &self.leaked())
            .finish()
    }
}
