//! Memory for short bodies and metadata: copied out of the read buffer, many to a chunk.
//!
//! A body that were a slice of the read buffer would keep all of it alive for a few bytes, and the buffer
//! could not be used again; an allocation per body would cost more than the copy. A chunk is used again
//! once all bodies in it are dropped, else a new one takes its place.

use bytes::{Bytes, BytesMut};

/// Bytes of a chunk, which one held body keeps alive: four of the longest, hundreds of usual ones.
const CHUNK: usize = 16 << 10;

/// Copies short runs of bytes.
#[derive(Debug, Default)]
pub struct SmallBodies {
    chunk: BytesMut,
}

impl SmallBodies {
    /// A copy of `bytes`; a run of a chunk's length or more gets memory of its own.
    pub fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        if bytes.len() >= CHUNK {
            return Bytes::copy_from_slice(bytes);
        }
        if self.chunk.capacity() < bytes.len() {
            self.chunk.reserve(CHUNK);
        }
        self.chunk.extend_from_slice(bytes);
        self.chunk.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_used_again_when_its_bodies_are_dropped() {
        let mut small = SmallBodies::default();
        let first = small.copy(b"first").as_ptr();
        let again = (0..2 * CHUNK / 8).any(|_| small.copy(b"eight...").as_ptr() == first);
        assert!(again, "the first chunk's memory never came back");
    }

    #[test]
    fn a_held_body_keeps_its_bytes() {
        let mut small = SmallBodies::default();
        let held = small.copy(b"held");
        for _ in 0..CHUNK {
            drop(small.copy(b"other"));
        }
        assert_eq!(held, "held");
        assert_eq!(small.copy(&[7; 2 * CHUNK]).len(), 2 * CHUNK);
        assert!(small.copy(b"").is_empty());
    }
}
