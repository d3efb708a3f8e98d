//! Who shares a completion queue, and how much of it is promised.
//!
//! A slot per connection. Its generation changes with each that takes it, so that a completion which comes late
//! finds nobody instead of the next connection.

use std::sync::Arc;
use std::task::Waker;

use super::mailbox::Mailbox;
use crate::nic::{Cq, NicError, Wc};
use crate::work::{ConnectionNumber, WorkId};

/// Completions taken from the queue at a time. 64: a few times what a connection posts at once.
const BATCH: usize = 64;

/// See the module.
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Entries of the queue that are not promised.
    entries: u32,
    /// Nobody is admitted any more.
    closed: bool,
    /// Memory for batches.
    batch: Vec<Wc>,
}

struct Slot {
    /// Of who has it, or had it last.
    number: ConnectionNumber,
    mailbox: Option<Arc<Mailbox>>,
}

/// What a batch brought.
#[derive(Default)]
pub(super) struct Turned {
    pub(super) taken: usize,
    /// Completions for nobody.
    pub(super) strays: u64,
    pub(super) woken: Vec<Waker>,
}

impl Table {
    pub(super) fn new(depth: u32) -> Self {
        let (slots, free, batch) = (Vec::new(), Vec::new(), Vec::with_capacity(BATCH));
        Self { slots, free, entries: depth, closed: false, batch }
    }

    /// Takes a slot and so many entries; `None` if there are not so many.
    pub(super) fn admit(
        &mut self,
        entries: u32,
        mailbox: &Arc<Mailbox>,
    ) -> Option<ConnectionNumber> {
        if self.closed {
            return None;
        }
        let left = self.entries.checked_sub(entries)?;
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                let number = ConnectionNumber::first(self.slots.len())?;
                self.slots.push(Slot { number, mailbox: None });
                number.slot()
            }
        };
        let slot = self.slots.get_mut(at)?;
        slot.number = slot.number.next();
        slot.mailbox = Some(Arc::clone(mailbox));
        self.entries = left;
        Some(slot.number)
    }

    /// Gives a slot and its entries back. Returns whether it was the last one that is taken.
    pub(super) fn leave(&mut self, number: ConnectionNumber, entries: u32) -> bool {
        if let Some(slot) = self.slots.get_mut(number.slot()) {
            slot.mailbox = None;
            self.free.push(number.slot());
            self.entries += entries;
        }
        self.shares() == 0
    }

    /// Slots that are taken.
    pub(super) fn shares(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Nobody is admitted any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes a batch from the queue, to be dispatched.
    pub(super) fn poll(&mut self, cq: &dyn Cq) -> Result<(), NicError> {
        cq.poll(&mut self.batch, BATCH).map(|_count| ())
    }

    /// Puts what was taken into its mailboxes.
    pub(super) fn dispatch(&mut self) -> Turned {
        let mut turned = Turned { taken: self.batch.len(), ..Turned::default() };
        for wc in self.batch.drain(..) {
            let number = WorkId::decode(wc.id).map(|id| id.connection);
            let slot = number.and_then(|number| self.slots.get(number.slot()));
            let current = slot.filter(|slot| Some(slot.number) == number);
            match current.and_then(|slot| slot.mailbox.as_ref()) {
                Some(mailbox) => turned.woken.extend(mailbox.push(wc)),
                None => turned.strays += 1,
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
