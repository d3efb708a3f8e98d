//! A balanced channel that follows what its servers say, on a clock that jumps.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use verbwire::{Channel, Code, Endpoint, Endpoints, Server, Target};
use verbwire_health::pb::HealthCheckRequest;
use verbwire_health::pb::health_client::HealthClient;
use verbwire_health::{HealthReporter, ServingStatus, follow};

use crate::serve;

const SECOND: Duration = Duration::from_secs(1);

async fn connect(target: Target) -> Result<Channel, verbwire::Error> {
    Endpoint::new(&target.to_string())?.connect_once().await
}

async fn started(target: &str) -> (HealthReporter, JoinHandle<Result<(), verbwire::Error>>) {
    let reporter = HealthReporter::new();
    reporter.set_service_status("shop.Orders", ServingStatus::Serving);
    let serving = tokio::spawn(serve(&reporter, target).await.serve());
    (reporter, serving)
}

/// Which endpoints serve, in the order of their targets.
fn serving(endpoints: &Endpoints) -> Vec<bool> {
    let mut list = endpoints.list();
    list.sort_by(|one, other| one.target.cmp(&other.target));
    list.iter().map(|one| one.is_serving).collect()
}

/// How often each of four calls is answered as a server does that knows `service`.
async fn found(channel: &Channel, service: &str) -> usize {
    let client = HealthClient::new(channel.clone());
    let mut found = 0;
    for _ in 0..4 {
        let request = HealthCheckRequest { service: service.to_owned() };
        found += usize::from(client.check(request).await.is_ok());
    }
    found
}

#[tokio::test(start_paused = true)]
async fn calls_go_to_servers_that_say_that_they_serve() {
    let targets = ["mem://follow-a", "mem://follow-b"];
    let (first, _one) = started(targets[0]).await;
    let (second, other) = started(targets[1]).await;
    second.set_service_status("only.Second", ServingStatus::Serving);
    let channel =
        Endpoint::balanced(targets).expect("targets").connect().await.expect("they serve");
    let endpoints = channel.endpoints().expect("it has several");
    let following = tokio::spawn(follow(&endpoints, "shop.Orders", connect));
    sleep(SECOND).await;
    assert_eq!((serving(&endpoints), found(&channel, "only.Second").await), (vec![true; 2], 2));
    first.set_service_status("shop.Orders", ServingStatus::NotServing);
    sleep(SECOND).await;
    assert_eq!(serving(&endpoints), [false, true]);
    assert_eq!(found(&channel, "only.Second").await, 4);
    first.set_service_status("shop.Orders", ServingStatus::Serving);
    sleep(SECOND).await;
    assert_eq!((serving(&endpoints), found(&channel, "only.Second").await), (vec![true; 2], 2));
    // What was said last stays while its server is away; the channel passes it over by itself.
    second.set_service_status("shop.Orders", ServingStatus::NotServing);
    sleep(SECOND).await;
    other.abort();
    sleep(SECOND).await;
    assert_eq!(serving(&endpoints), [true, false]);
    let (_second, _other) = started(targets[1]).await;
    sleep(5 * SECOND).await;
    assert_eq!(serving(&endpoints), [true, true]);
    // One that comes is followed, and one without a health service serves.
    let (third, _third) = started("mem://follow-c").await;
    third.set_service_status("shop.Orders", ServingStatus::NotServing);
    let unable = |_path: std::sync::Arc<str>, _request: verbwire::Request<verbwire::Body>| async {
        Err(verbwire::Status::new(Code::Internal, "it"))
    };
    let without = verbwire::open::OpenService::new("shop.Orders", unable);
    let without = Server::builder().add_service(without).bind(&["mem://follow-d"]).await;
    tokio::spawn(without.expect("fresh").serve());
    for target in ["mem://follow-c", "mem://follow-d"] {
        endpoints.insert(&target.parse().expect("a target")).expect("mem is there");
    }
    sleep(SECOND).await;
    assert_eq!(serving(&endpoints), [true, true, false, true]);
    assert!(!following.is_finished());
    // It ends with the channel.
    drop((channel, endpoints));
    timeout(SECOND, following).await.expect("it ends").expect("no panic");
}
