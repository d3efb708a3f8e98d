//! A finished message body and the reader that decodes it.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};

use super::BY_REFERENCE;
use crate::compression::{Coded, Encoding};
use crate::status::Status;

/// An encoded message: a list of segments that together are its bytes.
///
/// It may be compressed: then its bytes are those that are sent, and [`encoding`](Self::encoding) says how they become the
/// message. Decoding does that by itself; whoever looks at the bytes asks, or takes [`decompressed`](Self::decompressed).
///
/// Cloning costs reference counts, not bytes.
#[derive(Debug, Clone, Default)]
pub struct Body {
    /// The first two segments apart from the others: most bodies have no more, a short head and one long field, and then
    /// need no list. The second is empty if the first one is, and there are others only behind both.
    first: Bytes,
    second: Bytes,
    rest: Vec<Bytes>,
    /// Boxed, because few bodies have it, and all are moved.
    extra: Option<Box<Extra>>,
}

/// What is said of few bodies.
#[derive(Debug, Clone, Default)]
struct Extra {
    copy_out: Option<CopyOut>,
    /// Of one that is compressed.
    coded: Option<Coded>,
    /// Whether it was encoded without a field that is carried by reference. Only said of long ones: a short one has none.
    without_payload: bool,
}

/// What a reader copies although it is long enough for a slice, because the memory that it lies in is scarce.
#[derive(Debug, Clone)]
struct CopyOut {
    below: usize,
    copied: Arc<AtomicU64>,
}

impl Body {
    /// A body of no bytes.
    pub const fn new() -> Self {
        Self { first: Bytes::new(), second: Bytes::new(), rest: Vec::new(), extra: None }
    }

    /// Length in bytes over all segments.
    pub fn len(&self) -> usize {
        self.first.len() + self.second.len() + self.rest.iter().map(Bytes::len).sum::<usize>()
    }

    /// Whether the body has no bytes.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The segments in order; none is empty.
    pub fn segments(&self) -> impl Iterator<Item = &Bytes> {
        [&self.first, &self.second]
            .into_iter()
            .filter(|segment| !segment.is_empty())
            .chain(&self.rest)
    }

    /// Appends a segment; an empty one is dropped.
    pub fn push(&mut self, segment: Bytes) {
        if segment.is_empty() {
            return;
        }
        if let Some(extra) = &mut self.extra {
            extra.without_payload = false;
        }
        if self.first.is_empty() {
            self.first = segment;
        } else if self.second.is_empty() {
            self.second = segment;
        } else {
            self.rest.push(segment);
        }
    }

    /// The same, which its encoder knows to have no field that is carried by reference.
    pub(super) fn without_payload(mut self) -> Self {
        if self.len() >= BY_REFERENCE {
            self.extra.get_or_insert_default().without_payload = true;
        }
        self
    }

    /// Whether a large field may be in it: it has one, or nobody knows, since it was not encoded here.
    pub(crate) fn may_have_payload(&self) -> bool {
        let is_without = self.extra.as_ref().is_some_and(|extra| extra.without_payload);
        self.len() >= BY_REFERENCE && !is_without
    }

    /// Where its bytes begin, if they are in one piece.
    pub(crate) fn address(&self) -> Option<usize> {
        self.rest.is_empty().then(|| self.first.as_ptr().addr())
    }

    /// The same bytes, which are a message that was compressed: as a bridge has them from another system. Nothing is checked until
    /// it is decompressed. A side of a connection does that whose peer does not take it, up to its own `max_message_size`; its
    /// receiver, up to that one's; and who decodes it without a connection, in this process, up to 64 MiB.
    #[must_use]
    pub fn with_encoding(self, encoding: Encoding) -> Self {
        self.coded_as(Coded::made(encoding))
    }

    /// How the message is compressed; `None` if it is not.
    ///
    /// # Errors
    ///
    /// It came compressed in a way that its receiver did not announce: `Unimplemented` at a server, `Internal` at a client, as
    /// gRPC has it.
    pub fn encoding(&self) -> Result<Option<Encoding>, Status> {
        self.coded().map(Coded::encoding).transpose()
    }

    /// The message itself: the same, if it is not compressed. The work is done here, without an await.
    ///
    /// # Errors
    ///
    /// As for [`encoding`](Self::encoding); `ResourceExhausted` if the message is longer than its receiver's
    /// `max_message_size`, or than 64 MiB if it was made compressed in this process, of which no more is decompressed; `Internal` if
    /// the bytes do not decompress. The status leaves `executed` to the caller.
    pub fn decompressed(self) -> Result<Self, Status> {
        match self.coded().copied() {
            None => Ok(self),
            Some(coded) => coded.decompress(self),
        }
    }

