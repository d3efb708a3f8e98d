//! The standard health service `grpc.health.v1.Health`: a server says of each of its services whether it serves, and clients
//! ask or watch.
//!
//! On the server, beside its services:
//!
//! ```no_run
//! # async fn serve() -> Result<(), verbwire::Error> {
//! let (reporter, health) = verbwire_health::health_reporter();
//! let bound = verbwire::Server::builder().add_service(health).bind(&["tcp://0.0.0.0:7000"]).await?;
//!
//! reporter.set_service_status("shop.Orders", verbwire_health::ServingStatus::Serving);
//! // Clients that watch learn of the end before it comes.
//! # let signal = async {};
//! bound.serve_with_shutdown(async move { signal.await; reporter.shutdown() }).await
//! # }
//! ```
//!
//! On the client, [`follow`] keeps the calls of a balanced channel away from servers that do not serve; [`Watcher`] watches one service through lost connections; [`pb::health_client::HealthClient`] is the generated
//! client, for a single `check`:
//!
//! ```no_run
//! # async fn watch() -> Result<(), verbwire::Status> {
//! let mut orders = verbwire_health::Watcher::new("shop.Orders", || verbwire::connect("tcp://10.0.0.1:7000"));
//! loop {
//!     println!("shop.Orders: {}", orders.next().await?);
//! }
//! # }
//! ```
//!
//! # What it does not do
//!
//! It does not look at services: whether one serves is what [`HealthReporter`] was told. It does not reconnect channels, and
//! chooses none: a [`Watcher`] asks the function that it was given for its next channel.

#![forbid(unsafe_code)]

mod balancing;
mod reporter;
mod service;
mod watcher;

pub use balancing::follow;
pub use reporter::{HealthReporter, ServingStatus, health_reporter};
pub use service::HealthService;
pub use watcher::{State, Watcher};

/// Messages, client and server of `grpc.health.v1`, as they are generated from `proto/grpc/health/v1/health.proto`.
pub mod pb {
    include!("generated/verbwire-package.grpc.health.v1.rs");

    /// The encoded descriptors of this package, for reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/health.bin");
}
