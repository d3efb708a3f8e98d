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
//!                    PING, PONG, GOAWAY
//!   Credit(window)   CREDIT, for the debt of that window         1 each
//! ```
//!
//! The windows are counted apart, so that data which waits for its receiver never holds up control. A CREDIT is
//! a frame with nothing but the count. It is sent for a window whose debt has reached a quarter, if the one
//! before it for the same window is covered. It adds to no debt, so a CREDIT is never answered by a CREDIT.
//! With one shared window, or one CREDIT slot for both, two sides that only wait for each other's count can
//! stand still for ever; with this rule none can (see `no_schedule_stops` below).

use std::collections::VecDeque;

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

    fn size(self, window: Window) -> u32 {
        match window {
            Window::Data => self.data,
            Window::Control => self.control,
        }
    }
}

/// A peer that claims to have posted receives for frames that were never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer claims {claimed} more receives than the {in_flight} frames in flight to it")]
pub struct FalseCredit {
    /// How many more receives the peer's count claims.
    pub claimed: u32,
    /// Frames that were sent and not covered before.
    pub in_flight: u32,
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
    windows: Windows,
    /// Classes of the frames that are not covered, in the order of sending. At most `windows.receives()`.
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
    windows: Windows,
    /// All receives posted again so far. Wraps.
    count: u32,
    data_debt: u32,
    control_debt: u32,
}

impl Credits {
    /// Nothing sent, nothing received. `peer` are the windows that the peer announced, `own` this side's.
    pub fn new(peer: Windows, own: Windows) -> Self {
        Self {
            outbound: Outbound {
                windows: peer,
                in_flight: VecDeque::new(),
                data: 0,
                control: 0,
                data_credit: Slot::Free,
                control_credit: Slot::Free,
                covered: 0,
            },
            inbound: Inbound { windows: own, count: 0, data_debt: 0, control_debt: 0 },
        }
    }

    /// Whether the peer has a receive for another frame of this class.
    pub fn may_send(&self, class: Class) -> bool {
        let Outbound { windows, data, control, .. } = &self.outbound;
        match class {
            Class::Data => *data < windows.data,
            Class::Control => *control < windows.control,
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
    pub fn handle_reposted(&mut self, class: Class) {
        self.inbound.count = self.inbound.count.wrapping_add(1);
        match class {
            Class::Data => self.inbound.data_debt += 1,
            Class::Control => self.inbound.control_debt += 1,
            Class::Credit(_) => {}
        }
    }

    /// The window for which a CREDIT must be sent now, if any.
    pub fn poll_credit(&self) -> Option<Window> {
        [Window::Data, Window::Control].into_iter().find(|window| {
            let debt = match window {
                Window::Data => self.inbound.data_debt,
                Window::Control => self.inbound.control_debt,
            };
            let quarter = (self.inbound.windows.size(*window) / 4).max(1);
            debt >= quarter && self.may_send(Class::Credit(*window))
        })
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
