//! The memory window of a region, where peers reach regions through windows only.
//!
//! A region keeps its window from grant to grant, and gives it a new key each time, so that a key of an earlier grant
//! opens nothing. A window that may still be bound when its region returns (its queue pair was destroyed) is freed: that
//! ends its rights, and it never meets another queue pair of the same number.

use crate::memory::{Lkey, Rkey};
use crate::nic::{Nic, NicError, SendOp, Window};

/// See the module.
pub(super) struct RegionWindow {
    window: Box<dyn Window>,
    /// Of the last grant.
    key: Rkey,
    /// Of the region's memory.
    lkey: Lkey,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// A bind was handed out, and no invalidation has succeeded.
    Bound,
}

impl RegionWindow {
    /// A window of a region that has none. Once in a region's life: it takes a command of the device.
    pub(super) fn allocate(nic: &dyn Nic) -> Result<Self, NicError> {
        let window = nic.allocate_window()?;
        Ok(Self { key: window.key(), lkey: Lkey(0), window, state: State::Free })
    }

    /// The key for the next grant of the region, which is registered under `lkey`.
    pub(super) fn renew(&mut self, lkey: Lkey) -> Rkey {
        self.lkey = lkey;
        debug_assert_eq!(self.state, State::Free, "a region returns with a free window or none");
        self.key = self.key.following();
        debug_assert_eq!(self.key.window(), self.window.key().window());
        self.key
    }

    /// How to bind it to its region; it counts as bound from now on.
    pub(super) fn bind(&mut self, address: u64, len: usize) -> SendOp {
        self.state = State::Bound;
        SendOp::Bind { rkey: self.key, lkey: self.lkey, address, len: len as u64 }
    }

    /// How to end its rights, if it may have some.
    pub(super) fn invalidation(&self) -> Option<SendOp> {
        (self.state == State::Bound).then_some(SendOp::Invalidate { rkey: self.key })
    }

    /// It was invalidated with success, or its bind was not posted.
    pub(super) fn unbind(&mut self) {
        self.state = State::Free;
    }

    /// Itself, if it can be bound again; freed if not.
    pub(super) fn kept(self) -> Option<Self> {
        (self.state == State::Free).then_some(self)
    }
}