    /// Bytes of the message, which costs the same work and keeps nothing of it: at most one more than its limit, and of one that
    /// is broken those before that.
    pub(crate) fn decompressed_len(&self) -> usize {
        self.decompressed_len_within(usize::MAX)
    }

    /// The same of a message that is of no interest beyond `most` bytes: if it is compressed, only one more is looked at.
    pub(crate) fn decompressed_len_within(&self, most: usize) -> usize {
        match self.coded() {
            None => self.len(),
            Some(coded) => coded.decompressed_len(self.clone(), most),
        }
    }

    pub(crate) fn coded(&self) -> Option<&Coded> {
        self.extra.as_ref()?.coded.as_ref()
    }

    pub(crate) fn coded_as(mut self, coded: Coded) -> Self {
        self.extra.get_or_insert_default().coded = Some(coded);
        self
    }

    /// The same in one piece of memory of its own.
    pub(crate) fn copied(&self) -> Self {
        let mut all = BytesMut::with_capacity(self.len());
        self.segments().for_each(|segment| all.extend_from_slice(segment));
        let mut copy = Self::from(all.freeze());
        if let Some(Extra { coded, without_payload, copy_out: _ }) = self.extra.as_deref() {
            let (coded, without_payload) = (*coded, *without_payload);
            if coded.is_some() || without_payload {
                copy.extra = Some(Box::new(Extra { copy_out: None, coded, without_payload }));
            }
        }
        copy
    }

    /// The whole body as one `Bytes`, as it is: free for a single segment, a copy for several.
    pub fn into_bytes(self) -> Bytes {
        if self.second.is_empty() {
            return self.first;
        }
        let mut all = BytesMut::with_capacity(self.len());
        self.segments().for_each(|segment| all.extend_from_slice(segment));
        all.freeze()
    }

    /// The same; a short one in memory of its own, so that it keeps nothing else.
    pub(crate) fn detached(self) -> Self {
        if self.len() >= BY_REFERENCE || self.is_empty() { self } else { self.copied() }
    }

    /// The same, of which readers also copy runs that are shorter than `below` bytes, and add their lengths to `copied`. For
    /// a transport whose memory for received messages is scarce: a short slice would hold all of it.
    #[must_use]
    pub fn copying_below(mut self, below: usize, copied: Arc<AtomicU64>) -> Self {
        if below > BY_REFERENCE {
            self.extra.get_or_insert_default().copy_out = Some(CopyOut { below, copied });
        }
        self
    }

    /// A reader of the bytes as they are, that hands out long runs as slices and copies short ones.
    pub fn reader(self) -> BodyReader {
        let remaining = self.len();
        let Self { first, second, rest, extra } = self;
        let copy_out = extra.and_then(|extra| extra.copy_out);
        BodyReader { current: first, next: second, rest: rest.into(), remaining, copy_out }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self { first: bytes, ..Self::new() }
    }
}

impl FromIterator<Bytes> for Body {
    fn from_iter<I: IntoIterator<Item = Bytes>>(segments: I) -> Self {
        let mut body = Self::new();
        segments.into_iter().for_each(|segment| body.push(segment));
        body
    }
}

/// Reads a [`Body`]: a `Buf` whose `copy_to_bytes` slices runs from [`BY_REFERENCE`] on, unless the body
/// [says otherwise](Body::copying_below).
#[derive(Debug)]
pub struct BodyReader {
    /// Where reading goes on; empty only when everything is read.
    current: Bytes,
    /// What is behind it; empty only when nothing is.
    next: Bytes,
    rest: VecDeque<Bytes>,
    remaining: usize,
    copy_out: Option<CopyOut>,
}

impl BodyReader {
    /// The segment behind the current one; an empty one where there is none.
    fn take_next(&mut self) -> Bytes {
        let behind = self.rest.pop_front().unwrap_or_default();
        mem::replace(&mut self.next, behind)
    }

    /// Whether a run of so many bytes is copied, though it could be a slice. Counts it then.
    fn copies_out(&self, len: usize) -> bool {
        let scarce = self.copy_out.as_ref().filter(|scarce| len < scarce.below);
        scarce.inspect(|scarce| {
            scarce.copied.fetch_add(len as u64, Ordering::Relaxed);
        });
        scarce.is_some()
    }
}

