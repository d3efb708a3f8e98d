//! The side that has the landing memory: RTSs that wait, grants that are open, memory in quarantine.
//!
//! Owns every region (`R`) from when it is granted until a proof that nothing is written to it any more.
//! Does not choose whose RTS gets memory first (that is [`grants`](crate::proto::grants)), and has no pool.
//!
//! ```text
//!   RTS:    Waiting ──grant──► Granted ──FIN──► Landed
//!              │ │                │ └─ABORT_ACK──► dropped
//!              │ └─ABORT_ACK──► dropped
//!              └─give up──► (ABORT of the RTS)
//!
//!   grant:  Queued ──CTS posted──► Open ──FIN, ABORT_ACK──► closed
//!              │                     └─give up──► Revoked (quarantine) ──FIN, ABORT_ACK──► closed
//!              └─give up──► taken back, never given
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use verbwire_core::message::CallId;

use super::Violation;
use super::body::{BodyLen, SLACK};
use super::slots::{Slot, Slots};
use super::wire::{Crc, Fin, Frame, Grant, GrantId, Name, Names, Place, RtsNumber};

mod closing;

/// What bounds an [`Owner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerLimits {
    /// RTSs of the peer at a time that wait or are granted.
    pub rts: usize,
    /// Grants at a time that are advertised and not closed.
    pub advertised: usize,
    /// Bytes in quarantine, see [`quarantine_cap`].
    pub quarantine: u64,
    /// How long a peer from which nothing arrives may leave an ABORT without an answer.
    pub revoke_timeout: Duration,
}

/// Bytes that may be in quarantine: a quarter of the pool, or the longest message if that is more.
pub fn quarantine_cap(pool: u64, max_message_size: u64) -> u64 {
    (pool / 4).max(max_message_size.saturating_add(SLACK))
}

/// See the module. `R` is a region of landing memory, whatever must be kept with it.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub struct Owner<R> {
    limits: OwnerLimits,
    next_rts: RtsNumber,
    /// At most `limits.rts`; so few are looked through faster than they are sorted.
    requests: Vec<Request>,
    grants: Slots<Given<R>>,
    /// Grants whose CTS is not posted.
    cts: VecDeque<GrantId>,
    aborts: VecDeque<Name>,
    released: VecDeque<Released<R>>,
    dropped: VecDeque<RtsNumber>,
    /// Bytes of revoked grants.
    quarantined: u64,
    /// While there are revoked grants: since when nothing has arrived.
    silent_since: Option<Instant>,
    /// Not later than the earliest deadline of a request.
    next_expiry: Option<Instant>,
}

/// An RTS whose body has not come.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
struct Request {
    number: RtsNumber,
    len: BodyLen,
    deadline: Option<Instant>,
    /// Its grant, once there is one.
    grant: Option<GrantId>,
}

/// A grant that is not closed.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct Given<R> {
    region: R,
    place: Place,
    len: u64,
    purpose: Purpose,
    state: State,
}

/// What a grant was given for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Purpose {
    /// The body of an RTS.
    Rts(RtsNumber),
    /// The reply of a call.
    Reply(CallId),
    /// Any request.
    Standing,
}

impl Purpose {
    fn rts(self) -> Option<RtsNumber> {
        match self {
            Self::Rts(number) => Some(number),
            Self::Reply(_) | Self::Standing => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// The peer has not been told.
    Queued,
    /// The peer may write.
    Open,
    /// The peer may write, and what it writes is not wanted.
    Revoked,
}

/// What carried a FIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// A frame of its own: for the grant of an RTS.
    Frame,
    /// A REQUEST with a body of this length: for a standing grant.
    Request(BodyLen),
    /// The RESPONSE of this call, with a body of this length: for the grant that its REQUEST advertised.
    Response(CallId, BodyLen),
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame => f.write_str("a frame of its own"),
            Self::Request(_) => f.write_str("a REQUEST"),
            Self::Response(call, _) => write!(f, "the RESPONSE of call {call}"),
        }
    }
}

/// What came with a FIN.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrived<R> {
    /// A body that is wanted.
    Landed(Landed<R>),
    /// A body that is not. Its region is among [`Owner::poll_released`].
    Discarded,
}

