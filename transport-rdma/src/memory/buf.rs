//! The two owners of a chunk as two types.

use std::fmt;
use std::mem::forget;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::Arc;

use verbwire_core::buf::Storage;

use super::idle::IdleBuf;
use super::owners::Owner;
use super::pool::Pool;
use super::slab::{Lkey, NicAccess, Rkey};

/// What fills a chunk while the NIC owns it, so that whoever reads it too early sees it.
const POISON: u8 = 0xdb;

/// Proof that no NIC reaches a buffer any more, so that its bytes may be looked at.
///
/// Only those who learn such things make one: the table of work in flight, and the grants of landing regions.
#[derive(Debug)]
pub struct Released(());

impl Released {
    /// The work request that named the buffer has completed, or its queue pair was destroyed.
    pub(crate) fn by_nic() -> Self {
        Self(())
    }

    /// The peer's grant on the buffer is closed, and it cannot write there again: its window was invalidated, or
    /// it is trusted, which is the soundness assumption of [`memory`](super).
    pub(crate) fn by_isolated_peer() -> Self {
        Self(())
    }
}

/// Proof that a peer's grant on a buffer is closed: the buffer may be used again, and not be looked at.
#[derive(Debug)]
pub struct Returned(());

impl Returned {
    /// Its FIN or ABORT_ACK came on the queue pair of its Writes, or that queue pair was destroyed.
    pub(crate) fn by_peer() -> Self {
        Self(())
    }
}

/// The one token of a chunk. It moves between [`CpuBuf`] and [`NicBuf`] and back to the pool.
pub(super) struct Chunk {
    pub(super) pool: Arc<Pool>,
    pub(super) index: usize,
}

impl Chunk {
    pub(super) fn set_owner(&self, owner: Owner) {
        self.pool.slab().owners().set(self.index, owner);
    }

    /// Where the chunk begins in its slab.
    pub(super) fn offset(&self) -> usize {
        self.index * self.pool.slab().chunk_len()
    }
}

/// A chunk that belongs to the CPU.
pub struct CpuBuf {
    /// `None` only after the chunk has moved on, when `self` is about to drop.
    chunk: Option<Chunk>,
}

/// A chunk that belongs to a NIC.
///
/// Dropped without [`Released`], it leaks its chunk: the NIC may still reach it.
#[must_use = "a NIC's buffer comes back only through its completion"]
pub struct NicBuf {
    /// `None` only after the chunk has moved on, when `self` is about to drop.
    chunk: Option<Chunk>,
}

pub(super) const MOVED: &str = "a chunk moves on only when its buffer is consumed";

impl CpuBuf {
    /// The chunk `index`, which its pool has just marked as taken.
    pub(super) fn new(pool: Arc<Pool>, index: usize) -> Self {
        Self { chunk: Some(Chunk { pool, index }) }
    }

    /// Hands the chunk to a NIC.
    pub fn into_nic(mut self, access: NicAccess) -> NicBuf {
        if access == NicAccess::Write && self.chunk().pool.poisons() {
            self.fill(POISON);
        }
        let chunk = self.chunk.take().expect(MOVED);
        NicBuf::new(chunk, access)
    }

    /// Puts the chunk by, without a reference to its bytes.
    pub fn into_idle(mut self) -> IdleBuf {
        IdleBuf::new(self.chunk.take().expect(MOVED))
    }

    fn chunk(&self) -> &Chunk {
        self.chunk.as_ref().expect(MOVED)
    }
}

impl Deref for CpuBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Chunk { pool, index } = self.chunk();
        let slab = pool.slab();
        // SAFETY: the chunk's bytes are initialised (slab invariant 1), and this `CpuBuf` is the chunk's
        // only owner (slab invariant 2), so that nothing writes to it while it is borrowed.
        unsafe { slice::from_raw_parts(slab.chunk(*index), slab.chunk_len()) }
    }
}

impl DerefMut for CpuBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Chunk { pool, index } = self.chunk();
        let slab = pool.slab();
        // SAFETY: as for `deref`; the borrow of `self` is unique.
        unsafe { slice::from_raw_parts_mut(slab.chunk(*index), slab.chunk_len()) }
    }
}

impl AsRef<[u8]> for CpuBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for CpuBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Storage for CpuBuf {}

impl Drop for CpuBuf {
    fn drop(&mut self) {
        if let Some(Chunk { pool, index }) = self.chunk.take() {
            pool.give_back(index);
        }
    }
}

impl fmt::Debug for CpuBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuBuf(chunk {}, {} bytes)", self.chunk().index, self.len())
    }
}

