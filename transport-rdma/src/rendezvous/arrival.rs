//! What a peer says about long bodies, and what becomes of it.

use std::time::Duration;

use tokio::time::Instant;
use verbwire_core::buf::Body;
use verbwire_core::message::{Head, Message};
use verbwire_core::proto::deadlines::deadline_after;
use verbwire_core::transport::Placement;

use super::{Arriving, Asking, Region, Rendezvous};
use crate::error::ReceiveError;
use crate::pool::{Isolation, Landing};
use crate::proto::rendezvous::wire::{Crc, Fin, Frame, HeadExtras, RtsNumber};
use crate::proto::rendezvous::{Arrived, BodyLen, Carrier, Proof, Released, Violation};

/// How long before the deadline of a request, or of the call that streams it, its memory is waited for no more, so that its caller still hears what was in the
/// way. 50 ms, and an eighth of the whole at most: a round trip between continents cannot be had sooner, and what has
/// got no memory by then is not written, handled and answered in time.
const FOR_WORDS: Duration = Duration::from_millis(50);

/// For how long memory is waited for where the call has so much time left.
pub(super) fn less_words(timeout: Duration) -> Duration {
    timeout - (timeout / 8).min(FOR_WORDS)
}

/// Something about long bodies that was received.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A head whose body waits.
    Rts { message: Message, len: BodyLen, rts: RtsNumber, extras: HeadExtras },
    /// A head whose body is written.
    Written { message: Message, len: BodyLen, fin: Fin, extras: HeadExtras },
    /// What a head says of grants besides. Its message is received like any other.
    Beside { head: Head, extras: HeadExtras },
    /// A frame of its own.
    Frame(Frame),
}

/// What came of an arrival.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once; a box would be an allocation for each body"
)]
pub(crate) enum Came {
    /// Nothing that a user sees.
    Nothing,
    /// A head; its body has to be placed. So many bytes are arriving already.
    Announced { message: Message, rts: RtsNumber, len: BodyLen, landing: usize },
    /// A message. Whether it is to be placed has not been asked if its head came with the body.
    Landed(Box<LandedBody>),
}

/// A message and the memory in which its body is.
#[derive(Debug)]
pub(crate) struct LandedBody {
    pub(crate) message: Message,
    pub(crate) placed: Placed,
    pub(crate) len: BodyLen,
    region: Region,
    offset: u32,
    crc: Option<Crc>,
}

/// Whether the placement hook was asked about a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It was, and answered so.
    At(Placement),
    No,
    /// Its call has ended since.
    Unwanted,
}

impl Rendezvous {
    /// Takes what was received.
    ///
    /// # Errors
    ///
    /// The peer may not send it.
    pub(crate) fn handle(&mut self, arrival: Arrival, now: Instant) -> Result<Came, Violation> {
        self.is_busy = true;
        match arrival {
            Arrival::Rts { message, len, rts, extras } => {
                self.handle_extras(&message.head, extras)?;
                let timeout = match message.head {
                    Head::Request { timeout, .. } => Some(timeout),
                    // The hook knows its call's deadline by the time that it is its turn.
                    _ => None,
                };
                self.handle_rts(message, (rts, len), timeout, now)
            }
            Arrival::Written { message, len, fin, extras } => {
                self.handle_extras(&message.head, extras)?;
                let call = message.head.call();
                self.advertised.retain(|(of, _)| Some(*of) != call);
                let carrier = match message.head {
                    Head::Response { call, .. } => Carrier::Response(call, len),
                    _ => Carrier::Request(len),
                };
                self.handle_fin(fin, carrier, Some(message))
            }
            Arrival::Beside { head, extras } => {
                self.handle_extras(&head, extras)?;
                Ok(Came::Nothing)
            }
            Arrival::Frame(Frame::Fin(fin)) => self.handle_fin(fin, Carrier::Frame, None),
            Arrival::Frame(Frame::Cts { rts, grant }) => {
                self.writer.handle_cts(rts, grant).map(|()| Came::Nothing)
            }
            Arrival::Frame(Frame::Abort(names)) => {
                self.writer.handle_abort(&names).map(|()| Came::Nothing)
            }
            Arrival::Frame(Frame::AbortAck(names)) => {
                self.owner.handle_abort_ack(&names).map(|()| Came::Nothing)
            }
        }
    }

