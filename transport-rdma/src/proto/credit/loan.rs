//! A data window that changes: more of it is lent to who has data that waits, and asked back when others need it.
//!
//! ```text
//!   borrower (sends data)                        lender (has the receives)
//!      │ ── BORROW(returned, wanted) ──────────────► │   when data waits and the window is used up
//!      │ ◄──────────────── LEND(lent, keep: all) ─── │   when there are receives for it
//!      │ ◄──────────────── LEND(lent, keep: n) ───── │   when others need them
//!      │ ── BORROW(returned) ──────────────────────► │   at once what is not in use, the rest as it is covered
//! ```
//!
//! Both numbers count from the beginning, so that what crosses on the wire loses nothing. The window is
//! `floor + lent - returned`: the borrower takes `lent` from the last LEND that it received and `returned` from
//! the last BORROW that it sent, the lender the other way round. So the borrower never has more than the lender has set
//! aside. A borrower that is asked to keep less sends nothing beyond that from then on; each frame that is covered brings
//! it nearer, and each BORROW lets the lender's next CREDIT go. Both kinds are frames of control.

use super::MOST_USED;
use verbwire_core::message::CallId;
use verbwire_core::wire::{Header, Kind};

/// What a lender says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lend {
    /// Receives lent so far.
    pub lent: u64,
    /// The data window that the borrower is to come down to; [`KEEP_ALL`] if it may have all.
    pub keep: u32,
}

/// What a borrower says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Borrow {
    /// Receives given back so far.
    pub returned: u64,
    /// How much greater a window it has data for; 0 if it does not ask.
    pub wanted: u32,
}

/// See [`Lend::keep`].
pub const KEEP_ALL: u32 = u32::MAX;

/// What becomes of a loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// So many receives more are lent.
    Lend(u32),
    /// The borrower is to come down to a window of its floor and so many receives more.
    Keep(u32),
}

/// A frame about a loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loan {
    /// From who has the receives.
    Lend(Lend),
    /// From who sends data.
    Borrow(Borrow),
}

impl Loan {
    /// The frame, which is nothing but its header.
    pub fn header(self) -> Header {
        const NO_CALL: CallId = CallId { slot: 0, generation: 0 };
        let (kind, time_us, aux) = match self {
            Self::Lend(Lend { lent, keep }) => (Kind::Lend, lent, keep),
            Self::Borrow(Borrow { returned, wanted }) => (Kind::Borrow, returned, wanted),
        };
        Header { time_us, aux, ..Header::new(kind, NO_CALL) }
    }

    /// What a header says; `None` if it is that of another kind of frame.
    pub fn decode(header: &Header) -> Option<Self> {
        let (count, aux) = (header.time_us, header.aux);
        match header.kind {
            Kind::Lend => Some(Self::Lend(Lend { lent: count, keep: aux })),
            Kind::Borrow => Some(Self::Borrow(Borrow { returned: count, wanted: aux })),
            _ => None,
        }
    }
}

/// A peer that counts loans wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FalseLoan {
    /// It lends less than before, or a window beyond the one that it announced.
    #[error(
        "the peer has lent {lent} receives by its count, which is not within {least} to {most}"
    )]
    Lent {
        /// Its count.
        lent: u64,
        /// Its count before.
        least: u64,
        /// What it announced.
        most: u64,
    },
    /// It returns less than before, or what it was not lent.
    #[error(
        "the peer has returned {returned} receives by its count, which is not within {least} to {most}"
    )]
    Returned {
        /// Its count.
        returned: u64,
        /// Its count before.
        least: u64,
        /// What it was lent.
        most: u64,
    },
}

/// The data window of a direction, as its sender has it.
#[derive(Debug)]
pub(super) struct Borrowing {
    floor: u32,
    most: u32,
    lent: u64,
    returned: u64,
    keep: u32,
    /// A BORROW is out that asks for more.
    asked: bool,
}

/// The data window of a direction, as its receiver has it.
#[derive(Debug)]
pub(super) struct Lending {
    floor: u32,
    lent: u64,
    returned: u64,
    keep: u32,
    /// The borrower has to be told.
    due: bool,
}

