//! A message whose body is written, and how a run of the body becomes one Write.
//!
//! What lies in registered memory is written from there; what does not is copied into a staging buffer first, chunk by
//! chunk, so that a long body never needs as much staging memory as it is long.

use bytes::Bytes;
use verbwire_core::message::Message;
use verbwire_core::{Error, ErrorKind};

use crate::memory::Lent;
use crate::outbound::Frame;
use crate::pool::StagingBuf;
use crate::proto::rendezvous::wire::{HeadExtras, Place};
use crate::proto::rendezvous::{Body, BodyLen, Chunk, TransferId};

/// A message with a long body.
#[derive(Debug)]
pub(crate) struct Source {
    /// Without its body.
    message: Message,
    len: BodyLen,
    /// The body's segments with where they begin in it, none empty.
    segments: Vec<(u32, Bytes)>,
}

/// The memory of one Write, in order.
#[derive(Debug)]
pub(crate) struct Plan(Vec<Piece>);

#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    from: From,
}

/// Where a piece is written from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Place,
    Staging,
}

/// A Write that is to be posted.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) transfer: TransferId,
    pub(crate) place: Place,
    plan: Plan,
    /// As long as what is staged, at least.
    staging: Option<StagingBuf>,
}

impl Source {
    /// A message with a body of 1 byte to 4 GiB - 1, and what a writer must know of the body.
    pub(crate) fn new(mut message: Message) -> (Self, Body) {
        let body = std::mem::take(&mut message.body);
        let checked = "the stage takes no body that is longer, and writes none that is empty";
        let len = u32::try_from(body.len()).ok().and_then(BodyLen::new).expect(checked);
        let mut start = 0;
        let segments: Vec<_> = body
            .segments()
            .map(|segment| {
                let at = start;
                start += u32::try_from(segment.len()).expect(checked);
                (at, segment.clone())
            })
            .collect();
        // The first of the longest ones.
        let longest = segments.iter().rev().max_by_key(|(_, segment)| segment.len());
        let before_longest = longest.map_or(0, |(start, _)| *start);
        (Self { message, len, segments }, Body { len, before_longest, crc: None })
    }

    /// Head and metadata.
    pub(crate) fn message(&self) -> &Message {
        &self.message
    }

    /// Length of the body.
    pub(crate) fn len(&self) -> usize {
        self.len.bytes() as usize
    }

    /// The head as a frame.
    pub(crate) fn head(&self, extras: HeadExtras) -> Frame {
        Frame::head(self.message.clone(), self.len.bytes(), extras)
    }

    /// How to write `len` bytes of the body from `start` on, with at most `max` runs of memory.
    pub(crate) fn plan(
        &self,
        (start, len): (u32, u32),
        is_registered: impl Fn(&Bytes) -> bool,
        max: usize,
    ) -> Plan {
        let end = start + len;
        let first = self.segments.partition_point(|(at, _)| *at <= start) - 1;
        let run = self.segments[first..].iter().take_while(|(at, _)| *at < end);
        let pieces = run.map(|(at, segment)| {
            let (from, to) = (start.max(*at) - at, end - at);
            segment.slice(from as usize..segment.len().min(to as usize))
        });
        Plan::new(pieces, is_registered, max)
    }
}

impl Plan {
    fn new(
        pieces: impl Iterator<Item = Bytes>,
        is_registered: impl Fn(&Bytes) -> bool,
        max: usize,
    ) -> Self {
        let place = |bytes: &Bytes| if is_registered(bytes) { From::Place } else { From::Staging };
        let pieces = pieces.map(|bytes| Piece { from: place(&bytes), bytes });
        let mut plan = Self(pieces.collect());
        if plan.runs() > max {
            plan.0.iter_mut().for_each(|piece| piece.from = From::Staging);
        }
        plan
    }

    /// Runs of memory. Pieces that are staged one behind the other are one.
    fn runs(&self) -> usize {
        let merged = self.0.windows(2).filter(|two| two.iter().all(Piece::is_staged));
        self.0.len() - merged.count()
    }

