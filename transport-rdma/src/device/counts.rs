//! What the memory of a transport is counted by.

use crate::pool::PoolSnapshot;

/// A transport's memory for long bodies, over all its devices, for tests and monitoring. When nothing is under way
/// and no received message is held, none is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounts {
    /// What users have allocated. `copied_bytes` is 0.
    pub users: PoolSnapshot,
    /// Where the transport copies what it cannot send from where it lies. `copied_bytes` are these copies.
    pub staging: PoolSnapshot,
    /// Where peers write to. `copied_bytes` are copies of what untrusted peers have written.
    pub landing: PoolSnapshot,
    /// Bytes that peers may be writing now, as the bound on them counts.
    pub granted_bytes: u64,
    /// Bytes of segments from 4 KiB on that were copied into short messages, because they do not lie in registered memory
    /// or are more than the device gathers.
    pub eager_copied_bytes: u64,
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

impl PoolCounts {
    /// Adds the sums of pools that are gone. What was in use of them then is lost.
    pub(super) fn add_past(&mut self, past: &Self) {
        for (sum, past) in [(&mut self.staging, &past.staging), (&mut self.landing, &past.landing)]
        {
            let PoolSnapshot { leaked_bytes, registrations, refusals, .. } = *past;
            let PoolSnapshot { copied_bytes, zeroed_bytes, waits, timeouts, wait_time, .. } = *past;
            sum.add(&PoolSnapshot {
                leaked_bytes,
                registrations,
                refusals,
                copied_bytes,
                zeroed_bytes,
                waits,
                timeouts,
                wait_time,
                ..PoolSnapshot::default()
            });
        }
        self.eager_copied_bytes += past.eager_copied_bytes;
    }
}
