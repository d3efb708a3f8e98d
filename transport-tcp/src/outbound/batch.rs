//! A run of bytes for vectored writes: one buffer of copied bytes with referenced segments in between.
//!
//! A batch is filled, then written; after that it is cleared and filled again with the memory it has.

use std::io::IoSlice;
use std::mem;

use bytes::Bytes;
use verbwire_core::buf::BY_REFERENCE;

/// Copied bytes that a cleared batch keeps memory for. 256 KiB: the frames of a thousand small calls,
/// so that a burst of long ones does not stay with the connection.
const KEPT: usize = 256 << 10;

/// Slices of one write. 64: enough for a piece of a body of 4 KiB fields; far below IOV_MAX.
pub(crate) const SLICES: usize = 64;

/// Bytes to write, and how far writing has got.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    copied: Vec<u8>,
    /// Segments in order, each with its place: before the copied byte of that index.
    segments: Vec<(usize, Bytes)>,
    /// Bytes of all segments, written or not.
    referenced: usize,
    written: Written,
}

/// How far writing has got.
#[derive(Debug, Default)]
struct Written {
    copied: usize,
    segments: usize,
    /// Bytes written of the segment whose turn it is.
    of_segment: usize,
}

impl Batch {
    /// Appends bytes by copying them.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
    }

    /// Where to append bytes that are encoded in place.
    pub(crate) fn copied(&mut self) -> &mut Vec<u8> {
        &mut self.copied
    }

    /// Appends bytes: by reference if they are long, else by copying them.
    pub(crate) fn append(&mut self, bytes: Bytes) {
        if bytes.len() < BY_REFERENCE {
            self.copy(&bytes);
        } else {
            self.referenced += bytes.len();
            self.segments.push((self.copied.len(), bytes));
        }
    }

    /// Copied bytes, written or not.
    pub(crate) fn copied_len(&self) -> usize {
        self.copied.len()
    }

    /// Bytes appended by reference, written or not.
    pub(crate) fn referenced_len(&self) -> usize {
        self.referenced
    }

    /// Whether nothing is left to write.
    pub(crate) fn is_written(&self) -> bool {
        self.written.copied == self.copied.len() && self.written.segments == self.segments.len()
    }

    /// Empties the batch and keeps its memory, within [`KEPT`].
    pub(crate) fn clear(&mut self) {
        self.copied.clear();
        self.copied.shrink_to(KEPT);
        self.segments.clear();
        self.referenced = 0;
        self.segments.shrink_to(KEPT / BY_REFERENCE);
        self.written = Written::default();
    }

    /// Fills `slices` from the front with what is to be written next; returns how many it filled.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let mut filled = 0;
        let mut fill = |bytes: &'a [u8]| {
            if !bytes.is_empty() && filled < SLICES {
                slices[filled] = IoSlice::new(bytes);
                filled += 1;
            }
            filled < SLICES
        };
        let mut at = self.written.copied;
        let mut skip = self.written.of_segment;
        for (place, segment) in &self.segments[self.written.segments..] {
            if !fill(&self.copied[at..*place]) || !fill(&segment[skip..]) {
                return filled;
            }
            at = *place;
            skip = 0;
        }
        fill(&self.copied[at..]);
        filled
    }

    /// Notes that the next `count` bytes are written; segments written whole are let go.
    pub(crate) fn advance(&mut self, mut count: usize) {
        let written = &mut self.written;
        for (place, segment) in &mut self.segments[written.segments..] {
            let copied = count.min(*place - written.copied);
            written.copied += copied;
            count -= copied;
            let left = segment.len() - written.of_segment;
            if count < left {
                written.of_segment += count;
                return;
            }
            count -= left;
            drop(mem::take(segment));
            written.segments += 1;
            written.of_segment = 0;
        }
        written.copied += count;
    }
}

#[cfg(test)]
impl Batch {
    /// Writes the batch to a socket that takes everything.
    pub(crate) fn drain(&mut self) -> Vec<u8> {
        self.drain_by(&[usize::MAX])
    }

    /// Writes the batch to a socket that takes `counts` bytes at a time, in turns.
    fn drain_by(&mut self, counts: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut turns = counts.iter().cycle();
        while !self.is_written() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = self.slices(&mut slices);
            let offered = slices[..filled].iter().flat_map(|slice| slice.iter());
            let before = out.len();
            out.extend(offered.take(*turns.next().expect("an endless cycle")));
            assert!(out.len() > before, "a batch with bytes left offers some");
            self.advance(out.len() - before);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_a_write_takes_the_bytes_come_in_order(
            lens in prop::collection::vec(prop_oneof![0..200_usize, 4000..4200_usize], 0..80),
            counts in prop::collection::vec(200..9000_usize, 1..10),
        ) {
            let mut batch = Batch::default();
            let mut expected = Vec::new();
            for (index, len) in lens.into_iter().enumerate() {
                let bytes = vec![u8::try_from(index).expect("below 100"); len];
                expected.extend_from_slice(&bytes);
                batch.append(bytes.into());
            }
            prop_assert_eq!(batch.drain_by(&counts), expected);
            batch.clear();
            prop_assert!(batch.is_written());
        }
    }

    #[test]
    fn a_long_segment_is_not_copied_and_is_let_go_once_written() {
        let segment = Bytes::from(vec![1; BY_REFERENCE]);
        let mut batch = Batch::default();
        batch.append(segment.clone());
        batch.copy(b"tail");
        assert_eq!(batch.copied_len(), 4);
        batch.advance(BY_REFERENCE - 1);
        assert!(!segment.is_unique());
        batch.advance(1);
        assert!(segment.is_unique());
        assert!(!batch.is_written());
    }
}
