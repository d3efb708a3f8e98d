//! What waits to be written: frames in order, long bodies in turns.
//!
//! Pure: messages in, batches of bytes out. [`Outbound`] is the stage of the connection's post queue, so
//! all of it runs under a lock that many tasks want; nothing here allocates per message once the
//! buffers have grown to the load.
//!
//! A body of at most the frame limit goes out behind its head. A longer one goes in turns: its head
//! takes its place in the order, then every batch carries all frames that are staged and one piece of
//! one such body. So a small message waits for at most one piece, and bodies share the socket evenly. A call has
//! one such body at a time: of a stream, further ones are held, heads and all, and shorter messages pass them.

mod batch;

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use bytes::Buf;
use verbwire_core::buf::{BY_REFERENCE, Body, BodyReader};
use verbwire_core::message::{CallId, Message};
use verbwire_core::proto::hello::MIN_FRAME_BODY;
use verbwire_core::transport::post::Staged;
use verbwire_core::transport::{Outgoing, SendError};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Hello, Kind, head};
use verbwire_core::{Error, ErrorKind};

use crate::config::TcpConfig;

pub(crate) use batch::{Batch, SLICES};

/// The stage of a connection's post queue.
#[derive(Debug)]
pub(crate) struct Outbound {
    limits: OutboundLimits,
    /// Whole frames, in the order in which they were accepted.
    frames: Batch,
    /// Bodies that go in pieces; the next piece is the first one's.
    bulk: VecDeque<Bulk>,
    /// Messages with such bodies, of calls that have one in `bulk`.
    held: VecDeque<Message>,
    /// Bytes of `bulk` and `held` that no batch has yet.
    bulk_bytes: usize,
    /// Copied bytes of the batch that the poster has.
    writing: usize,
    /// Its bytes by reference.
    writing_referenced: usize,
    /// Who waits for room.
    waiting: Vec<Waker>,
    end: Option<End>,
}

/// What bounds the stage and its frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboundLimits {
    /// See `TcpConfig::send_queue_bytes`.
    pub(crate) queue_bytes: usize,
    /// See `TcpConfig::send_queue_body_bytes`.
    pub(crate) body_bytes: usize,
    /// Longest body in one frame, and longest piece.
    pub(crate) frame_body: usize,
}

impl OutboundLimits {
    /// The limits that two HELLOs and the settings of this side give.
    pub(crate) fn new(local: &Hello, peer: &Hello, config: &TcpConfig) -> Self {
        let frame_body = local.max_frame_body.min(peer.max_frame_body);
        Self {
            queue_bytes: config.send_queue_bytes,
            body_bytes: config.send_queue_body_bytes,
            frame_body: frame_body.max(MIN_FRAME_BODY) as usize,
        }
    }
}

/// A body that goes in pieces.
#[derive(Debug)]
struct Bulk {
    call: CallId,
    reader: BodyReader,
    /// Bytes that went before.
    offset: u32,
}

/// How and why nothing more goes out.
#[derive(Debug)]
struct End {
    cause: Error,
    how: EndKind,
    /// Whether the poster has let the socket go.
    released: bool,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndKind {
    /// This side closed it: nothing is received any more.
    Closed,
    /// Writing failed: what the peer sent before may still be received.
    Broken,
}

/// What revoking a call left to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    /// Nothing: no piece of it waited.
    Nothing,
    /// ABORTED, instead of the rest of its body.
    Aborted,
}

/// What the poster does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing is staged.
    Idle,
    /// The batch has bytes to write.
    Write,
    /// The connection has ended; the poster lets the socket go.
    End(EndKind),
}

impl Outbound {
    pub(crate) fn new(limits: OutboundLimits) -> Self {
        Self {
            limits,
            frames: Batch::default(),
            bulk: VecDeque::new(),
            held: VecDeque::new(),
            bulk_bytes: 0,
            writing: 0,
            writing_referenced: 0,
            waiting: Vec::new(),
            end: None,
        }
    }

