//! The NIC seam for tests: what a peer needs that speaks it itself and keeps to no rule.
//!
//! Feature `testing`, and no part of the API. Everything here is safe to use: it posts work requests and
//! looks at memory that is its own. The same code runs over the software NIC and over real devices.

pub use crate::memory::{Domain, NicAccess, NicBuf, Poison, Pool, Rkey, Slab};
pub use crate::nic::{
    Access, Cm, CmListener, Connected, Cq, Cqs, Depths, Inline, Nic, NicError, Qp, RecvWr, SendOp,
    SendWr, Sge, Sges, Signal, Wc, WcStatus, WrId,
};
pub use crate::proto::rendezvous::wire::{
    Crc, Fin, Frame, Grant, GrantId, HeadExtras, Name, Names, Place, RtsNumber,
};
pub use crate::reaper::{InPlace, Reaper};