    /// Bytes that are copied.
    pub(crate) fn staged_len(&self) -> usize {
        self.0.iter().filter(|piece| piece.is_staged()).map(|piece| piece.bytes.len()).sum()
    }
}

impl Piece {
    fn is_staged(&self) -> bool {
        self.from == From::Staging
    }
}

impl Write {
    pub(crate) fn new(chunk: Chunk, plan: Plan, staging: Option<StagingBuf>) -> Self {
        Self { transfer: chunk.transfer, place: chunk.place, plan, staging }
    }

    /// Copies what must be copied, and lends all of it to the NIC, in order.
    ///
    /// # Errors
    ///
    /// Memory is not registered with the connection's device any more.
    pub(crate) fn lend(self, lend: impl Fn(&Bytes) -> Option<Lent>) -> Result<Vec<Lent>, Error> {
        let staged = self.staging.map(|mut staging| {
            let mut offset = 0;
            for piece in self.plan.0.iter().filter(|piece| piece.is_staged()) {
                offset += staging.copy_from(offset, &piece.bytes);
            }
            staging.freeze()
        });
        let mut staged = staged.unwrap_or_default();
        let mut runs: Vec<Bytes> = Vec::with_capacity(self.plan.0.len());
        for run in self.plan.0.chunk_by(|one, next| one.is_staged() && next.is_staged()) {
            runs.push(match run {
                [piece] if !piece.is_staged() => piece.bytes.clone(),
                run => staged.split_to(run.iter().map(|piece| piece.bytes.len()).sum()),
            });
        }
        let lent: Option<Vec<_>> = runs.iter().map(lend).collect();
        lent.ok_or_else(|| {
            let message = "memory to send from is not registered with the device any more";
            Error::new(ErrorKind::LocalResource, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use verbwire_core::message::{CallId, Head};

    use super::*;

    fn source(segments: &[&'static [u8]]) -> (Source, Body) {
        let call = CallId { slot: 1, generation: 0 };
        let body = segments.iter().map(|segment| Bytes::from_static(segment)).collect();
        Source::new(Message::with_body(Head::Cancel { call }, body))
    }

    /// Registered memory, for these tests: what begins with a capital letter.
    fn is_registered(bytes: &Bytes) -> bool {
        bytes[0].is_ascii_uppercase()
    }

    fn planned(source: &Source, run: (u32, u32), max: usize) -> Vec<(&'static str, From)> {
        let plan = source.plan(run, is_registered, max);
        let text =
            |piece: &Piece| String::from_utf8_lossy(&piece.bytes).into_owned().leak() as &str;
        plan.0.iter().map(|piece| (text(piece), piece.from)).collect()
    }

    #[test]
    fn a_run_is_cut_out_of_the_segments_that_it_touches() {
        let (source, body) = source(&[b"ab", b"CDEF", b"g", b"HIJK"]);
        assert_eq!((body.len.bytes(), body.before_longest), (11, 2));
        let (place, staging) = (From::Place, From::Staging);
        let whole = [("ab", staging), ("CDEF", place), ("g", staging), ("HIJK", place)];
        assert_eq!(planned(&source, (0, 11), 6), whole);
        assert_eq!(planned(&source, (1, 3), 6), [("b", staging), ("CD", place)]);
        assert_eq!(planned(&source, (3, 2), 6), [("DE", place)]);
        assert_eq!(planned(&source, (6, 5), 6), [("g", staging), ("HIJK", place)]);
    }

    #[test]
    fn more_runs_than_the_device_takes_are_staged_as_one() {
        let (source, _) = source(&[b"ab", b"CDEF", b"g", b"HIJK"]);
        let plan = source.plan((0, 11), is_registered, 3);
        assert_eq!((plan.runs(), plan.staged_len()), (1, 11));
        let plan = source.plan((0, 11), is_registered, 4);
        assert_eq!((plan.runs(), plan.staged_len()), (4, 3));
    }

    #[test]
    fn pieces_that_are_staged_one_behind_the_other_are_one_run() {
        let (source, _) = source(&[b"ab", b"cd", b"EF"]);
        let plan = source.plan((0, 6), is_registered, 2);
        assert_eq!((plan.runs(), plan.staged_len()), (2, 4));
    }
}
