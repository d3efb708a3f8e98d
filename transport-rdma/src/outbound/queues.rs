//! The queues of a stage: control, data, and bodies that go in pieces; which comes next.
//!
//! Knows no credits: who takes a frame says which classes the peer has receives for.

use std::collections::VecDeque;

use bytes::Buf;
use verbwire_core::Error;
use verbwire_core::buf::BodyReader;
use verbwire_core::message::{CallId, Head, Message};
use verbwire_core::wire::{HEADER_LEN, head};

use super::frame::{self, Frame};
use crate::decoder::class_of_head;
use crate::proto::credit::Class;
use crate::proto::rendezvous::wire::MAX_EXTRAS;

/// Short messages in a row, while pieces wait. 4: a storage block goes out in as many pieces as it has
/// pages of this many, and small calls still have most of the wire.
const SHORT_IN_A_ROW: u32 = 4;

/// What bounds the stage and its frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboundLimits {
    /// See `RdmaConfig::send_queue_messages`.
    pub(crate) messages: usize,
    /// See `RdmaConfig::send_queue_bytes`.
    pub(crate) bytes: usize,
    /// Longest frame: what both a receive of the peer and a buffer of this side hold.
    pub(crate) frame: usize,
    /// Longest body in one frame that the peer accepts, and longest piece.
    pub(crate) frame_body: usize,
    /// Bodies that are longer are written. See `RdmaConfig::rendezvous_threshold`.
    pub(crate) in_pieces: usize,
    /// Frames from this length on are signalled, each one. On iWARP, see [`ZERO_COPY`]; elsewhere never.
    pub(crate) signal_from: usize,
}

/// What iWARP sends from where it lies instead of copying it: its source is needed until its own completion,
/// not only until a later one's.
pub(crate) const ZERO_COPY: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct Queues {
    limits: OutboundLimits,
    control: VecDeque<Message>,
    data: VecDeque<Unit>,
    /// Bodies whose heads are sent; the next piece is the first one's.
    bulk: VecDeque<Bulk>,
    /// Messages whose bodies go in pieces, of calls that have one in `bulk`: they have one at a time.
    held: VecDeque<Message>,
    /// Messages in `data` whose bodies are to be written.
    to_write: usize,
    /// Messages whose bodies are being written, elsewhere.
    written: usize,
    /// Bytes of bodies in `data`, `bulk` and `held`, and of those that are being written.
    body_bytes: usize,
    /// Short messages since the last piece.
    in_a_row: u32,
}

/// What stands in the queue of data.
#[derive(Debug)]
enum Unit {
    Message(Message),
    /// The end of a body of which the peer knows.
    Aborted {
        call: CallId,
        offset: u32,
    },
}

/// A body that goes in pieces.
#[derive(Debug)]
struct Bulk {
    call: CallId,
    reader: BodyReader,
    /// Bytes that went before.
    offset: u32,
}

impl Queues {
    pub(super) fn new(limits: OutboundLimits) -> Self {
        Self {
            limits,
            control: VecDeque::new(),
            data: VecDeque::new(),
            bulk: VecDeque::new(),
            held: VecDeque::new(),
            to_write: 0,
            written: 0,
            body_bytes: 0,
            in_a_row: 0,
        }
    }

    /// Whether a message of this class is taken.
    pub(super) fn has_room_for(&self, class: Class) -> bool {
        let OutboundLimits { messages, bytes, .. } = self.limits;
        match class {
            Class::Data => {
                let queued = self.data.len() + self.bulk.len() + self.held.len();
                let count = queued + self.written;
                count < messages && self.body_bytes < bytes
            }
            Class::Control | Class::Credit(_) => self.control.len() < messages,
        }
    }

    /// Whether a message of any class is taken.
    pub(super) fn has_room(&self) -> bool {
        self.has_room_for(Class::Data) && self.has_room_for(Class::Control)
    }

    /// Whether the frame of a message has room for [an offer](Frame::offer).
    pub(super) fn has_room_for_offer(&self, message: &Message) -> bool {
        self.limits.len_of_first(message) + Frame::OFFER_LEN <= self.limits.frame
    }

    /// Queues a message.
    ///
    /// # Errors
    ///
    /// It cannot be sent at all.
    pub(super) fn push(&mut self, mut message: Message) -> Result<(), Error> {
        frame::make_sendable(&mut message, &self.limits)?;
        if let Head::Window { call, granted } = message.head
            && self.renew_window(call, granted)
        {
            return Ok(());
        }
        let call = message.head.call();
        let follows_own_call =
            || call.is_some() && self.data.iter().any(|unit| unit.call() == call);
        let class = class_of_head(&message.head);
        if class == Class::Control && !follows_own_call() {
            self.control.push_back(message);
        } else {
            self.body_bytes += message.body.len();
            self.to_write += usize::from(self.limits.is_written(&message));
            self.data.push_back(Unit::Message(message));
        }
        Ok(())
    }

