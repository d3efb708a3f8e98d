//! Servers that stop, in order and at once.

use std::time::Duration;

use tokio::time::Instant;
use verbwire::{Code, ErrorKind, Executed, Status};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Serving, begin, connect, endpoint, offering};
use verbwire_tests::pki::trusting;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::conformance_server::ConformanceServer;
use verbwire_tests::proto::conformance::{Blob, Ticket};
use verbwire_tests::service::Desk;

pub(crate) const CASES: &[Case] = &[
    case!(running_calls_finish_and_new_ones_are_refused).over_a_connection(),
    case!(a_call_that_waits_for_a_slot_is_refused_at_shutdown).over_one_connection(),
    case!(idle_clients_do_not_delay_shutdown).over_a_connection(),
    case!(calls_that_outlast_the_drain_timeout_are_cut_off).over_a_connection(),
    case!(dropping_the_serve_future_ends_every_call).over_a_connection(),
    case!(nothing_listens_after_shutdown).over_a_connection(),
    case!(a_server_serves_all_its_targets_until_shutdown).over_a_connection(),
    case!(a_server_that_cannot_listen_everywhere_listens_nowhere).over_a_connection(),
    case!(a_target_that_is_in_use_cannot_be_bound_twice).over_a_connection(),
];

fn assert_unavailable(status: &Status, executed: Executed) {
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, executed), "{status}");
    assert!(!status.message().is_empty());
}

/// Calls until one is refused.
async fn refusal(client: &ConformanceClient) -> Status {
    loop {
        if let Err(status) = client.echo(Blob::default()).await {
            return status;
        }
        tokio::task::yield_now().await;
    }
}

async fn running_calls_finish_and_new_ones_are_refused(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let running = [1, 2, 3].map(|number| tokio::spawn(pair.client.gate(Ticket { number })));
    pair.witness.until(|log| log.running == 3).await;
    let serving = serving.shut_down();
    assert_unavailable(&refusal(&pair.client).await, Executed::No);
    assert!(!serving.is_finished());
    for (number, call) in (1..).zip(running) {
        pair.witness.open(number);
        assert_eq!(call.await.expect("no panic").expect("gate").get_ref().number, number);
    }
    serving.await.expect("no panic").expect("every call finished");
    assert_unavailable(&refusal(&pair.client).await, Executed::No);
}

async fn a_call_that_waits_for_a_slot_is_refused_at_shutdown(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(1)).await;
    let running = tokio::spawn(pair.client.gate(Ticket { number: 1 }));
    pair.witness.until(|log| log.running == 1).await;
    let waiting = begin(pair.client.gate(Ticket { number: 2 })).await;
    let serving = serving.shut_down();
    // At once, and not only when a slot is free that it could not use.
    assert_unavailable(&waiting.await.expect("no panic").expect_err("refused"), Executed::No);
    assert!(!running.is_finished());
    pair.witness.open(1);
    running.await.expect("no panic").expect("gate");
    serving.await.expect("no panic").expect("every call finished");
    assert!(!pair.witness.log().entered.contains(&2));
}

async fn idle_clients_do_not_delay_shutdown(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder.drain_timeout(LONG * 10)).await;
    pair.client.echo(Blob::default()).await.expect("echo");
    let second = serving.client().await;
    let begun = Instant::now();
    let ended = serving.shut_down().await.expect("no panic");
    ended.expect("nothing had to be cut off");
    assert!(begun.elapsed() < LONG);
    for client in [pair.client, second] {
        assert_unavailable(&refusal(&client).await, Executed::No);
    }
}

async fn calls_that_outlast_the_drain_timeout_are_cut_off(fixture: Fixture) {
    let patience = Duration::from_millis(150);
    let (pair, serving) = fixture.pair_with(|builder| builder.drain_timeout(patience)).await;
    let call = tokio::spawn(pair.client.hang(Ticket { number: 1 }));
    pair.witness.until(|log| log.running == 1).await;
    let begun = Instant::now();
    let error = serving.shut_down().await.expect("no panic").expect_err("one was cut off");
    assert!(begun.elapsed() >= patience && begun.elapsed() < LONG);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("drain_timeout of 150ms"), "{error}");
    let status = call.await.expect("no panic").expect_err("cut off");
    assert_unavailable(&status, Executed::Maybe);
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn dropping_the_serve_future_ends_every_call(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let calls = [1, 2, 3].map(|number| tokio::spawn(pair.client.hang(Ticket { number })));
    pair.witness.until(|log| log.running == 3).await;
    serving.drop_serving().await;
    for call in calls {
        let status = call.await.expect("no panic").expect_err("cut off");
        assert_unavailable(&status, Executed::Maybe);
    }
    pair.witness.until(|log| log.dropped.len() == 3).await;
    assert_unavailable(&refusal(&pair.client).await, Executed::No);
}

async fn nothing_listens_after_shutdown(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let endpoint = serving.endpoint();
    drop(pair);
    serving.shut_down().await.expect("no panic").expect("drained");
    let error = endpoint.connect().await.expect_err("nothing listens");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

async fn a_server_serves_all_its_targets_until_shutdown(fixture: Fixture) {
    let targets = [fixture.target(), fixture.target(), fixture.target()];
    let bound =
        trusting(offering(&Desk::default()), &targets).bind(&targets).await.expect("fresh targets");
    let locals: Vec<_> = bound.local_targets().iter().map(ToString::to_string).collect();
    assert_eq!(locals.len(), 3);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(bound.serve_with_shutdown(async {
        stopped.await.expect("the case stops it");
    }));
    let mut clients = Vec::new();
    for (local, target) in locals.iter().zip(&targets) {
        // In the order of binding: the same, or the port that the system chose in the place of 0.
        assert!(local == target || target.ends_with(":0"), "{local} for {target}");
        let client = ConformanceClient::new(connect(&endpoint(local)).await);
        client.echo(Blob::default()).await.expect("echo");
        clients.push(client);
    }
    stop.send(()).expect("it serves");
    serving.await.expect("no panic").expect("drained");
    for client in clients {
        assert_unavailable(&refusal(&client).await, Executed::No);
    }
}

async fn a_server_that_cannot_listen_everywhere_listens_nowhere(fixture: Fixture) {
    let (_pair, serving) = fixture.pair_with(|builder| builder).await;
    let fresh = fixture.target();
    let targets = [fresh.as_str(), serving.target()];
    let error = trusting(offering(&Desk::default()), &targets)
        .bind(&targets)
        .await
        .expect_err("one is in use");
    assert_eq!(error.kind(), ErrorKind::LocalResource, "{error}");
    if !fresh.ends_with(":0") {
        endpoint(&fresh).connect().await.expect_err("nothing listens");
        Serving::start(offering(&Desk::default()), &fresh).await;
    }
    let twice = offering(&Desk::default())
        .add_service(ConformanceServer::new(Desk::default()))
        .bind(&[fixture.target()])
        .await;
    let error = twice.expect_err("two services of one name");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("was added twice"), "{error}");
}

async fn a_target_that_is_in_use_cannot_be_bound_twice(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let again =
        trusting(offering(&Desk::default()), &[serving.target()]).bind(&[serving.target()]).await;
    let error = again.expect_err("in use");
    assert_eq!(error.kind(), ErrorKind::LocalResource, "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
    // The first one is none the worse for it.
    pair.client.echo(Blob::default()).await.expect("echo");
    serving.client().await.echo(Blob::default()).await.expect("echo");
    let twice = Serving::start(offering(&Desk::default()), &fixture.target()).await;
    assert_ne!(twice.target(), serving.target());
}
