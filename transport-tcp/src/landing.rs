//! Memory for long bodies that arrive.
//!
//! Fresh memory of this size costs a page fault per 4 KiB, which is a third of the time of receiving into
//! it. So some buffers are kept when their last `Bytes` is dropped and used again. Owns the kept ones, and
//! no more than the set number of bytes. A buffer is as long as what was written to it, so that nothing of
//! its last use shows.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Shortest buffer that is kept. 64 KiB: shorter ones come from memory that the allocator keeps anyway.
const SHORTEST: usize = 64 << 10;

/// Buffers for the bodies of all connections of a transport.
#[derive(Debug)]
pub(crate) struct LandingPool {
    kept: Mutex<Kept>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Kept {
    /// Empty buffers; the last one was used last.
    buffers: Vec<Vec<u8>>,
    /// Their capacities together.
    bytes: usize,
}

impl LandingPool {
    /// An empty pool that keeps at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { kept: Mutex::default(), limit }
    }

    /// An empty buffer for `len` bytes: a kept one of at most twice that, else a new one.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        if len < SHORTEST {
            return Vec::with_capacity(len);
        }
        let mut kept = self.kept();
        let fits = |buffer: &Vec<u8>| (len..=2 * len).contains(&buffer.capacity());
        match kept.buffers.iter().rposition(fits) {
            Some(at) => {
                let buffer = kept.buffers.remove(at);
                kept.bytes -= buffer.capacity();
                buffer
            }
            None => {
                drop(kept);
                Vec::with_capacity(len)
            }
        }
    }

    /// The bytes of a filled buffer; it comes back when the last of them is dropped.
    pub(crate) fn freeze(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        if buffer.capacity() < SHORTEST {
            return Bytes::from(buffer);
        }
        let pool = Arc::clone(self);
        Bytes::from_owner(Lent { buffer, pool })
    }

    /// Keeps a buffer, in the place of the ones that were not used for longest.
    fn give_back(&self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if !(SHORTEST..=self.limit).contains(&capacity) {
            return;
        }
        buffer.clear();
        let mut kept = self.kept();
        let mut excess = (kept.bytes + capacity).saturating_sub(self.limit);
        let count = kept
            .buffers
            .iter()
            .take_while(|oldest| {
                let is_over = excess > 0;
                excess = excess.saturating_sub(oldest.capacity());
                is_over
            })
            .count();
        let dropped: Vec<_> = kept.buffers.drain(..count).collect();
        kept.bytes -= dropped.iter().map(Vec::capacity).sum::<usize>();
        kept.bytes += capacity;
        kept.buffers.push(buffer);
        drop(kept);
        drop(dropped);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer whose bytes are in use.
struct Lent {
    buffer: Vec<u8>,
    pool: Arc<LandingPool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give_back(mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pool: &Arc<LandingPool>, len: usize) -> Bytes {
        let mut buffer = pool.take(len);
        buffer.resize(len, 1);
        pool.freeze(buffer)
    }

    fn kept(pool: &LandingPool) -> Vec<usize> {
        let kept = pool.kept();
        let capacities: Vec<_> = kept.buffers.iter().map(Vec::capacity).collect();
        assert_eq!(capacities.iter().sum::<usize>(), kept.bytes);
        capacities
    }

    #[test]
    fn a_buffer_comes_back_when_its_last_slice_is_dropped() {
        let pool = Arc::new(LandingPool::new(10 * SHORTEST));
        let bytes = filled(&pool, SHORTEST);
        let slice = bytes.slice(3..9);
        let place = bytes.as_ptr();
        drop(bytes);
        assert!(kept(&pool).is_empty());
        drop(slice);
        assert_eq!(kept(&pool), [SHORTEST]);
        let again = pool.take(SHORTEST - 1);
        assert_ne!(again.as_ptr(), place, "shorter ones are not from the pool");
        let again = pool.take(SHORTEST);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
    }

    #[test]
    fn the_pool_keeps_the_last_used_within_its_limit() {
        let pool = Arc::new(LandingPool::new(6 * SHORTEST));
        let lent = [1, 2, 3, 7].map(|factor| filled(&pool, factor * SHORTEST));
        lent.into_iter().for_each(drop);
        assert_eq!(kept(&pool), [SHORTEST, 2 * SHORTEST, 3 * SHORTEST]);
        let other = filled(&pool, 4 * SHORTEST);
        drop(other);
        assert_eq!(kept(&pool), [4 * SHORTEST]);
        pool.take(SHORTEST);
        assert_eq!(kept(&pool), [4 * SHORTEST], "too long for a body of that length");
    }
}
