//! What the stage does about bodies that are written: it asks [`Rendezvous`], under the stage's lock.
//!
//! Once the connection has ended and the endpoint has it, there is nothing to ask.

use std::mem;
use std::task::Waker;

use tokio::time::Instant;
use verbwire_core::message::{CallId, Message};
use verbwire_core::transport::Placement;
use verbwire_core::wire::Kind;

use super::{Frame, Outbound};
use crate::nic::{SendOp, Signal};
use crate::pool::StagingBuf;
use crate::proto::credit::Class;
use crate::proto::rendezvous::wire::RtsNumber;
use crate::proto::rendezvous::{BodyLen, TransferId, Violation};
use crate::rendezvous::{Arrival, Came, InvalidationId, NextWrite, Region, Rendezvous, Settled};

impl Outbound {
    /// The next Write; it is being posted, behind all frames that were taken.
    pub(crate) fn next_write(&mut self) -> NextWrite {
        if self.end.is_some() || self.slots.free() == 0 {
            return NextWrite::Nothing;
        }
        let Some(rendezvous) = &mut self.rendezvous else { return NextWrite::Nothing };
        let next = rendezvous.take_write();
        if let NextWrite::Write(_) = next {
            self.slots.handle_post(Signal::Yes);
        }
        next
    }

    /// The next bind; it is being posted, before any frame that is taken from now on.
    pub(crate) fn next_bind(&mut self) -> Option<(SendOp, Signal)> {
        if self.end.is_some() || self.slots.free() == 0 {
            return None;
        }
        let bind = self.rendezvous.as_mut()?.take_bind()?;
        Some((bind, self.slots.handle_post(Signal::No)))
    }

    /// The next invalidation; it is being posted, signalled.
    pub(crate) fn next_invalidation(&mut self) -> Option<(InvalidationId, SendOp)> {
        if self.end.is_some() || self.slots.free() == 0 {
            return None;
        }
        let invalidation = self.rendezvous.as_mut()?.take_invalidation()?;
        self.slots.handle_post(Signal::Yes);
        Some(invalidation)
    }

    /// These invalidations have succeeded.
    pub(crate) fn handle_invalidated(&mut self, invalidated: &[InvalidationId]) {
        if let Some(rendezvous) = &mut self.rendezvous {
            invalidated.iter().for_each(|id| rendezvous.handle_invalidated(*id));
        }
    }

    /// Whether a window has to be bound before any frame goes out.
    pub(super) fn has_bind(&self) -> bool {
        self.rendezvous.as_ref().is_some_and(Rendezvous::has_bind)
    }

    /// What must be kept until the queue pair is destroyed.
    pub(crate) fn take_rendezvous(&mut self) -> Option<Rendezvous> {
        self.rendezvous.take()
    }

    /// Writes of these transfers, one for each time that it is named, are complete or flushed.
    pub(crate) fn handle_written(&mut self, written: &[TransferId]) {
        if let Some(rendezvous) = &mut self.rendezvous {
            written.iter().for_each(|transfer| rendezvous.handle_written(*transfer));
        }
    }

    /// Something arrived while long bodies are under way.
    pub(crate) fn handle_arrival(&mut self, now: Instant) {
        if let Some(rendezvous) = &mut self.rendezvous {
            rendezvous.handle_arrival(now);
        }
    }

    /// Takes what a peer says about long bodies.
    ///
    /// # Errors
    ///
    /// The peer may not say it.
    pub(crate) fn arrived(&mut self, arrival: Arrival, now: Instant) -> Result<Came, Violation> {
        match &mut self.rendezvous {
            Some(rendezvous) => rendezvous.handle(arrival, now),
            None => Ok(Came::Nothing),
        }
    }

    /// See [`Rendezvous::place`].
    pub(crate) fn place(
        &mut self,
        announced: (Message, RtsNumber, BodyLen),
        placement: Placement,
        now: Instant,
    ) {
        if let Some(rendezvous) = &mut self.rendezvous {
            rendezvous.place(announced, placement, now);
        }
    }

    /// See [`Rendezvous::grant`]; gives back what nobody waits for.
    pub(crate) fn grant(&mut self, rts: RtsNumber, region: Region) -> Option<Region> {
        match &mut self.rendezvous {
            Some(rendezvous) => rendezvous.grant(rts, region),
            None => Some(region),
        }
    }

    /// See [`Rendezvous::lacks_standing`].
    pub(crate) fn lacks_standing(&self) -> bool {
        self.rendezvous.as_ref().is_some_and(Rendezvous::lacks_standing)
    }