    fn handle_extras(&mut self, head: &Head, extras: HeadExtras) -> Result<(), Violation> {
        if let (Some(grant), Some(call)) = (extras.reply, head.call()) {
            self.writer.handle_advertised(grant)?;
            self.offered.push((call, grant.id));
        }
        extras.unused.map_or(Ok(()), |grant| self.owner.handle_unused(grant))
    }

    fn handle_rts(
        &mut self,
        message: Message,
        (rts, len): (RtsNumber, BodyLen),
        timeout: Option<Duration>,
        now: Instant,
    ) -> Result<Came, Violation> {
        let call = message.head.call();
        let deadline = timeout.map(|timeout| deadline_after(now, timeout));
        self.owner.handle_rts(rts, len, deadline)?;
        let deadline = timeout.map(|timeout| deadline_after(now, less_words(timeout)));
        self.asking.push(Asking { rts, len, call, deadline });
        let landing = self.arriving.iter().map(|arriving| arriving.len.bytes() as usize).sum();
        Ok(Came::Announced { message, rts, len, landing })
    }

    /// The placement hook has answered for a head that was [announced](Came::Announced).
    pub(crate) fn place(
        &mut self,
        (message, rts, len): (Message, RtsNumber, BodyLen),
        placement: Placement,
        now: Instant,
    ) {
        match placement {
            Placement::Refuse => {
                self.give_up(rts, now);
            }
            _ => self.arriving.push(Arriving { rts, message, len, placement }),
        }
    }

    fn handle_fin(
        &mut self,
        fin: Fin,
        carrier: Carrier,
        head: Option<Message>,
    ) -> Result<Came, Violation> {
        let landed = match self.owner.handle_fin(fin, carrier)? {
            Arrived::Landed(landed) => landed,
            Arrived::Discarded => return Ok(Came::Nothing),
        };
        let arriving = landed.rts.and_then(|rts| self.take_head(rts));
        let placed =
            arriving.as_ref().map_or(Placed::No, |arriving| Placed::At(arriving.placement));
        let message = arriving.map(|arriving| arriving.message).or(head);
        let message = message.expect("the head of an RTS is kept as long as its request is open");
        let (region, offset, len, crc) = (landed.region, landed.offset, landed.len, landed.crc);
        let landed = Box::new(LandedBody { message, placed, len, region, offset, crc });
        // Behind a window it comes when that is invalidated.
        Ok(self.windows.land(landed).map_or(Came::Nothing, Came::Landed))
    }
}

impl LandedBody {
    /// Its memory.
    pub(super) fn region(&mut self) -> &mut Region {
        &mut self.region
    }

    /// Nobody waits for it any more.
    pub(super) fn give_up(&mut self) {
        self.placed = Placed::Unwanted;
    }

    /// Its memory without it.
    pub(super) fn into_released(self) -> Released<Region> {
        Released { region: self.region, proof: Proof::Fin }
    }

    /// The message with its body, copied out if the peer could still change it, or if it is to hold no memory of the device, as
    /// where streams hold their share of that.
    ///
    /// # Errors
    ///
    /// The body is not what its checksum says, or there is no memory to copy it to.
    pub(crate) fn receive(
        self,
        isolation: Isolation,
        placement: Placement,
        landing: &Landing,
    ) -> Result<Message, LandingError> {
        let head = &self.message.head;
        let is_kept = match head {
            _ if placement == Placement::Owned => false,
            Head::Message { .. } => landing.keeps_streams(),
            _ => true,
        };
        let isolation = if is_kept { isolation } else { Isolation::None };
        let len = self.len.bytes() as usize;
        let bytes = self.region.landed((self.offset, len), head, isolation)?;
        if let Some(expected) = self.crc {
            let found = Crc::of(&bytes);
            if found != expected {
                return Err(ReceiveError::Crc { expected: expected.0, found: found.0 }.into());
            }
        }
        let mut message = self.message;
        message.body = match isolation {
            // A copy holds no region.
            Isolation::None => Body::from(bytes),
            _ => landing.body(bytes),
        };
        Ok(message)
    }
}

/// Why a body that has landed cannot be received.
#[derive(Debug)]
pub(crate) enum LandingError {
    /// The peer's fault.
    Violation(ReceiveError),
    /// This machine's.
    Memory(verbwire_core::Error),
}

impl From<ReceiveError> for LandingError {
    fn from(error: ReceiveError) -> Self {
        Self::Violation(error)
    }
}

impl From<verbwire_core::Error> for LandingError {
    fn from(error: verbwire_core::Error) -> Self {
        Self::Memory(error)
    }
}