impl NicBuf {
    /// The chunk, which becomes the NIC's now.
    pub(super) fn new(chunk: Chunk, access: NicAccess) -> Self {
        chunk.set_owner(Owner::Nic(access));
        Self { chunk: Some(chunk) }
    }

    /// The first byte's address, as a NIC knows it.
    pub fn address(&self) -> u64 {
        let Chunk { pool, index } = self.chunk();
        pool.slab().chunk(*index).expose_provenance() as u64
    }

    /// Length of the chunk in bytes, never zero.
    pub fn chunk_len(&self) -> usize {
        self.chunk().pool.slab().chunk_len()
    }

    /// The local key of the chunk's registration; `None` on a slab that is not registered.
    pub fn lkey(&self) -> Option<Lkey> {
        self.chunk().pool.slab().region().map(|region| region.lkey())
    }

    /// The remote key of the chunk's registration; `None` on a slab that is not registered.
    pub fn rkey(&self) -> Option<Rkey> {
        self.chunk().pool.slab().region().map(|region| region.rkey())
    }

    /// The chunk's slab, for a test that plays a NIC.
    #[cfg(test)]
    pub(crate) fn slab(&self) -> &super::Slab {
        self.chunk().pool.slab()
    }

    /// Appends the bytes of `range` to `out`, at most what the chunk has of it, without a reference to them:
    /// whoever may still write to the chunk can change what is copied, and nothing that was copied.
    pub fn copy_out(&self, range: Range<usize>, out: &mut Vec<u8>) {
        let end = range.end.min(self.chunk_len());
        let len = end.saturating_sub(range.start);
        let Chunk { pool, .. } = self.chunk();
        pool.slab().copy_out(self.chunk().offset() + range.start.min(end), len, out);
    }

    /// Takes the chunk back for the CPU.
    pub fn into_cpu(mut self, _proof: Released) -> CpuBuf {
        let chunk = self.chunk.take().expect(MOVED);
        chunk.set_owner(Owner::Cpu);
        CpuBuf { chunk: Some(chunk) }
    }

    /// Takes the chunk back without a reference to its bytes ever being possible.
    pub fn into_idle(mut self, _proof: Returned) -> IdleBuf {
        let chunk = self.chunk.take().expect(MOVED);
        chunk.set_owner(Owner::Cpu);
        IdleBuf::new(chunk)
    }

    fn chunk(&self) -> &Chunk {
        self.chunk.as_ref().expect(MOVED)
    }
}

impl Drop for NicBuf {
    fn drop(&mut self) {
        if let Some(Chunk { pool, .. }) = self.chunk.take() {
            // The NIC may still write here: neither the chunk nor its slab may be used for anything else.
            pool.count_leaked();
            forget(pool);
        }
    }
}

impl fmt::Debug for NicBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NicBuf(chunk {}, {} bytes)", self.chunk().index, self.chunk_len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Slab;
    use crate::memory::pool::Poison;
    use bytes::Bytes;

    fn pool(chunks: usize) -> Arc<Pool> {
        Pool::new(Slab::new(64, chunks), Poison::WhileNicOwns)
    }

    #[test]
    fn a_chunk_goes_to_the_nic_and_back() {
        let pool = pool(1);
        let mut buf = pool.take().expect("free");
        buf[..3].copy_from_slice(b"abc");
        let address = buf.as_ptr().addr() as u64;
        let nic = buf.into_nic(NicAccess::Read);
        assert_eq!(nic.address(), address);
        assert!(pool.take().is_none());
        assert_eq!(&nic.into_cpu(Released::by_nic())[..3], b"abc");
        assert!(pool.take().is_some());
    }

    #[test]
    fn what_the_nic_did_not_write_shows_as_poison() {
        let buf = pool(1).take().expect("free").into_nic(NicAccess::Write);
        assert!(buf.into_cpu(Released::by_nic()).iter().all(|byte| *byte == POISON));
    }

    #[test]
    fn a_dropped_nic_buffer_never_returns_its_chunk() {
        let pool = pool(2);
        drop(pool.take().expect("free").into_nic(NicAccess::Write));
        assert_eq!(pool.leaked(), 1);
        let other = pool.take().expect("the other chunk");
        assert!(pool.take().is_none());
        drop(other);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn bytes_over_a_chunk_outlive_everything_else() {
        let pool = pool(1);
        let mut buf = pool.take().expect("free");
        buf[..3].copy_from_slice(b"abc");
        let bytes = Bytes::from_owner(buf).slice(..3);
        let weak = Arc::downgrade(&pool);
        drop(pool);
        assert_eq!(bytes, "abc");
        drop(bytes);
        assert!(weak.upgrade().is_none());
    }
}
