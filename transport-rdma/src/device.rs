//! What all connections over one device share: the protection domain, registered memory and the reactors.
//!
//! Each connection has a slab of its own for its receives and its sends. What it was promised is there
//! whatever other connections do, and credits never count a buffer that somebody else may take. When a
//! connection has ended and all its buffers are back, its slab serves the next one, without being registered
//! anew. Where connections share receives, their slabs have only what they send from, and there is one more slab
//! ([`sharing`]).
//!
//! Long bodies come from and go to pools of the device, which all its connections share.

mod counts;
mod domains;
mod lease;
mod memory;
mod sharing;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::watch;

use crate::config::{Peers, RdmaConfig};
use crate::memory::{Domain, Lent, Pool, Slab};
use crate::nic::{Access, Depths, MAX_SGE, Nic, NicError, Windows};
use crate::pool::{Budget, Isolation, Landing, Sources, Staging};
use crate::proto::grants::GrantLimits;
use crate::reactor::{ReactorCounts, Reactors, Share};
use crate::reaper::Reaper;
use crate::rendezvous::Desk;
use crate::shared::SharedReceives;

use domains::{Domains, landing_of_one, staging_of_one};
use memory::attach_if;
use sharing::Sharing;

pub use counts::{BufferCounts, PoolCounts};
pub(crate) use lease::Lease;
pub(crate) use memory::Memory;

/// A device with its slabs and reactors.
pub(crate) struct Device {
    nic: Arc<dyn Nic>,
    slabs: Mutex<Slabs>,
    reactors: Arc<Reactors>,
    domain: Domain,
    memory: Arc<Memory>,
    /// Errs once the users' memory is registered here.
    attached: watch::Receiver<()>,
    /// Where the transport copies what it cannot send from where it lies.
    staging: Staging,
    landing: Landing,
    isolation: Isolation,
    /// A window was refused: the device has none, whatever it says.
    windows_refused: AtomicBool,
    /// Whether the users' memory is registered here.
    is_attached: bool,
    sharing: Sharing,
    /// Of peers, if they have one each.
    domains: Domains,
    /// The device that this is a further domain of.
    parent: Weak<Device>,
    desk: Arc<Desk>,
    /// See [`PoolCounts::eager_copied_bytes`].
    eager_copied: AtomicU64,
}

#[derive(Default)]
struct Slabs {
    /// Slabs of connections that have ended.
    spare: Vec<Arc<Pool>>,
    /// Every slab, to be counted.
    all: Vec<Weak<Pool>>,
}

impl Device {
    /// A device that sends from `memory`. Its pools grow where `reaper` runs work.
    pub(crate) fn new(
        nic: Arc<dyn Nic>,
        config: &RdmaConfig,
        memory: &Arc<Memory>,
        reaper: &Arc<dyn Reaper>,
    ) -> Self {
        let (domain, sources) = (Domain::unique(), &memory.sources);
        let staging = Staging::new(config.staging, Arc::clone(sources), Arc::clone(reaper));
        let attached = staging.attach(domain, Arc::clone(&nic));
        attached.expect("there is no slab yet that could be refused");
        let isolation = isolation(config.peers, &*nic);
        // Where peers have domains of their own nobody sends from this one.
        let is_attached = isolation != Isolation::None;
        let attached = attach_if(is_attached, memory, (domain, Arc::clone(&nic)), &**reaper);
        let (sources, reaper) = (Arc::clone(sources), Arc::clone(reaper));
        let make = match isolation {
            Isolation::Window => Landing::behind_windows,
            Isolation::Trusted | Isolation::None => Landing::new,
        };
        let landing = make(config.landing, (domain, Arc::clone(&nic)), sources, reaper);
        let desk = Desk::new(GrantLimits {
            granted: config.granted_bytes,
            window: config.written_bytes(),
            // All are asked back at once, and then in quarantine until their clients answer.
            standing: (config.granted_bytes / 4).min(config.landing.quarantine_cap as u64 / 2),
        });
        let (slabs, reactors) = (Mutex::default(), Arc::<Reactors>::default());
        let memory = Arc::clone(memory);
        memory.reactors().retain(|reactors| reactors.strong_count() > 0);
        memory.reactors().push(Arc::downgrade(&reactors));
        let eager_copied = AtomicU64::new(0);
        Self {
            nic,
            slabs,
            reactors,
            domain,
            memory,
            attached,
            staging,
            landing,
            isolation,
            windows_refused: AtomicBool::new(false),
            is_attached,
            sharing: Sharing::default(),
            domains: Domains::default(),
            parent: Weak::new(),
            desk,
            eager_copied,
        }
    }

