//! The segment writer: what prost encodes a message into.
//!
//! prost hands every `bytes` field to [`BufMut::put`] as the field's own `Bytes`. Overriding `put` keeps a
//! large one as a segment by reference count, at every nesting level, while everything else is copied
//! into the current head. The concatenated segments are exactly what prost writes into one buffer.

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, BytesMut};

use super::{BY_REFERENCE, Body};

/// Head capacity for a message that is longer than [`BY_REFERENCE`]: the large fields do not go there,
/// and what is left of such a message is as a rule short.
const LARGE_MESSAGE_HEAD: usize = 256;

/// Collects a message as a list of segments.
#[derive(Debug, Default)]
pub struct SegmentWriter {
    /// Everything that is copied, up to the next segment kept by reference.
    head: BytesMut,
    body: Body,
    /// Whether a field was kept by reference.
    has_payload: bool,
}

impl SegmentWriter {
    /// A writer for a message of `encoded_len` bytes.
    pub fn for_message(encoded_len: usize) -> Self {
        let capacity = if encoded_len < BY_REFERENCE { encoded_len } else { LARGE_MESSAGE_HEAD };
        Self { head: BytesMut::with_capacity(capacity), body: Body::new(), has_payload: false }
    }

    /// The finished body.
    pub fn finish(mut self) -> Body {
        self.body.push(self.head.freeze());
        if self.has_payload { self.body } else { self.body.without_payload() }
    }
}

#[expect(
    unsafe_code,
    reason = "BufMut is an unsafe trait; both unsafe methods delegate to BytesMut"
)]
// SAFETY: `chunk_mut` and `advance_mut` are those of the inner `BytesMut`, whose own implementation
// keeps the trait's contract: the slice of `chunk_mut` does not move before the next call that takes
// `&mut self`, and nothing between the two calls touches `head`. `put` and `put_slice` only use safe
// methods.
unsafe impl BufMut for SegmentWriter {
    fn remaining_mut(&self) -> usize {
        self.head.remaining_mut()
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: the caller promises that `count` bytes of `chunk_mut`, which is the head's, are
        // initialised.
        unsafe { self.head.advance_mut(count) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.head.chunk_mut()
    }

    fn put<T: Buf>(&mut self, mut source: T)
    where
        Self: Sized,
    {
        let len = source.remaining();
        if len < BY_REFERENCE {
            self.head.put(source);
            return;
        }
        self.has_payload = true;
        // Splitting an empty head would still allocate its reference count.
        if !self.head.is_empty() {
            self.body.push(self.head.split().freeze());
        }
        self.body.push(source.copy_to_bytes(len));
    }

    fn put_slice(&mut self, source: &[u8]) {
        self.head.put_slice(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_large_field_is_kept_by_reference() {
        let payload = Bytes::from(vec![1; BY_REFERENCE]);
        let mut writer = SegmentWriter::for_message(BY_REFERENCE + 4);
        writer.put_slice(b"ab");
        writer.put(payload.clone());
        writer.put_u16(0x6364);
        let body = writer.finish();
        let segments: Vec<_> = body.segments().collect();
        assert_eq!(segments.len(), 3);
        assert_eq!(segments[0], "ab");
        assert_eq!(segments[1].as_ptr(), payload.as_ptr());
        assert_eq!(segments[2], "cd");
    }

    #[test]
    fn a_small_field_is_copied_into_the_head() {
        let mut writer = SegmentWriter::for_message(8);
        writer.put(Bytes::from_static(b"abcd"));
        writer.put(Bytes::from_static(b"efgh"));
        let body = writer.finish();
        assert_eq!(body.segments().count(), 1);
        assert_eq!(body.into_bytes(), "abcdefgh");
    }
}
