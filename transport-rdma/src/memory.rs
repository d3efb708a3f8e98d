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
//! What this fence cannot rule out is a *remote* NIC that writes to a landing region after its owner took it
//! back. Who may hold rights on a region, and how they end, is the business of the rendezvous rules.

mod buf;
mod dma;
mod idle;
mod lent;
mod owners;
mod pool;
mod racy;
mod slab;

pub use buf::{CpuBuf, NicBuf, Released, Returned};
pub use dma::DmaError;
pub use idle::IdleBuf;
pub use lent::Lent;
pub use pool::{Poison, Pool};
pub use slab::{Domain, Lkey, NicAccess, NoMemory, Region, Rkey, Slab};
