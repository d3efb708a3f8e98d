//! Bodies that arrive in DATA frames, in turns with those of other calls.
//!
//! Pure. Owns the landing buffers and the rules of pieces: in order, no gap, no overrun, LAST exactly at
//! the end. How the bytes come is the decoder's business.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::buf::Body;
use crate::message::{CallId, Message};
use crate::transport::{Announced, Placement, PlacementHook};
use crate::wire::header::Flags;
use crate::wire::{Header, WireError};

use super::error::FrameError;
use super::landing::LandingPool;

/// The bodies of one connection that have begun and not ended.
#[derive(Debug)]
pub struct Bodies {
    limit: usize,
    /// Memory of all landing buffers, by the lengths that were announced.
    landing: usize,
    pool: Arc<LandingPool>,
    open: BTreeMap<CallId, Arriving>,
}

/// A body that has begun.
#[derive(Debug)]
struct Arriving {
    /// Its message; the body is empty until the last piece is here.
    message: Message,
    /// Its announced length.
    len: usize,
    place: Place,
}

/// Where the bytes of a body go.
#[derive(Debug)]
enum Place {
    /// Into memory for the whole body, of which this much is filled.
    Landing(Vec<u8>),
    /// Nowhere; this many have come.
    Sink(usize),
}

/// The piece that is being received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    call: CallId,
    /// The offset in the body where it ends.
    end: usize,
    is_last: bool,
}

impl Bodies {
    /// No bodies yet, and at most `limit` at a time, in memory of `pool`.
    pub fn new(limit: usize, pool: Arc<LandingPool>) -> Self {
        Self { limit, landing: 0, pool, open: BTreeMap::new() }
    }

    /// Begins the body of a message: `len` bytes, a length within this side's limits.
    ///
    /// # Errors
    ///
    /// The message can have no such body, its call has one already, or too many arrive.
    pub fn open(
        &mut self,
        message: Message,
        len: usize,
        hook: &dyn PlacementHook,
    ) -> Result<(), FrameError> {
        let field = |field, value, expected| WireError::Field { field, value, expected };
        let Some(call) = message.head.call() else {
            let flags = u64::from(Flags::BODY_FOLLOWS.0);
            return Err(
                field("flags", flags, "what is about no call has its body behind it").into()
            );
        };
        if len == 0 {
            return Err(field("body_len", 0, "a body that follows has a byte at least").into());
        }
        let limit = self.limit;
        let is_full = self.open.len() >= limit;
        let Entry::Vacant(entry) = self.open.entry(call) else {
            return Err(FrameError::SecondBody { call });
        };
        if is_full {
            return Err(FrameError::TooManyBodies { limit });
        }
        let (head, metadata, landing) = (&message.head, &message.metadata, self.landing);
        let place = match hook.place(Announced { head, metadata, len, landing }) {
            Placement::Pool | Placement::Owned => {
                self.landing += len;
                Place::Landing(self.pool.take(len))
            }
            Placement::Refuse => Place::Sink(0),
        };
        entry.insert(Arriving { message, len, place });
        Ok(())
    }

    /// The piece that a DATA header begins; `None` if it ends the body without one.
    ///
    /// # Errors
    ///
    /// A rule of pieces that the header breaks.
    pub fn begin_piece(&mut self, header: &Header) -> Result<Option<Piece>, FrameError> {
        let call = header.call;
        let body = self.open.get(&call).ok_or(FrameError::NoBody { call })?;
        let (len, expected) = (body.len, body.place.received());
        if usize::try_from(header.aux) != Ok(expected) {
            let offset = header.aux;
            return Err(FrameError::Offset { call, offset, expected });
        }
        let end = expected.saturating_add(header.body_len as usize);
        if end > len {
            return Err(FrameError::Overrun { call, end, len });
        }
        if header.flags.contains(Flags::ABORTED) {
            // What its piece would bring is void as well, so it must not have one.
            if header.body_len != 0 {
                return Err(FrameError::AbortedPiece { call });
            }
            self.close(call);
            return Ok(None);
        }
        if header.body_len == 0 {
            return Err(FrameError::EmptyPiece { call });
        }
        let is_last = header.flags.contains(Flags::LAST);
        if is_last != (end == len) {
            let mark = if is_last { "with" } else { "without" };
            return Err(FrameError::Last { call, end, len, mark });
        }
        Ok(Some(Piece { call, end, is_last }))
    }