    /// Takes the place of a WINDOW of the same call that has not gone out, if there is one.
    fn renew_window(&mut self, call: CallId, granted: u64) -> bool {
        let older = self.data.iter_mut().find_map(|unit| match unit {
            Unit::Message(Message { head: Head::Window { call: of, granted }, .. })
                if *of == call =>
            {
                Some(granted)
            }
            _ => None,
        });
        older.is_some_and(|older| {
            *older = granted.max(*older);
            true
        })
    }

    /// Gives up the call's long bodies: those that have not begun with their heads, one of which the peer knows with
    /// ABORTED. Returns the bytes that will not be sent.
    pub(super) fn revoke(&mut self, call: CallId) -> usize {
        let limits = self.limits;
        let (mut given_up, mut to_write) = (0, self.to_write);
        self.data.retain(|unit| match unit {
            Unit::Message(message)
                if message.head.call() == Some(call) && limits.goes_in_pieces(message) =>
            {
                given_up += message.body.len();
                to_write -= usize::from(limits.is_written(message));
                false
            }
            _ => true,
        });
        self.held.retain(|message| {
            let goes_on = message.head.call() != Some(call);
            given_up += if goes_on { 0 } else { message.body.len() };
            goes_on
        });
        let at = self.bulk.iter().position(|bulk| bulk.call == call);
        if let Some(bulk) = at.and_then(|at| self.bulk.remove(at)) {
            given_up += bulk.reader.remaining();
            self.data.push_back(Unit::Aborted { call, offset: bulk.offset });
        }
        self.body_bytes -= given_up;
        self.to_write = to_write;
        given_up
    }

    /// The next message, if its body is to be written. Its room is taken until [`handle_written`](Self::handle_written).
    pub(super) fn take_to_write(&mut self) -> Option<Message> {
        if self.to_write == 0 {
            return None;
        }
        let limits = self.limits;
        let is_next =
            |unit: &&Unit| matches!(unit, Unit::Message(message) if limits.is_written(message));
        self.data.front().filter(is_next)?;
        let Unit::Message(message) = self.data.pop_front()? else { return None };
        self.to_write -= 1;
        self.written += 1;
        Some(message)
    }

    /// A body of so many bytes is written, or will not be.
    pub(super) fn handle_written(&mut self, len: usize) {
        self.written -= 1;
        self.body_bytes -= len;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty() && self.bulk.is_empty()
    }

    /// Whether data waits.
    pub(super) fn has_data(&self) -> bool {
        !self.data.is_empty() || !self.bulk.is_empty()
    }

    /// Whether there is something that `may_send` allows.
    pub(super) fn has_frame(&self, may_send: impl Fn(Class) -> bool) -> bool {
        let control = !self.control.is_empty() && may_send(Class::Control);
        let short = self.data.front().is_some_and(|unit| may_send(unit.class()));
        control || short || (!self.bulk.is_empty() && may_send(Class::Data))
    }

    /// Appends the next frame that `may_send` allows to `out`: frames are long, and each move of one is a copy.
    pub(super) fn take(
        &mut self,
        may_send: impl Fn(Class) -> bool,
        out: &mut Vec<Frame>,
    ) -> Option<Class> {
        if let Some(class) = self.take_control(&may_send, out) {
            return Some(class);
        }
        if self.in_a_row >= SHORT_IN_A_ROW {
            self.take_piece(&may_send, out).or_else(|| self.take_short(&may_send, out))
        } else {
            self.take_short(&may_send, out).or_else(|| self.take_piece(&may_send, out))
        }
    }

    /// The same without pieces of long bodies.
    pub(super) fn take_whole(
        &mut self,
        may_send: impl Fn(Class) -> bool,
        out: &mut Vec<Frame>,
    ) -> Option<Class> {
        self.take_control(&may_send, out).or_else(|| self.take_short(&may_send, out))
    }

    fn take_control(
        &mut self,
        may_send: impl Fn(Class) -> bool,
        out: &mut Vec<Frame>,
    ) -> Option<Class> {
        if !may_send(Class::Control) {
            return None;
        }
        out.push(Frame::whole(self.control.pop_front()?));
        Some(Class::Control)
    }

