//! Who shares a reactor's completion queues, and how much of them is promised.
//!
//! A slot per connection. Its generation changes with each that takes it, so that a completion which comes late
//! finds nobody instead of the next connection.

use std::sync::Arc;
use std::task::Waker;

use super::Awaited;
use super::mailbox::Mailbox;
use super::numbers::Numbers;
use crate::nic::{Cqs, Depths, NicError, Qp, Wc};
use crate::shared::SharedReceives;
use crate::work::{ConnectionNumber, Kind, WorkId};

/// Completions taken from the queue at a time. 64: a few times what a connection posts at once.
pub(super) const BATCH: usize = 64;

/// See the module.
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Entries of the queues that are not promised.
    entries: Depths,
    /// Receives that several slots share: which, how many, and for how many slots.
    hosted: Vec<Hosted>,
    numbers: Numbers,
    /// Slots that await sends, and others who do.
    awaiting: usize,
    /// Nobody is admitted any more.
    closed: bool,
    /// What becomes of it when nobody shares it.
    unshared: Unshared,
    /// Memory for batches.
    batch: Vec<Wc>,
}

/// Shared receives of which the completions may all come here.
struct Hosted {
    number: ConnectionNumber,
    len: u32,
    slots: usize,
}

struct Slot {
    /// Of who has it, or had it last.
    number: ConnectionNumber,
    mailbox: Option<Arc<Mailbox>>,
    awaited: Awaited,
}

/// What becomes of a table that nobody shares any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unshared {
    /// It waits for the next connection.
    Stays,
    /// It is closed: its runtime has another one.
    Closes,
}

/// Which queues are polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// The one of receives; the one of sends along with what it gives, or if somebody awaits sends.
    Needed,
    Both,
    /// The one of sends.
    Sends,
}

/// How a table is at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Nobody is admitted any more.
    pub(super) is_closed: bool,
    /// Somebody shares it.
    pub(super) is_shared: bool,
    /// Somebody awaits sends.
    pub(super) awaits_sends: bool,
}

/// What a batch brought.
#[derive(Default)]
pub(super) struct Turned {
    pub(super) taken: usize,
    /// Completions for nobody.
    pub(super) strays: u64,
    pub(super) woken: Woken,
    /// Completions of shared receives for nobody.
    pub(super) unowned: Vec<(Arc<SharedReceives>, Wc)>,
    /// Queue pairs that took more shared receives than they may.
    pub(super) overrun: Vec<Arc<dyn Qp>>,
}

/// Whom a batch wakes: one, as a rule, for whom no list is made.
#[derive(Default)]
pub(super) struct Woken {
    first: Option<Waker>,
    rest: Vec<Waker>,
}

impl Woken {
    fn add(&mut self, waker: Waker) {
        match &self.first {
            None => self.first = Some(waker),
            Some(_) => self.rest.push(waker),
        }
    }

    pub(super) fn wake(self) {
        self.first.into_iter().chain(self.rest).for_each(Waker::wake);
    }
}

impl Table {
    pub(super) fn new(entries: Depths, unshared: Unshared) -> Self {
        let (slots, free, batch) = (Vec::new(), Vec::new(), Vec::with_capacity(2 * BATCH));
        let (hosted, numbers) = (Vec::new(), Numbers::default());
        Self { slots, free, entries, hosted, numbers, awaiting: 0, closed: false, unshared, batch }
    }

