//! Credits: every SEND finds a posted receive, in both directions, without timers.
//!
//! A side posts `data + control + 2` receives and posts each again before it looks at what came in. Receives
//! are used in order, so one number in every header, the count of all receives posted again so far, tells
//! the sender which of its frames are covered.
//!
//! ```text
//!   class            frames                                      in flight at most
//!   Data             REQUEST, RESPONSE, MESSAGE, END, DATA,      data
//!                    RTS, CTS, FIN
//!   Control          CANCEL, CANCELLED, ABORT, ABORT_ACK,        control
//!                    PING, PONG, GOAWAY, LEND, BORROW
//!   Credit(window)   CREDIT, for the debt of that window         1 each
//! ```
//!
//! The windows are counted apart, so that data which waits for its receiver never holds up control. A CREDIT is
//! a frame with nothing but the count. It is sent for a window whose debt has reached a quarter, if the one
//! before it for the same window is covered. It adds to no debt, so a CREDIT is never answered by a CREDIT.
//! With one shared window, or one CREDIT slot for both, two sides that only wait for each other's count can
//! stand still for ever; with this rule none can (see `no_schedule_stops` below).
//!
//! A side whose receives are shared by connections announces a small data window and lends more to who asks ([`loan`]).
//! It counts what came since it last told its count: more than the windows allow is what another connection was promised.

pub mod loan;

use std::collections::VecDeque;

use loan::{Borrow, Borrowing, FalseLoan, Lend, Lending};

/// Which window a frame counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Frames that carry work.
    Data,
    /// Frames that must get through whatever data does.
    Control,
    /// A CREDIT for the debt of a window.
    Credit(Window),
}

/// The two windows of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Of [`Class::Data`].
    Data,
    /// Of [`Class::Control`].
    Control,
}

/// Sizes of the windows of one direction, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Data frames in flight.
    pub data: u32,
    /// Control frames in flight.
    pub control: u32,
}

impl Windows {
    /// Receives that the receiving side keeps posted.
    pub fn receives(self) -> u32 {
        self.data + self.control + 2
    }
}

/// Frames of a window in flight at most, however great the peer made it: it may promise what this side never uses, but must
/// keep to its own numbers. 4096: what is in flight is remembered.
pub const MOST_USED: u32 = 4096;

/// A peer that claims to have posted receives for frames that were never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer claims {claimed} more receives than the {in_flight} frames in flight to it")]
pub struct FalseCredit {
    /// How many more receives the peer's count claims.
    pub claimed: u32,
    /// Frames that were sent and not covered before.
    pub in_flight: u32,
}

/// A peer that sent frames for which it was promised no receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer has sent {sent} {class:?} frames since it was last told of receives, and {allowed} were promised"
)]
pub struct Overrun {
    /// Which frames.
    pub class: Class,
    /// How many came.
    pub sent: u32,
    /// How many may.
    pub allowed: u32,
}

/// Both directions of one side.
#[derive(Debug)]
pub struct Credits {
    /// What this side may send: the peer's windows.
    outbound: Outbound,
    /// What this side owes: its own windows.
    inbound: Inbound,
}

/// Frames on their way to the peer.
#[derive(Debug)]
struct Outbound {
    /// Frames of control in flight.
    control_window: u32,
    /// The window of data.
    borrowing: Borrowing,
    /// Classes of the frames that are not covered, in the order of sending. At most what the windows allow.
    in_flight: VecDeque<Class>,
    data: u32,
    control: u32,
    data_credit: Slot,
    control_credit: Slot,
    /// The peer's count, as last seen. Wraps.
    covered: u32,
}

/// The place for one CREDIT in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    InFlight,
}

/// Receives posted again, and what of it the peer has not been told.
#[derive(Debug)]
struct Inbound {
    control_window: u32,
    lending: Lending,
    /// All receives posted again so far. Wraps.
    count: u32,
    data_debt: u32,
    control_debt: u32,
    /// CREDITs, which are no debt.
    credits: u32,
}

impl Credits {
    /// Nothing sent, nothing received. `peer` are the windows that the peer announced, `own` this side's.
    pub fn new(peer: Windows, own: Windows) -> Self {
        Self::with_loans((peer, peer.data), own)
    }

    /// The same where the peer lends, up to a data window of `most`.
    pub fn with_loans((peer, most): (Windows, u32), own: Windows) -> Self {
        Self {
            outbound: Outbound {
                control_window: peer.control,
                borrowing: Borrowing::new(peer.data, most),
                in_flight: VecDeque::new(),
                data: 0,
                control: 0,
                data_credit: Slot::Free,
                control_credit: Slot::Free,
                covered: 0,
            },
            inbound: Inbound {
                control_window: own.control,
                lending: Lending::new(own.data),
                count: 0,
                data_debt: 0,
                control_debt: 0,
                credits: 0,
            },
        }
    }

    /// Whether the peer has a receive for another frame of this class.
    pub fn may_send(&self, class: Class) -> bool {
        let Outbound { borrowing, control_window, data, control, .. } = &self.outbound;
        match class {
            Class::Data => borrowing.allows(*data),
            Class::Control => *control < (*control_window).min(MOST_USED),
            Class::Credit(Window::Data) => self.outbound.data_credit == Slot::Free,
            Class::Credit(Window::Control) => self.outbound.control_credit == Slot::Free,
        }
    }

