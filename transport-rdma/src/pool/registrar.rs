//! The slabs of a pool and the protection domains that they are registered with.
//!
//! A staging pool is there before any device is known, and several devices may send from it: each of its slabs is
//! registered with each of them. A landing pool has one domain for its whole life. Whichever comes later, slab or
//! domain, registers with what is there; nothing is registered per call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::sources::Sources;
use crate::memory::{Domain, Poison, Pool, Slab};
use crate::nic::{Access, Nic, NicError};

/// See the module.
pub(super) struct Registrar {
    access: Access,
    sources: Arc<Sources>,
    known: Mutex<Known>,
    registrations: AtomicU64,
}

#[derive(Default)]
struct Known {
    domains: Vec<(Domain, Arc<dyn Nic>)>,
    slabs: Vec<Weak<Slab>>,
}

impl Registrar {
    pub(super) fn new(access: Access, sources: Arc<Sources>) -> Self {
        let (known, registrations) = (Mutex::default(), AtomicU64::new(0));
        Self { access, sources, known, registrations }
    }

    pub(super) fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    pub(super) fn registrations(&self) -> u64 {
        self.registrations.load(Ordering::Relaxed)
    }

    /// Makes a slab that is registered with every domain. May block.
    ///
    /// # Errors
    ///
    /// There is no memory, or a device refuses to register it; then nothing is left of the slab.
    pub(super) fn make(&self, chunk_len: usize, chunks: usize) -> Result<Arc<Pool>, NicError> {
        let slab = Slab::try_new(chunk_len, chunks).map_err(|error| NicError {
            verb: "allocating a slab",
            reason: format!("{error}: lower the pool's cap"),
        })?;
        let pool = Pool::new(slab, Poison::Off);
        let slab = pool.slab();
        // Domains may come while one registers, so look until there is none that is missing.
        while let Some(missing) = self.admit(slab) {
            for (domain, nic) in missing {
                self.register(slab, domain, &*nic)?;
            }
        }
        self.sources.add(slab);
        Ok(pool)
    }

    /// Adds a slab to the known ones, or says which domains it is not registered with.
    fn admit(&self, slab: &Arc<Slab>) -> Option<Vec<(Domain, Arc<dyn Nic>)>> {
        let mut known = self.known();
        let mut missing = known.domains.clone();
        missing.retain(|(domain, _)| slab.keys_in(*domain).is_none());
        if missing.is_empty() {
            known.slabs.retain(|slab| slab.strong_count() > 0);
            known.slabs.push(Arc::downgrade(slab));
            return None;
        }
        Some(missing)
    }

    /// Registers all slabs with a domain, those to come included. May block.
    ///
    /// # Errors
    ///
    /// The device refuses. The slabs that it did not take are staged there like foreign memory.
    pub(super) fn attach(&self, domain: Domain, nic: Arc<dyn Nic>) -> Result<(), NicError> {
        let slabs = {
            let mut known = self.known();
            if !known.domains.iter().any(|(known, _)| *known == domain) {
                known.domains.push((domain, Arc::clone(&nic)));
            }
            known.slabs.retain(|slab| slab.strong_count() > 0);
            known.slabs.clone()
        };
        // All are tried, so that the device gets what it takes; the first refusal tells why.
        let mut result = Ok(());
        for slab in slabs.iter().filter_map(Weak::upgrade) {
            result = result.and(self.register(&slab, domain, &*nic));
        }
        result
    }

    /// Ends all registrations with a domain. The memory stays.
    pub(super) fn detach(&self, domain: Domain) {
        let (slabs, nic) = {
            let mut known = self.known();
            let at = known.domains.iter().position(|(known, _)| *known == domain);
            let nic = at.map(|at| known.domains.swap_remove(at));
            (known.slabs.clone(), nic)
        };
        slabs.iter().filter_map(Weak::upgrade).for_each(|slab| slab.end_region(domain));
        drop(nic);
    }

    /// Detaches every domain.
    pub(super) fn close(&self) {
        let domains: Vec<_> = self.known().domains.iter().map(|(domain, _)| *domain).collect();
        domains.into_iter().for_each(|domain| self.detach(domain));
    }

    fn register(&self, slab: &Arc<Slab>, domain: Domain, nic: &dyn Nic) -> Result<(), NicError> {
        if slab.keys_in(domain).is_some() {
            return Ok(());
        }
        let region = nic.register(slab, self.access)?;
        self.registrations.fetch_add(1, Ordering::Relaxed);
        slab.add_region(domain, region);
        // Detached in the meantime: whoever did it may have looked before the region was there.
        if !self.known().domains.iter().any(|(known, _)| *known == domain) {
            slab.end_region(domain);
        }
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
