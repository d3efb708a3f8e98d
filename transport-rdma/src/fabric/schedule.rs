//! What will happen, in order of virtual time.
//!
//! Owns the queue of events. Two events at the same time happen in an order that the seed decides, unless
//! they follow each other in a [`Lane`].

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::cm::CmEvent;
use super::cq::{CqId, Cqe};
use super::placing::PieceId;
use super::qp::QpId;
use crate::nic::WcStatus;

/// Something that happens to the network.
#[derive(Debug)]
pub(super) enum Event {
    /// The next work request of a queue pair leaves its device.
    Depart(QpId),
    /// The next message from a queue pair reaches its peer.
    Arrive(QpId),
    /// Late bytes of a Write come to lie in the memory of a queue pair's host.
    Place(QpId, PieceId),
    /// The outcome of a work request is known to its device.
    Settle(QpId, u64, Result<(), WcStatus>),
    /// A completion shows in its queue.
    Complete(CqId, Cqe),
    /// The end of its stream reaches a queue pair.
    StreamEnd(QpId),
    /// A message of the connection manager arrives.
    Cm(CmEvent),
}

/// A point in the order of events: the time since the fabric was made, and the seed's choice within it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) at: Duration,
    pub(super) tie: u64,
}

/// Events that never overtake each other.
#[derive(Debug, Default)]
pub(super) struct Lane(Slot);

impl Lane {
    /// `slot`, or the lane's last if that is later.
    pub(super) fn follow(&mut self, slot: Slot) -> Slot {
        self.0 = self.0.max(slot);
        self.0
    }
}

/// The events to come.
#[derive(Default)]
pub(super) struct Schedule {
    /// The number keeps what follows in a lane in the order of scheduling.
    queue: BTreeMap<(Slot, u64), Event>,
    scheduled: u64,
}

impl Schedule {
    pub(super) fn push(&mut self, slot: Slot, event: Event) {
        self.scheduled += 1;
        self.queue.insert((slot, self.scheduled), event);
    }

    /// When the next event is.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.queue.first_key_value().map(|((slot, _), _)| slot.at)
    }

    /// Takes the next event that is due at `now`.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<(Duration, Event)> {
        let first = self.queue.first_entry().filter(|entry| entry.key().0.at <= now)?;
        let ((slot, _), event) = first.remove_entry();
        Some((slot.at, event))
    }
}

/// A digest of everything that happened, in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    pub(super) fn digest(self) -> u64 {
        self.0
    }

    pub(super) fn note(&mut self, at: Duration, event: &Event) {
        let _infallible = fmt::write(self, format_args!("{at:?} {event:?}"));
    }
}

impl fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // FNV-1a.
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}