    /// The next whole frame in the order of data, or the head of a body that goes in pieces. The front is no message
    /// whose body is written: those were taken before.
    fn take_short(
        &mut self,
        may_send: impl Fn(Class) -> bool,
        out: &mut Vec<Frame>,
    ) -> Option<Class> {
        self.hold_back()?;
        let class = self.data.front()?.class();
        if !may_send(class) {
            return None;
        }
        self.in_a_row += 1;
        let message = match self.data.pop_front()? {
            Unit::Aborted { call, offset } => {
                out.push(Frame::aborted(call, offset));
                return Some(class);
            }
            Unit::Message(message) => message,
        };
        let in_pieces = self.limits.goes_in_pieces(&message);
        // Made where it stays.
        out.push(Frame::whole(message));
        let frame = out.last_mut()?;
        if let (true, Some(call)) = (in_pieces, frame.call()) {
            let reader = frame.leave_body().reader();
            self.bulk.push_back(Bulk { call, reader, offset: 0 });
        } else {
            self.body_bytes -= frame.body_len();
        }
        Some(class)
    }

    /// Moves messages from the front whose bodies would go in pieces beside another body of their call. `None` if
    /// that brings one to the front whose body is to be written.
    fn hold_back(&mut self) -> Option<()> {
        let mut moved = false;
        while let (false, Some(Unit::Message(message))) = (self.bulk.is_empty(), self.data.front())
        {
            if self.limits.is_written(message) {
                return (!moved).then_some(());
            }
            let has_body = self.bulk.iter().any(|bulk| Some(bulk.call) == message.head.call());
            if !has_body || !self.limits.goes_in_pieces(message) {
                break;
            }
            if let Some(Unit::Message(message)) = self.data.pop_front() {
                self.held.push_back(message);
            }
            moved = true;
        }
        Some(())
    }

    /// The next piece of the body whose turn it is.
    fn take_piece(
        &mut self,
        may_send: impl Fn(Class) -> bool,
        out: &mut Vec<Frame>,
    ) -> Option<Class> {
        if self.bulk.is_empty() || !may_send(Class::Data) {
            return None;
        }
        self.in_a_row = 0;
        let mut bulk = self.bulk.pop_front()?;
        let (call, offset) = (bulk.call, bulk.offset);
        let (frame, is_last) = Frame::piece(call, offset, &mut bulk.reader, self.limits.piece());
        self.body_bytes -= frame.body_len();
        if is_last {
            let at = self.held.iter().position(|message| message.head.call() == Some(call));
            let next = at.and_then(|at| self.held.remove(at));
            next.into_iter().for_each(|next| self.data.push_front(Unit::Message(next)));
        } else {
            bulk.offset += frame.header.body_len;
            self.bulk.push_back(bulk);
        }
        out.push(frame);
        Some(Class::Data)
    }

    /// Drops everything.
    pub(super) fn discard(&mut self) {
        *self = Self::new(self.limits);
    }
}

impl OutboundLimits {
    /// Bytes of a message's frame, or of its first one.
    fn len_of_first(&self, message: &Message) -> usize {
        let body = if self.goes_in_pieces(message) { 0 } else { message.body.len() };
        len_before_body(message) + body
    }

    fn goes_in_pieces(&self, message: &Message) -> bool {
        let (before, len) = (len_before_body(message), message.body.len());
        // GOAWAY has no call to which pieces could belong; its words were cut to fit.
        message.head.call().is_some() && (len > self.frame_body || before + len > self.frame)
    }

    /// Whether the body is to be written: it is long, and what its head says besides fits a frame.
    fn is_written(&self, message: &Message) -> bool {
        let (is_call, len) = match message.head {
            Head::Request { .. } | Head::Response { .. } | Head::Message { .. } => {
                (true, message.body.len())
            }
            _ => (false, 0),
        };
        is_call
            && len > self.in_pieces
            && self.goes_in_pieces(message)
            && len_before_body(message) + MAX_EXTRAS <= self.frame
    }

    fn piece(&self) -> usize {
        self.frame_body.min(self.frame - HEADER_LEN)
    }
}

/// Bytes of a message's frame before its body, what it says of grants apart.
pub(super) fn len_before_body(message: &Message) -> usize {
    HEADER_LEN
        + usize::from(head::tlv_len(&message.head, message.encoding))
        + message.metadata.len()
}

impl Unit {
    fn call(&self) -> Option<CallId> {
        match self {
            Self::Message(message) => message.head.call(),
            Self::Aborted { .. } => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Message(message) => class_of_head(&message.head),
            Self::Aborted { .. } => Class::Data,
        }
    }
}
