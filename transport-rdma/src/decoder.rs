//! Received frames to messages.
//!
//! Pure: one frame per receive goes in, and what it says comes out; the receive's buffer is free again
//! afterwards, since bodies are copied out. Owns the memory of bodies until they are whole.

use std::sync::Arc;

use verbwire_core::buf::Body;
use verbwire_core::message::{CallId, Head, Message};
use verbwire_core::transport::inbound::{Bodies, InboundLimits, LandingPool, SmallBodies};
use verbwire_core::transport::{Incoming, PlacementHook};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{HEADER_LEN, Header, Kind, WireError, head, tlv};

use crate::error::ReceiveError;
use crate::proto::credit::loan::Loan;
use crate::proto::credit::{Class, Window};
use crate::proto::rendezvous::BodyLen;
use crate::proto::rendezvous::wire::{self, HeadExtras};
use crate::rendezvous::Arrival;

/// Turns the frames of one connection behind HELLO into messages.
#[derive(Debug)]
pub(crate) struct FrameDecoder {
    limits: InboundLimits,
    small: SmallBodies,
    bodies: Bodies,
    /// What the last frame said about long bodies.
    /// Boxed, since few frames have one, and it is asked for behind each.
    arrival: Option<Box<Arrival>>,
}

/// What a frame says of receives: which window it used, how many its sender has posted again, and what is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) class: Class,
    pub(crate) count: u32,
    pub(crate) loan: Option<Loan>,
}

/// A frame cut along its header.
struct Parts<'a> {
    tlvs: &'a [u8],
    metadata: &'a [u8],
    body: &'a [u8],
}

impl FrameDecoder {
    pub(crate) fn new(limits: InboundLimits, pool: Arc<LandingPool>) -> Self {
        let bodies = Bodies::new(limits.bodies(), pool);
        Self { limits, small: SmallBodies::default(), bodies, arrival: None }
    }

    /// Decodes a frame; appends the message that it completes to `received`. What it says about bodies that are
    /// written is to be [taken](Self::take_arrival) before the next frame.
    ///
    /// # Errors
    ///
    /// What the peer did wrong. Nothing that follows is to be decoded.
    pub(crate) fn decode(
        &mut self,
        frame: &[u8],
        placement: &dyn PlacementHook,
        received: &mut Vec<Incoming>,
    ) -> Result<Account, ReceiveError> {
        let Some((header, behind)) = frame.split_first_chunk::<HEADER_LEN>() else {
            return Err(ReceiveError::Short { len: frame.len() });
        };
        let header = Header::decode(header)?;
        self.limits.check(&header)?;
        let parts = Parts::cut(&header, behind)?;
        match header.kind {
            Kind::Credit | Kind::Lend | Kind::Borrow => check_bare(&header, &parts)?,
            Kind::Cts | Kind::Fin | Kind::Abort | Kind::AbortAck => {
                let frame = wire::Frame::decode(&header, parts.tlvs)?;
                self.arrival = Some(Box::new(Arrival::Frame(frame)));
            }
            Kind::Data => {
                tlv::check_optional(parts.tlvs)?;
                self.piece(&header, parts.body, received)?;
            }
            _ => self.message(&header, &parts, placement, received)?,
        }
        let loan = Loan::decode(&header);
        Ok(Account { class: class_of(header.kind), count: header.credits, loan })
    }

    /// What the last frame said about bodies that are written.
    pub(crate) fn take_arrival(&mut self) -> Option<Box<Arrival>> {
        self.arrival.take()
    }

    /// The call is over: its body is thrown away, if one is arriving.
    pub(crate) fn revoke(&mut self, call: CallId) {
        self.bodies.revoke(call);
    }

    /// Memory that bodies take which arrive in pieces, in bytes.
    pub(crate) fn landing_bytes(&self) -> usize {
        self.bodies.landing_bytes()
    }

    /// Bodies that have begun and not ended.
    pub(crate) fn open_bodies(&self) -> usize {
        self.bodies.len()
    }

    fn message(
        &mut self,
        header: &Header,
        parts: &Parts<'_>,
        placement: &dyn PlacementHook,
        received: &mut Vec<Incoming>,
    ) -> Result<(), ReceiveError> {
        let (head, encoding) = head::decode_beside_transport(header, parts.tlvs)?;
        let metadata = self.small.copy(parts.metadata);
        let mut message = Message { head, encoding, metadata, body: Body::new() };
        if !parts.tlvs.is_empty() {
            let extras = HeadExtras::decode(header, parts.tlvs)?;
            if extras != HeadExtras::default() {
                match self.written(header, message, extras)? {
                    Some(other) => message = other,
                    None => return Ok(()),
                }
            }
        }
        if header.flags.contains(Flags::BODY_FOLLOWS) {
            let len = header.body_len as usize;
            return Ok(self.bodies.open(message, len, placement)?);
        }
        message.body = Body::from(self.small.copy(parts.body));
        received.push(Incoming { message });
        Ok(())
    }

