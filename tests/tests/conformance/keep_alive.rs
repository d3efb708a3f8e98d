//! Peers that are frozen: sockets and queue pairs stay open, and nobody answers.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use verbwire::config::KeepAlive;
use verbwire::{Code, Executed, Request};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Serving, begin, connect, endpoint, offering, short};
use verbwire_tests::island::Island;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, Ticket};
use verbwire_tests::service::Desk;

pub(crate) const CASES: &[Case] = &[
    case!(a_frozen_server_ends_its_calls_within_the_configured_time)
        .over_a_connection()
        .in_real_time(),
    case!(a_frozen_client_leaves_no_handler_behind).over_a_connection().in_real_time(),
    case!(who_answers_is_not_cut_off_however_idle).over_a_connection(),
];

/// Found within three times this, and what a loaded machine takes.
fn quick() -> KeepAlive {
    KeepAlive { interval: short(), timeout: 2 * short() }
}

fn patient(number: u64) -> Request<Ticket> {
    let mut request = Request::new(Ticket { number });
    request.set_timeout(10 * LONG);
    request
}

async fn a_frozen_server_ends_its_calls_within_the_configured_time(fixture: Fixture) {
    let (island, target) = (Island::new(), fixture.target());
    let serving =
        island.run(async move { Serving::start(offering(&Desk::default()), &target).await }).await;
    let channel = connect(&serving.endpoint().keep_alive(quick())).await;
    let client = ConformanceClient::new(channel);
    let call = begin(client.hang(patient(1))).await;
    client.echo(Blob::default()).await.expect("the server runs");
    island.freeze().await;
    let frozen = Instant::now();
    let status = call.await.expect("no panic").expect_err("nobody answers");
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe));
    assert!(status.message().contains("keep_alive.timeout"), "{status}");
    let took = frozen.elapsed();
    assert!(took >= quick().timeout && took < LONG, "{took:?}");
}

async fn a_frozen_client_leaves_no_handler_behind(fixture: Fixture) {
    let desk = Desk::default();
    let serving = Serving::start(offering(&desk).keep_alive(quick()), &fixture.target()).await;
    let (island, target) = (Island::new(), serving.target().to_owned());
    let client =
        island.run(async move { ConformanceClient::new(connect(&endpoint(&target)).await) }).await;
    let call = client.hang(patient(1));
    let _call = island.run(async move { begin(call).await.abort_handle() }).await;
    desk.witness().until(|log| log.entered.contains(&1)).await;
    island.freeze().await;
    desk.witness().until(|log| log.dropped.contains(&1)).await;
}

async fn who_answers_is_not_cut_off_however_idle(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder.keep_alive(quick())).await;
    let client = ConformanceClient::new(
        serving.endpoint().keep_alive(quick()).connect_timeout(LONG).connect().await.expect("up"),
    );
    let call = begin(client.hang(patient(1))).await;
    pair.witness.until(|log| log.entered.contains(&1)).await;
    sleep(4 * (quick().interval + quick().timeout)).await;
    assert!(!call.is_finished(), "the connection lives");
    assert!(pair.witness.log().dropped.is_empty());
    call.abort();
    sleep(Duration::ZERO).await;
}
