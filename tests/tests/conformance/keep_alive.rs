//! Peers that are frozen: sockets and queue pairs stay open, and nobody answers.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use verbwire::config::KeepAlive;
use verbwire::{Code, Executed, Request};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{
    Fixture, LONG, Late, Serving, begin, connect, endpoint, in_time, offering,
};
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

/// Found within three times this, and what a loaded machine takes. A peer that is late by more is taken for dead.
fn every(interval: Duration) -> KeepAlive {
    KeepAlive { interval, timeout: 2 * interval }
}

fn patient(number: u64) -> Request<Ticket> {
    let mut request = Request::new(Ticket { number });
    request.set_timeout(10 * LONG);
    request
}

async fn a_frozen_server_ends_its_calls_within_the_configured_time(fixture: Fixture) {
    in_time(async |interval| {
        let (island, target) = (Island::new(), fixture.target());
        let serving = island
            .run(async move { Serving::start(offering(&Desk::default()), &target).await })
            .await;
        let connecting = Instant::now();
        let channel = connect(&serving.endpoint().keep_alive(every(interval))).await;
        let client = ConformanceClient::new(channel);
        let call = begin(client.hang(patient(1))).await;
        let echo = client.echo(Blob::default()).await;
        island.freeze().await;
        let frozen = Instant::now();
        // It may have been late before, and not answered for so long.
        if frozen - connecting >= every(interval).timeout {
            call.abort();
            return Err(Late("the server was not frozen"));
        }
        echo.expect("the server runs");
        let status = call.await.expect("no panic").expect_err("nobody answers");
        assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe));
        assert!(status.message().contains("keep_alive.timeout"), "{status}");
        let took = frozen.elapsed();
        assert!(took >= every(interval).timeout && took < LONG, "{took:?}");
        Ok(())
    })
    .await;
}

async fn a_frozen_client_leaves_no_handler_behind(fixture: Fixture) {
    in_time(async |interval| {
        let desk = Desk::default();
        let builder = offering(&desk).keep_alive(every(interval));
        let serving = Serving::start(builder, &fixture.target()).await;
        let (island, target) = (Island::new(), serving.target().to_owned());
        let connecting = async move { ConformanceClient::new(connect(&endpoint(&target)).await) };
        let client = island.run(connecting).await;
        let call = tokio::spawn(client.hang(patient(1)));
        while !desk.witness().log().entered.contains(&1) {
            if call.is_finished() {
                return Err(Late("the client's first answer did not come"));
            }
            sleep(Duration::from_millis(1)).await;
        }
        island.freeze().await;
        desk.witness().until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

async fn who_answers_is_not_cut_off_however_idle(fixture: Fixture) {
    in_time(async |interval| {
        let quick = every(interval);
        let (pair, serving) = fixture.pair_with(|builder| builder.keep_alive(quick)).await;
        let client = ConformanceClient::new(connect(&serving.endpoint().keep_alive(quick)).await);
        let call = begin(client.hang(patient(1))).await;
        pair.witness.until(|log| log.entered.contains(&1)).await;
        sleep(4 * (quick.interval + quick.timeout)).await;
        if call.is_finished() || !pair.witness.log().dropped.is_empty() {
            return Err(Late("an end whose thread runs did not answer"));
        }
        call.abort();
        sleep(Duration::ZERO).await;
        Ok(())
    })
    .await;
}
