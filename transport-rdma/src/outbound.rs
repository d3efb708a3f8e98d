//! What waits to be sent: two queues of messages, bodies that go in pieces, and what may go out now.
//!
//! Pure: messages and completions in, frames out. [`Outbound`] is the stage of the connection's post queue,
//! so all of it runs under a lock that many tasks want; bytes are copied elsewhere ([`Frame::encode`]).
//!
//! A frame goes out when the peer has a receive for it ([`Credits`]) and there is a free slot and buffer
//! ([`SendQueue`], which counts both). In this order:
//!
//! * control (CANCEL, CANCELLED, GOAWAY), which has a window of its own. It overtakes data, but never a message
//!   of its own call: then it waits behind that one.
//! * data that fits one frame, in order; and after every few of those, or when none waits, one piece of a
//!   longer body, the bodies in turns. So a short message waits for one piece at most, and long bodies
//!   still advance under a steady stream of short messages.
//! * CREDIT, if a debt is due and nothing above told the count.
//!
//! LEND and BORROW go before all of these: each lets others go on.

mod frame;
mod loans;
mod long;
mod queues;

use std::mem;
use std::task::Waker;

use tokio::time::Instant;
use verbwire_core::Error;
use verbwire_core::message::CallId;
use verbwire_core::transport::post::Staged;
use verbwire_core::transport::{Outgoing, SendError};

use crate::decoder::{Account, class_of_head};
use crate::error::ReceiveError;
use crate::nic::Signal;
use crate::proto::credit::loan::Loan;
use crate::proto::credit::{Class, Credits, Window};
use crate::proto::send_queue::SendQueue;
use crate::receiver::Replies;
use crate::rendezvous::{Offer, Rendezvous};

pub(crate) use frame::{Encoded, Frame};
pub(crate) use loans::Asked;
use queues::Queues;
pub(crate) use queues::{OutboundLimits, ZERO_COPY};

/// Frames that one post carries at most. 16: the cost of ringing the device vanishes in it.
pub(crate) const BATCH: usize = 16;

/// The stage of a connection's post queue.
#[derive(Debug)]
pub(crate) struct Outbound {
    queues: Queues,
    /// `None` once the endpoint has it.
    rendezvous: Option<Rendezvous>,
    credits: Credits,
    slots: SendQueue,
    /// What the peer has said of loans since the driver took it.
    asked: Asked,
    /// See [`OutboundLimits`].
    signal_from: usize,
    /// Who waits for room.
    waiting: Vec<Waker>,
    end: Option<End>,
}

/// How and why nothing more goes out.
#[derive(Debug)]
struct End {
    cause: Error,
    how: EndKind,
    /// Whether the poster has let the queue pair go.
    released: bool,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndKind {
    /// This side closed it: nothing is received any more.
    Closed,
    /// The queue pair is dead: what the peer sent before may still be received.
    Broken,
}

/// How the stage is at a moment.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) ended: Option<(EndKind, Error)>,
    /// See [`Rendezvous::is_busy`].
    pub(crate) is_busy: bool,
    pub(crate) replies: Replies,
}

/// What revoking a call changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    /// Nothing: no body of it waited.
    Nothing,
    /// A body is given up: there is something to send, or room.
    Body,
}

/// What the poster does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing is staged.
    Idle,
    /// Something is staged, and has to wait for credits or slots.
    Blocked,
    /// There are frames to post, and more is staged.
    Post,
    /// There is no frame to post, but a Write, or a window to be invalidated.
    Write,
    /// There are windows to be bound, before any frame.
    Bind,
    /// There are frames to post, and nothing else is staged.
    PostLast,
    /// The connection has ended; the poster lets the queue pair go.
    End(EndKind),
}

/// When the next frame may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextPost {
    Now,
    /// When sends have completed: no slot or buffer is free.
    AfterSends,
    /// When the peer has a receive for it.
    AfterCredits,
    /// When there is memory for a Write.
    AfterMemory,
}

impl Outbound {
    /// An empty stage; `slots` counts free work requests and buffers, whichever are fewer.
    pub(crate) fn new(
        limits: OutboundLimits,
        credits: Credits,
        slots: SendQueue,
        rendezvous: Rendezvous,
    ) -> Self {
        let signal_from = limits.signal_from;
        let (queues, rendezvous) = (Queues::new(limits), Some(rendezvous));
        Self {
            queues,
            rendezvous,
            credits,
            slots,
            asked: Asked::default(),
            signal_from,
            waiting: Vec::new(),
            end: None,
        }
    }