    /// Bytes of `piece` that have not come yet.
    pub fn missing(&self, piece: Piece) -> usize {
        piece.end - self.arriving(piece).place.received()
    }

    /// Where the missing bytes of `piece` are to be appended; `None` if they are thrown away.
    pub fn landing(&mut self, piece: Piece) -> Option<&mut Vec<u8>> {
        match &mut self.arriving_mut(piece).place {
            Place::Landing(landing) => Some(landing),
            Place::Sink(_) => None,
        }
    }

    /// Takes the next bytes of `piece`, at most the missing ones.
    pub fn append(&mut self, piece: Piece, bytes: &[u8]) {
        match &mut self.arriving_mut(piece).place {
            Place::Landing(landing) => landing.extend_from_slice(bytes),
            Place::Sink(count) => *count += bytes.len(),
        }
    }

    /// Ends a piece of which nothing is missing; its message, if the body is whole and wanted.
    pub fn end_piece(&mut self, piece: Piece) -> Option<Message> {
        if !piece.is_last {
            return None;
        }
        let body = self.close(piece.call)?;
        let Place::Landing(landing) = body.place else {
            return None;
        };
        let mut message = body.message;
        message.body = Body::from(self.pool.freeze(landing));
        Some(message)
    }

    /// Throws away what came of the call's body and what still comes.
    pub fn revoke(&mut self, call: CallId) {
        let Some(body) = self.open.get_mut(&call) else {
            return;
        };
        if let Place::Landing(landing) = &body.place {
            self.landing -= body.len;
            body.place = Place::Sink(landing.len());
        }
    }

    fn close(&mut self, call: CallId) -> Option<Arriving> {
        let body = self.open.remove(&call)?;
        if let Place::Landing(_) = body.place {
            self.landing -= body.len;
        }
        Some(body)
    }

    /// Whether no body has begun that has not ended.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Memory that they take, by the lengths that were announced, in bytes.
    pub fn landing_bytes(&self) -> usize {
        self.landing
    }

    /// How many bodies have begun and not ended.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    fn arriving(&self, piece: Piece) -> &Arriving {
        self.open.get(&piece.call).expect("a body stays open while a piece of it arrives")
    }

    fn arriving_mut(&mut self, piece: Piece) -> &mut Arriving {
        self.open.get_mut(&piece.call).expect("a body stays open while a piece of it arrives")
    }
}

