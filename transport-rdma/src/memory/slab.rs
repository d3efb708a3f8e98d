//! A run of page-aligned memory, registered once.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::owners::Owners;

/// Slabs begin on a page and hold whole pages: the kernel pins pages, and two slabs never share one.
pub(super) const PAGE: usize = 4096;

/// The key by which this side's own work requests name registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);

/// The key by which a peer's work requests name registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// A registration of a slab's memory with one NIC. Dropping it deregisters.
pub trait Region: Send + Sync + 'static {
    /// The local key.
    fn lkey(&self) -> Lkey;

    /// The remote key; it gives rights only where the registration allowed remote access.
    fn rkey(&self) -> Rkey;
}

/// A protection domain, by a number that no other one of this process ever has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Domain(u64);

impl Domain {
    /// The next number.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a NIC may do with a chunk that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicAccess {
    /// Send from it.
    Read,
    /// Receive into it.
    Write,
}

/// A slab that there is no memory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {chunks} buffers of {chunk_len} bytes")]
pub struct NoMemory {
    /// Length of each.
    pub chunk_len: usize,
    /// How many.
    pub chunks: usize,
}

/// Page-aligned, zeroed memory in chunks of equal length.
///
/// # Invariants
///
/// 1. `memory` points to `layout.size()` initialised bytes, allocated with `layout`, until the slab drops.
/// 2. A reference into a chunk exists only while a [`CpuBuf`](super::CpuBuf) of that chunk does, and at most one
///    `CpuBuf` or [`NicBuf`](super::NicBuf) of a chunk exists at a time. `Pool` establishes this: it hands each
///    index out once until it comes back.
/// 3. `owners` says `Nic` for a chunk only while its `NicBuf` exists or was leaked.
/// 4. `owners` says that a run is lent only while a live `Bytes` covers it: the one in its
///    [`Lent`](super::Lent), or that one leaked.
pub struct Slab {
    region: OnceLock<Box<dyn Region>>,
    /// Registrations with protection domains that come and go.
    regions: RwLock<Vec<(Domain, Box<dyn Region>)>>,
    memory: NonNull<u8>,
    layout: Layout,
    chunk_len: usize,
    chunks: usize,
    lost_loans: AtomicUsize,
    /// The lock also orders a software NIC's copies against changes of owner.
    owners: Mutex<Owners>,
}

// SAFETY: the memory is owned by the slab and not bound to a thread; access to its bytes follows
// invariant 2, which gives each chunk one owner at a time.
unsafe impl Send for Slab {}
// SAFETY: as for `Send`; everything else in the slab is `Sync` by itself.
unsafe impl Sync for Slab {}

impl Slab {
    /// A slab of `chunks` chunks of `chunk_len` bytes each, rounded up to whole pages in all.
    ///
    /// # Panics
    ///
    /// If the length overflows `isize` or is zero: pool sizes are checked when they are configured.
    pub fn new(chunk_len: usize, chunks: usize) -> Self {
        let layout =
            layout(chunk_len, chunks).expect("pool sizes are checked when they are configured");
        Self::with_layout(layout, chunk_len, chunks).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// The same for slabs that are made while the process runs, where a refusal must be survived.
    ///
    /// # Errors
    ///
    /// The system has no such memory, or the length is zero or overflows.
    pub fn try_new(chunk_len: usize, chunks: usize) -> Result<Self, NoMemory> {
        layout(chunk_len, chunks)
            .and_then(|layout| Self::with_layout(layout, chunk_len, chunks))
            .ok_or(NoMemory { chunk_len, chunks })
    }

    /// `layout` is not of size zero.
    fn with_layout(layout: Layout, chunk_len: usize, chunks: usize) -> Option<Self> {
        // SAFETY: the layout's size is not zero; `layout` below makes no other.
        let memory = unsafe { alloc_zeroed(layout) };
        // Invariant 1 begins here.
        let memory = NonNull::new(memory)?;
        let owners = Mutex::new(Owners::new(chunks));
        let (region, regions) = (OnceLock::new(), RwLock::default());
        let lost_loans = AtomicUsize::new(0);
        Some(Self { region, regions, memory, layout, chunk_len, chunks, lost_loans, owners })
    }

    /// The first byte's address, as a NIC knows it.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// Length in bytes, whole pages.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Never: a slab has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Length of a chunk in bytes.
    pub fn chunk_len(&self) -> usize {
        self.chunk_len
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Keeps the slab's registration. A slab has one for its whole life; a second is dropped.
    pub fn set_region(&self, region: Box<dyn Region>) {
        let _second = self.region.set(region);
    }

    /// The registration, once there is one.
    pub fn region(&self) -> Option<&dyn Region> {
        self.region.get().map(|region| &**region)
    }

    /// Keeps a registration with a protection domain. The second one with the same domain is dropped.
    pub fn add_region(&self, domain: Domain, region: Box<dyn Region>) {
        let mut regions = self.regions.write();
        if !regions.iter().any(|(known, _)| *known == domain) {
            regions.push((domain, region));
        }
    }

    /// Ends the registration with a protection domain. The memory stays. Work requests in that domain which
    /// name the memory fail from now on, and with them their queue pairs.
    pub fn end_region(&self, domain: Domain) {
        let mut regions = self.regions.write();
        let ended = regions.iter().position(|(known, _)| *known == domain);
        let ended = ended.map(|at| regions.swap_remove(at));
        drop(regions);
        // Deregisters, which takes its time.
        drop(ended);
    }

    /// The keys in a protection domain; `None` where the slab is not registered with it.
    pub fn keys_in(&self, domain: Domain) -> Option<(Lkey, Rkey)> {
        let regions = self.regions.read();
        let (_, region) = regions.iter().find(|(known, _)| *known == domain)?;
        Some((region.lkey(), region.rkey()))
    }

    /// Loans that were dropped while a NIC might still read. Their bytes are lost; a healthy connection loses
    /// none.
    pub fn lost_loans(&self) -> usize {
        self.lost_loans.load(Ordering::Relaxed)
    }

    pub(super) fn count_lost_loan(&self) {
        self.lost_loans.fetch_add(1, Ordering::Relaxed);
    }

    /// The first byte of a chunk.
    pub(super) fn chunk(&self, index: usize) -> *mut u8 {
        self.at(index * self.chunk_len)
    }

    /// The byte at `offset`.
    ///
    /// # Panics
    ///
    /// If it is not within the slab.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size(), "offset {offset} is out of {self:?}");
        // SAFETY: the offset is within the allocation (invariant 1), checked above.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    pub(super) fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // No registration may outlive the memory: take them before the memory goes.
        drop(self.region.take());
        self.regions.get_mut().clear();
        // SAFETY: invariant 1; nothing refers to the memory, since every buffer holds its slab.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

/// The memory of so many chunks; `None` where it is of size zero or too long.
fn layout(chunk_len: usize, chunks: usize) -> Option<Layout> {
    let bytes = chunk_len.checked_mul(chunks)?.checked_next_multiple_of(PAGE)?;
    Layout::from_size_align(bytes, PAGE).ok().filter(|layout| layout.size() > 0)
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({} bytes in chunks of {})", self.len(), self.chunk_len)
    }
}
