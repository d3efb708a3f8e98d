//! Long bodies on a connection: the two machines of [`proto::rendezvous`](crate::proto::rendezvous) with the memory
//! and the messages that they are about.
//!
//! ```text
//!   stage (under its lock)           driver                          device
//!   Rendezvous ── settle ──────────► Granting ── Desk ─────────────► whose turn it is
//!     Owner<Region>, Writer<Source>    waits for landing memory,     Landing, Staging: memory
//!     heads whose bodies come          staging memory and time
//! ```
//!
//! [`Rendezvous`] does no I/O, waits for nothing and drops no memory: what comes free is collected by the driver
//! ([`Rendezvous::settle`]) and dropped without the lock. While no long body is under way it is not
//! [busy](Rendezvous::is_busy), and nobody looks further.
//!
//! When the connection ends, the endpoint keeps it until its queue pair is destroyed. Nothing else proves that
//! regions and sources are free.
//!
//! A server may also give grants that stay with a client for any request ([`standing`]).

mod arrival;
mod desk;
mod granting;
mod offer;
mod posting;
mod region;
mod source;
mod standing;
mod windows;

use std::sync::Arc;

use tokio::time::Instant;
use verbwire_core::message::{CallId, Head, Message};
use verbwire_core::transport::Placement;

use crate::memory::Domain;
use crate::pool::{Sources, StagingBuf};
use crate::proto::rendezvous::wire::{GrantId, RtsNumber};
use crate::proto::rendezvous::{
    BodyLen, Fault, Owner, OwnerLimits, Released, TransferId, Via, Writer, WriterLimits,
};

pub(crate) use arrival::{Arrival, Came, LandedBody, LandingError, Placed};
pub(crate) use desk::Desk;
pub(crate) use granting::Granting;
pub(crate) use offer::{Offer, Offers};
pub(crate) use posting::NextWrite;
pub(crate) use region::Region;
pub(crate) use source::Source;
use standing::Stands;
pub(crate) use windows::InvalidationId;
use windows::Windows;

/// What bounds the long bodies of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RendezvousLimits {
    pub(crate) owner: OwnerLimits,
    pub(crate) writer: WriterLimits,
    /// Runs of memory in one Write.
    pub(crate) max_sge: usize,
    /// Grants for any request that this side gives.
    pub(crate) standing: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    owner: Owner<Region>,
    writer: Writer<Source>,
    max_sge: usize,
    /// What can be written from where it lies: memory that is registered with this domain.
    registered: (Arc<Sources>, Domain),
    /// Heads whose bodies have not come. As many as the owner has open RTSs; looked through.
    arriving: Vec<Arriving>,
    /// Grants that came with requests, for their replies.
    offered: Vec<(CallId, GrantId)>,
    /// Memory for replies whose REQUESTs are not posted.
    offers: Vec<(CallId, Offer)>,
    /// Grants that went out with REQUESTs.
    advertised: Vec<(CallId, GrantId)>,
    /// Memory that was offered and of which the peer was not told.
    untold: Vec<Released<Region>>,
    windows: Windows,
    /// RTSs for which nobody has asked for memory yet.
    asking: Vec<Asking>,
    /// RTSs that need no memory any more.
    given_up: Vec<RtsNumber>,
    /// What the next Write is staged in.
    reserve: Option<StagingBuf>,
    /// How long a reserve the next Write was found to need.
    needs: Option<usize>,
    fault: Option<Fault>,
    /// How many standing grants this side gives.
    standing: usize,
    is_busy: bool,
}

/// A message whose body is to come.
#[derive(Debug)]
struct Arriving {
    rts: RtsNumber,
    message: Message,
    len: BodyLen,
    placement: Placement,
}

/// An RTS that needs memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) rts: RtsNumber,
    pub(crate) len: BodyLen,
    /// The call that its message is about.
    pub(crate) call: Option<CallId>,
    /// Until when it is worth while. `None` where its head does not say.
    pub(crate) deadline: Option<Instant>,
}

