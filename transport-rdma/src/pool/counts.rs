//! What a pool counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::stock::Amounts;

/// A pool at one moment: gauges of bytes, and counts since it was made. Buffers count with their full length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// Bytes of all slabs.
    pub slab_bytes: usize,
    /// Bytes that slabs may have: the cap, or what the device has shown to give.
    pub limit_bytes: usize,
    /// Bytes of buffers that are not free, all of the following included.
    pub in_use_bytes: usize,
    /// Bytes of buffers that received messages hold.
    pub pinned_bytes: usize,
    /// Bytes of regions whose call is over, and that the peer may still write to.
    pub quarantined_bytes: usize,
    /// Bytes of regions that were dropped without a proof, and are lost; a healthy process has none.
    pub leaked_bytes: usize,
    /// Tasks that wait for a buffer.
    pub waiting: usize,
    /// Registrations, over all devices. In the steady state it does not grow.
    pub registrations: u64,
    /// Registrations that a device has refused, halved slabs counted each.
    pub refusals: u64,
    /// Bytes that were copied because they could not be sent from, or read, where they were.
    pub copied_bytes: u64,
    /// Bytes that were cleared so that a connection does not see another one's.
    pub zeroed_bytes: u64,
    /// Buffers that had to be waited for.
    pub waits: u64,
    /// Of these, the ones that did not come before the deadline.
    pub timeouts: u64,
    /// Time that was waited, over all waits that ended.
    pub wait_time: Duration,
}

impl PoolSnapshot {
    /// Adds another pool.
    pub(crate) fn add(&mut self, other: &Self) {
        self.slab_bytes += other.slab_bytes;
        // A pool without a bound has as much as there can be.
        self.limit_bytes = self.limit_bytes.saturating_add(other.limit_bytes);
        self.in_use_bytes += other.in_use_bytes;
        self.pinned_bytes += other.pinned_bytes;
        self.quarantined_bytes += other.quarantined_bytes;
        self.leaked_bytes += other.leaked_bytes;
        self.waiting += other.waiting;
        self.registrations += other.registrations;
        self.refusals += other.refusals;
        self.copied_bytes += other.copied_bytes;
        self.zeroed_bytes += other.zeroed_bytes;
        self.waits += other.waits;
        self.timeouts += other.timeouts;
        self.wait_time += other.wait_time;
    }
}

/// The counts of a pool.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) quarantined: AtomicUsize,
    pub(super) leaked: AtomicUsize,
    pub(super) refusals: AtomicU64,
    pub(super) copied: AtomicU64,
    pub(super) zeroed: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) timeouts: AtomicU64,
    waited_nanos: AtomicU64,
}

impl Counts {
    /// Adds a length to a count.
    pub(super) fn add(count: &AtomicU64, bytes: usize) {
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn waited(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self, amounts: Amounts, registrations: u64) -> PoolSnapshot {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PoolSnapshot {
            slab_bytes: amounts.slabs,
            limit_bytes: amounts.limit,
            in_use_bytes: amounts.slabs - amounts.free,
            pinned_bytes: amounts.pinned,
            quarantined_bytes: self.quarantined.load(Ordering::Relaxed),
            leaked_bytes: self.leaked.load(Ordering::Relaxed),
            waiting: amounts.waiting,
            registrations,
            refusals: read(&self.refusals),
            copied_bytes: read(&self.copied),
            zeroed_bytes: read(&self.zeroed),
            waits: read(&self.waits),
            timeouts: read(&self.timeouts),
            wait_time: Duration::from_nanos(read(&self.waited_nanos)),
        }
    }
}