    /// Stages a REQUEST with memory for its reply; gives back the memory if it is not needed, or if the REQUEST cannot
    /// say where it is.
    ///
    /// That is decided now and not when the REQUEST goes out: memory that its peer is not told of would be kept until the
    /// reply is here, and the reply may be waiting for just that memory.
    pub(crate) fn push_offering(
        &mut self,
        outgoing: Outgoing,
        offer: Offer,
    ) -> (Result<(), SendError>, Option<Offer>) {
        let call = outgoing.message.head.call();
        let has_room = self.queues.has_room_for_offer(&outgoing.message);
        let pushed = self.push(outgoing);
        match (call, &mut self.rendezvous) {
            (Some(call), Some(rendezvous))
                if pushed.is_ok() && has_room && rendezvous.may_offer() =>
            {
                rendezvous.offer(call, offer);
                (pushed, None)
            }
            _ => (pushed, Some(offer)),
        }
    }

    /// Stages a message.
    pub(crate) fn push(&mut self, outgoing: Outgoing) -> Result<(), SendError> {
        if let Some(end) = &self.end {
            return Err(SendError::Closed(end.cause.clone()));
        }
        let class = class_of_head(&outgoing.message.head);
        if !self.queues.has_room_for(class) {
            return Err(SendError::Full(Box::new(outgoing)));
        }
        self.queues.push(outgoing.message).map_err(SendError::Closed)
    }

    /// Why the connection has ended, if it has.
    pub(crate) fn ended(&self) -> Option<(EndKind, &Error)> {
        self.end.as_ref().map(|end| (end.how, &end.cause))
    }

    /// How the stage is now.
    pub(crate) fn standing(&self) -> Standing {
        let ended = self.ended().map(|(how, cause)| (how, cause.clone()));
        let replies = match self.rendezvous.as_ref().is_some_and(Rendezvous::has_advertised) {
            true => Replies::Watched,
            false => Replies::Ignored,
        };
        Standing { ended, is_busy: self.is_busy(), replies }
    }

    /// Whether nothing is under way but messages that are posted.
    pub(crate) fn is_quiet(&self) -> bool {
        self.end.is_none() && !self.is_busy() && !self.has_work()
    }

