//! The memory of a connection, for as long as it has it.

use std::sync::Arc;

use super::Device;
use crate::memory::Pool;

/// A connection's slab. Dropped, it serves another connection if all its buffers are back.
pub(crate) struct Lease {
    pub(super) pool: Arc<Pool>,
    /// `None` only when `self` is about to drop.
    pub(super) device: Option<Arc<Device>>,
    /// Slabs that the device keeps for connections to come.
    pub(super) kept: usize,
}

impl Lease {
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(device) = self.device.take() else { return };
        if self.pool.free() == self.pool.slab().chunks() {
            let mut slabs = device.slabs();
            if slabs.spare.len() < self.kept {
                slabs.spare.push(Arc::clone(&self.pool));
            }
        }
        device.leave(self.kept);
    }
}
