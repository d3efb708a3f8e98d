//! The side that has the bodies: what waits for a grant, what is being written, what is done.
//!
//! Owns every source (`S`) from [`begin`](Writer::begin) until none of its Writes is in flight any more; neither
//! a FIN nor an answer of the peer brings it back earlier. Owns the window of Writes of the connection. Knows no
//! credits and no slots: it is asked for the next frame or Write when there is room for one.
//!
//! ```text
//!            no grant            RTS posted            CTS
//!   begin ─────────────► Queued ───────────► Announced ───► Writing ──FIN posted──► ended: Sent
//!      │                  ▲                   │    │         │ │ │
//!      └─grant at hand────┼───────────────────┼────┼─────────┘ │ └─give up─────────► ended: Withdrawn
//!                         │  ABORT, head not sent  │           │     (ABORT_ACK of the grant)
//!                         └───────────────────┼────┼───────────┤
//!                                             │    │           └─ABORT, head sent──► ended: Refused
//!                                             │    └─ABORT─────────────────────────► ended: Refused
//!                                             └─give up────────────────────────────► ended: Withdrawn
//! ```
//!
//! What has ended is still kept until its Writes are complete.

use std::collections::VecDeque;

use super::body::Body;
use super::owner::take_names;
use super::slots::{Slot, Slots};
use super::wire::{Fin, Frame, Grant, GrantId, Name, Place, RtsNumber};

mod look;
mod peer;

/// What bounds a [`Writer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WriterLimits {
    /// Bytes of one Write, at most. Not 0.
    pub chunk: u32,
    /// Writes in flight on the connection. Not 0. A short message waits behind so many chunks at most.
    pub window: u32,
    /// RTSs at a time that the peer takes.
    pub rts: usize,
    /// Advertised grants at a time that this side takes.
    pub advertised: usize,
    /// Standing grants at a time that this side takes.
    pub standing: usize,
}

/// See the module. `S` is a message with the memory of its body.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub struct Writer<S> {
    limits: WriterLimits,
    next_rts: RtsNumber,
    transfers: Slots<Transfer<S>>,
    /// Grants that are not closed. Few, and looked through.
    held: Vec<Held>,
    /// Transfers in the stage [`Stage::Queued`].
    announces: VecDeque<TransferId>,
    /// Transfers that have something to write, in turns.
    turns: VecDeque<TransferId>,
    /// Transfers of which all is posted but the FIN.
    fins: VecDeque<TransferId>,
    acks: VecDeque<Name>,
    ended: VecDeque<TransferId>,
    /// Writes in flight.
    in_flight: u32,
}

/// Names a transfer of one writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(Slot);

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct Transfer<S> {
    source: S,
    body: Body,
    stage: Stage,
    /// An advertised grant that is too short, to be closed by the head.
    unused: Option<GrantId>,
    /// Bytes that are posted to the present grant.
    posted: u32,
    /// Writes in flight, to any grant.
    in_flight: u32,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Queued,
    Announced(RtsNumber),
    Writing(GrantId),
    Ended(Outcome),
}

/// A grant that this side has not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    grant: Grant,
    origin: Origin,
    used: Use,
}

/// How this side came by a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Origin {
    Asked(RtsNumber),
    Advertised,
    Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Use {
    Idle,
    By(TransferId),
    /// Nothing more is posted for it; its ABORT_ACK is due.
    Closing,
}

/// How a body may get its grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Via {
    /// By RTS.
    Ask,
    /// A standing grant that is long enough, else by RTS. For requests.
    Standing,
    /// This grant, which came with the request, if it is long enough, else by RTS. For replies.
    Advertised(GrantId),
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// FIN is posted.
    Sent,
    /// This side gave it up.
    Withdrawn,
    /// The peer does not want it.
    Refused,
    /// The queue pair is destroyed.
    Lost,
}

/// A head with RTS that is being posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// Whose head it is.
    pub transfer: TransferId,
    /// The number of the RTS.
    pub rts: RtsNumber,
    /// A grant that the head closes unused.
    pub unused: Option<GrantId>,
}

