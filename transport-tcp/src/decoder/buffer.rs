//! The read buffer: bytes of frames that are not decoded yet.
//!
//! It grows only for a frame that must stand in it as a whole, of a length that was checked, and shrinks
//! again behind it.

use bytes::BufMut;
use bytes::buf::Limit;

/// Usual capacity. 64 KiB: hundreds of small frames per read, and within what a socket holds.
const CAPACITY: usize = 64 << 10;

/// Room below which the unread bytes are moved to the front before the next read. A quarter: a read into
/// less would not be worth its system call, and moving happens to a short rest only.
const ENOUGH: usize = CAPACITY / 4;

/// Bytes as they were read, up to what is decoded of them.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    /// Where the unread ones begin.
    start: usize,
    /// How many unread ones there must be for decoding to go on.
    needed: usize,
}

impl ReadBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(CAPACITY), start: 0, needed: 0 }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Removes unread bytes from the front.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        self.needed = 0;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            self.bytes.shrink_to(CAPACITY);
        }
    }

    /// Decoding goes on when this many bytes are unread; the caller has checked the number.
    pub(super) fn need(&mut self, count: usize) {
        self.needed = count;
    }

    /// Where to append what is read; not full, and with room for what is needed.
    pub(super) fn space(&mut self) -> Limit<&mut Vec<u8>> {
        let missing = self.needed.saturating_sub(self.unread().len());
        let room = self.bytes.capacity() - self.bytes.len();
        if room < missing.max(ENOUGH) {
            self.bytes.drain(..self.start);
            self.start = 0;
            if self.bytes.capacity() - self.bytes.len() < missing.max(1) {
                self.bytes.reserve_exact(missing.max(CAPACITY));
            }
        }
        let room = self.bytes.capacity() - self.bytes.len();
        (&mut self.bytes).limit(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_grows_for_a_long_need_and_shrinks_behind_it() {
        let mut buffer = ReadBuffer::new();
        buffer.need(3 * CAPACITY);
        while buffer.unread().len() < 3 * CAPACITY {
            let mut space = buffer.space();
            let count = space.remaining_mut().min(1000);
            space.put_bytes(1, count);
        }
        let len = buffer.unread().len();
        assert!(buffer.bytes.capacity() < 4 * CAPACITY);
        buffer.consume(len);
        assert_eq!(buffer.bytes.capacity(), CAPACITY);
    }

    #[test]
    fn the_buffer_is_used_again_without_growing() {
        let mut buffer = ReadBuffer::new();
        for _ in 0..1000 {
            let mut space = buffer.space();
            let count = space.remaining_mut();
            assert!(count > 0);
            space.put_bytes(1, count.min(10_007));
            buffer.need(100);
            while buffer.unread().len() >= 100 {
                buffer.consume(100);
            }
            buffer.need(100);
            assert_eq!(buffer.bytes.capacity(), CAPACITY);
        }
    }
}
