//! Protection domains of their own for peers that are not trusted, where no memory windows isolate them.
//!
//! Nothing inside a protection domain is kept from the peers of its queue pairs but by keys, and keys can be guessed. So
//! each such connection has a domain: its queue pair, its slab, its staging and its landing memory. When it has
//! ended, the next one may have them, whose peer finds nothing but what an earlier one wrote, cleared before it is
//! granted. Completion queues and the order of grants are the device's, as before.
//!
//! What a user allocated is registered with the first few domains only: each registration locks the memory once more.
//! For other peers it is copied into staging memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Device, PoolCounts};
use crate::config::RdmaConfig;
use crate::nic::NicError;
use crate::pool::{Budget, Landing, PoolSize};
use crate::reaper::Reaper;

/// How long slabs of landing memory are in a domain: a few of the shortest regions, since most peers send little.
const LANDING_SLAB: usize = 256 << 10;

/// How long slabs of staging memory are in a domain at most, or as long as a chunk. 4 MiB, as in other pools: a wide window is
/// not registered before it is used.
const STAGING_SLAB: usize = 4 << 20;

/// The domains of a device, besides its first.
#[derive(Default)]
pub(super) struct Domains {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    devices: Vec<Arc<Device>>,
    /// Bounds the landing memory of all.
    budget: Option<Arc<Budget>>,
    /// What domains that are gone have counted.
    past: PoolCounts,
}

/// Nobody but the list holds it: its connection has ended, and its queue pair is destroyed.
fn is_free(device: &Arc<Device>) -> bool {
    Arc::strong_count(device) == 1
}

impl Domains {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn devices(&self) -> Vec<Arc<Device>> {
        self.lock().devices.clone()
    }

    /// Adds what is there, and what was, to `counts`.
    pub(super) fn count(&self, counts: &mut PoolCounts) {
        let (devices, past) = {
            let list = self.lock();
            (list.devices.clone(), list.past)
        };
        counts.add_past(&past);
        devices.iter().for_each(|device| device.count_own_pools(counts));
    }

    /// Gives up domains that nobody uses, but for `kept`.
    pub(super) fn prune(&self, kept: usize) {
        let mut list = self.lock();
        let mut free = 0;
        let List { devices, past, .. } = &mut *list;
        let gone: Vec<_> = devices
            .extract_if(.., |device| {
                free += usize::from(is_free(device));
                is_free(device) && free > kept
            })
            .collect();
        gone.iter().for_each(|device| device.count_own_pools(past));
        drop(list);
        // Deregisters: not under the lock.
        drop(gone);
    }
}

impl Device {
    /// The device as a new peer has it: itself, or in a protection domain that no other peer is in.
    ///
    /// # Errors
    ///
    /// The device has no further domain. The peer must not share one.
    pub(crate) fn for_peer(
        self: &Arc<Self>,
        config: &RdmaConfig,
        reaper: &Arc<dyn Reaper>,
    ) -> Result<Arc<Self>, NicError> {
        if !self.needs_domains() {
            return Ok(Arc::clone(self));
        }
        let mut list = self.domains.lock();
        // Rather one with which nothing has to be registered.
        let free = list.devices.iter().filter(|device| is_free(device));
        if let Some(free) = free.max_by_key(|device| device.has_spare_slab()) {
            return Ok(Arc::clone(free));
        }
        let attached = list.devices.iter().filter(|device| device.is_attached).count();
        let budget = list.budget.get_or_insert_with(|| Landing::budget(&config.landing)).clone();
        let nic = self.nic.own_domain()?;
        let is_attached = attached < config.attached_domains;
        let device = Arc::new(Self::apart(self, nic, &budget, is_attached, (config, reaper)));
        list.devices.push(Arc::clone(&device));
        Ok(device)
    }
}

/// A peer's share of the settings of a device: a quarter of its landing memory, at least a message, in shorter slabs.
pub(super) fn landing_of_one(config: &RdmaConfig) -> crate::pool::LandingConfig {
    let mut landing = config.landing;
    landing.size.cap /= 4;
    landing.size.slab_len = landing.size.slab_len.min(LANDING_SLAB);
    landing
}

/// Staging for one peer: its Writes in flight, one that is kept for the next, and one in its place should it be too short.
pub(super) fn staging_of_one(config: &RdmaConfig) -> PoolSize {
    let longest = config.write_chunk as usize;
    let cap = longest.saturating_mul(config.write_window as usize + 2);
    PoolSize { longest, cap, slab_len: cap.min(STAGING_SLAB) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_window_is_not_registered_before_it_is_used() {
        let config = RdmaConfig { write_window: 256, ..RdmaConfig::default() };
        let PoolSize { longest, cap, slab_len } = staging_of_one(&config);
        assert_eq!((longest, cap, slab_len), (256 << 10, 258 * (256 << 10), 4 << 20));
    }
}