    /// Stages a message.
    pub(crate) fn push(&mut self, outgoing: Outgoing) -> Result<(), SendError> {
        if let Some(end) = &self.end {
            return Err(SendError::Closed(end.cause.clone()));
        }
        let body_len = outgoing.message.body.len();
        let is_long = body_len >= BY_REFERENCE;
        if !self.has_room() || (is_long && !self.has_body_room()) {
            return Err(SendError::Full(Box::new(outgoing)));
        }
        let message = outgoing.message;
        let lengths = (u32::try_from(message.metadata.len()), u32::try_from(body_len));
        let (Ok(metadata_len), Ok(wire_len)) = lengths else {
            return Err(SendError::Closed(unsendable(&message)));
        };
        let mut header = head::header(&message.head, message.encoding);
        header.metadata_len = metadata_len;
        header.body_len = wire_len;
        // GOAWAY has no call to which pieces could belong; its words are cut by the core.
        let in_pieces = message.head.call().filter(|_| body_len > self.limits.frame_body);
        if let Some(call) = in_pieces {
            self.bulk_bytes += body_len;
            if self.bulk.iter().any(|bulk| bulk.call == call) {
                self.held.push_back(message);
            } else {
                let bulk = append_head(&mut self.frames, call, header, message);
                self.bulk.push_back(bulk);
            }
            return Ok(());
        }
        self.frames.copy(&header.encode());
        head::encode_tlvs(&message.head, message.encoding, self.frames.copied());
        self.frames.append(message.metadata);
        append_body(&mut self.frames, &message.body);
        Ok(())
    }

    /// Whether the next message is taken, if its body is short.
    pub(crate) fn has_room(&self) -> bool {
        self.writing + self.frames.copied_len() < self.limits.queue_bytes
    }

    /// Whether the next long body is taken as well.
    fn has_body_room(&self) -> bool {
        let staged = self.frames.referenced_len() + self.bulk_bytes;
        self.writing_referenced + staged < self.limits.body_bytes
    }

    /// Why the connection has ended, if it has.
    pub(crate) fn ended(&self) -> Option<(EndKind, &Error)> {
        self.end.as_ref().map(|end| (end.how, &end.cause))
    }

