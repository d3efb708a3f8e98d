//! What all connections over one device share: the protection domain and registered memory.
//!
//! Each connection has a slab of its own for its receives and its sends. What it was promised is there
//! whatever other connections do, and credits never count a buffer that somebody else may take. When a
//! connection has ended and all its buffers are back, its slab serves the next one, without being registered
//! anew.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::config::RdmaConfig;
use crate::memory::{Pool, Slab};
use crate::nic::{Access, Nic, NicError};
use crate::work::ConnectionNumber;

/// A device and its slabs.
pub(crate) struct Device {
    nic: Arc<dyn Nic>,
    slabs: Mutex<Slabs>,
    connections: AtomicU32,
}

#[derive(Default)]
struct Slabs {
    /// Slabs of connections that have ended.
    spare: Vec<Arc<Pool>>,
    /// Every slab, to be counted.
    all: Vec<Weak<Pool>>,
}

/// Buffers of a transport's connections, for tests and monitoring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BufferCounts {
    /// Buffers in all slabs.
    pub total: usize,
    /// Buffers that nobody uses.
    pub free: usize,
    /// Buffers that were dropped while a NIC owned them; a healthy transport has none.
    pub leaked: usize,
}

impl Device {
    pub(crate) fn new(nic: Arc<dyn Nic>) -> Self {
        Self { nic, slabs: Mutex::default(), connections: AtomicU32::new(0) }
    }

    pub(crate) fn nic(&self) -> &Arc<dyn Nic> {
        &self.nic
    }

    /// A number that no other connection of this device has had lately.
    pub(crate) fn number_connection(&self) -> ConnectionNumber {
        ConnectionNumber::new(self.connections.fetch_add(1, Ordering::Relaxed))
    }

    /// The slab of a new connection.
    ///
    /// # Errors
    ///
    /// The device registers no more memory.
    pub(crate) fn lease(self: &Arc<Self>, config: &RdmaConfig) -> Result<Lease, NicError> {
        let spare = self.slabs().spare.pop();
        let pool = match spare {
            Some(pool) => pool,
            None => self.register(config)?,
        };
        Ok(Lease { pool, device: Arc::clone(self), kept: config.kept_slabs })
    }

    fn register(&self, config: &RdmaConfig) -> Result<Arc<Pool>, NicError> {
        let slab = Slab::new(config.eager_len, config.buffers());
        let pool = Pool::new(slab, config.poison);
        let region = self.nic.register(pool.slab(), Access::Local)?;
        pool.slab().set_region(region);
        let mut slabs = self.slabs();
        slabs.all.retain(|pool| pool.strong_count() > 0);
        slabs.all.push(Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Adds this device's buffers to `counts`.
    pub(crate) fn count(&self, counts: &mut BufferCounts) {
        for pool in self.slabs().all.iter().filter_map(Weak::upgrade) {
            counts.total += pool.slab().chunks();
            counts.free += pool.free();
            counts.leaked += pool.leaked();
        }
    }

    fn slabs(&self) -> MutexGuard<'_, Slabs> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's slab. Dropped, it serves another connection if all its buffers are back.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    device: Arc<Device>,
    kept: usize,
}

impl Lease {
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.pool.free() < self.pool.slab().chunks() {
            return;
        }
        let mut slabs = self.device.slabs();
        if slabs.spare.len() < self.kept {
            slabs.spare.push(Arc::clone(&self.pool));
        }
    }
}
