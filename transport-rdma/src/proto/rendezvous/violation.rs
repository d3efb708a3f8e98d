//! What a peer can do wrong with grants.

use super::owner::Carrier;
use super::wire::{GrantId, RtsNumber};

/// Something that the peer may not say of an RTS or a grant. Each of these ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An RTS that does not follow its predecessor.
    #[error("RTS {number}, expected {expected}: a writer counts them")]
    RtsOrder {
        /// What the peer sent.
        number: RtsNumber,
        /// Its last one's successor.
        expected: RtsNumber,
    },
    /// More bodies at a time than calls.
    #[error(
        "more than {limit} bodies wait or are written at a time; the limit follows from max_concurrent_calls"
    )]
    TooManyRts {
        /// The limit.
        limit: usize,
    },
    /// CTS, ABORT or ABORT_ACK of an RTS that was never sent.
    #[error("{frame} for RTS {number}, which was never sent")]
    UnknownRts {
        /// The frame.
        frame: &'static str,
        /// What it names.
        number: RtsNumber,
    },
    /// A second CTS for one RTS.
    #[error("second CTS for RTS {number}, grant {grant}")]
    SecondCts {
        /// The RTS.
        number: RtsNumber,
        /// The second grant.
        grant: GrantId,
    },
    /// A grant that is longer or shorter than what was asked for.
    #[error("grant {grant} of {len} bytes, expected {expected}: the body and 4096 more")]
    GrantLen {
        /// The grant.
        grant: GrantId,
        /// Its length.
        len: u64,
        /// What it must be, or must be at least where nobody asked.
        expected: u64,
    },
    /// A grant that does not begin on a page, or goes beyond the end of all memory.
    #[error(
        "grant {grant} of {len} bytes at 0x{address:x}, expected a multiple of 4096 and an end below 2^64"
    )]
    GrantPlace {
        /// The grant.
        grant: GrantId,
        /// Where it begins.
        address: u64,
        /// Its length.
        len: u64,
    },
    /// A grant with the id of one that is not closed.
    #[error("second grant {grant} while the first is open")]
    GrantInUse {
        /// The grant.
        grant: GrantId,
    },
    /// More grants that nobody asked for than this side takes.
    #[error("more than {limit} {what} grants at a time")]
    TooManyGrants {
        /// Which kind of grants.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// FIN or ABORT_ACK of a grant that was never given.
    #[error("{frame} for grant {grant}, which was never given")]
    UnknownGrant {
        /// The frame.
        frame: &'static str,
        /// What it names.
        grant: GrantId,
    },
    /// FIN or ABORT_ACK of a grant that is closed.
    #[error("{frame} for grant {grant}, which is closed")]
    ClosedGrant {
        /// The frame.
        frame: &'static str,
        /// What it names.
        grant: GrantId,
    },
    /// FIN of a grant that was given for something else.
    #[error("FIN in {carrier} for grant {grant}, which was given for something else")]
    ForeignGrant {
        /// What carried the FIN.
        carrier: Carrier,
        /// The grant.
        grant: GrantId,
    },
    /// FIN of a body with another length than announced.
    #[error("FIN for grant {grant} with a body of {len} bytes, expected {expected}")]
    FinLen {
        /// The grant.
        grant: GrantId,
        /// What FIN says.
        len: u32,
        /// What the RTS or the head said.
        expected: u32,
    },
    /// FIN of a body that is not within its grant.
    #[error("FIN for grant {grant} with bytes {offset} to {end} of {room}")]
    FinRange {
        /// The grant.
        grant: GrantId,
        /// Where the body begins.
        offset: u64,
        /// Where it ends.
        end: u64,
        /// Length of the grant.
        room: u64,
    },
}
