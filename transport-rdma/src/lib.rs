//! RDMA for verbwire: the memory that a NIC can reach. The transport itself is not there yet.
//!
//! * [`memory`]: registered slabs, and buffers that belong either to the CPU or to the NIC.
//! * [`nic`]: the seam to the NIC, with two sides: real verbs (not yet), and a software NIC for tests.
//!
//! The transport behind `rdma://` targets will live here. Until then the facade answers `rdma://` with an
//! error that says so.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "the fence around memory that a NIC can reach")]
pub mod memory;
pub mod nic;
pub mod proto;