/// What a [`Rendezvous`] has done with. Its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) released: Vec<Released<Region>>,
    /// Messages that nobody sends any more, or that are sent.
    pub(crate) sources: Vec<Source>,
    /// Bodies whose windows are invalidated.
    pub(crate) landed: Vec<LandedBody>,
    /// Memory for a Write, when there is none to come.
    pub(crate) reserve: Option<StagingBuf>,
    /// Messages whose bodies will not come.
    pub(crate) heads: Vec<Message>,
    pub(crate) asking: Vec<Asking>,
    pub(crate) given_up: Vec<RtsNumber>,
    /// Why the queue pair must be destroyed.
    pub(crate) fault: Option<Fault>,
    /// When to look again, if nothing else happens.
    pub(crate) timeout: Option<Instant>,
}

impl Rendezvous {
    pub(crate) fn new(limits: RendezvousLimits, registered: (Arc<Sources>, Domain)) -> Self {
        Self {
            owner: Owner::new(limits.owner),
            writer: Writer::new(limits.writer),
            max_sge: limits.max_sge,
            registered,
            arriving: Vec::new(),
            offered: Vec::new(),
            offers: Vec::new(),
            advertised: Vec::new(),
            untold: Vec::new(),
            windows: Windows::default(),
            asking: Vec::new(),
            given_up: Vec::new(),
            reserve: None,
            needs: None,
            fault: None,
            standing: limits.standing,
            is_busy: limits.standing > 0,
        }
    }

    /// Whether a long body is under way, in either direction, or may be by standing grants.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// A message with a long body is to be sent.
    pub(crate) fn begin(&mut self, message: Message) {
        self.is_busy = true;
        let via = match message.head {
            Head::Response { call, .. } => self.take_offer(call).map_or(Via::Ask, Via::Advertised),
            Head::Request { .. } => Via::Standing,
            _ => Via::Ask,
        };
        let (source, body) = Source::new(message);
        self.writer.begin(source, body, via);
    }

    /// Closes the grant that came with this call's request, since its RESPONSE does not use it. The RESPONSE,
    /// which is being posted, must say so.
    pub(crate) fn decline(&mut self, call: CallId) -> Option<GrantId> {
        let offer = self.take_offer(call)?;
        self.writer.decline(offer)
    }

    fn take_offer(&mut self, call: CallId) -> Option<GrantId> {
        let at = self.offered.iter().position(|(of, _)| *of == call)?;
        Some(self.offered.swap_remove(at).1)
    }

    /// The call has ended on this side: nothing of it need be sent, or is wanted. Says whether that changed
    /// anything.
    pub(crate) fn revoke(&mut self, call: CallId, now: Instant) -> bool {
        // A stream may have several at a time, in either direction.
        let of_call = |source: &Source| source.message().head.call() == Some(call);
        let sending = self.writer.sources().filter(|(_, source)| of_call(source));
        let sending: Vec<_> = sending.map(|(transfer, _)| transfer).collect();
        sending.iter().for_each(|transfer| self.writer.give_up(*transfer));
        let mut revoked = !sending.is_empty();
        let offer = self.take_offer(call);
        offer.inspect(|grant| self.writer.give_up_grant(*grant));
        while let Some(rts) = self.arriving_of(call) {
            self.give_up(rts, now);
            revoked = true;
        }
        let landing = self.windows.give_up(call);
        let advertised = self.drop_offer(call) | self.revoke_advertised(call, now);
        revoked || offer.is_some() || landing || advertised
    }

    fn arriving_of(&self, call: CallId) -> Option<RtsNumber> {
        let arriving = self.arriving.iter().find(|one| one.message.head.call() == Some(call));
        arriving.map(|arriving| arriving.rts)
    }

    /// The reply of a call is here, or will not come: its grant is wanted back, if the peer has not closed it.
    pub(crate) fn revoke_advertised(&mut self, call: CallId, now: Instant) -> bool {
        let Some(at) = self.advertised.iter().position(|(of, _)| *of == call) else { return false };
        let (_, grant) = self.advertised.swap_remove(at);
        if let Err(fault) = self.owner.revoke(grant, now) {
            self.fault.get_or_insert(fault);
        }
        true
    }