/// A body that is here. Its region is this side's again.
#[derive(Debug, PartialEq, Eq)]
pub struct Landed<R> {
    /// The memory.
    pub region: R,
    /// Bytes before the body.
    pub offset: u32,
    /// The body.
    pub len: BodyLen,
    /// What its checksum must be.
    pub crc: Option<Crc>,
    /// The RTS that it answers, if its head came before.
    pub rts: Option<RtsNumber>,
}

/// A region to which nothing is written any more.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Clone, Hash))]
pub struct Released<R> {
    /// The memory.
    pub region: R,
    /// Why that is certain.
    pub proof: Proof,
}

/// What proves that nothing is written to a region any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The peer was never told of it.
    NeverGiven,
    /// FIN came behind the Writes.
    Fin,
    /// ABORT_ACK came behind the Writes.
    AbortAck,
    /// The queue pair is destroyed.
    Destroyed,
}

/// Why the queue pair must be failed and destroyed: memory must come back, and the peer gives no proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Nothing came from the peer for too long.
    #[error(
        "the peer left {grants} aborted grants open and sent nothing for {timeout:?} (revoke_timeout)"
    )]
    RevokeTimeout {
        /// Grants without a proof.
        grants: usize,
        /// The limit.
        timeout: Duration,
    },
    /// Too much memory of this connection waits for proofs.
    #[error("{bytes} bytes of aborted grants wait for the peer, at most {cap} may")]
    QuarantineFull {
        /// Bytes in quarantine.
        bytes: u64,
        /// The limit.
        cap: u64,
    },
    /// Too much memory of all connections of the device waits for proofs, this one's the last.
    #[error("aborted grants of all connections of the device hold more than quarantine_cap")]
    PoolQuarantineFull,
}

impl<R> Owner<R> {
    /// Nothing asked, nothing granted.
    pub fn new(limits: OwnerLimits) -> Self {
        Self {
            limits,
            next_rts: RtsNumber(0),
            requests: Vec::new(),
            grants: Slots::new(),
            cts: VecDeque::new(),
            aborts: VecDeque::new(),
            released: VecDeque::new(),
            dropped: VecDeque::new(),
            quarantined: 0,
            silent_since: None,
            next_expiry: None,
        }
    }

    /// A head with RTS came. It waits until [`grant`](Self::grant) or [`give_up`](Self::give_up), at most
    /// until `deadline`.
    ///
    /// # Errors
    ///
    /// It is out of order, or one too many.
    pub fn handle_rts(
        &mut self,
        number: RtsNumber,
        len: BodyLen,
        deadline: Option<Instant>,
    ) -> Result<(), Violation> {
        if number != self.next_rts {
            return Err(Violation::RtsOrder { number, expected: self.next_rts });
        }
        // An RTS that is given up counts until the peer can know.
        let aborts = self.aborts.iter().filter(|name| matches!(name, Name::Rts(_))).count();
        if self.requests.len() + aborts >= self.limits.rts {
            return Err(Violation::TooManyRts { limit: self.limits.rts });
        }
        self.next_rts = number.following();
        self.requests.push(Request { number, len, deadline, grant: None });
        self.next_expiry = [self.next_expiry, deadline].into_iter().flatten().min();
        Ok(())
    }

    /// Gives a region of at least [`BodyLen::grant_len`] bytes to an RTS that waits; its CTS is due.
    ///
    /// # Errors
    ///
    /// The region back: the RTS does not wait any more.
    pub fn grant(&mut self, number: RtsNumber, region: R, place: Place) -> Result<GrantId, R> {
        let waits = |request: &&mut Request| request.number == number && request.grant.is_none();
        let Some(request) = self.requests.iter_mut().find(waits) else { return Err(region) };
        let (purpose, state) = (Purpose::Rts(number), State::Queued);
        let len = request.len.grant_len();
        let id = id(self.grants.insert(Given { region, place, len, purpose, state }));
        request.grant = Some(id);
        self.cts.push_back(id);
        Ok(id)
    }