    /// Whether to wait for room; then `waker` is woken when there is some for messages of every length.
    pub(crate) fn wait(&mut self, waker: &Waker) -> bool {
        if self.end.is_some() || (self.has_room() && self.has_body_room()) {
            return false;
        }
        if !self.waiting.iter().any(|other| other.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
        true
    }

    /// Gives up what is left of the call's bodies; one of which the peer knows is ended with ABORTED.
    pub(crate) fn revoke(&mut self, call: CallId) -> Revoked {
        let bulk_bytes = &mut self.bulk_bytes;
        self.held.retain(|message| {
            let goes_on = message.head.call() != Some(call);
            *bulk_bytes -= if goes_on { 0 } else { message.body.len() };
            goes_on
        });
        let at = self.bulk.iter().position(|bulk| bulk.call == call);
        let Some(bulk) = at.and_then(|at| self.bulk.remove(at)) else {
            return Revoked::Nothing;
        };
        self.bulk_bytes -= bulk.reader.remaining();
        let header =
            Header { flags: Flags::ABORTED, aux: bulk.offset, ..Header::new(Kind::Data, call) };
        self.frames.copy(&header.encode());
        Revoked::Aborted
    }

    /// Ends the stage, unless it has ended before; returns who waited for room.
    ///
    /// After [`EndKind::Broken`] a `Closed` still counts, with the first cause.
    pub(crate) fn end(&mut self, how: EndKind, cause: Error) -> Vec<Waker> {
        match &mut self.end {
            Some(end) if how == EndKind::Closed => end.how = how,
            Some(_) => {}
            None => {
                let released = false;
                self.end = Some(End { cause, how, released });
            }
        }
        mem::take(&mut self.waiting)
    }

    /// Fills `batch` if it has nothing left to write; also returns who waited for room that is there now.
    pub(crate) fn next(&mut self, batch: &mut Batch) -> (Next, Vec<Waker>) {
        if let Some(end) = &mut self.end {
            if end.released {
                return (Next::Idle, Vec::new());
            }
            end.released = true;
            return (Next::End(end.how), Vec::new());
        }
        if !batch.is_written() {
            return (Next::Write, Vec::new());
        }
        self.take_frames(batch);
        self.take_piece(batch);
        self.writing_referenced = batch.referenced_len();
        let has_room = self.has_room() && self.has_body_room();
        let woken = if has_room { mem::take(&mut self.waiting) } else { Vec::new() };
        let next = if batch.is_written() { Next::Idle } else { Next::Write };
        (next, woken)
    }

    /// Moves all whole frames into `batch`, which has been written.
    pub(crate) fn take_frames(&mut self, batch: &mut Batch) {
        batch.clear();
        mem::swap(batch, &mut self.frames);
        self.writing = batch.copied_len();
    }

    /// Drops what is staged: it will not be sent.
    pub(crate) fn discard(&mut self) {
        self.frames = Batch::default();
        self.bulk = VecDeque::new();
        self.held = VecDeque::new();
        self.bulk_bytes = 0;
        self.writing = 0;
        self.writing_referenced = 0;
    }

    /// Appends the next piece of the body whose turn it is.
    fn take_piece(&mut self, batch: &mut Batch) {
        let Some(mut bulk) = self.bulk.pop_front() else {
            return;
        };
        let len = bulk.reader.remaining().min(self.limits.frame_body);
        self.bulk_bytes -= len;
        let wire_len = u32::try_from(len).expect("bodies are at most u32::MAX bytes, see push");
        let is_last = len == bulk.reader.remaining();
        let header = Header {
            flags: if is_last { Flags::LAST } else { Flags::default() },
            aux: bulk.offset,
            body_len: wire_len,
            ..Header::new(Kind::Data, bulk.call)
        };
        batch.copy(&header.encode());
        append_run(batch, &mut bulk.reader, len);
        if is_last {
            self.release(bulk.call, batch);
        } else {
            bulk.offset += wire_len;
            self.bulk.push_back(bulk);
        }
    }

    /// A body of the call has ended: its next one may begin.
    fn release(&mut self, call: CallId, batch: &mut Batch) {
        let at = self.held.iter().position(|message| message.head.call() == Some(call));
        let Some(message) = at.and_then(|at| self.held.remove(at)) else { return };
        let length = |len| u32::try_from(len).expect("checked when the message was staged");
        let mut header = head::header(&message.head, message.encoding);
        header.metadata_len = length(message.metadata.len());
        header.body_len = length(message.body.len());
        let bulk = append_head(batch, call, header, message);
        self.bulk.push_back(bulk);
    }
}

impl Staged for Outbound {
    /// An ended stage has work for the poster until the socket is let go.
    fn is_empty(&self) -> bool {
        match &self.end {
            Some(end) => end.released,
            None => self.frames.is_written() && self.bulk.is_empty(),
        }
    }
}

/// Appends a message whose body goes in pieces, up to the body.
fn append_head(batch: &mut Batch, call: CallId, mut header: Header, message: Message) -> Bulk {
    header.flags = header.flags.with(Flags::BODY_FOLLOWS);
    batch.copy(&header.encode());
    head::encode_tlvs(&message.head, message.encoding, batch.copied());
    batch.append(message.metadata);
    Bulk { call, reader: message.body.reader(), offset: 0 }
}

fn append_body(batch: &mut Batch, body: &Body) {
    for segment in body.segments() {
        if segment.len() < BY_REFERENCE {
            batch.copy(segment);
        } else {
            batch.append(segment.clone());
        }
    }
}

/// Appends the next `len` bytes of a body.
fn append_run(batch: &mut Batch, reader: &mut BodyReader, len: usize) {
    let mut left = len;
    while left > 0 {
        let run = left.min(reader.chunk().len());
        if run < BY_REFERENCE {
            batch.copy(&reader.chunk()[..run]);
            reader.advance(run);
        } else {
            batch.append(reader.copy_to_bytes(run));
        }
        left -= run;
    }
}

fn unsendable(message: &Message) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!(
            "a message of {} bytes with {} bytes of metadata cannot be sent, each may have 4 GiB - 1; \
             send it in parts",
            message.body.len(),
            message.metadata.len()
        ),
    )
}

#[cfg(test)]
mod tests;
