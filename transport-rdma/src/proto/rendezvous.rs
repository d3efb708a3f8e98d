//! Rendezvous: long bodies travel by RDMA Write into memory that their receiver granted for them.
//!
//! * [`wire`]: the frames about it, and what heads carry for it.

pub mod wire;
