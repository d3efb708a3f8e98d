//! Rendezvous: long bodies travel by RDMA Write into memory that their receiver granted for them.
//!
//! Two state machines, one per role; each side of a connection has both, for the bodies of either direction.
//! [`Owner`] has the landing memory and grants it, [`Writer`] has the bodies and writes them. [`wire`] are their
//! frames. Neither knows a call: an RTS is found by its number, a grant by its id and generation.
//!
//! ```text
//!   writer                                      owner
//!   head with RTS 7   ─────────────────────►   7 waits for memory
//!        ◄──────────────────────────────────   CTS 7, grant 2.0
//!   Write, Write, ... ─────────────────────►   (lands, unseen)
//!   FIN 2.0           ─────────────────────►   message 7 is here, grant 2.0 is closed
//! ```
//!
//! A grant can be given before anybody asks: in a REQUEST for its reply (advertised), or for any REQUEST to
//! come (standing). Then the body is written first and its head carries the FIN.
//!
//! **The one rule.** Every grant is closed by exactly one FIN or ABORT_ACK of its writer, as a frame or in a
//! head, on the queue pair of the Writes and behind them; a Write for it never follows. A closed grant's memory
//! is the owner's again. Nothing else proves that, but the end of the queue pair. So an owner that wants no
//! more of a body says ABORT and keeps the memory in quarantine until then.
//!
//! ```text
//!   crossing                                    what happens
//!   ABORT of a grant, and its FIN               FIN closes it, the body is thrown away; the ABORT finds
//!                                               nothing and is not answered
//!   ABORT of a grant, and ABORT_ACK of it       the same
//!   ABORT of a grant, and ABORT_ACK of its RTS  the same
//!   CTS, and ABORT_ACK of its RTS               the ABORT_ACK closes the grant that it did not know; the CTS
//!                                               comes late and is ignored
//!   ABORT of an RTS, and ABORT_ACK of it        both find nothing
//!   ABORT of a grant, and a head still to come  the grant is acknowledged, the body asks by RTS
//! ```
//!
//! Neither machine waits for anything but its peer, its device and memory; time is a parameter. Both own the
//! buffers that they are given: what comes out of [`Owner::poll_released`], [`Owner::handle_fin`] and
//! [`Writer::poll_ended`] is all that may be used again.

mod body;
mod owner;
mod slots;
mod violation;
pub mod wire;
mod writer;

pub use body::{Body, BodyLen, PAGE, SLACK};
pub use owner::{
    Arrived, Carrier, Fault, Landed, Owner, OwnerLimits, Proof, Released, quarantine_cap,
};
pub use violation::Violation;
pub use writer::{
    Announced, Chunk, Ended, HeadOf, Outcome, TransferId, Via, Writer, WriterLimits, Written,
};

#[cfg(test)]
mod tests;
