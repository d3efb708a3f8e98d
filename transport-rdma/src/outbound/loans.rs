//! What the stage does about data windows that change: see [`loan`](crate::proto::credit::loan).

use super::{Frame, Outbound};
use crate::error::ReceiveError;
use crate::proto::credit::Class;
use crate::proto::credit::loan::{Change, Loan};
use crate::rendezvous::Rendezvous;

/// What a peer has said of what it borrows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Receives that are back.
    pub(crate) returned: u32,
    /// How many more it could use; 0 if it did not ask.
    pub(crate) wanted: u32,
}

impl Outbound {
    /// Changes what the peer is promised, of which it is to be told.
    pub(crate) fn lend(&mut self, change: Change) {
        self.credits.lend(change);
    }

    /// What the peer has said since the last time, if anything.
    pub(crate) fn take_asked(&mut self) -> Option<Asked> {
        let asked = std::mem::take(&mut self.asked);
        (asked != Asked::default()).then_some(asked)
    }

    pub(super) fn handle_loan(&mut self, loan: Loan) -> Result<(), ReceiveError> {
        match loan {
            Loan::Lend(lend) => self.credits.handle_lend(lend)?,
            Loan::Borrow(borrow) => {
                self.asked.returned += self.credits.handle_borrow(borrow)?;
                self.asked.wanted = self.asked.wanted.max(borrow.wanted);
            }
        }
        Ok(())
    }

    /// Whether something is to be said of a loan.
    pub(super) fn has_loan(&self) -> bool {
        self.credits.has_lend() || self.credits.has_borrow(|| self.has_data())
    }

    /// The next frame about a loan.
    pub(super) fn take_of_loans(&mut self) -> Option<(Class, Frame)> {
        let lend = self.credits.poll_lend().map(Loan::Lend);
        let loan = lend.or_else(|| {
            if !self.credits.has_borrow(|| self.has_data()) {
                return None;
            }
            let waiting = self.has_data();
            self.credits.poll_borrow(waiting).map(Loan::Borrow)
        })?;
        Some((Class::Control, Frame::of_loan(loan)))
    }

    /// Whether frames of data wait, whatever they are about.
    fn has_data(&self) -> bool {
        let is_data = |class| class == Class::Data;
        let has_frame = |rendezvous: &Rendezvous| rendezvous.has_frame(is_data);
        self.queues.has_data() || self.rendezvous.as_ref().is_some_and(has_frame)
    }
}
