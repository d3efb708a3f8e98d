//! The ids of work requests: numbers that say where to look, never addresses.
//!
//! ```text
//!   bits 60..64  kind
//!   bits 36..60  connection: generation and slot in its completion queue's table; or which shared receives
//!   bits  0..36  sequence: of sends, how many there were before (wraps); of receives, generation and entry
//! ```
//!
//! A device may return an id late, twice, or after the queue pair is destroyed. The number in it then names
//! another connection, or work that is not in flight any more.

use crate::nic::WrId;

const SEQUENCE_BITS: u32 = 36;
const CONNECTION_BITS: u32 = 24;
const SLOT_BITS: u32 = 12;

/// Bits of [`WorkId::sequence`] that exist.
pub(crate) const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

/// What a work request did. Taken from its id, since a failed completion says nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello,
    Send,
    Receive,
    /// A receive that connections share: the queue pair of its completion says whose message took it.
    Shared,
}

/// A connection among those of its completion queue: a slot, and which connection of those that had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionNumber(u32);

impl ConnectionNumber {
    /// The first one in this slot; `None` if there are no more than 4096.
    pub(crate) fn first(slot: usize) -> Option<Self> {
        u32::try_from(slot).ok().filter(|slot| slot >> SLOT_BITS == 0).map(Self)
    }

    /// The next one in the same slot; wraps after 4096.
    pub(crate) fn next(self) -> Self {
        Self((self.0 + (1 << SLOT_BITS)) & ((1 << CONNECTION_BITS) - 1))
    }

    /// What stands in the place of a connection for receives that several share. Wraps.
    pub(crate) fn of_shared(number: u32) -> Self {
        Self(number & ((1 << CONNECTION_BITS) - 1))
    }

    /// Where it is in the table.
    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

/// A work request's id, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkId {
    pub(crate) kind: Kind,
    pub(crate) connection: ConnectionNumber,
    /// At most [`SEQUENCE_MASK`].
    pub(crate) sequence: u64,
}

impl WorkId {
    pub(crate) fn encode(self) -> WrId {
        let kind: u64 = match self.kind {
            Kind::Hello => 1,
            Kind::Send => 2,
            Kind::Receive => 3,
            Kind::Shared => 4,
        };
        let connection = u64::from(self.connection.0) << SEQUENCE_BITS;
        WrId(kind << (SEQUENCE_BITS + CONNECTION_BITS) | connection | self.sequence)
    }

    /// `None` for a number that no work request of this crate has.
    pub(crate) fn decode(id: WrId) -> Option<Self> {
        let kind = match id.0 >> (SEQUENCE_BITS + CONNECTION_BITS) {
            1 => Kind::Hello,
            2 => Kind::Send,
            3 => Kind::Receive,
            4 => Kind::Shared,
            _ => return None,
        };
        let connection =
            u32::try_from(id.0 >> SEQUENCE_BITS & ((1 << CONNECTION_BITS) - 1)).ok()?;
        let connection = ConnectionNumber(connection);
        Some(Self { kind, connection, sequence: id.0 & SEQUENCE_MASK })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_as_they_were() {
        for kind in [Kind::Hello, Kind::Send, Kind::Receive, Kind::Shared] {
            for (connection, sequence) in [(0, 0), (1, SEQUENCE_MASK), ((1 << 24) - 1, 7)] {
                let connection = ConnectionNumber(connection);
                let id = WorkId { kind, connection, sequence };
                assert_eq!(WorkId::decode(id.encode()), Some(id));
            }
        }
    }

    #[test]
    fn numbers_that_are_no_ids_are_recognised() {
        for number in [0, SEQUENCE_MASK, u64::MAX, 5 << 60] {
            assert_eq!(WorkId::decode(WrId(number)), None);
        }
    }

    #[test]
    fn a_slot_has_many_connections_one_after_the_other() {
        assert_eq!(ConnectionNumber::first(4096), None);
        let first = ConnectionNumber::first(4095).expect("the last slot");
        let numbers: Vec<_> =
            std::iter::successors(Some(first), |number| Some(number.next())).take(4097).collect();
        assert!(numbers.iter().all(|number| number.slot() == 4095));
        assert!(numbers[1..4096].iter().all(|number| *number != first));
        assert_eq!(numbers[4096], first);
    }
}