    /// A further domain of `parent`, for one peer at a time.
    fn apart(
        parent: &Arc<Self>,
        nic: Arc<dyn Nic>,
        budget: &Arc<Budget>,
        is_attached: bool,
        (config, reaper): (&RdmaConfig, &Arc<dyn Reaper>),
    ) -> Self {
        let (domain, memory) = (Domain::unique(), Arc::clone(&parent.memory));
        let in_domain = || (domain, Arc::clone(&nic));
        let (sources, size) = (&memory.sources, staging_of_one(config));
        let staging = Staging::of_one_length(size, Arc::clone(sources), Arc::clone(reaper));
        let attached = staging.attach(domain, Arc::clone(&nic));
        attached.expect("there is no slab yet that could be refused");
        let attached = attach_if(is_attached, &memory, in_domain(), &**reaper);
        let (sources, reaper) = (Arc::clone(sources), Arc::clone(reaper));
        let config = landing_of_one(config);
        let landing = Landing::within(budget, config, in_domain(), sources, reaper);
        Self {
            nic,
            slabs: Mutex::default(),
            reactors: Arc::clone(&parent.reactors),
            domain,
            memory,
            attached,
            staging,
            landing,
            isolation: Isolation::None,
            windows_refused: AtomicBool::new(false),
            is_attached,
            sharing: Sharing::default(),
            domains: Domains::default(),
            parent: Arc::downgrade(parent),
            desk: Arc::clone(&parent.desk),
            eager_copied: AtomicU64::new(0),
        }
    }

    /// A peer has left, or never came. Further domains that nobody uses are given up, but for `kept`.
    pub(crate) fn leave(self: Arc<Self>, kept: usize) {
        let parent = self.parent.upgrade();
        // It may be one of them.
        drop(self);
        parent.into_iter().for_each(|parent| parent.domains.prune(kept));
    }

    /// Whether it is a further domain, for one peer.
    pub(crate) fn is_apart(&self) -> bool {
        self.parent.strong_count() > 0
    }

    /// Whether it has a registered slab that no connection uses.
    fn has_spare_slab(&self) -> bool {
        !self.slabs().spare.is_empty()
    }

    /// Whether peers must not share its protection domain.
    fn needs_domains(&self) -> bool {
        match self.isolation {
            Isolation::Trusted => false,
            Isolation::Window => self.windows_refused.load(Ordering::Relaxed),
            Isolation::None => true,
        }
    }

    /// The device refused to bind a window. Peers to come do without.
    pub(crate) fn refuse_windows(&self) {
        if !self.windows_refused.swap(true, Ordering::Relaxed) {
            let device = &self.nic.capabilities().device;
            tracing::warn!(
                device,
                "has no working memory windows: peers have domains of their own"
            );
        }
    }