impl Place {
    fn received(&self) -> usize {
        match self {
            Self::Landing(landing) => landing.len(),
            Self::Sink(count) => *count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Head;
    use crate::wire::Kind;

    const CALL: CallId = CallId { slot: 3, generation: 7 };

    struct Always(Placement);

    impl PlacementHook for Always {
        fn place(&self, _announced: Announced<'_>) -> Placement {
            self.0
        }
    }

    fn bodies(len: usize, placement: Placement) -> Bodies {
        let mut bodies = Bodies::new(1, Arc::new(LandingPool::new(0)));
        let message = Message::bare(Head::Cancel { call: CALL });
        bodies.open(message, len, &Always(placement)).expect("the first body");
        bodies
    }

    fn data(offset: u32, len: u32, flags: Flags) -> Header {
        Header { flags, aux: offset, body_len: len, ..Header::new(Kind::Data, CALL) }
    }

    fn receive(bodies: &mut Bodies, header: &Header, byte: u8) -> Option<Message> {
        let piece = bodies.begin_piece(header).expect("allowed").expect("piece");
        let len = bodies.missing(piece);
        assert_eq!(len, header.body_len as usize);
        bodies.append(piece, &vec![byte; len]);
        bodies.end_piece(piece)
    }

    #[test]
    fn pieces_become_one_body() {
        let mut bodies = bodies(5, Placement::Pool);
        assert!(receive(&mut bodies, &data(0, 3, Flags::default()), b'a').is_none());
        let message = receive(&mut bodies, &data(3, 2, Flags::LAST), b'b').expect("whole");
        assert_eq!(message.body.into_bytes(), "aaabb");
        assert_eq!((bodies.len(), bodies.landing), (0, 0));
    }

    #[test]
    fn a_refused_or_revoked_body_is_thrown_away_to_its_end() {
        let mut refused = bodies(5, Placement::Refuse);
        let mut revoked = bodies(5, Placement::Pool);
        for bodies in [&mut refused, &mut revoked] {
            assert!(receive(bodies, &data(0, 3, Flags::default()), b'a').is_none());
            bodies.revoke(CALL);
            assert_eq!(bodies.landing, 0);
            assert!(receive(bodies, &data(3, 2, Flags::LAST), b'b').is_none());
            assert_eq!(bodies.len(), 0);
        }
    }

    #[test]
    fn an_aborted_body_delivers_nothing() {
        let mut bodies = bodies(5, Placement::Pool);
        receive(&mut bodies, &data(0, 3, Flags::default()), b'a');
        assert_eq!(bodies.landing, 5);
        assert_eq!(bodies.begin_piece(&data(3, 0, Flags::ABORTED)), Ok(None));
        assert_eq!((bodies.len(), bodies.landing), (0, 0));
    }

    #[test]
    fn every_broken_rule_of_pieces_is_named() {
        let cases = [
            (
                data(1, 3, Flags::default()),
                "DATA frame for call 3.7 at offset 1, expected offset 0",
            ),
            (data(0, 6, Flags::LAST), "DATA frame for call 3.7 ends at byte 6 of a body of 5"),
            (
                data(0, 4, Flags::LAST),
                "DATA frame for call 3.7 ends at byte 4 of a body of 5 with LAST",
            ),
            (
                data(0, 5, Flags::default()),
                "DATA frame for call 3.7 ends at byte 5 of a body of 5 without LAST",
            ),
            (data(0, 0, Flags::default()), "empty DATA frame for call 3.7 that is not ABORTED"),
            (data(0, 2, Flags::ABORTED), "ABORTED DATA frame for call 3.7 with bytes"),
            (
                Header { call: CallId { generation: 8, ..CALL }, ..data(0, 5, Flags::LAST) },
                "DATA frame for call 3.8, which has no body to come",
            ),
        ];
        for (header, text) in cases {
            let error = bodies(5, Placement::Pool).begin_piece(&header).expect_err(text);
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_body_needs_a_call_and_a_byte() {
        let mut bodies = Bodies::new(1, Arc::new(LandingPool::new(0)));
        let goaway = Message::bare(Head::GoAway { reason: crate::message::GoAway::Draining });
        let bare = Message::bare(Head::Cancel { call: CALL });
        for (message, len, text) in [
            (goaway, 5, "flags is 1, what is about no call has its body behind it"),
            (bare, 0, "body_len is 0, a body that follows has a byte at least"),
        ] {
            let error = bodies.open(message, len, &Always(Placement::Pool)).expect_err(text);
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn bodies_are_bounded_and_one_per_call() {
        let mut bodies = bodies(5, Placement::Pool);
        let other = CallId { slot: 4, ..CALL };
        for (call, expected) in [
            (CALL, FrameError::SecondBody { call: CALL }),
            (other, FrameError::TooManyBodies { limit: 1 }),
        ] {
            let message = Message::bare(Head::Cancel { call });
            let placed = bodies.open(message, 5, &Always(Placement::Pool));
            assert_eq!(placed, Err(expected));
        }
    }
}