    /// Whether a grant is out for a reply that has not come.
    pub(crate) fn has_advertised(&self) -> bool {
        !self.advertised.is_empty()
    }

    /// A body is not wanted; the head that it belongs to, if it was to come.
    pub(crate) fn give_up(&mut self, rts: RtsNumber, now: Instant) -> Option<Message> {
        if let Err(fault) = self.owner.give_up(rts, now) {
            self.fault.get_or_insert(fault);
        }
        self.asking.retain(|asking| asking.rts != rts);
        self.given_up.push(rts);
        self.take_head(rts).map(|arriving| arriving.message)
    }

    fn take_head(&mut self, rts: RtsNumber) -> Option<Arriving> {
        let at = self.arriving.iter().position(|arriving| arriving.rts == rts)?;
        Some(self.arriving.swap_remove(at))
    }

    /// There is memory for an RTS; its CTS is due. Gives the memory back if the RTS does not wait any more.
    pub(crate) fn grant(&mut self, rts: RtsNumber, mut region: Region) -> Option<Region> {
        if !self.owner.is_waiting(rts) {
            return Some(region);
        }
        // Its bind goes out before any frame that is taken from now on.
        self.windows.bind(&mut region);
        let place = region.place();
        self.owner.grant(rts, region, place).err()
    }

    /// Bodies that are to come.
    pub(crate) fn open_bodies(&self) -> usize {
        self.arriving.len() + self.windows.bodies()
    }

    /// A Write of this transfer is complete, or flushed.
    pub(crate) fn handle_written(&mut self, transfer: TransferId) {
        self.writer.handle_written(transfer);
    }

    /// Something arrived: the peer lives.
    pub(crate) fn handle_arrival(&mut self, now: Instant) {
        self.owner.handle_arrival(now);
    }

    /// Collects what is done with, and what is to be done by who may wait.
    pub(crate) fn settle(&mut self, now: Instant, out: &mut Settled) {
        if let Err(fault) = self.owner.handle_timeout(now) {
            self.fault.get_or_insert(fault);
        }
        while let Some(rts) = self.owner.poll_dropped() {
            out.heads.extend(self.take_head(rts).map(|arriving| arriving.message));
            // It may have come and gone in one batch: then nobody asks for it.
            self.asking.retain(|asking| asking.rts != rts);
            self.given_up.push(rts);
        }
        for region in self.owner.revoked_mut() {
            if let Some(fault) = region.quarantine() {
                self.fault.get_or_insert(fault);
            }
        }
        self.collect(out);
        if self.writer.transfers() == 0 {
            out.reserve = self.reserve.take();
        }
        out.asking.append(&mut self.asking);
        out.given_up.append(&mut self.given_up);
        self.offered.retain(|(_, grant)| self.writer.holds(*grant));
        out.fault = self.fault.take();
        out.timeout = self.owner.poll_timeout();
        self.is_busy = self.owner.open_requests() > 0
            || self.owner.open_grants() > 0
            || self.writer.transfers() > 0
            || self.writer.open_grants() > 0
            || self.has_offers()
            || !self.windows.is_empty()
            || self.standing > 0
            || self.has_control();
    }

    fn collect(&mut self, out: &mut Settled) {
        for released in self.untold.drain(..) {
            out.released.extend(self.windows.retire(released));
        }
        while let Some(released) = self.owner.poll_released() {
            out.released.extend(self.windows.retire(released));
        }
        self.windows.collect(&mut out.released, &mut out.landed);
        out.sources.extend(std::iter::from_fn(|| self.writer.poll_ended()).map(|end| end.source));
    }

    /// The queue pair is destroyed: everything comes back.
    pub(crate) fn release(mut self) {
        self.owner.handle_destroyed();
        self.writer.handle_destroyed();
        std::mem::take(&mut self.offers).into_iter().for_each(|(_, offer)| offer.take_back());
        let mut settled = Settled::default();
        self.collect(&mut settled);
        settled.released.extend(self.windows.release());
        settled.released.extend(settled.landed.into_iter().map(LandedBody::into_released));
        settled.released.into_iter().for_each(Region::release);
    }
}