    /// Takes a slot and so many entries, and an entry for each of the shared receives unless these have theirs; `None` if
    /// there are not so many.
    pub(super) fn admit(
        &mut self,
        entries: Depths,
        mailbox: &Arc<Mailbox>,
        shared: Option<&Arc<SharedReceives>>,
    ) -> Option<ConnectionNumber> {
        if self.closed {
            return None;
        }
        let number = shared.map(|shared| shared.number());
        let new = shared.filter(|_| !self.hosted.iter().any(|other| Some(other.number) == number));
        let recv = entries.recv.checked_add(new.map_or(0, |new| new.len()))?;
        let left = Depths {
            send: self.entries.send.checked_sub(entries.send)?,
            recv: self.entries.recv.checked_sub(recv)?,
        };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                let number = ConnectionNumber::first(self.slots.len())?;
                self.slots.push(Slot { number, mailbox: None, awaited: Awaited::No });
                number.slot()
            }
        };
        let slot = self.slots.get_mut(at)?;
        slot.number = slot.number.next();
        slot.mailbox = Some(Arc::clone(mailbox));
        self.entries = left;
        let admitted = slot.number;
        if let Some(new) = new {
            self.hosted.push(Hosted { number: new.number(), len: new.len(), slots: 0 });
        }
        let mut hosted = self.hosted.iter_mut();
        let hosted = hosted.find(|hosted| Some(hosted.number) == number);
        hosted.into_iter().for_each(|hosted| hosted.slots += 1);
        Some(admitted)
    }

    /// Whose queue pairs share receives.
    pub(super) fn numbers(&mut self) -> &mut Numbers {
        &mut self.numbers
    }

    /// Gives a slot and its entries back. Returns whether it was the last one that is taken.
    pub(super) fn leave(
        &mut self,
        number: ConnectionNumber,
        entries: Depths,
        shared: Option<&Arc<SharedReceives>>,
    ) -> bool {
        if let Some(shared) = shared {
            self.leave_shared(shared.number());
        }
        self.await_sends(number, Awaited::No);
        if let Some(slot) = self.slots.get_mut(number.slot()) {
            slot.mailbox = None;
            self.free.push(number.slot());
            self.entries.send += entries.send;
            self.entries.recv += entries.recv;
        }
        let is_last = self.shares() == 0;
        self.closed |= is_last && self.unshared == Unshared::Closes;
        is_last
    }

    fn leave_shared(&mut self, number: ConnectionNumber) {
        let Some(at) = self.hosted.iter().position(|hosted| hosted.number == number) else {
            return;
        };
        let hosted = &mut self.hosted[at];
        hosted.slots -= 1;
        if hosted.slots == 0 {
            self.entries.recv += hosted.len;
            self.hosted.swap_remove(at);
        }
    }

    /// Says whether a slot awaits sends. Returns whether it is the first one.
    pub(super) fn await_sends(&mut self, number: ConnectionNumber, awaited: Awaited) -> bool {
        let Some(slot) = self.slots.get_mut(number.slot()) else { return false };
        let before = std::mem::replace(&mut slot.awaited, awaited);
        match (before, awaited) {
            (Awaited::No, Awaited::Yes) => self.begin_awaiting(),
            (Awaited::Yes, Awaited::No) => {
                self.end_awaiting();
                false
            }
            _ => false,
        }
    }

    /// Somebody without a slot awaits sends. Returns whether it is the first one.
    pub(super) fn begin_awaiting(&mut self) -> bool {
        self.awaiting += 1;
        self.awaiting == 1
    }

    /// It does no more.
    pub(super) fn end_awaiting(&mut self) {
        self.awaiting -= 1;
    }

    /// Whether somebody awaits sends.
    fn awaits_sends(&self) -> bool {
        self.awaiting > 0
    }

    /// Slots that are taken.
    pub(super) fn shares(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Nobody is admitted any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn standing(&self) -> Standing {
        Standing {
            is_closed: self.closed,
            is_shared: self.shares() > 0,
            awaits_sends: self.awaits_sends(),
        }
    }

    /// Takes a batch from the queues, to be dispatched.
    pub(super) fn poll(&mut self, cqs: &Cqs, look: Look) -> Result<(), NicError> {
        let received = match look {
            Look::Needed | Look::Both => cqs.recv.poll(&mut self.batch, BATCH)?,
            Look::Sends => 0,
        };
        if received > 0 || self.awaits_sends() || look != Look::Needed {
            cqs.send.poll(&mut self.batch, BATCH)?;
        }
        Ok(())
    }

    /// Puts what was taken into its mailboxes.
    pub(super) fn dispatch(&mut self) -> Turned {
        let mut turned = Turned { taken: self.batch.len(), ..Turned::default() };
        let Self { batch, slots, numbers, .. } = self;
        for wc in batch.drain(..) {
            let id = WorkId::decode(wc.id);
            let (bound, number) = match id {
                Some(id) if id.kind == Kind::Shared => {
                    let bound = numbers.find(wc.qp, id.connection);
                    bound.into_iter().for_each(|bound| bound.arrived(id.sequence));
                    (bound, bound.map(|bound| bound.connection))
                }
                id => (None, id.map(|id| id.connection)),
            };
            let slot = number.and_then(|number| slots.get(number.slot()));
            let current = slot.filter(|slot| Some(slot.number) == number);
            let Some(mailbox) = current.and_then(|slot| slot.mailbox.as_ref()) else {
                turned.strays += 1;
                let shared = id.filter(|id| id.kind == Kind::Shared);
                let shared = shared.and_then(|id| {
                    let shared = numbers.receives(id.connection)?;
                    shared.arrived(id.sequence);
                    Some((shared, wc))
                });
                turned.unowned.extend(shared);
                continue;
            };
            let (waker, waiting) = mailbox.push(wc);
            waker.into_iter().for_each(|waker| turned.woken.add(waker));
            if let Some(bound) = bound.filter(|bound| bound.is_overrun(waiting)) {
                turned.overrun.extend(bound.qp());
            }
        }
        turned
    }

    /// The queue is lost. Returns who is to be woken.
    pub(super) fn lose(&mut self, cause: &NicError) -> Vec<Waker> {
        self.closed = true;
        let mailboxes = self.slots.iter().filter_map(|slot| slot.mailbox.as_ref());
        mailboxes.filter_map(|mailbox| mailbox.lose(cause)).collect()
    }
}
