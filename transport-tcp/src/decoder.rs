//! Bytes to messages.
//!
//! Pure: who has bytes appends them to [`FrameDecoder::space`] and calls [`FrameDecoder::decode`]; how the
//! bytes were split does not matter. Owns the read buffer and the memory of bodies until they are whole.
//!
//! Where bytes go:
//!
//! * Frames with short bodies gather in the read buffer, so that one read brings many; their bodies are
//!   copied out ([`SmallBodies`]), so that the buffer is used again at once.
//! * A longer body gets memory of its own ([`LandingPool`]), after its length was checked. What the read
//!   buffer has of it is copied, the rest is read straight into that memory.
//! * The same holds for bodies in pieces, which [`Bodies`] keeps.

mod buffer;
mod layout;

use std::mem;
use std::sync::Arc;

use bytes::BufMut;
use bytes::buf::Limit;
use verbwire_core::buf::Body;
use verbwire_core::message::{CallId, Message};
use verbwire_core::transport::inbound::{
    Bodies, FrameError, InboundLimits, LandingPool, Piece, SmallBodies,
};
use verbwire_core::transport::{Incoming, PlacementHook};
use verbwire_core::wire::{HEADER_LEN, Header, Kind, head, tlv};

use buffer::ReadBuffer;
use layout::{BodyPlace, Layout};

/// Missing bytes from which on they are read straight to where they belong. 8 KiB: below it, a copy costs
/// less than the read that would bring them alone.
const DIRECT: usize = 8 << 10;

/// Turns the bytes of one connection behind HELLO into messages.
#[derive(Debug)]
pub(crate) struct FrameDecoder {
    limits: InboundLimits,
    buffer: ReadBuffer,
    within: Within,
    small: SmallBodies,
    bodies: Bodies,
    pool: Arc<LandingPool>,
}

/// What the next bytes belong to.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a connection has one; a box would be an allocation for each body"
)]
enum Within {
    /// A frame's header, or what stands behind it up to the body.
    Frame,
    /// The body of a frame.
    Body(Landing),
    /// The body of a DATA frame.
    Piece(Piece),
}

/// A frame whose body is arriving.
#[derive(Debug)]
struct Landing {
    /// The message; its body is empty until all bytes are here.
    message: Message,
    /// The bytes so far.
    bytes: Vec<u8>,
    /// The body's length.
    len: usize,
}

/// Whether decoding goes on with the bytes that are here.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Done,
    Starved,
}

/// Where a stream was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Between two frames, with no body to come.
    Clean,
    /// Within a frame.
    InFrame,
    /// Between two frames, while this many bodies were to come.
    BeforeBodies(usize),
}

impl FrameDecoder {
    pub(crate) fn new(limits: InboundLimits, pool: Arc<LandingPool>) -> Self {
        Self {
            limits,
            buffer: ReadBuffer::new(),
            within: Within::Frame,
            small: SmallBodies::default(),
            bodies: Bodies::new(limits.bodies(), Arc::clone(&pool)),
            pool,
        }
    }

    /// Where the next bytes of the stream are to be appended; never full.
    pub(crate) fn space(&mut self) -> Limit<&mut Vec<u8>> {
        match &mut self.within {
            Within::Body(landing) if landing.missing() >= DIRECT => {
                let missing = landing.missing();
                (&mut landing.bytes).limit(missing)
            }
            Within::Piece(piece) if self.bodies.missing(*piece) >= DIRECT => {
                let missing = self.bodies.missing(*piece);
                match self.bodies.landing(*piece) {
                    Some(landing) => landing.limit(missing),
                    None => self.buffer.space(),
                }
            }
            _ => self.buffer.space(),
        }
    }

    /// Decodes all that was appended; appends whole messages to `received`.
    ///
    /// # Errors
    ///
    /// What the peer did wrong. What was appended to `received` before is good; nothing follows.
    pub(crate) fn decode(
        &mut self,
        placement: &dyn PlacementHook,
        received: &mut Vec<Incoming>,
    ) -> Result<(), FrameError> {
        loop {
            let step = match &mut self.within {
                Within::Frame => self.frame(placement, received)?,
                Within::Body(_) => self.body(received),
                Within::Piece(piece) => {
                    let piece = *piece;
                    self.piece(piece, received)
                }
            };
            if step == Step::Starved {
                return Ok(());
            }
        }
    }

