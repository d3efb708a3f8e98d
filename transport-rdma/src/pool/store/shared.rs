//! A store as one of those that share a budget: it serves and grows in its turns, as long as any of them waits.

use std::sync::{Arc, Weak};

use super::{Chunk, Store};
use crate::pool::budget::{Member, Turn};
use crate::pool::error::Shortage;
use crate::pool::stock::Plan;
use crate::reaper::Reaper;

impl<B: Chunk> Store<B> {
    pub(super) fn join(self: &Arc<Self>) {
        if let Some(shared) = &self.shared {
            shared.join(self.member());
        }
    }

    /// Whether somebody waits for the budget: then nobody who comes now is before them.
    pub(super) fn has_line(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.has_line())
    }

    /// Stands in line if somebody waits here; else what has come back may be what others wait for.
    pub(super) fn settle_in_turn(self: &Arc<Self>) {
        let Some(shared) = &self.shared else { return };
        if self.lock().stock.waiting() > 0 {
            shared.stand_in_line(self.member());
        } else {
            shared.give_turns();
        }
    }

    /// Memory may have come free for others.
    pub(super) fn give_turns(&self) {
        if let Some(shared) = &self.shared {
            shared.give_turns();
        }
    }

    /// A slab is there, or refused.
    pub(super) fn made(self: &Arc<Self>) {
        match &self.shared {
            None => self.settle(),
            Some(shared) => {
                // What was made in its turn is for those who wait here.
                self.serve();
                shared.end_turn(&self.member());
            }
        }
    }

    /// What is in the way of who waits here, if that is the budget.
    pub(super) fn shared_shortage(self: &Arc<Self>) -> Option<Shortage> {
        let shared = self.shared.as_ref()?;
        let is_waiting = shared.is_waiting(&self.member());
        let (in_use, limit) = shared.amounts();
        is_waiting.then_some(Shortage::Shared { in_use, limit })
    }

    fn member(self: &Arc<Self>) -> Weak<dyn Member> {
        let member: Weak<Self> = Arc::downgrade(self);
        member
    }
}

impl<B: Chunk> Member for Store<B> {
    fn take_turn(self: Arc<Self>, room: usize) -> Turn {
        if self.serve() > 0 {
            return Turn::Served;
        }
        match self.grow(room) {
            Plan::Nothing => Turn::Over,
            Plan::NoRoom => Turn::NoRoom,
            Plan::Making | Plan::Make(..) => Turn::Making,
        }
    }

    fn has_idle(&self) -> bool {
        self.lock().stock.has_idle()
    }

    fn give_up_idle(&self) {
        let given_up = self.lock().stock.trim();
        drop(given_up);
    }

    fn reaper(&self) -> &dyn Reaper {
        &*self.reaper
    }
}
