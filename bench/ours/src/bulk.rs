//! Large payloads over an RDMA device, one way and between peers that trust each other.
//!
//! Does: serves and loads `bench.bulk.Bulk` with payloads in registered memory, counts bytes that are copied and memory that
//! is registered on both sides, and prints one JSON line. Does not: fill the payload anew for each call, so that the time of
//! the filling is not measured; one buffer per caller is sent again and again.

mod client;
mod server;

use std::sync::Arc;

use verbwire_bench_driver::Outcome;
use verbwire_rdma::verbs::VerbsConfig;
use verbwire_rdma::{Peers, PoolCounts, RdmaConfig, RdmaTransport};

pub use client::{Load, Way};

mod proto {
    verbwire::include_proto!("bench.bulk");
}

/// Defaults, but that peers are trusted.
fn transport() -> Arc<RdmaTransport> {
    let mut config = RdmaConfig::default();
    config.peers = Peers::Trusted;
    Arc::new(RdmaTransport::over_verbs(config, VerbsConfig::default()))
}

/// Bytes of a Write, at most.
pub fn chunk() -> u32 {
    RdmaConfig::default().write_chunk
}

/// Serves on the device whose address is in `LAB_ADDRESS`, and prints its target.
///
/// # Errors
///
/// The device cannot be listened at.
pub async fn serve() -> Outcome<()> {
    let address = std::env::var("LAB_ADDRESS").map_err(|_unset| "LAB_ADDRESS is not set")?;
    server::serve(transport(), &format!("rdma://{address}:0")).await
}

/// Loads the server at `target` and returns a JSON line.
///
/// # Errors
///
/// A call failed, or what arrived is not what was sent.
pub async fn load(target: &str, load: Load) -> Outcome<String> {
    client::load(transport(), target, load).await
}

/// What was counted on one side.
fn counts(transport: &RdmaTransport) -> proto::Counts {
    let PoolCounts { users, staging, landing, eager_copied_bytes, .. } = transport.pools();
    let pools = [users, staging, landing];
    let copied: u64 = pools.iter().map(|pool| pool.copied_bytes).sum();
    proto::Counts {
        copied_bytes: copied + eager_copied_bytes,
        registrations: pools.iter().map(|pool| pool.registrations).sum(),
    }
}

/// Differs for bytes in another order.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}