    /// Whether long bodies are under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.rendezvous.as_ref().is_some_and(Rendezvous::is_busy)
    }

    /// Whether to wait for room; then `waker` is woken when there is some.
    pub(crate) fn wait(&mut self, waker: &Waker) -> bool {
        if self.end.is_some() || self.queues.has_room() {
            return false;
        }
        if !self.waiting.iter().any(|other| other.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
        true
    }

    /// Gives up the call's long bodies: one that is not sent, and one that has not come.
    pub(crate) fn revoke(&mut self, call: CallId, now: Instant) -> Revoked {
        let queued = self.queues.revoke(call) > 0;
        let busy = self.rendezvous.as_mut().filter(|rendezvous| rendezvous.is_busy());
        let revoked = busy.is_some_and(|rendezvous| rendezvous.revoke(call, now));
        if queued || revoked { Revoked::Body } else { Revoked::Nothing }
    }

    /// Ends the stage, unless it has ended before; returns who waited for room.
    ///
    /// After [`EndKind::Broken`] a `Closed` still counts, with the first cause.
    pub(crate) fn end(&mut self, how: EndKind, cause: Error) -> Vec<Waker> {
        match &mut self.end {
            Some(end) if how == EndKind::Closed => end.how = how,
            Some(_) => {}
            None => self.end = Some(End { cause, how, released: false }),
        }
        mem::take(&mut self.waiting)
    }

    /// Appends up to [`BATCH`] frames that may go out now to `frames`, which is empty; also returns who waited
    /// for room that is there now.
    pub(crate) fn next(&mut self, frames: &mut Vec<Frame>) -> (Next, Vec<Waker>) {
        if let Some(end) = &mut self.end {
            if end.released {
                return (Next::Idle, Vec::new());
            }
            end.released = true;
            return (Next::End(end.how), Vec::new());
        }
        if self.has_bind() {
            let next = if self.slots.free() > 0 { Next::Bind } else { Next::Blocked };
            return (next, Vec::new());
        }
        let mut is_done = false;
        while !is_done && frames.len() < BATCH && self.slots.free() > 0 {
            let taken = self.take_frame(frames);
            let (Some(class), Some(frame)) = (taken, frames.last_mut()) else { break };
            self.sent(class, frame, Signal::No);
            // Cheaper than to find that there is no frame to take.
            is_done = !self.has_work();
        }
        let next = match (frames.is_empty(), !is_done && self.has_work()) {
            (false, true) => Next::Post,
            (false, false) => Next::PostLast,
            (true, true) if self.has_write() => Next::Write,
            (true, true) => Next::Blocked,
            (true, false) => Next::Idle,
        };
        let woken = if self.queues.has_room() { mem::take(&mut self.waiting) } else { Vec::new() };
        (next, woken)
    }

    /// The last frames of a connection that is closed: all messages that may go out without waiting, long
    /// bodies apart. The last frame says when it is sent; if there is none, and the last one that was posted
    /// does not say so, one that does is made up: a CREDIT if the peer has a receive for one, else a BORROW, since
    /// its receiver counts a CREDIT as what it is, whatever window was free.
    pub(crate) fn last(&mut self, frames: &mut Vec<Frame>) {
        while self.slots.free() > 0 {
            let taken = self.queues.take_whole(|class| self.credits.may_send(class), frames);
            let (Some(class), Some(frame)) = (taken, frames.last_mut()) else { break };
            self.sent(class, frame, Signal::Yes);
        }
        let room = [Class::Credit(Window::Data), Class::Credit(Window::Control), Class::Control];
        let class = room.into_iter().find(|class| self.credits.may_send(*class));
        if let (true, Some(class)) = (self.slots.ends_unsignalled() && self.slots.free() > 0, class)
        {
            let mut frame = match class {
                Class::Control => Frame::of_loan(Loan::Borrow(self.credits.last_borrow())),
                Class::Credit(_) | Class::Data => Frame::credit(),
            };
            self.sent(class, &mut frame, Signal::Yes);
            frames.push(frame);
        }
    }

    /// Drops what is staged: it will not be sent.
    pub(crate) fn discard(&mut self) {
        self.queues.discard();
    }

    /// This many sends, the oldest, are done.
    pub(crate) fn handle_sent(&mut self, count: u32) {
        let mut freed = 0;
        // One completion frees several runs where the device lost the ones before it.
        while freed < count {
            match self.slots.handle_completed() {
                0 => return,
                run => freed += run,
            }
        }
    }

    /// A frame came in, and its receive is posted again.
    ///
    /// # Errors
    ///
    /// The peer counts wrongly, or has sent what it had no right to: the connection ends.
    pub(crate) fn handle_received(&mut self, account: Account) -> Result<(), ReceiveError> {
        self.credits.handle_reposted(account.class)?;
        self.credits.handle_count(account.count)?;
        account.loan.map_or(Ok(()), |loan| self.handle_loan(loan))
    }

    /// When the next frame may go out, of a stage that has work.
    pub(crate) fn next_post(&self) -> NextPost {
        let may_send = |class| self.credits.may_send(class);
        let has_frame = |rendezvous: &Rendezvous| rendezvous.has_frame(may_send);
        let is_allowed = self.has_bind()
            || self.queues.has_frame(may_send)
            || self.credits.poll_credit().is_some()
            || (self.has_loan() && may_send(Class::Control))
            || self.rendezvous.as_ref().is_some_and(has_frame);
        let has_write = self.rendezvous.as_ref().is_some_and(Rendezvous::has_write);
        match (is_allowed, has_write, self.slots.free()) {
            (false, false, _) => NextPost::AfterCredits,
            (_, _, 0) => NextPost::AfterSends,
            // A Write goes out whenever the driver posts, unless there is no memory for it.
            (false, true, _) => NextPost::AfterMemory,
            (true, _, _) => NextPost::Now,
        }
    }

    fn has_work(&self) -> bool {
        !self.queues.is_empty()
            || self.credits.poll_credit().is_some()
            || self.has_loan()
            || self.rendezvous.as_ref().is_some_and(Rendezvous::has_work)
    }

    fn has_write(&self) -> bool {
        self.slots.free() > 0 && self.rendezvous.as_ref().is_some_and(Rendezvous::has_write)
    }

    /// Accounts for a frame that goes out.
    fn sent(&mut self, class: Class, frame: &mut Frame, wanted: Signal) {
        frame.header.credits = self.credits.handle_sent(class);
        let is_registered = |bytes: &_| {
            self.rendezvous.as_ref().is_some_and(|rendezvous| rendezvous.is_registered(bytes))
        };
        let must = frame.len() >= self.signal_from || frame.has_long_segment(is_registered);
        let wanted = if must { Signal::Yes } else { wanted };
        frame.signal = self.slots.handle_post(wanted);
    }

    /// Appends the next frame for which the peer has a receive to `out`.
    fn take_frame(&mut self, out: &mut Vec<Frame>) -> Option<Class> {
        if let Some((class, frame)) = self.take_of_loans().or_else(|| self.take_of_grants()) {
            out.push(frame);
            return Some(class);
        }
        if let Some(class) = self.queues.take(|class| self.credits.may_send(class), out) {
            out.last_mut().into_iter().for_each(|frame| self.add_grants(frame));
            return Some(class);
        }
        let window = self.credits.poll_credit()?;
        out.push(Frame::credit());
        Some(Class::Credit(window))
    }
}

impl Staged for Outbound {
    /// An ended stage has work for the poster until the queue pair is let go.
    fn is_empty(&self) -> bool {
        match &self.end {
            Some(end) => end.released,
            None => !self.has_work(),
        }
    }
}

#[cfg(test)]
mod tests;
