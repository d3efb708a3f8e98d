//! RDMA for verbwire: messages over queue pairs, and the memory that a NIC can reach.
//!
//! * [`RdmaTransport`]: connections over a connection manager; [`RdmaConfig`]: what is set per transport.
//! * `FabricTransport` (feature `fabric`): the same over the software NIC, by name.
//! * [`memory`]: registered slabs, and buffers that belong either to the CPU or to the NIC.
//! * [`nic`]: the seam to the NIC, with two sides: real verbs (not yet), and a software NIC for tests.
//! * [`proto`]: the rules of credits and send queues.
//!
//! What is where, in the order in which a message travels: `outbound` chooses what goes out, `poster` encodes
//! it into registered memory and posts it, `work` owns every buffer in flight, `receiver` takes
//! completions, `decoder` turns frames into messages. `endpoint` is the queue pair with all that must outlive
//! its work, and how it ends; `connection` ties them together. `outbound` and `decoder` are pure: they
//! know no NIC, no clock and no task.
//!
//! Until real verbs are there the facade answers `rdma://` with an error that says so.

#![deny(unsafe_code)]

mod config;
mod connection;
mod decoder;
mod device;
mod endpoint;
mod error;
#[cfg(feature = "fabric")]
pub mod fabric;
#[cfg(feature = "fabric")]
mod fabric_transport;
mod handshake;
#[expect(unsafe_code, reason = "the fence around memory that a NIC can reach")]
pub mod memory;
pub mod nic;
mod outbound;
mod poster;
pub mod proto;
mod rdma;
mod reaper;
mod receiver;
mod work;

pub use config::RdmaConfig;
pub use device::BufferCounts;
#[cfg(feature = "fabric")]
pub use fabric_transport::{FabricTransport, Published};
pub use rdma::RdmaTransport;
pub use reaper::{InPlace, Reaper};
