//! Bytes that somebody else may be writing at this moment: copied and cleared without a reference.
//!
//! Who that may be: a peer that has a key and ignores that its grant is closed. Its NIC is no thread of this
//! program, and volatile accesses are how a program deals with memory that changes by itself: each byte is
//! loaded once, and the compiler may not load it again later. A software NIC is a thread, so each
//! piece holds the lock under which such a NIC copies.

use std::ptr::write_bytes;

use super::slab::Slab;

/// Bytes that are copied while the lock of the owners is held: other buffers of the slab change owner meanwhile.
const PIECE: usize = 256 << 10;

/// Bytes of the buffer on the stack.
const STEP: usize = 4096;
const WORD: usize = size_of::<u64>();

impl Slab {
    /// Appends `len` bytes from `offset` on to `out`.
    pub(super) fn copy_out(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        out.reserve(len);
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let stop = end.min(at + PIECE);
            let owners = self.owners();
            while at < stop {
                let step = STEP.min(stop - at);
                self.append(at, step, out);
                at += step;
            }
            drop(owners);
        }
    }

    /// Appends at most [`STEP`] bytes, and at least one.
    fn append(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        let _last = self.at(offset + len - 1);
        let begin = self.at(offset);
        // Up to the first whole word, whole words, and the rest.
        let head = (offset.next_multiple_of(WORD) - offset).min(len);
        let words = (len - head) / WORD * WORD;
        let mut step = [0; STEP];
        let (first, rest) = step[..len].split_at_mut(head);
        let (middle, last) = rest.split_at_mut(words);
        let bytes = (0..head).chain(head + words..len);
        for (at, byte) in bytes.zip(first.iter_mut().chain(last)) {
            let source = begin.wrapping_add(at);
            // SAFETY: between the first and the last byte of the run, which are within the slab (`at`) and
            // initialised (invariant 1). No mutable reference to it exists: the caller has the chunk's
            // `NicBuf` (invariant 2).
            *byte = unsafe { source.read_volatile() };
        }
        let begin = begin.wrapping_add(head).cast::<u64>();
        for (index, word) in middle.chunks_exact_mut(WORD).enumerate() {
            let source = begin.wrapping_add(index);
            // SAFETY: as above, and aligned: the slab is aligned to pages, and `head` ends on a word.
            let loaded = unsafe { source.read_volatile() };
            word.copy_from_slice(&loaded.to_ne_bytes());
        }
        out.extend_from_slice(&step[..len]);
    }

    /// Makes `len` bytes from `offset` on zero.
    pub(super) fn zero(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let end = offset + len;
        for begin in (offset..end).step_by(PIECE) {
            let len = PIECE.min(end - begin);
            let _last = self.at(begin + len - 1);
            let first = self.at(begin);
            let _owners = self.owners();
            // SAFETY: the first and the last byte are within the slab (`at`). No reference to any of them exists:
            // the caller has the chunk's `IdleBuf` (invariant 2). A NIC that writes there too is no thread,
            // or holds the lock.
            unsafe { write_bytes(first, 0, len) }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::{NicAccess, Poison, Pool, Released, Slab};

    #[test]
    fn any_run_is_copied_as_it_is() {
        let pool = Pool::new(Slab::new(600 << 10, 2), Poison::Off);
        let _first = pool.take().expect("free");
        let mut buf = pool.take().expect("free");
        for (index, byte) in buf.iter_mut().enumerate() {
            *byte = u8::try_from(index % 251).expect("short");
        }
        let expected = buf.to_vec();
        let nic = buf.into_nic(NicAccess::Read);
        let ends = [0, 1, 7, 8, 9, 63, 4095, 4096, 4097, 262_143, 262_145, 600 << 10];
        for begin in ends {
            for end in ends {
                let mut out = vec![9];
                nic.copy_out(begin..end, &mut out);
                assert_eq!(out[1..], *expected.get(begin..end).unwrap_or(&[]), "{begin}..{end}");
            }
        }
        let mut out = Vec::new();
        nic.copy_out(600 << 10..usize::MAX, &mut out);
        assert!(out.is_empty());
        drop(nic.into_cpu(Released::by_nic()));
    }
}