    /// Notes what a head says about bodies that are written; gives the message back if its own is not.
    fn written(
        &mut self,
        header: &Header,
        message: Message,
        extras: HeadExtras,
    ) -> Result<Option<Message>, WireError> {
        let len = || {
            let expected = "a body that is written has a byte at least";
            BodyLen::new(header.body_len).ok_or(WireError::Field {
                field: "body_len",
                value: 0,
                expected,
            })
        };
        let (arrival, message) = match (extras.rts, extras.fin) {
            (Some(rts), _) => (Arrival::Rts { message, len: len()?, rts, extras }, None),
            (None, Some(fin)) => (Arrival::Written { message, len: len()?, fin, extras }, None),
            (None, None) => (Arrival::Beside { head: message.head.clone(), extras }, Some(message)),
        };
        self.arrival = Some(Box::new(arrival));
        Ok(message)
    }

    fn piece(
        &mut self,
        header: &Header,
        bytes: &[u8],
        received: &mut Vec<Incoming>,
    ) -> Result<(), ReceiveError> {
        if let Some(piece) = self.bodies.begin_piece(header)? {
            self.bodies.append(piece, bytes);
            if let Some(message) = self.bodies.end_piece(piece) {
                received.push(Incoming { message });
            }
        }
        Ok(())
    }
}

impl<'a> Parts<'a> {
    /// The parts of a frame whose lengths are within the limits; together they are `behind` exactly.
    fn cut(header: &Header, behind: &'a [u8]) -> Result<Self, ReceiveError> {
        let follows = header.kind != Kind::Data && header.flags.contains(Flags::BODY_FOLLOWS);
        let (tlvs, metadata) = (u64::from(header.tlv_len), u64::from(header.metadata_len));
        let body = if follows { 0 } else { u64::from(header.body_len) };
        if tlvs + metadata + body != behind.len() as u64 {
            return Err(ReceiveError::Length {
                len: HEADER_LEN + behind.len(),
                announced: HEADER_LEN as u64 + tlvs + metadata + body,
            });
        }
        let (tlvs, rest) = behind.split_at(usize::from(header.tlv_len));
        let (metadata, body) = rest.split_at(header.metadata_len as usize);
        Ok(Self { tlvs, metadata, body })
    }
}

/// CREDIT, LEND and BORROW have their counts and nothing else, but may learn to have TLVs.
fn check_bare(header: &Header, parts: &Parts<'_>) -> Result<(), WireError> {
    let lengths = [("metadata_len", header.metadata_len), ("body_len", header.body_len)];
    for (field, len) in lengths {
        if len != 0 {
            let expected = "CREDIT, LEND and BORROW have none";
            return Err(WireError::Field { field, value: u64::from(len), expected });
        }
    }
    tlv::check_optional(parts.tlvs)
}

/// The window that a message with this head uses.
pub(crate) fn class_of_head(head: &Head) -> Class {
    match head {
        Head::Request { .. }
        | Head::Response { .. }
        | Head::Message { .. }
        | Head::End { .. }
        | Head::Headers { .. }
        | Head::Window { .. } => Class::Data,
        Head::Cancel { .. }
        | Head::Cancelled { .. }
        | Head::Ping
        | Head::Pong
        | Head::GoAway { .. } => Class::Control,
    }
}

/// The window that a frame of this kind uses.
pub(crate) fn class_of(kind: Kind) -> Class {
    match kind {
        Kind::Request
        | Kind::Response
        | Kind::Message
        | Kind::End
        | Kind::Headers
        | Kind::Window
        | Kind::Data
        | Kind::Cts
        | Kind::Fin => Class::Data,
        Kind::Cancel
        | Kind::Cancelled
        | Kind::Ping
        | Kind::Pong
        | Kind::GoAway
        | Kind::Abort
        | Kind::AbortAck
        | Kind::Lend
        | Kind::Borrow => Class::Control,
        // For which window makes no difference to its receiver.
        Kind::Credit => Class::Credit(Window::Data),
    }
}

#[cfg(test)]
mod tests;
