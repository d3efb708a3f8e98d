//! Sends in flight, in the order of posting.
//!
//! A send queue completes in order, so that a completion proves all sends before it done as well.

use std::collections::VecDeque;
use std::ops::Range;

use super::Written;
use super::id::{ConnectionNumber, Kind, SEQUENCE_MASK, WorkId};
use crate::memory::{Lent, NicBuf, Released};
use crate::nic::{Inline, SendOp, SendWr, Sge, Sges, Signal};
use crate::outbound::Encoded;
use crate::proto::rendezvous::TransferId;
use crate::proto::rendezvous::wire::Place;
use crate::rendezvous::InvalidationId;

/// See the module.
#[derive(Debug)]
pub(super) struct Sends {
    connection: ConnectionNumber,
    /// The sequence number of the oldest send in flight.
    oldest: u64,
    in_flight: VecDeque<(Source, Signal)>,
    pub(super) written: Written,
}

/// What a send reads.
#[derive(Debug)]
enum Source {
    Frame(NicBuf),
    /// A frame in part, and what is read between its parts.
    Gathered(NicBuf, Vec<Lent>),
    Write(TransferId, Vec<Lent>),
    /// Nothing: it binds a window.
    Bind,
    /// Nothing: it invalidates one.
    Invalidation(InvalidationId),
}

impl Sends {
    pub(super) fn new(connection: ConnectionNumber) -> Self {
        Self::starting_at(connection, 0)
    }

    /// With this number for the first send.
    pub(super) fn starting_at(connection: ConnectionNumber, oldest: u64) -> Self {
        Self { connection, oldest, in_flight: VecDeque::new(), written: Written::default() }
    }

    /// A SEND of a frame: runs of `buf`, and between them what is lent.
    pub(super) fn push(&mut self, buf: NicBuf, frame: Encoded, signal: Signal) -> SendWr {
        let Encoded { staged, gathered, .. } = frame;
        if gathered.is_empty() {
            let wr = work_request(self.next_id(), &buf, staged, signal);
            self.in_flight.push_back((Source::Frame(buf), signal));
            return wr;
        }
        debug_assert_eq!(signal, Signal::Yes, "a loan ends by its own completion");
        let mut wr = work_request(self.next_id(), &buf, gathered[0].0, signal);
        let starts = gathered.iter().map(|(start, _)| *start);
        let ends = starts.clone().skip(1).chain([staged]);
        let mut all = true;
        for ((start, end), (_, lent)) in starts.zip(ends).zip(&gathered) {
            all &= wr.sges.push(sge_of(lent));
            all &= start == end || wr.sges.push(run_of(&buf, start..end));
        }
        debug_assert!(all, "no more is gathered than the device takes");
        let lent = gathered.into_iter().map(|(_, lent)| lent).collect();
        self.in_flight.push_back((Source::Gathered(buf, lent), signal));
        wr
    }

    /// A Write of all of `source`, which is as many runs as a work request takes, at most. Always signalled: its source
    /// comes back by its own completion, however long nothing else is sent.
    pub(super) fn push_write(
        &mut self,
        transfer: TransferId,
        source: Vec<Lent>,
        place: Place,
    ) -> SendWr {
        let (first, rest) = source.split_first().expect("nobody writes nothing");
        let mut sges = Sges::one(sge_of(first));
        let all = rest.iter().all(|lent| sges.push(sge_of(lent)));
        debug_assert!(all, "a Write is planned for what the device takes");
        let Place { address, rkey } = place;
        let wr = SendWr {
            id: self.next_id().encode(),
            op: SendOp::Write { address, rkey },
            sges,
            signal: Signal::Yes,
            inline: Inline::No,
        };
        self.in_flight.push_back((Source::Write(transfer, source), Signal::Yes));
        wr
    }

    pub(super) fn push_bind(&mut self, op: SendOp, signal: Signal) -> SendWr {
        self.push_local(Source::Bind, op, signal)
    }

    pub(super) fn push_invalidation(&mut self, id: InvalidationId, op: SendOp) -> SendWr {
        self.push_local(Source::Invalidation(id), op, Signal::Yes)
    }

    fn push_local(&mut self, source: Source, op: SendOp, signal: Signal) -> SendWr {
        let id = self.next_id().encode();
        self.in_flight.push_back((source, signal));
        SendWr { id, op, sges: Sges::none(), signal, inline: Inline::No }
    }

    fn next_id(&self) -> WorkId {
        let sequence = (self.oldest + self.in_flight.len() as u64) & SEQUENCE_MASK;
        WorkId { kind: Kind::Send, connection: self.connection, sequence }
    }

    /// A send completed; returns how many are done by that. `None` if it is not in flight, or has succeeded
    /// without having been asked to say so.
    pub(super) fn complete(&mut self, sequence: u64, is_success: bool) -> Option<u32> {
        let at = usize::try_from(sequence.wrapping_sub(self.oldest) & SEQUENCE_MASK).ok()?;
        let (_, signal) = self.in_flight.get(at)?;
        if is_success && *signal == Signal::No {
            return None;
        }
        self.oldest = (sequence + 1) & SEQUENCE_MASK;
        for (source, _) in self.in_flight.drain(..=at) {
            // Of those before one that failed it is not known that they succeeded.
            if let (Source::Invalidation(id), true) = (&source, is_success) {
                self.written.invalidated.push(*id);
            }
            source.release(&mut self.written);
        }
        u32::try_from(at + 1).ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn has_signalled(&self) -> bool {
        self.in_flight.iter().any(|(_, signal)| *signal == Signal::Yes)
    }

    pub(super) fn release(&mut self) {
        let all = self.in_flight.drain(..);
        all.for_each(|(source, _)| source.release(&mut self.written));
    }
}

impl Source {
    /// The send is done.
    fn release(self, written: &mut Written) {
        let (buf, transfer, lent) = match self {
            Self::Frame(buf) => (Some(buf), None, Vec::new()),
            Self::Gathered(buf, lent) => (Some(buf), None, lent),
            Self::Write(transfer, lent) => (None, Some(transfer), lent),
            Self::Bind | Self::Invalidation(_) => (None, None, Vec::new()),
        };
        drop(buf.map(|buf| buf.into_cpu(Released::by_nic())));
        written.transfers.extend(transfer);
        written.sources.extend(lent.into_iter().map(|lent| lent.release(Released::by_nic())));
    }
}

/// A SEND of the first `len` bytes of `buf`.
pub(super) fn work_request(id: WorkId, buf: &NicBuf, len: usize, signal: Signal) -> SendWr {
    SendWr {
        id: id.encode(),
        op: SendOp::Send,
        sges: Sges::one(sge(buf, len)),
        signal,
        inline: Inline::No,
    }
}

/// What is lent.
fn sge_of(lent: &Lent) -> Sge {
    Sge {
        address: lent.address(),
        len: u32::try_from(lent.len()).expect("a chunk is shorter than 4 GiB"),
        lkey: lent.lkey(),
    }
}

/// The first `len` bytes of `buf`.
pub(super) fn sge(buf: &NicBuf, len: usize) -> Sge {
    run_of(buf, 0..len)
}

fn run_of(buf: &NicBuf, run: Range<usize>) -> Sge {
    let len = u32::try_from(run.len()).expect("buffers are at most 64 KiB long");
    Sge {
        address: buf.address() + run.start as u64,
        len,
        lkey: buf.lkey().expect("slabs are registered before their buffers are used"),
    }
}
