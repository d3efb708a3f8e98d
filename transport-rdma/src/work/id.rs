//! The ids of work requests: numbers that say where to look, never addresses.
//!
//! ```text
//!   bits 60..64  kind
//!   bits 40..60  connection, counted per device; wraps
//!   bits  0..40  sequence: of sends, how many there were before (wraps); of receives, generation and entry
//! ```
//!
//! A device may return an id late, twice, or after the queue pair is destroyed. The number in it then names
//! another connection, or work that is not in flight any more.

use crate::nic::WrId;

const SEQUENCE_BITS: u32 = 40;
const CONNECTION_BITS: u32 = 20;

/// Bits of [`WorkId::sequence`] that exist.
pub(crate) const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

/// What a work request did. Taken from its id, since a failed completion says nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello,
    Send,
    Receive,
}

/// A connection among those of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionNumber(u32);

impl ConnectionNumber {
    /// The connection that is the `count`th on its device.
    pub(crate) fn new(count: u32) -> Self {
        Self(count & ((1 << CONNECTION_BITS) - 1))
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
        for kind in [Kind::Hello, Kind::Send, Kind::Receive] {
            for (connection, sequence) in [(0, 0), (1, SEQUENCE_MASK), ((1 << 20) - 1, 7)] {
                let connection = ConnectionNumber::new(connection);
                let id = WorkId { kind, connection, sequence };
                assert_eq!(WorkId::decode(id.encode()), Some(id));
            }
        }
    }

    #[test]
    fn numbers_that_are_no_ids_are_recognised() {
        for number in [0, SEQUENCE_MASK, u64::MAX, 4 << 60] {
            assert_eq!(WorkId::decode(WrId(number)), None);
        }
    }
}