    /// Appends `bytes` as a socket would, in as many reads as they take, and decodes them.
    ///
    /// For tests and fuzzing, which have no socket.
    ///
    /// # Errors
    ///
    /// As for [`decode`](Self::decode).
    pub(crate) fn append(
        &mut self,
        mut bytes: &[u8],
        placement: &dyn PlacementHook,
        received: &mut Vec<Incoming>,
    ) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            let mut space = self.space();
            let count = space.remaining_mut().min(bytes.len());
            let (read, rest) = bytes.split_at(count);
            space.put_slice(read);
            bytes = rest;
            self.decode(placement, received)?;
        }
        Ok(())
    }

    /// The call is over: its body is thrown away, if one is arriving.
    pub(crate) fn revoke(&mut self, call: CallId) {
        self.bodies.revoke(call);
    }

    /// Where the stream is cut if it ends now.
    pub(crate) fn cut(&self) -> Cut {
        match (&self.within, self.buffer.unread().len(), self.bodies.len()) {
            (Within::Frame, 0, 0) => Cut::Clean,
            (Within::Frame, 0, bodies) => Cut::BeforeBodies(bodies),
            _ => Cut::InFrame,
        }
    }

    /// Takes one frame up to its body, or whole if its body is short.
    fn frame(
        &mut self,
        placement: &dyn PlacementHook,
        received: &mut Vec<Incoming>,
    ) -> Result<Step, FrameError> {
        let Some(bytes) = self.buffer.unread().first_chunk::<HEADER_LEN>() else {
            self.buffer.need(HEADER_LEN);
            return Ok(Step::Starved);
        };
        let header = Header::decode(bytes)?;
        self.limits.check(&header)?;
        let layout = Layout::of(&header);
        if self.buffer.unread().len() < layout.end {
            self.buffer.need(layout.end);
            return Ok(Step::Starved);
        }
        if header.kind == Kind::Data {
            tlv::check_optional(&self.buffer.unread()[HEADER_LEN..layout.tlvs])?;
            if let Some(piece) = self.bodies.begin_piece(&header)? {
                self.within = Within::Piece(piece);
            }
        } else {
            self.message(&header, layout, placement, received)?;
        }
        self.buffer.consume(layout.end);
        Ok(Step::Done)
    }

    /// Takes the message of a frame that is here up to its body, or whole.
    fn message(
        &mut self,
        header: &Header,
        layout: Layout,
        placement: &dyn PlacementHook,
        received: &mut Vec<Incoming>,
    ) -> Result<(), FrameError> {
        let frame = self.buffer.unread();
        let (head, encoding) = head::decode(header, &frame[HEADER_LEN..layout.tlvs])?;
        let metadata = self.small.copy(&frame[layout.tlvs..layout.metadata]);
        let len = header.body_len as usize;
        let body = match layout.body {
            BodyPlace::Buffer => Body::from(self.small.copy(&frame[layout.metadata..layout.end])),
            BodyPlace::Landing | BodyPlace::Pieces => Body::new(),
        };
        let message = Message { head, encoding, metadata, body };
        match layout.body {
            BodyPlace::Buffer => received.push(Incoming { message }),
            BodyPlace::Landing => {
                self.within = Within::Body(Landing { message, bytes: self.pool.take(len), len });
            }
            BodyPlace::Pieces => self.bodies.open(message, len, placement)?,
        }
        Ok(())
    }

    /// Goes on with the body of a frame.
    fn body(&mut self, received: &mut Vec<Incoming>) -> Step {
        let Within::Body(landing) = &mut self.within else {
            return Step::Starved;
        };
        let bytes = self.buffer.unread();
        let count = landing.missing().min(bytes.len());
        landing.bytes.extend_from_slice(&bytes[..count]);
        self.buffer.consume(count);
        if landing.missing() > 0 {
            return Step::Starved;
        }
        let Within::Body(landing) = mem::replace(&mut self.within, Within::Frame) else {
            return Step::Starved;
        };
        let mut message = landing.message;
        message.body = Body::from(self.pool.freeze(landing.bytes));
        received.push(Incoming { message });
        Step::Done
    }

    /// Goes on with the body of a DATA frame.
    fn piece(&mut self, piece: Piece, received: &mut Vec<Incoming>) -> Step {
        let bytes = self.buffer.unread();
        let count = self.bodies.missing(piece).min(bytes.len());
        self.bodies.append(piece, &bytes[..count]);
        self.buffer.consume(count);
        if self.bodies.missing(piece) > 0 {
            return Step::Starved;
        }
        if let Some(message) = self.bodies.end_piece(piece) {
            received.push(Incoming { message });
        }
        self.within = Within::Frame;
        Step::Done
    }
}

impl Landing {
    fn missing(&self) -> usize {
        self.len - self.bytes.len()
    }
}

#[cfg(test)]
mod tests;