    /// Waits until the users' memory that was there before is registered with the device.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(crate) async fn ready(&self) {
        let mut attached = self.attached.clone();
        while attached.changed().await.is_ok() {}
    }

    /// Its protection domain.
    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }

    /// Where memory that it can send from is found.
    pub(crate) fn sources(&self) -> &Arc<Sources> {
        &self.memory.sources
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.staging
    }

    pub(crate) fn landing(&self) -> &Landing {
        &self.landing
    }

    /// What keeps peers from landing memory when they should be done with it.
    pub(crate) fn isolation(&self) -> Isolation {
        self.isolation
    }

    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Lends bytes to the NIC, if they lie in memory that is registered with it.
    pub(crate) fn lend(&self, bytes: &Bytes) -> Option<Lent> {
        self.memory.sources.lend(self.domain, bytes)
    }

    /// Runs of memory that a work request of this crate may have on this device.
    pub(crate) fn max_sge(&self) -> usize {
        self.nic.capabilities().max_sge.min(MAX_SGE)
    }

    /// So many bytes were copied into messages that could have been gathered.
    pub(crate) fn count_copied(&self, bytes: usize) {
        if bytes > 0 {
            self.eager_copied.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn nic(&self) -> &Arc<dyn Nic> {
        &self.nic
    }

    /// A share of a completion queue for a new connection, polled by the current runtime.
    ///
    /// # Errors
    ///
    /// The device has no queue that is deep enough.
    pub(crate) fn admit(
        &self,
        (depths, shared): (Depths, Option<&Arc<SharedReceives>>),
        config: &RdmaConfig,
    ) -> Result<Share, NicError> {
        self.reactors.admit(&*self.nic, (depths, shared), config)
    }

    /// The slab of a new connection, of so many buffers.
    ///
    /// # Errors
    ///
    /// The device registers no more memory.
    pub(crate) fn lease(
        self: &Arc<Self>,
        buffers: u32,
        config: &RdmaConfig,
    ) -> Result<Lease, NicError> {
        let buffers = buffers as usize;
        let spare = {
            let mut slabs = self.slabs();
            let at = slabs.spare.iter().position(|pool| pool.slab().chunks() == buffers);
            at.map(|at| slabs.spare.swap_remove(at))
        };
        let pool = match spare {
            Some(pool) => pool,
            None => self.register(buffers, config)?,
        };
        Ok(Lease { pool, device: Some(Arc::clone(self)), kept: config.kept_slabs })
    }

    fn register(&self, buffers: usize, config: &RdmaConfig) -> Result<Arc<Pool>, NicError> {
        let slab = Slab::new(config.eager_len, buffers);
        let pool = Pool::new(slab, config.poison);
        let region = self.nic.register(pool.slab(), Access::Local)?;
        pool.slab().set_region(region);
        let mut slabs = self.slabs();
        slabs.all.retain(|pool| pool.strong_count() > 0);
        slabs.all.push(Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Adds what this device's reactors did to `counts`.
    pub(crate) fn count_reactors(&self, counts: &mut ReactorCounts) {
        self.reactors.count(counts);
    }

    /// Adds this device's memory for long bodies to `counts`.
    pub(crate) fn count_pools(&self, counts: &mut PoolCounts) {
        counts.granted_bytes += self.desk.granted();
        self.count_own_pools(counts);
        self.domains.count(counts);
    }

    /// The same without its further domains, and without what it shares with them.
    fn count_own_pools(&self, counts: &mut PoolCounts) {
        counts.staging.add(&self.staging.snapshot());
        counts.landing.add(&self.landing.snapshot());
        counts.eager_copied_bytes += self.eager_copied.load(Ordering::Relaxed);
    }

    /// Adds this device's buffers to `counts`.
    pub(crate) fn count(&self, counts: &mut BufferCounts) {
        for pool in self.slabs().all.iter().filter_map(Weak::upgrade) {
            counts.total += pool.slab().chunks();
            counts.free += pool.free();
            counts.leaked += pool.leaked();
        }
        self.domains.devices().iter().for_each(|device| device.count(counts));
    }

    fn slabs(&self) -> MutexGuard<'_, Slabs> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.memory.users.detach(self.domain);
    }
}

/// What keeps peers of a device from memory that they were granted before. Windows are tried.
fn isolation(peers: Peers, nic: &dyn Nic) -> Isolation {
    match (peers, nic.capabilities().memory_windows) {
        (Peers::Trusted, _) => Isolation::Trusted,
        (Peers::Untrusted, Windows::Isolating) => match nic.allocate_window() {
            Ok(_window) => Isolation::Window,
            Err(error) => {
                tracing::warn!(%error, "a device says that it has memory windows, and has none");
                Isolation::None
            }
        },
        (Peers::Untrusted, Windows::Porous | Windows::No) => Isolation::None,
    }
}