    /// See [`Rendezvous::stand`]; gives back what nobody gives any more.
    pub(crate) fn stand(&mut self, len: BodyLen, region: Region) -> Option<Region> {
        match &mut self.rendezvous {
            Some(rendezvous) => {
                rendezvous.stand(len, region);
                None
            }
            None => Some(region),
        }
    }

    /// See [`Rendezvous::recall_standing`].
    pub(crate) fn recall_standing(&mut self, now: Instant) {
        if let Some(rendezvous) = &mut self.rendezvous {
            rendezvous.recall_standing(now);
        }
    }

    /// See [`Rendezvous::give_up`].
    pub(crate) fn give_up(&mut self, rts: RtsNumber, now: Instant) -> Option<Message> {
        self.rendezvous.as_mut()?.give_up(rts, now)
    }

    /// See [`Rendezvous::set_reserve`].
    pub(crate) fn set_reserve(&mut self, reserve: StagingBuf) -> Option<StagingBuf> {
        match &mut self.rendezvous {
            Some(rendezvous) => rendezvous.set_reserve(reserve),
            None => Some(reserve),
        }
    }

    /// See [`Rendezvous::settle`]; also returns who waited for room that is there now.
    pub(crate) fn settle(&mut self, now: Instant, out: &mut Settled) -> Vec<Waker> {
        if let Some(rendezvous) = &mut self.rendezvous {
            rendezvous.settle(now, out);
        }
        if self.end.is_none() {
            out.sources.iter().for_each(|source| self.queues.handle_written(source.len()));
        }
        if !out.sources.is_empty() && self.queues.has_room() {
            mem::take(&mut self.waiting)
        } else {
            Vec::new()
        }
    }

    /// Bodies that are to be written by the peer and are not here.
    pub(crate) fn open_bodies(&self) -> usize {
        self.rendezvous.as_ref().map_or(0, Rendezvous::open_bodies)
    }

    /// See [`Rendezvous::needed_reserve`].
    pub(crate) fn needed_reserve(&self) -> Option<usize> {
        self.rendezvous.as_ref().and_then(Rendezvous::needed_reserve)
    }

    /// Whether a frame or a Write is due for a long body.
    pub(crate) fn has_work_of_grants(&self) -> bool {
        self.end.is_none() && self.rendezvous.as_ref().is_some_and(Rendezvous::has_work)
    }

    /// Whether completions of Writes or invalidations are needed.
    pub(crate) fn awaits_writes(&self) -> bool {
        self.rendezvous.as_ref().is_some_and(Rendezvous::awaits_writes)
    }

    /// Whether something is staged that waits for the peer, if for anything.
    pub(crate) fn waits_for_peer(&self) -> bool {
        let has_frame = |rendezvous: &Rendezvous| rendezvous.has_frame(|_| true);
        match &self.end {
            Some(end) => !end.released,
            None => {
                !self.queues.is_empty()
                    || self.credits.poll_credit().is_some()
                    || self.has_loan()
                    || self.rendezvous.as_ref().is_some_and(has_frame)
            }
        }
    }

    /// Begins with the bodies that are to be written, and takes the next frame about one.
    pub(super) fn take_of_grants(&mut self) -> Option<(Class, Frame)> {
        let rendezvous = self.rendezvous.as_mut()?;
        while let Some(message) = self.queues.take_to_write() {
            rendezvous.begin(message);
        }
        if !rendezvous.is_busy() {
            return None;
        }
        rendezvous.take_frame(|class| self.credits.may_send(class))
    }

    /// A RESPONSE says if it does not use the grant that came with its request, and a REQUEST offers one.
    pub(super) fn add_grants(&mut self, frame: &mut Frame) {
        let Some(rendezvous) = self.rendezvous.as_mut().filter(|rendezvous| rendezvous.is_busy())
        else {
            return;
        };
        let call = frame.header.call;
        match frame.header.kind {
            Kind::Response => {
                let unused = rendezvous.decline(call);
                unused.into_iter().for_each(|unused| frame.decline(unused));
            }
            // There are offers for REQUESTs only that have room for them: see `push_offering`.
            Kind::Request if rendezvous.has_offers() => {
                let offer = rendezvous.advertise(call);
                offer.into_iter().for_each(|grant| frame.offer(grant));
            }
            _ => {}
        }
    }

    /// A call's reply is here without having used the grant that its REQUEST brought.
    pub(crate) fn reply_came(&mut self, call: CallId, now: Instant) {
        if let Some(rendezvous) = &mut self.rendezvous {
            rendezvous.revoke_advertised(call, now);
        }
    }
}