impl Buf for BodyReader {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        &self.current
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "advance by {count} of {} bytes", self.remaining);
        self.remaining -= count;
        while count >= self.current.len() {
            count -= self.current.len();
            self.current = self.take_next();
            if self.current.is_empty() {
                return;
            }
        }
        self.current.advance(count);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        assert!(len <= self.remaining, "take {len} of {} bytes", self.remaining);
        if len >= BY_REFERENCE && len <= self.current.len() && !self.copies_out(len) {
            if len == self.current.len() {
                let whole = mem::take(&mut self.current);
                self.remaining -= len;
                self.current = self.take_next();
                return whole;
            }
            let slice = self.current.slice(..len);
            self.advance(len);
            return slice;
        }
        if len <= self.current.len() {
            let copy = Bytes::copy_from_slice(&self.current[..len]);
            self.advance(len);
            return copy;
        }
        let mut copy = BytesMut::with_capacity(len);
        let mut missing = len;
        while missing > 0 {
            let run = missing.min(self.current.len());
            copy.extend_from_slice(&self.current[..run]);
            self.advance(run);
            missing -= run;
        }
        copy.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(segments: &[&[u8]]) -> Body {
        segments.iter().map(|segment| Bytes::copy_from_slice(segment)).collect()
    }

    #[test]
    fn empty_segments_vanish() {
        let body = body(&[b"", b"ab", b"", b"c"]);
        assert_eq!(body.segments().count(), 2);
        assert_eq!(body.len(), 3);
        assert_eq!(body.into_bytes(), "abc");
    }

    #[test]
    fn what_is_added_may_be_a_payload_and_a_copy_is_known_as_its_original() {
        let text = Bytes::from(vec![b'a'; BY_REFERENCE]);
        let mut known = Body::from(text.clone()).without_payload();
        assert!(Body::from(text.clone()).may_have_payload());
        assert!(!known.may_have_payload() && !known.copied().may_have_payload());
        known.push(text.slice(..1));
        assert!(known.may_have_payload() && known.copied().may_have_payload());
        assert!(!Body::from(text.slice(1..)).may_have_payload(), "too short for one");
    }

    #[test]
    fn reading_crosses_segments() {
        let mut reader = body(&[b"abc", b"de", b"f"]).reader();
        reader.advance(2);
        assert_eq!(reader.copy_to_bytes(3), "cde");
        assert_eq!(reader.chunk(), b"f");
        reader.advance(1);
        assert_eq!(reader.remaining(), 0);
        assert_eq!(reader.chunk(), b"");
    }

    #[test]
    fn a_long_run_is_a_slice_of_its_segment() {
        let segment = Bytes::from(vec![7; 2 * BY_REFERENCE]);
        let start = segment.as_ptr();
        let mut reader = Body::from(segment).reader();
        let long = reader.copy_to_bytes(BY_REFERENCE);
        assert_eq!(long.as_ptr(), start);
        let short = reader.copy_to_bytes(BY_REFERENCE - 1);
        assert_ne!(short.as_ptr(), start.wrapping_add(BY_REFERENCE));
        assert_eq!(reader.remaining(), 1);
    }

    #[test]
    fn where_memory_is_scarce_shorter_runs_are_copied_and_counted() {
        let segment = Bytes::from(vec![7; 4 * BY_REFERENCE]);
        let (start, copied) = (segment.as_ptr(), Arc::new(AtomicU64::new(0)));
        let body = Body::from(segment).copying_below(2 * BY_REFERENCE, Arc::clone(&copied));
        let mut reader = body.reader();
        let long = reader.copy_to_bytes(2 * BY_REFERENCE);
        assert_eq!(long.as_ptr(), start);
        let middle = reader.copy_to_bytes(BY_REFERENCE);
        assert_ne!(middle.as_ptr(), start.wrapping_add(2 * BY_REFERENCE));
        let _short = reader.copy_to_bytes(9);
        assert_eq!(copied.load(Ordering::Relaxed), 4096, "short ones are copied anyway");
    }

    #[test]
    fn a_whole_segment_is_handed_on_as_it_is() {
        let segment = Bytes::from(vec![7; BY_REFERENCE]);
        let start = segment.as_ptr();
        let mut reader: BodyReader =
            [Bytes::from_static(b"head"), segment].into_iter().collect::<Body>().reader();
        reader.advance(4);
        assert_eq!(reader.copy_to_bytes(BY_REFERENCE).as_ptr(), start);
        assert_eq!(reader.remaining(), 0);
    }
}
