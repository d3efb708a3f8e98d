//! A run of page-aligned memory, registered once.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

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

/// What a NIC may do with a chunk that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicAccess {
    /// Send from it.
    Read,
    /// Receive into it.
    Write,
}

/// Who a chunk belongs to, as far as a software NIC must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Cpu,
    Nic(NicAccess),
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
pub struct Slab {
    /// Declared first: deregistered before the memory is freed.
    region: OnceLock<Box<dyn Region>>,
    memory: NonNull<u8>,
    layout: Layout,
    chunk_len: usize,
    /// One per chunk. The lock also orders a software NIC's copies against changes of owner.
    owners: Mutex<Vec<Owner>>,
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
        let bytes =
            chunk_len.checked_mul(chunks).and_then(|bytes| bytes.checked_next_multiple_of(PAGE));
        let layout = bytes
            .filter(|bytes| *bytes > 0)
            .and_then(|bytes| Layout::from_size_align(bytes, PAGE).ok())
            .expect("pool sizes are checked when they are configured");
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        // Invariant 1 begins here.
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        let owners = Mutex::new(vec![Owner::Cpu; chunks]);
        Self { region: OnceLock::new(), memory, layout, chunk_len, owners }
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
        self.owners().len()
    }

    /// Keeps the slab's registration. A slab has one for its whole life; a second is dropped.
    pub fn set_region(&self, region: Box<dyn Region>) {
        let _second = self.region.set(region);
    }

    /// The registration, once there is one.
    pub fn region(&self) -> Option<&dyn Region> {
        self.region.get().map(|region| &**region)
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

    pub(super) fn owners(&self) -> MutexGuard<'_, Vec<Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // The registration must not outlive the memory: take it before the memory goes.
        drop(self.region.take());
        // SAFETY: invariant 1; nothing refers to the memory, since every buffer holds its slab.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({} bytes in chunks of {})", self.len(), self.chunk_len)
    }
}