fn window(floor: u32, lent: u64, returned: u64) -> u32 {
    let loan = u32::try_from(lent.saturating_sub(returned)).unwrap_or(u32::MAX);
    floor.saturating_add(loan)
}

impl Borrowing {
    pub(super) fn new(floor: u32, most: u32) -> Self {
        let most = most.max(floor);
        Self { floor, most, lent: 0, returned: 0, keep: KEEP_ALL, asked: false }
    }

    fn window(&self) -> u32 {
        window(self.floor, self.lent, self.returned)
    }

    /// What it is to come down to.
    fn kept(&self) -> u32 {
        self.keep.max(self.floor)
    }

    /// Whether one more data frame may go out while so many are in flight.
    pub(super) fn allows(&self, in_flight: u32) -> bool {
        in_flight < self.window().min(self.kept()).min(MOST_USED)
    }

    /// What is to be said of the window. `waiting` says whether data waits.
    fn next(&self, in_flight: u32, waiting: impl FnOnce() -> bool) -> Option<Borrow> {
        // Asked for each frame, and most peers lend nothing.
        if self.most == self.floor {
            return None;
        }
        let (window, kept) = (self.window(), self.kept());
        let spare = window.saturating_sub(kept.max(in_flight));
        if spare > 0 {
            return Some(Borrow { returned: self.returned + u64::from(spare), wanted: 0 });
        }
        let is_settled = window <= kept && in_flight >= window;
        let usable = self.most.min(MOST_USED);
        let wanted = window.min(usable - window.min(usable));
        let asks = is_settled && wanted > 0 && !self.asked && waiting();
        asks.then_some(Borrow { returned: self.returned, wanted })
    }

    /// What was said last, without what it asked for.
    pub(super) fn last(&self) -> Borrow {
        Borrow { returned: self.returned, wanted: 0 }
    }

    pub(super) fn is_due(&self, in_flight: u32, waiting: impl FnOnce() -> bool) -> bool {
        self.next(in_flight, waiting).is_some()
    }

    /// What to say now; it is said.
    pub(super) fn poll(&mut self, in_flight: u32, waiting: bool) -> Option<Borrow> {
        let borrow = self.next(in_flight, || waiting)?;
        self.returned = borrow.returned;
        self.asked |= borrow.wanted > 0;
        Some(borrow)
    }

    pub(super) fn handle(&mut self, Lend { lent, keep }: Lend) -> Result<(), FalseLoan> {
        let most = self.returned + u64::from(self.most - self.floor);
        if !(self.lent..=most).contains(&lent) {
            return Err(FalseLoan::Lent { lent, least: self.lent, most });
        }
        (self.lent, self.keep) = (lent, keep);
        self.asked = false;
        Ok(())
    }
}

impl Lending {
    pub(super) fn new(floor: u32) -> Self {
        Self { floor, lent: 0, returned: 0, keep: KEEP_ALL, due: false }
    }

    /// What is promised.
    pub(super) fn window(&self) -> u32 {
        window(self.floor, self.lent, self.returned)
    }

    /// What the borrower keeps to once it has heard. It waits for its frames to be covered until then, however few.
    pub(super) fn expected(&self) -> u32 {
        self.window().min(self.keep.max(self.floor))
    }

    pub(super) fn change(&mut self, change: Change) {
        match change {
            Change::Lend(count) => {
                self.lent += u64::from(count);
                self.keep = KEEP_ALL;
            }
            Change::Keep(loan) => self.keep = self.floor.saturating_add(loan),
        }
        self.due = true;
    }

    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    pub(super) fn poll(&mut self) -> Option<Lend> {
        let is_due = std::mem::take(&mut self.due);
        is_due.then_some(Lend { lent: self.lent, keep: self.keep })
    }

    pub(super) fn handle(&mut self, Borrow { returned, .. }: Borrow) -> Result<u32, FalseLoan> {
        let (least, most) = (self.returned, self.lent);
        if !(least..=most).contains(&returned) {
            return Err(FalseLoan::Returned { returned, least, most });
        }
        self.returned = returned;
        Ok(u32::try_from(returned - least).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests;
