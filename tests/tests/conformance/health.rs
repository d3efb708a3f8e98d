//! The standard health service, and a watcher that outlives connections.

use std::time::Duration;

use verbwire::{Channel, Code, Request};
use verbwire_health::pb::HealthCheckRequest;
use verbwire_health::pb::health_check_response::ServingStatus as Told;
use verbwire_health::pb::health_client::HealthClient;
use verbwire_health::{HealthReporter, ServingStatus, State, Watcher, health_reporter};
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::doomed::{Doomed, Part};
use verbwire_tests::fixture::{Fixture, LONG, endpoint};
use verbwire_tests::proto::conformance::conformance_server::ConformanceServer;
use verbwire_tests::service::Desk;

pub(crate) const CASES: &[Case] = &[
    case!(health_is_checked_and_watched_beside_other_services),
    case!(a_drain_waits_for_no_watch_of_health).over_a_connection(),
    case!(a_watcher_of_health_survives_a_killed_server).over_a_connection().in_real_time(),
];

fn asked(service: &str) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest { service: service.to_owned() });
    request.set_timeout(LONG * 10);
    request
}

/// A client of a server with the suite's services and health, or of health in the same process.
async fn client(fixture: &Fixture) -> (HealthReporter, HealthClient) {
    let (reporter, health) = health_reporter();
    let channel = if fixture.backend().place == Place::InProcess {
        Channel::in_process(health)
    } else {
        let builder = fixture.offering(&Desk::default()).add_service(health);
        fixture.serve(builder).await.connect().await
    };
    (reporter, HealthClient::new(channel))
}

async fn health_is_checked_and_watched_beside_other_services(fixture: Fixture) {
    const NAME: &str = "conformance.Conformance";
    let (reporter, client) = client(&fixture).await;
    let status = client.check(asked(NAME)).await.expect_err("nothing was said");
    assert_eq!(status.code(), Code::NotFound, "{status}");
    let mut watch = client.watch(asked(NAME)).await.expect("it is watched").into_inner();
    let first = watch.message().await.expect("no error").expect("it goes on");
    assert_eq!(first.status(), Told::ServiceUnknown);
    reporter.set_serving::<ConformanceServer<Desk>>();
    let reply = client.check(asked(NAME)).await.expect("it is known");
    assert_eq!(reply.get_ref().status(), Told::Serving);
    for (set, told) in [
        (ServingStatus::Serving, Told::Serving),
        (ServingStatus::NotServing, Told::NotServing),
        (ServingStatus::Serving, Told::Serving),
    ] {
        reporter.set_service_status(NAME, set);
        let news = watch.message().await.expect("no error").expect("it goes on");
        assert_eq!(news.status(), told);
    }
}

async fn a_drain_waits_for_no_watch_of_health(fixture: Fixture) {
    let (reporter, health) = health_reporter();
    let builder = fixture.offering(&Desk::default()).add_service(health);
    let serving = fixture.serve(builder.drain_timeout(LONG * 10)).await;
    let client = HealthClient::new(serving.connect().await);
    let mut watch = client.watch(asked("")).await.expect("it is watched").into_inner();
    let first = watch.message().await.expect("no error").expect("it goes on");
    assert_eq!(first.status(), Told::Serving);
    reporter.shutdown();
    let last = watch.message().await.expect("no error").expect("it says why");
    assert_eq!(last.status(), Told::NotServing);
    let serving = serving.shut_down();
    let status = watch.message().await.expect_err("the watch ends");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    serving.await.expect("no panic").expect("no call was cut off");
}

async fn a_watcher_of_health_survives_a_killed_server(fixture: Fixture) {
    let mut doomed = Doomed::start(&fixture, Part::Server, &fixture.target()).await;
    let target = doomed.target().to_owned();
    let endpoint = endpoint(&target);
    let connect = move || {
        let endpoint = endpoint.clone();
        async move { endpoint.connect().await }
    };
    let delay = Duration::from_millis(20);
    let mut watcher = Watcher::new("", connect).backoff(delay, 10 * delay);
    for round in 0..3 {
        let state = watcher.next().await.expect("it has a health service");
        assert!(state.is_serving(), "round {round}: {state}");
        doomed.kill().await;
        let state = watcher.next().await.expect("it has a health service");
        let is_lost = matches!(&state, State::Lost(why) if why.code() == Code::Unavailable);
        assert!(is_lost, "round {round}: it is dead and {state}");
        doomed = Doomed::start(&fixture, Part::Server, &target).await;
    }
    doomed.kill().await;
}
