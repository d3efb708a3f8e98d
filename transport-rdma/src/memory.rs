//! The fence around memory that a NIC can reach. Always built; no FFI.
//!
//! Besides `verbs/` this is the only place of the crate with `unsafe`. It owns slabs of page-aligned memory
//! and the one rule that keeps them sound: **a byte belongs either to the CPU or to the NIC, and its type
//! says to whom.**
//!
//! * [`Slab`]: a run of memory that is registered once, cut into chunks of equal length.
//! * [`Pool`]: which chunks of a slab are free.
//! * [`CpuBuf`]: a chunk that belongs to the CPU. It can be read, written, frozen into `Bytes`; dropping it
//!   gives the chunk back to its pool.
//! * [`NicBuf`]: a chunk that belongs to a NIC, from before it is posted until a completion or the death of its
//!   queue pair proves that the NIC is done ([`Released`]). It can be neither read nor written, and
//!   dropping it frees nothing: the chunk stays out of its pool for ever and its slab is kept.
//! * [`IdleBuf`]: a chunk that belongs to nobody, and that nobody can look at.
//! * [`Lent`]: frozen bytes that a NIC reads while their holders do. Nobody writes to them, and their chunk is not
//!   free before the NIC's proof.
//!
//! # What this fence cannot rule out
//!
//! This machine's NIC does what it was told, and says when it is done. A *peer's* NIC does what the peer says, for as
//! long as the peer has a key. While a grant is open that is harmless to this program: the chunk is a `NicBuf`, and no
//! reference to it exists. A FIN, an ABORT_ACK or a RESPONSE on the queue pair of the Writes is a fence: an honest
//! peer's Writes are all placed, and none follows. One that is broken or hostile can go on writing until its queue
//! pair is destroyed. What it reaches then:
//!
//! | | with a memory window per grant, invalidated | without |
//! |---|---|---|
//! | slabs of receives and of staging | nothing: they are registered without remote rights | nothing |
//! | landing regions, by the verbs specification | nothing | those of its protection domain whose key it knows or guesses |
//! | the same on soft-RoCE of Linux 6.1 | while another window of the peer is open, all of that one's slab: key, domain and queue pair are checked, bounds are not | as specified |
//! | the same on soft-iWARP | there are no windows | all of its protection domain: nothing inside one is protected |
//!
//! `Bytes` over such a region would change while they are read, which no `&[u8]` may. So there are three ways to look at
//! what a peer wrote, and the pool of landing regions makes its user choose one:
//!
//! * **Its window was invalidated**, with a successful completion, before the `Bytes` exist. Nothing is assumed of the
//!   peer, only that the device checks bounds; one that does not is as one without windows.
//! * **The peer is configured as trusted** not to write behind its FIN. *This is the one soundness assumption of this
//!   crate*: if it is false, a program without `unsafe` has undefined behaviour. It is made where a
//!   [`NicBuf`] of a landing region becomes a [`CpuBuf`] and nowhere else, by a [`Released`] of its own kind.
//!   Decoders must tolerate bytes that change all the same: text is copied before it is checked, lengths are read
//!   once, and `bytes` fields are only handed on.
//! * **Neither**: [`NicBuf::copy_out`] loads each byte once, volatile, into memory that is the program's own, and
//!   whatever checks the message does so there. A [`Returned`] takes the chunk from `NicBuf` to [`IdleBuf`] without a
//!   reference ever being possible; it is cleared without one, and granted again. The copies are counted.
//!
//! Where there are no windows, peers that do not trust each other must not share a protection domain: what one of them
//! writes to a region that is granted to another cannot be told from what the other writes.

mod buf;
mod dma;
mod idle;
mod lent;
mod owners;
mod pool;
mod racy;
mod slab;

pub use buf::{CpuBuf, NicBuf, Released, Returned};
pub use dma::{DmaError, Tenure};
pub use idle::IdleBuf;
pub use lent::Lent;
pub use pool::{Poison, Pool};
pub use slab::{Domain, Lkey, NicAccess, NoMemory, Region, Rkey, Slab};
