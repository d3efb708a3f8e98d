//! Sends in flight, in the order of posting.
//!
//! A send queue completes in order, so that a completion proves all sends before it done as well.

use std::collections::VecDeque;

use super::Written;
use super::id::{ConnectionNumber, Kind, SEQUENCE_MASK, WorkId};
use crate::memory::{Lent, NicBuf, Released};
use crate::nic::{Inline, SendOp, SendWr, Sge, Sges, Signal};
use crate::proto::rendezvous::TransferId;
use crate::proto::rendezvous::wire::Place;

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
    Write(TransferId, Vec<Lent>),
}

impl Sends {
    pub(super) fn new(connection: ConnectionNumber) -> Self {
        Self::starting_at(connection, 0)
    }

    /// With this number for the first send.
    pub(super) fn starting_at(connection: ConnectionNumber, oldest: u64) -> Self {
        Self { connection, oldest, in_flight: VecDeque::new(), written: Written::default() }
    }

    pub(super) fn push(&mut self, buf: NicBuf, len: usize, signal: Signal) -> SendWr {
        let wr = work_request(self.next_id(), &buf, len, signal);
        self.in_flight.push_back((Source::Frame(buf), signal));
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
        let sge = |lent: &Lent| Sge {
            address: lent.address(),
            len: u32::try_from(lent.len()).expect("a chunk is shorter than 4 GiB"),
            lkey: lent.lkey(),
        };
        let (first, rest) = source.split_first().expect("nobody writes nothing");
        let mut sges = Sges::one(sge(first));
        let all = rest.iter().all(|lent| sges.push(sge(lent)));
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
        let done = self.in_flight.drain(..=at);
        done.for_each(|(source, _)| source.release(&mut self.written));
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
        match self {
            Self::Frame(buf) => drop(buf.into_cpu(Released::by_nic())),
            Self::Write(transfer, source) => {
                written.transfers.push(transfer);
                let release = |lent: Lent| lent.release(Released::by_nic());
                written.sources.extend(source.into_iter().map(release));
            }
        }
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

/// The first `len` bytes of `buf`.
pub(super) fn sge(buf: &NicBuf, len: usize) -> Sge {
    Sge {
        address: buf.address(),
        len: u32::try_from(len).expect("buffers are at most 64 KiB long"),
        lkey: buf.lkey().expect("slabs are registered before their buffers are used"),
    }
}