/// A Write that is being posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Whose body.
    pub transfer: TransferId,
    /// Bytes of the body before the chunk.
    pub start: u32,
    /// Length of the chunk.
    pub len: u32,
    /// Where it goes.
    pub place: Place,
}

/// A FIN that is being posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Whose body.
    pub transfer: TransferId,
    /// The FIN.
    pub fin: Fin,
    /// What carries it.
    pub head: HeadOf,
}

/// When the head of a written body goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOf {
    /// It went before, with the RTS: the FIN is a frame of its own.
    Before,
    /// It goes now and carries the FIN.
    Now,
}

/// A transfer whose source the NIC needs no more.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended<S> {
    /// The source.
    pub source: S,
    /// How the transfer ended.
    pub outcome: Outcome,
}

impl<S> Writer<S> {
    /// Nothing to write.
    pub fn new(limits: WriterLimits) -> Self {
        debug_assert!(limits.chunk > 0 && limits.window > 0, "nothing would ever be written");
        Self {
            limits,
            next_rts: RtsNumber(0),
            transfers: Slots::new(),
            held: Vec::new(),
            announces: VecDeque::new(),
            turns: VecDeque::new(),
            fins: VecDeque::new(),
            acks: VecDeque::new(),
            ended: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// A body is to be written. Its head goes with [`poll_announce`](Self::poll_announce) or
    /// [`poll_fin`](Self::poll_fin).
    pub fn begin(&mut self, source: S, body: Body, via: Via) -> TransferId {
        let (grant, unused) = self.at_hand(body, via);
        let stage = grant.map_or(Stage::Queued, Stage::Writing);
        let transfer = Transfer { source, body, stage, unused, posted: 0, in_flight: 0 };
        let id = TransferId(self.transfers.insert(transfer));
        match grant.and_then(|grant| self.held_mut(grant)) {
            Some(held) => {
                held.used = Use::By(id);
                self.turns.push_back(id);
            }
            None => self.announces.push_back(id),
        }
        id
    }

    /// The message of a transfer that has not been given back.
    pub fn source(&self, id: TransferId) -> Option<&S> {
        self.transfers.find(id.0).map(|transfer| &transfer.source)
    }

    /// The messages of all transfers that have not been given back.
    pub fn sources(&self) -> impl Iterator<Item = (TransferId, &S)> {
        self.transfers.iter().map(|(slot, transfer)| (TransferId(slot), &transfer.source))
    }

    /// The next head with RTS; it is being posted.
    pub fn poll_announce(&mut self) -> Option<Announced> {
        if !self.may_announce() {
            return None;
        }
        let id = self.announces.pop_front()?;
        let rts = self.next_rts;
        self.next_rts = rts.following();
        let transfer = self.transfers.find_mut(id.0).expect("ending takes it from the queue");
        transfer.stage = Stage::Announced(rts);
        let unused = transfer.unused.take();
        let unused = unused.and_then(|grant| self.decline(grant));
        Some(Announced { transfer: id, rts, unused })
    }

    /// What [`poll_write`](Self::poll_write) would give.
    pub fn next_write(&self) -> Option<Chunk> {
        if !self.may_write() {
            return None;
        }
        let id = *self.turns.front()?;
        let transfer = self.transfers.find(id.0).expect("ending takes it from the turns");
        let Stage::Writing(grant) = transfer.stage else { return None };
        let (start, whole) = (transfer.posted, transfer.body.len.bytes());
        let len = (whole - start).min(self.limits.chunk);
        let before = u64::from(transfer.body.offset()) + u64::from(start);
        let held = self.held.iter().find(|held| held.grant.id == grant)?;
        let Place { address, rkey } = held.grant.place;
        Some(Chunk { transfer: id, start, len, place: Place { address: address + before, rkey } })
    }

    /// The next Write; it is being posted.
    pub fn poll_write(&mut self) -> Option<Chunk> {
        let chunk = self.next_write()?;
        let id = self.turns.pop_front()?;
        let transfer = self.transfers.find_mut(id.0).expect("ending takes it from the turns");
        transfer.posted += chunk.len;
        transfer.in_flight += 1;
        self.in_flight += 1;
        if transfer.posted == transfer.body.len.bytes() {
            self.fins.push_back(id)
        } else {
            self.turns.push_back(id)
        }
        Some(chunk)
    }

    /// The next FIN; it is being posted, behind the Writes of its body. The transfer's
    /// [`source`](Self::source) is there until [`poll_ended`](Self::poll_ended).
    pub fn poll_fin(&mut self) -> Option<Written> {
        let id = self.fins.pop_front()?;
        let transfer = self.transfers.find_mut(id.0).expect("ending takes it from the queue");
        let Stage::Writing(grant) = transfer.stage else { return None };
        let Body { len, crc, .. } = transfer.body;
        let fin = Fin { grant, offset: transfer.body.offset(), len: len.bytes(), crc };
        let origin = self.held_mut(grant)?.origin;
        self.held.retain(|held| held.grant.id != grant);
        self.end(id, Outcome::Sent);
        let head = match origin {
            Origin::Asked(_) => HeadOf::Before,
            Origin::Advertised | Origin::Standing => HeadOf::Now,
        };
        Some(Written { transfer: id, fin, head })
    }

    /// The next ABORT_ACK; it is being posted, behind all Writes that were.
    pub fn poll_abort_ack(&mut self) -> Option<Frame> {
        let names = take_names(&mut self.acks)?;
        for name in names.iter() {
            self.held.retain(|held| Name::Grant(held.grant.id) != name);
        }
        Some(Frame::AbortAck(names))
    }

    /// The next transfer whose source is free.
    pub fn poll_ended(&mut self) -> Option<Ended<S>> {
        let id = self.ended.pop_front()?;
        let Transfer { source, stage, .. } = self.transfers.remove(id.0).expect("it ends once");
        let Stage::Ended(outcome) = stage else { return None };
        Some(Ended { source, outcome })
    }

    /// The grant that a body gets without asking, and the advertised one that it cannot use.
    fn at_hand(&self, body: Body, via: Via) -> (Option<GrantId>, Option<GrantId>) {
        let idle = self.held.iter().filter(|held| held.used == Use::Idle);
        let fits = |held: &&Held| held.grant.len >= body.len.grant_len();
        let id = |held: &Held| held.grant.id;
        match via {
            Via::Ask => (None, None),
            Via::Standing => {
                let standing = idle.filter(|held| held.origin == Origin::Standing);
                (standing.filter(fits).min_by_key(|held| held.grant.len).map(id), None)
            }
            Via::Advertised(wanted) => {
                let held = { idle }.find(|held| held.grant.id == wanted);
                (held.filter(fits).map(id), held.filter(|held| !fits(held)).map(id))
            }
        }
    }

    /// Whether the peer takes one more RTS. What is given up counts until the peer is told.
    fn may_announce(&self) -> bool {
        let announced = |stage| matches!(stage, Stage::Announced(_));
        let waiting = self.transfers.iter().filter(|(_, transfer)| announced(transfer.stage));
        let asked = self.held.iter().filter(|held| matches!(held.origin, Origin::Asked(_)));
        let withdrawn = self.acks.iter().filter(|name| matches!(name, Name::Rts(_)));
        waiting.count() + asked.count() + withdrawn.count() < self.limits.rts
    }

    fn may_write(&self) -> bool {
        self.in_flight < self.limits.window
    }

    fn held_mut(&mut self, grant: GrantId) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.grant.id == grant)
    }

    /// Ends a transfer; nothing more is posted for it.
    fn end(&mut self, id: TransferId, outcome: Outcome) {
        self.unqueue(id);
        let Some(transfer) = self.transfers.find_mut(id.0) else { return };
        transfer.stage = Stage::Ended(outcome);
        if transfer.in_flight == 0 {
            self.ended.push_back(id);
        }
    }

    fn unqueue(&mut self, id: TransferId) {
        for queue in [&mut self.announces, &mut self.turns, &mut self.fins] {
            queue.retain(|queued| *queued != id);
        }
    }
}
