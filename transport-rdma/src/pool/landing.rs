//! Regions that peers are granted for their Writes.
//!
//! A pool belongs to one protection domain: peers that do not trust each other have a domain and a pool each, because
//! without memory windows nothing inside a domain is protected from a queue pair of it (see `memory`).
//!
//! Received messages hold their regions for as long as the user holds their bytes. That is bounded: from
//! three quarters of a budget on there is [`Pressure`], so that programs can drop what they do not need and
//! decoders slice only fields that are worth it ([`Landing::body`]); from the budget on no region is granted
//! until some are dropped, and whose deadline comes before gets an error that says so.
//!
//! Messages of streams wait until somebody takes them, and a peer can open any number of streams that nobody reads. So what
//! they hold has a share of that budget ([`Landing::keeps_streams`]): beyond it they are copied out as they land, and the rest
//! is for those who do read.

mod proof;
mod region;
mod window;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::time::Instant;
use verbwire_core::Error;
use verbwire_core::buf::{BY_REFERENCE, Body};
use verbwire_core::transport::pressure::{Gauge, Pressure, PressureWatch};

use super::budget::Budget;
use super::classes::Classes;
use super::error::PoolError;
use super::registrar::Registrar;
use super::sources::Sources;
use super::stock::Limits;
use super::store::{Chunk, Store, closed};
use super::{PoolSize, PoolSnapshot};
use crate::memory::{CpuBuf, Domain, IdleBuf};
use crate::nic::{Access, Nic};
use crate::reaper::Reaper;

pub use proof::{Fenced, GrantClosed};
pub use region::{Granted, Isolation, Landed, OutOfGrant, QuarantineLevel, Quarantined, Target};

use window::RegionWindow;

/// A region is so much longer than its message, so that the writer can begin where its largest segment comes to
/// lie on a page.
pub const SLACK: usize = 4096;

/// What the shortest regions hold, slack apart. 64 KiB: what is shorter than 32 KiB is not written at all.
const SHORTEST: usize = 64 << 10;

/// Room for the head of a message whose field is a power of two.
const HEAD: usize = 4096;

/// A field is sliced under pressure only if it is at least this part of its buffer.
const PART: usize = 8;

/// The part of the budget that messages of streams may hold. A quarter: they alone never make pressure, which begins at three
/// quarters, and 64 MiB are more than streams that are read have waiting.
const SHARE_OF_STREAMS: usize = 4;

/// Settings of a landing pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LandingConfig {
    /// How much memory; `longest` is `max_message_size`, slack apart.
    pub size: PoolSize,
    /// Bytes of regions that received messages may hold before no more is granted. 256 MiB: half of the pool, so
    /// that the other half remains for what is under way. It can be exceeded by what was granted before. Messages of streams
    /// hold a quarter of it at most; beyond that they are copied out as they land.
    pub pinned_budget: usize,
    /// Bytes of regions that peers did not give back, before their queue pairs are destroyed for it. 128 MiB: a quarter
    /// of the pool; at least one message of the longest kind.
    pub quarantine_cap: usize,
}

impl Default for LandingConfig {
    fn default() -> Self {
        let size = PoolSize::default();
        Self { size, pinned_budget: size.cap / 2, quarantine_cap: size.cap / 4 }
    }
}

/// Whom a region is granted to: a connection, by a number that no other one of this process ever has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant(u64);

impl Tenant {
    /// The number of a new connection.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A free region.
struct Region {
    idle: IdleBuf,
    /// Whose Writes are still in it.
    last: Option<Tenant>,
    /// How far they may reach; behind that all is zero.
    used: usize,
    /// Not bound. `None` before its first grant, and where there are no windows.
    window: Option<RegionWindow>,
}

impl Chunk for Region {
    fn fresh(buf: CpuBuf) -> Self {
        Self { idle: buf.into_idle(), last: None, used: 0, window: None }
    }
}

/// A pool of landing regions in one protection domain. Dropped, it closes.
pub struct Landing {
    shared: Arc<Shared>,
}

/// What the pool and its regions have in common.
struct Shared {
    store: Arc<Store<Region>>,
    domain: Domain,
    quarantine_cap: usize,
    gauge: Gauge,
    /// What messages of streams hold of it.
    of_streams: AtomicUsize,
    share_of_streams: usize,
    /// Bytes of fields that readers copied out under pressure.
    copied_out: Arc<AtomicU64>,
    /// Where windows come from, if peers reach regions through windows only.
    windows: Option<Arc<dyn Nic>>,
}

impl Landing {
    /// An empty pool for the queue pairs of `nic`'s protection domain.
    pub fn new(
        config: LandingConfig,
        (domain, nic): (Domain, Arc<dyn Nic>),
        sources: Arc<Sources>,
        reaper: Arc<dyn Reaper>,
    ) -> Self {
        Self::with_access(config, (domain, nic), (Access::RemoteWrite, None), (sources, reaper))
    }