    /// A frame of this class is posted. Returns the count that its header carries, which settles all debts.
    ///
    /// Call it only when [`may_send`](Self::may_send) says so.
    pub fn handle_sent(&mut self, class: Class) -> u32 {
        debug_assert!(self.may_send(class), "{class:?} without a receive at the peer");
        self.outbound.note(class, Step::Sent);
        self.outbound.in_flight.push_back(class);
        self.inbound.data_debt = 0;
        self.inbound.control_debt = 0;
        self.inbound.credits = 0;
        self.inbound.count
    }

    /// A frame came in whose header carries the peer's count.
    ///
    /// # Errors
    ///
    /// The count covers frames that were never sent: the connection ends.
    pub fn handle_count(&mut self, count: u32) -> Result<(), FalseCredit> {
        let claimed = count.wrapping_sub(self.outbound.covered);
        let in_flight = u32::try_from(self.outbound.in_flight.len()).unwrap_or(u32::MAX);
        if claimed > in_flight {
            return Err(FalseCredit { claimed, in_flight });
        }
        self.outbound.covered = count;
        for _ in 0..claimed {
            if let Some(class) = self.outbound.in_flight.pop_front() {
                self.outbound.note(class, Step::Covered);
            }
        }
        Ok(())
    }

    /// The receive of a frame of this class is posted again.
    ///
    /// # Errors
    ///
    /// The peer had no right to send it: the connection ends.
    pub fn handle_reposted(&mut self, class: Class) -> Result<(), Overrun> {
        let Inbound { count, lending, control_window, data_debt, control_debt, credits } =
            &mut self.inbound;
        *count = count.wrapping_add(1);
        // What the peer may have in flight, it may have sent before it saw the last count.
        let (sent, allowed) = match class {
            Class::Data => (data_debt, lending.window()),
            Class::Control => (control_debt, *control_window),
            Class::Credit(_) => (credits, 2),
        };
        *sent += 1;
        if *sent > allowed { Err(Overrun { class, sent: *sent, allowed }) } else { Ok(()) }
    }

    /// The window for which a CREDIT must be sent now, if any.
    pub fn poll_credit(&self) -> Option<Window> {
        let Inbound { lending, control_window, data_debt, control_debt, .. } = &self.inbound;
        // Asked behind each frame, which settles all debts.
        if *data_debt == 0 && *control_debt == 0 {
            return None;
        }
        [Window::Data, Window::Control].into_iter().find(|window| {
            let (debt, size) = match window {
                Window::Data => (*data_debt, lending.expected()),
                Window::Control => (*control_debt, *control_window),
            };
            let quarter = (size / 4).max(1);
            debt >= quarter && self.may_send(Class::Credit(*window))
        })
    }

    /// The data window that this side promises is greater by `count` from now on, or lent as before but to be brought
    /// down to `keep`. The peer is to be told by [`poll_lend`](Self::poll_lend).
    pub fn lend(&mut self, change: loan::Change) {
        self.inbound.lending.change(change);
    }

    /// What the peer is to be told of its data window, in a frame of control that is about to be sent.
    pub fn poll_lend(&mut self) -> Option<Lend> {
        if self.may_send(Class::Control) { self.inbound.lending.poll() } else { None }
    }

    /// Whether it has to be told, when it has a receive for that.
    pub fn has_lend(&self) -> bool {
        self.inbound.lending.is_due()
    }

    /// The peer asks for a greater window, or gives back. Returns how many receives came back.
    ///
    /// # Errors
    ///
    /// It gives back what it was not lent.
    pub fn handle_borrow(&mut self, borrow: Borrow) -> Result<u32, FalseLoan> {
        self.inbound.lending.handle(borrow)
    }

    /// What to tell the peer of this side's use of its window, in a frame of control that is about to be sent.
    /// `waiting` says whether data waits.
    pub fn poll_borrow(&mut self, waiting: bool) -> Option<Borrow> {
        if !self.may_send(Class::Control) {
            return None;
        }
        let data = self.outbound.data;
        self.outbound.borrowing.poll(data, waiting)
    }

    /// What the peer was told last of this side's use of its window: a frame of control that changes nothing.
    pub fn last_borrow(&self) -> Borrow {
        self.outbound.borrowing.last()
    }

    /// Whether something is to be told of it, when the peer has a receive for that.
    pub fn has_borrow(&self, waiting: impl FnOnce() -> bool) -> bool {
        self.outbound.borrowing.is_due(self.outbound.data, waiting)
    }

    /// The peer says how great its data window is.
    ///
    /// # Errors
    ///
    /// It lends what it did not announce.
    pub fn handle_lend(&mut self, lend: Lend) -> Result<(), FalseLoan> {
        self.outbound.borrowing.handle(lend)
    }
}

/// What happens to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Sent,
    Covered,
}

impl Outbound {
    fn note(&mut self, class: Class, step: Step) {
        let count = |used: &mut u32| match step {
            Step::Sent => *used += 1,
            Step::Covered => *used -= 1,
        };
        let slot = match step {
            Step::Sent => Slot::InFlight,
            Step::Covered => Slot::Free,
        };
        match class {
            Class::Data => count(&mut self.data),
            Class::Control => count(&mut self.control),
            Class::Credit(Window::Data) => self.data_credit = slot,
            Class::Credit(Window::Control) => self.control_credit = slot,
        }
    }
}

#[cfg(test)]
mod tests;
