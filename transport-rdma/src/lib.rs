//! RDMA for verbwire: messages over queue pairs, and the memory that a NIC can reach.
//!
//! * [`RdmaTransport`]: connections over a connection manager; [`RdmaConfig`]: what is set per transport.
//! * `FabricTransport` (feature `fabric`): the same over the software NIC, by name.
//! * [`memory`]: registered slabs, and buffers that belong either to the CPU or to the NIC.
//! * [`nic`]: the seam to the NIC, with two sides: real devices (`verbs`, feature `verbs`), and a software NIC
//!   for tests (`fabric`, feature `fabric`).
//! * [`pool`]: registered memory for payloads, to be sent from and to land in.
//! * [`proto`]: the rules of credits, send queues and large payloads.
//!
//! What is where, in the order in which a message travels: `outbound` chooses what goes out, `poster` encodes
//! it into registered memory and posts it, `work` owns every buffer in flight, `reactor` polls completion
//! queues, `receiver` takes a connection's completions, `decoder` turns frames into messages. `rendezvous` has the long
//! bodies. `endpoint` is the queue pair with all that must outlive its work, and how it ends; `connection` ties
//! them together. `outbound` and `decoder` are pure: they know no NIC, no clock and no task.
//!
//! Neither feature is on by default: without `verbs` this builds on machines that have no libibverbs.

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
pub mod pool;
mod poster;
pub mod proto;
mod rdma;
mod reactor;
mod reaper;
mod receiver;
mod rendezvous;
mod shared;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
#[cfg(feature = "verbs")]
#[expect(unsafe_code, reason = "the fence around the C libraries of real devices")]
pub mod verbs;
mod work;

pub use config::{Peers, Polling, RdmaConfig};
pub use device::{BufferCounts, PoolCounts};
#[cfg(feature = "fabric")]
pub use fabric_transport::{FabricTransport, Published};
pub use proto::loans::Shares;
pub use rdma::RdmaTransport;
pub use reactor::ReactorCounts;
pub use reaper::{InPlace, Reaper};