    /// The same; its slabs count in `budget`, with those of others.
    pub fn within(
        budget: &Arc<Budget>,
        config: LandingConfig,
        in_domain: (Domain, Arc<dyn Nic>),
        sources: Arc<Sources>,
        reaper: Arc<dyn Reaper>,
    ) -> Self {
        let budget = Some(Arc::clone(budget));
        Self::with_access(config, in_domain, (Access::RemoteWrite, budget), (sources, reaper))
    }

    /// What pools with these settings have together, if they share a budget: the cap, which holds one of the longest
    /// regions at least.
    pub fn budget(config: &LandingConfig) -> Arc<Budget> {
        Budget::new(config.size.cap.max(classes(config).longest()))
    }

    /// The same, where a peer reaches a region only through a window that is bound for its grant
    /// (`Granted::bind`).
    pub fn behind_windows(
        config: LandingConfig,
        (domain, nic): (Domain, Arc<dyn Nic>),
        sources: Arc<Sources>,
        reaper: Arc<dyn Reaper>,
    ) -> Self {
        Self::with_access(config, (domain, nic), (Access::Windows, None), (sources, reaper))
    }

    fn with_access(
        config: LandingConfig,
        (domain, nic): (Domain, Arc<dyn Nic>),
        (access, shared): (Access, Option<Arc<Budget>>),
        (sources, reaper): (Arc<Sources>, Arc<dyn Reaper>),
    ) -> Self {
        let windows = (access == Access::Windows).then(|| Arc::clone(&nic));
        let classes = classes(&config);
        let PoolSize { cap, slab_len, .. } = config.size;
        let pinned = config.pinned_budget.max(1);
        let registrar = Registrar::new(access, sources);
        registrar.attach(domain, nic).expect("there is no slab yet that could be refused");
        let quarantine_cap = config.quarantine_cap.max(classes.longest());
        let limits = Limits { cap, slab_len, pinned };
        let store = Store::new(classes, limits, registrar, reaper, shared);
        let shared = Shared {
            store,
            domain,
            quarantine_cap,
            gauge: Gauge::new(pinned),
            of_streams: AtomicUsize::new(0),
            share_of_streams: pinned.div_ceil(SHARE_OF_STREAMS),
            copied_out: Arc::default(),
            windows,
        };
        Self { shared: Arc::new(shared) }
    }

    /// A region for a message of `len` bytes, [`SLACK`] longer, waited for until `deadline`.
    ///
    /// No byte of another connection is in it.
    ///
    /// # Errors
    ///
    /// See [`PoolError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the line.
    pub fn grant(
        &self,
        tenant: Tenant,
        len: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Granted, PoolError>> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            let len = len.saturating_add(SLACK);
            let store = Arc::clone(&shared.store);
            let held =
                store.take(len, move |region: &Region| region.last == Some(tenant), deadline);
            Granted::new(shared, held.await?, tenant, len)
        }
    }

    /// The same without waiting: `None` where one would have to.
    ///
    /// # Errors
    ///
    /// See [`PoolError`].
    pub fn try_grant(&self, tenant: Tenant, len: usize) -> Result<Option<Granted>, PoolError> {
        let len = len.saturating_add(SLACK);
        let taken = self.shared.store.try_take(len, |region| region.last == Some(tenant))?;
        taken.map(|held| Granted::new(Arc::clone(&self.shared), held, tenant, len)).transpose()
    }

    /// How much received messages hold, now and whenever it changes.
    pub fn pressure(&self) -> PressureWatch {
        self.shared.gauge.watch()
    }

    /// A message's body in its region. Under pressure its readers copy fields below an eighth of it out and count
    /// them, so that the region returns.
    pub fn body(&self, bytes: Bytes) -> Body {
        let below = match self.shared.gauge.now() {
            Pressure::High => bytes.len() / PART,
            _ => BY_REFERENCE,
        };
        Body::from(bytes).copying_below(below, Arc::clone(&self.shared.copied_out))
    }

    /// Whether another message of a stream may stay where it landed. Else it is to be copied out, so that streams which nobody
    /// reads hold no more. The last one may go beyond the share, and so may those that land at the same time.
    pub fn keeps_streams(&self) -> bool {
        self.shared.of_streams.load(Ordering::Acquire) < self.shared.share_of_streams
    }

    /// Ends the pool with its device: who waits is told `cause`, and the registrations end. Bytes that were received
    /// stay.
    pub fn close(&self, cause: &Error) {
        self.shared.store.close(cause);
    }

    /// Gives up slabs that nobody uses. The pool does it by itself only where it needs their room.
    pub fn trim(&self) {
        self.shared.store.trim();
    }

    /// What is where.
    pub fn snapshot(&self) -> PoolSnapshot {
        let mut snapshot = self.shared.store.snapshot();
        snapshot.copied_bytes += self.shared.copied_out.load(Ordering::Relaxed);
        snapshot
    }
}

/// Lengths of regions.
fn classes(config: &LandingConfig) -> Classes {
    Classes::new(SHORTEST, HEAD + SLACK, config.size.longest.saturating_add(SLACK))
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.close(&closed());
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Landing").field(&self.snapshot()).finish()
    }
}
