//! The health service and its watcher, over `mem://`.

mod balancing;
mod service;
mod snapshots;
mod watcher;

use verbwire::Server;
use verbwire_health::pb::health_server::HealthServer;
use verbwire_health::{HealthReporter, HealthService};

/// The health service of `reporter`, for a server.
fn health(reporter: &HealthReporter) -> HealthServer<HealthService> {
    HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
}

/// A server of it at `target`.
async fn serve(reporter: &HealthReporter, target: &str) -> verbwire::Bound {
    let builder = Server::builder().add_service(health(reporter));
    builder.bind(&[target]).await.expect("a fresh name")
}
