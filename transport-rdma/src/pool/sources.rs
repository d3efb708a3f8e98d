//! From an address to the slab that it lies in.
//!
//! Any `Bytes` can be in a message. One that lies in registered memory is sent from there, wherever it came from:
//! a staging buffer, or a landing region of an earlier call that is forwarded. This finds out, by the address
//! alone. Owns no slab: a slab whose bytes are alive is alive.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::memory::{Domain, Lent, Slab};

/// The slabs of a transport's pools, by address.
#[derive(Default)]
pub struct Sources {
    slabs: RwLock<BTreeMap<u64, Weak<Slab>>>,
}

impl Sources {
    /// None yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lends `bytes` to a NIC, if all of them lie in one slab that is registered with `domain`. `None` for all
    /// others, which must be staged: bytes of the heap, of another process's choice of memory, of a pool of
    /// a device that this domain does not belong to.
    pub fn lend(&self, domain: Domain, bytes: &Bytes) -> Option<Lent> {
        let address = bytes.as_ptr().addr() as u64;
        let slabs = self.slabs.read();
        let (_, slab) = slabs.range(..=address).next_back()?;
        let slab = slab.upgrade()?;
        drop(slabs);
        Lent::new(slab, domain, bytes.clone())
    }

    /// Whether [`lend`](Self::lend) would lend these bytes.
    pub fn holds(&self, domain: Domain, bytes: &Bytes) -> bool {
        let address = bytes.as_ptr().addr() as u64;
        let slabs = self.slabs.read();
        let slab = slabs.range(..=address).next_back().and_then(|(_, slab)| slab.upgrade());
        drop(slabs);
        slab.is_some_and(|slab| {
            let end = (address - slab.address()).checked_add(bytes.len() as u64);
            !bytes.is_empty()
                && end.is_some_and(|end| end <= slab.len() as u64)
                && slab.keys_in(domain).is_some()
        })
    }

    /// Whether the memory of every slab is freed.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let slabs = self.slabs.read();
        slabs.values().all(|slab| slab.strong_count() == 0)
    }

    /// Adds a slab, and forgets those that are gone: the new one may have the address of one.
    pub(super) fn add(&self, slab: &Arc<Slab>) {
        let mut slabs = self.slabs.write();
        slabs.retain(|_, slab| slab.strong_count() > 0);
        slabs.insert(slab.address(), Arc::downgrade(slab));
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slabs = self.slabs.read();
        write!(f, "Sources({} slabs)", slabs.len())
    }
}
