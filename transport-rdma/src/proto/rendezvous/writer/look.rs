//! What a writer has to do and what it holds, for who asks without changing it.

use super::{GrantId, Writer};

impl<S> Writer<S> {
    /// Whether [`poll_announce`](Self::poll_announce) has one.
    pub fn has_announce(&self) -> bool {
        !self.announces.is_empty() && self.may_announce()
    }

    /// Whether [`poll_write`](Self::poll_write) has one.
    pub fn has_write(&self) -> bool {
        !self.turns.is_empty() && self.may_write()
    }

    /// Whether [`poll_fin`](Self::poll_fin) has one.
    pub fn has_fin(&self) -> bool {
        !self.fins.is_empty()
    }

    /// Whether [`poll_abort_ack`](Self::poll_abort_ack) has one.
    pub fn has_abort_ack(&self) -> bool {
        !self.acks.is_empty()
    }

    /// Whether Writes are in flight.
    pub fn awaits_writes(&self) -> bool {
        self.in_flight > 0
    }

    /// Whether a grant is not closed.
    pub fn holds(&self, grant: GrantId) -> bool {
        self.held.iter().any(|held| held.grant.id == grant)
    }

    /// Transfers whose sources are here.
    pub fn transfers(&self) -> usize {
        self.transfers.len()
    }

    /// Grants that are not closed.
    pub fn open_grants(&self) -> usize {
        self.held.len()
    }
}