    /// Whether the peer takes one more advertised grant when so many go out before. One that is revoked counts until it is
    /// closed.
    pub fn may_advertise(&self, before: usize) -> bool {
        let is_reply = |given: &Given<R>| matches!(given.purpose, Purpose::Reply(_));
        let open = self.grants.iter().filter(|(_, given)| is_reply(given)).count();
        open + before < self.limits.advertised
    }

    /// Gives a region for the reply of `call`, of at most `len` bytes. The grant goes out with the REQUEST,
    /// which is being posted: from now on the peer may write.
    ///
    /// # Errors
    ///
    /// The region back: as many grants are advertised as the peer takes.
    pub fn advertise(
        &mut self,
        call: CallId,
        len: BodyLen,
        region: R,
        place: Place,
    ) -> Result<Grant, R> {
        if !self.may_advertise(0) {
            return Err(region);
        }
        let (purpose, state) = (Purpose::Reply(call), State::Open);
        let len = len.grant_len();
        let slot = self.grants.insert(Given { region, place, len, purpose, state });
        Ok(Grant { id: id(slot), place, len })
    }

    /// Gives a region for any request of at most `len` bytes; its CTS is due.
    pub fn stand(&mut self, len: BodyLen, region: R, place: Place) -> GrantId {
        let (purpose, state) = (Purpose::Standing, State::Queued);
        let len = len.grant_len();
        let id = id(self.grants.insert(Given { region, place, len, purpose, state }));
        self.cts.push_back(id);
        id
    }

    /// Standing grants that are not closed.
    pub fn standing(&self) -> impl Iterator<Item = GrantId> {
        let standing = self.grants.iter().filter(|(_, given)| given.purpose == Purpose::Standing);
        standing.map(|(slot, _)| id(slot))
    }

    /// Whether an RTS waits for a region.
    pub fn is_waiting(&self, number: RtsNumber) -> bool {
        self.requests.iter().any(|rts| rts.number == number && rts.grant.is_none())
    }

    /// The next CTS; it is being posted, so from now on the peer may write.
    pub fn poll_cts(&mut self) -> Option<Frame> {
        let id = self.cts.pop_front()?;
        let given = self.grants.find_mut(slot(id)).expect("giving up takes its CTS back");
        given.state = State::Open;
        let grant = Grant { id, place: given.place, len: given.len };
        Some(Frame::Cts { rts: given.purpose.rts(), grant })
    }

    /// The next ABORT.
    pub fn poll_abort(&mut self) -> Option<Frame> {
        take_names(&mut self.aborts).map(Frame::Abort)
    }

    /// The next region that came back.
    pub fn poll_released(&mut self) -> Option<Released<R>> {
        self.released.pop_front()
    }

    /// The next RTS whose body will not come, by the peer's will or its deadline's.
    pub fn poll_dropped(&mut self) -> Option<RtsNumber> {
        self.dropped.pop_front()
    }

    /// Regions of grants that were given up and are not closed.
    pub fn revoked_mut(&mut self) -> impl Iterator<Item = &mut R> {
        let revoked = |given: &&mut Given<R>| given.state == State::Revoked;
        self.grants.iter_mut().filter(revoked).map(|given| &mut given.region)
    }

    /// Whether a CTS is due.
    pub fn has_cts(&self) -> bool {
        !self.cts.is_empty()
    }

    /// Whether an ABORT is due.
    pub fn has_abort(&self) -> bool {
        !self.aborts.is_empty()
    }

    /// RTSs that wait or are granted.
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// Grants that are not closed.
    pub fn open_grants(&self) -> usize {
        self.grants.len()
    }

    /// Bytes of grants that were given up and are not closed.
    pub fn quarantined(&self) -> u64 {
        self.quarantined
    }
}

/// Takes as many names as one frame holds.
pub(super) fn take_names(queue: &mut VecDeque<Name>) -> Option<Names> {
    Names::first_of(std::iter::from_fn(|| queue.pop_front()))
}

fn id(slot: Slot) -> GrantId {
    GrantId { index: slot.index, generation: slot.generation }
}

fn slot(id: GrantId) -> Slot {
    Slot { index: id.index, generation: id.generation }
}
