//! Checks and watches.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use verbwire::{Channel, Code, NamedService, Request, Status, Streaming};
use verbwire_health::pb::health_check_response::ServingStatus as Told;
use verbwire_health::pb::health_client::HealthClient;
use verbwire_health::pb::health_server::HealthServer;
use verbwire_health::pb::{HealthCheckRequest, HealthCheckResponse};
use verbwire_health::{HealthReporter, HealthService, ServingStatus, health_reporter};

use crate::{health, serve};

const NOW: Duration = Duration::from_millis(100);

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

fn client(reporter: &HealthReporter) -> HealthClient {
    HealthClient::new(Channel::in_process(health(reporter)))
}

async fn check(client: &HealthClient, service: &str) -> Result<Told, Status> {
    client.check(of(service)).await.map(|reply| reply.into_inner().status())
}

async fn watch(client: &HealthClient, service: &str) -> Streaming<HealthCheckResponse> {
    client.watch(of(service)).await.expect("it is watched").into_inner()
}

async fn next(watch: &mut Streaming<HealthCheckResponse>) -> Told {
    watch.message().await.expect("no error").expect("it goes on").status()
}

async fn assert_silent(watch: &mut Streaming<HealthCheckResponse>) {
    assert!(timeout(NOW, watch.message()).await.is_err(), "nothing has changed");
}

#[tokio::test(start_paused = true)]
async fn a_check_says_what_was_said_and_not_found_of_others() {
    let (reporter, health) = health_reporter();
    let client = HealthClient::new(Channel::in_process(health));
    assert_eq!(check(&client, "").await.expect("the server"), Told::Serving);
    let status = check(&client, "shop.Orders").await.expect_err("nothing was said");
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains("shop.Orders"), "{status}");
    for (set, told) in [
        (ServingStatus::Unknown, Told::Unknown),
        (ServingStatus::NotServing, Told::NotServing),
        (ServingStatus::Serving, Told::Serving),
    ] {
        reporter.set_service_status("shop.Orders", set);
        assert_eq!(check(&client, "shop.Orders").await.expect("it is known"), told);
    }
    reporter.clear_service_status("shop.Orders");
    let status = check(&client, "shop.Orders").await.expect_err("it was cleared");
    assert_eq!(status.code(), Code::NotFound);
    reporter.set_service_status("", ServingStatus::NotServing);
    assert_eq!(check(&client, "").await.expect("the server"), Told::NotServing);
}

#[tokio::test(start_paused = true)]
async fn a_service_is_named_by_the_type_of_its_server() {
    type Named = HealthServer<HealthService>;
    let reporter = HealthReporter::default();
    let client = client(&reporter);
    reporter.set_serving::<Named>();
    assert_eq!(check(&client, Named::NAME).await.expect("it is known"), Told::Serving);
    reporter.set_not_serving::<Named>();
    assert_eq!(check(&client, "grpc.health.v1.Health").await.expect("known"), Told::NotServing);
}

#[tokio::test(start_paused = true)]
async fn a_watch_says_what_is_true_at_once_and_then_each_change() {
    let reporter = HealthReporter::new();
    let client = client(&reporter);
    let mut orders = watch(&client, "shop.Orders").await;
    assert_eq!(next(&mut orders).await, Told::ServiceUnknown);
    assert_silent(&mut orders).await;
    reporter.set_service_status("shop.Orders", ServingStatus::Serving);
    assert_eq!(next(&mut orders).await, Told::Serving);
    // Of others, and the same again.
    reporter.set_service_status("shop.Stock", ServingStatus::NotServing);
    reporter.set_service_status("shop.Orders", ServingStatus::Serving);
    assert_silent(&mut orders).await;
    reporter.set_service_status("shop.Orders", ServingStatus::NotServing);
    assert_eq!(next(&mut orders).await, Told::NotServing);
    reporter.clear_service_status("shop.Orders");
    assert_eq!(next(&mut orders).await, Told::ServiceUnknown);
    let mut stock = watch(&client, "shop.Stock").await;
    assert_eq!(next(&mut stock).await, Told::NotServing);
}

#[tokio::test(start_paused = true)]
async fn a_slow_watch_is_told_the_last_of_many_changes() {
    let reporter = HealthReporter::new();
    let mut orders = watch(&client(&reporter), "shop.Orders").await;
    for _ in 0..100_000 {
        reporter.set_service_status("shop.Orders", ServingStatus::NotServing);
        reporter.set_service_status("shop.Orders", ServingStatus::Serving);
    }
    assert_eq!(next(&mut orders).await, Told::Serving);
    assert_silent(&mut orders).await;
    // There and back again is no change.
    reporter.set_service_status("shop.Orders", ServingStatus::NotServing);
    reporter.set_service_status("shop.Orders", ServingStatus::Serving);
    assert_silent(&mut orders).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_nothing_serves_and_a_drain_waits_for_no_watch() {
    let reporter = HealthReporter::new();
    reporter.set_service_status("shop.Orders", ServingStatus::Serving);
    let bound = serve(&reporter, "mem://health-shutdown").await;
    let stopping = reporter.clone();
    let serving = tokio::spawn(bound.serve_with_shutdown(async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        stopping.shutdown();
    }));
    let client = HealthClient::new(verbwire::connect("mem://health-shutdown").await.expect("up"));
    let begun = Instant::now();
    let mut orders = watch(&client, "shop.Orders").await;
    let mut unknown = watch(&client, "shop.Stock").await;
    assert_eq!(next(&mut orders).await, Told::Serving);
    assert_eq!(next(&mut unknown).await, Told::ServiceUnknown);
    assert_eq!(next(&mut orders).await, Told::NotServing);
    for mut watch in [orders, unknown] {
        let status = watch.message().await.expect_err("the server ends");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("shutting down"), "{status}");
    }
    serving.await.expect("no panic").expect("no call was cut off");
    assert!(begun.elapsed() < Duration::from_secs(6), "the drain waited {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_said_after_a_shutdown_does_not_count() {
    let reporter = HealthReporter::new();
    let client = client(&reporter);
    reporter.set_service_status("shop.Orders", ServingStatus::Serving);
    reporter.shutdown();
    reporter.set_service_status("shop.Orders", ServingStatus::Serving);
    reporter.set_service_status("shop.Stock", ServingStatus::Serving);
    reporter.clear_service_status("");
    for service in ["", "shop.Orders"] {
        assert_eq!(check(&client, service).await.expect("it is known"), Told::NotServing);
    }
    assert_eq!(check(&client, "shop.Stock").await.expect_err("late").code(), Code::NotFound);
    let mut late = watch(&client, "").await;
    assert_eq!(next(&mut late).await, Told::NotServing);
    late.message().await.expect_err("it ends");
}

#[tokio::test(start_paused = true)]
async fn a_watch_lasts_as_long_as_its_deadline() {
    let client = client(&HealthReporter::new());
    let mut request = Request::new(of(""));
    request.set_timeout(Duration::from_secs(3));
    let mut watch = client.watch(request).await.expect("it is watched").into_inner();
    assert_eq!(next(&mut watch).await, Told::Serving);
    let status = watch.message().await.expect_err("its time is over");
    assert_eq!(status.code(), Code::DeadlineExceeded);
}
