//! A chunk that nobody may look at.
//!
//! A landing region between two grants is this. Where no window keeps the last peer from writing there again,
//! a reference to the bytes would be unsound for as long as the peer lives; so none is possible before
//! the next grant has been closed, and not even then without the assumption that [`memory`](super) states.

use std::fmt;

use super::buf::{Chunk, MOVED, NicBuf};
use super::slab::{Domain, Lkey, NicAccess, Rkey};

/// A chunk that is free, or put by. Dropped, it goes back to its pool.
pub struct IdleBuf {
    /// `None` only after the chunk has moved on, when `self` is about to drop.
    chunk: Option<Chunk>,
}

impl IdleBuf {
    pub(super) fn new(chunk: Chunk) -> Self {
        Self { chunk: Some(chunk) }
    }

    /// Length of the chunk in bytes, never zero.
    pub fn chunk_len(&self) -> usize {
        self.chunk().pool.slab().chunk_len()
    }

    /// The keys of the chunk's registration with a protection domain.
    pub fn keys_in(&self, domain: Domain) -> Option<(Lkey, Rkey)> {
        self.chunk().pool.slab().keys_in(domain)
    }

    /// Makes the first `len` bytes zero, or all where the chunk is shorter.
    pub fn zero(&mut self, len: usize) {
        let chunk = self.chunk();
        chunk.pool.slab().zero(chunk.offset(), len.min(self.chunk_len()));
    }

    /// Hands the chunk to a NIC as it is; it is not poisoned.
    pub fn into_nic(mut self, access: NicAccess) -> NicBuf {
        NicBuf::new(self.chunk.take().expect(MOVED), access)
    }

    fn chunk(&self) -> &Chunk {
        self.chunk.as_ref().expect(MOVED)
    }
}

impl Drop for IdleBuf {
    fn drop(&mut self) {
        if let Some(Chunk { pool, index }) = self.chunk.take() {
            pool.give_back(index);
        }
    }
}

impl fmt::Debug for IdleBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdleBuf(chunk {}, {} bytes)", self.chunk().index, self.chunk_len())
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::{NicAccess, Poison, Pool, Released, Returned, Slab};

    #[test]
    fn a_chunk_is_zeroed_as_far_as_asked_and_no_neighbour_is() {
        let pool = Pool::new(Slab::new(64, 3), Poison::Off);
        let mut bufs = [(); 3].map(|()| pool.take().expect("free"));
        bufs.iter_mut().for_each(|buf| buf.fill(7));
        let [before, middle, after] = bufs;
        let mut middle = middle.into_idle();
        middle.zero(8);
        let middle = middle.into_nic(NicAccess::Write).into_cpu(Released::by_nic());
        assert_eq!((&middle[..8], &middle[8..]), (&[0; 8][..], &[7; 56][..]));
        let mut middle = middle.into_idle();
        middle.zero(usize::MAX);
        let middle = middle.into_nic(NicAccess::Write).into_cpu(Released::by_nic());
        assert!(middle.iter().all(|byte| *byte == 0));
        assert!(before.iter().chain(&*after).all(|byte| *byte == 7));
    }

    #[test]
    fn a_chunk_whose_grant_is_closed_is_free_without_being_looked_at() {
        let pool = Pool::new(Slab::new(64, 1), Poison::Off);
        let nic = pool.take().expect("free").into_nic(NicAccess::Write);
        drop(nic.into_idle(Returned::by_peer()));
        assert_eq!((pool.free(), pool.leaked()), (1, 0));
    }

    #[test]
    fn dropping_an_idle_chunk_frees_it() {
        let pool = Pool::new(Slab::new(64, 1), Poison::Off);
        let idle = pool.take().expect("free").into_idle();
        assert_eq!(pool.free(), 0);
        drop(idle);
        assert_eq!(pool.free(), 1);
    }
}
