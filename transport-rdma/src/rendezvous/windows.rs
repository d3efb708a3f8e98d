//! Windows of granted regions: bound before the peer is told, invalidated before a region is anybody's again.
//!
//! ```text
//!   region ── bind ──► bind due ── posted ──► granted ── FIN, ABORT_ACK, unused ──► invalidation due
//!                         └─ taken back: free                  posted ── succeeded ──► free
//! ```
//!
//! Where there are no windows all this does nothing. Only a success counts: a region whose invalidation failed, or
//! whose queue pair died before, waits for the destruction of the queue pair.

use std::collections::VecDeque;

use verbwire_core::message::CallId;

use super::{LandedBody, Region};
use crate::nic::SendOp;
use crate::proto::rendezvous::Released;

/// An invalidation among those of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidationId(u64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Windows {
    binds: VecDeque<SendOp>,
    /// Invalidations that are not posted.
    due: VecDeque<Closing>,
    /// Invalidations in flight. Few: looked through.
    posted: Vec<(InvalidationId, Closing)>,
    /// Free, and not collected.
    done: Vec<Closing>,
    next: u64,
}

/// A region whose grant is closed.
#[derive(Debug)]
enum Closing {
    Released(Released<Region>),
    Landed(Box<LandedBody>),
}

impl Closing {
    fn region(&mut self) -> &mut Region {
        match self {
            Self::Released(released) => &mut released.region,
            Self::Landed(body) => body.region(),
        }
    }

    fn into_released(self) -> Released<Region> {
        match self {
            Self::Released(released) => released,
            Self::Landed(body) => body.into_released(),
        }
    }
}

impl Windows {
    /// Memory is about to be granted.
    pub(super) fn bind(&mut self, region: &mut Region) {
        self.binds.extend(region.bind());
    }

    /// A grant is closed without a body. Gives its region back if nobody can write to it.
    pub(super) fn retire(&mut self, mut released: Released<Region>) -> Option<Released<Region>> {
        if self.is_free(&mut released.region) {
            return Some(released);
        }
        self.due.push_back(Closing::Released(released));
        None
    }

    /// A body is there. Gives it back if nobody can write to it.
    pub(super) fn land(&mut self, mut body: Box<LandedBody>) -> Option<Box<LandedBody>> {
        if self.is_free(body.region()) {
            return Some(body);
        }
        self.due.push_back(Closing::Landed(body));
        None
    }

    /// Whether a region has no rights to end. A bind that is not posted is taken back.
    fn is_free(&mut self, region: &mut Region) -> bool {
        let Some(SendOp::Invalidate { rkey: of }) = region.invalidation() else { return true };
        let is_its = |op: &SendOp| matches!(op, SendOp::Bind { rkey, .. } if *rkey == of);
        let Some(at) = self.binds.iter().position(is_its) else { return false };
        self.binds.remove(at);
        region.unbind();
        true
    }

    /// The bodies of a call are not wanted. Says whether there was one.
    pub(super) fn give_up(&mut self, call: CallId) -> bool {
        let mut found = false;
        let posted = self.posted.iter_mut().map(|(_, closing)| closing);
        for closing in self.due.iter_mut().chain(posted).chain(&mut self.done) {
            if let Closing::Landed(body) = closing
                && body.message.head.call() == Some(call)
            {
                found = true;
                body.give_up();
            }
        }
        found
    }

    pub(super) fn has_bind(&self) -> bool {
        !self.binds.is_empty()
    }

    pub(super) fn take_bind(&mut self) -> Option<SendOp> {
        self.binds.pop_front()
    }

    pub(super) fn has_invalidation(&self) -> bool {
        !self.due.is_empty()
    }

    /// The next invalidation; it is being posted.
    pub(super) fn take_invalidation(&mut self) -> Option<(InvalidationId, SendOp)> {
        let mut closing = self.due.pop_front()?;
        let op = closing.region().invalidation()?;
        let id = InvalidationId(self.next);
        self.next += 1;
        self.posted.push((id, closing));
        Some((id, op))
    }

    pub(super) fn awaits_invalidations(&self) -> bool {
        !self.posted.is_empty()
    }

    /// An invalidation has succeeded.
    pub(super) fn handle_invalidated(&mut self, id: InvalidationId) {
        let Some(at) = self.posted.iter().position(|(posted, _)| *posted == id) else { return };
        let (_, mut closing) = self.posted.remove(at);
        closing.region().unbind();
        self.done.push(closing);
    }

    /// Bodies that are here, and that nobody may look at yet.
    pub(super) fn bodies(&self) -> usize {
        let posted = self.posted.iter().map(|(_, closing)| closing);
        let all = self.due.iter().chain(posted).chain(&self.done);
        all.filter(|closing| matches!(closing, Closing::Landed(_))).count()
    }

    /// Collects what is free.
    pub(super) fn collect(
        &mut self,
        released: &mut Vec<Released<Region>>,
        landed: &mut Vec<LandedBody>,
    ) {
        for closing in self.done.drain(..) {
            match closing {
                Closing::Released(region) => released.push(region),
                Closing::Landed(body) => landed.push(*body),
            }
        }
    }

    /// Nothing is due or in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.binds.is_empty()
            && self.due.is_empty()
            && self.posted.is_empty()
            && self.done.is_empty()
    }

    /// The queue pair is destroyed: everything comes back.
    pub(super) fn release(&mut self) -> impl Iterator<Item = Released<Region>> {
        self.binds.clear();
        let posted = self.posted.drain(..).map(|(_, closing)| closing);
        let all = self.due.drain(..).chain(posted).chain(self.done.drain(..));
        all.map(Closing::into_released)
    }
}
