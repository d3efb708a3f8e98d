//! Runtimes that end while calls are open, and channels that are used from another one.

use tokio::task::JoinSet;
use verbwire::{Code, Executed, Status};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, Serving, begin, connect, endpoint, offering};
use verbwire_tests::island::Island;
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, Ticket};
use verbwire_tests::service::Desk;

pub(crate) const CASES: &[Case] = &[
    case!(a_channel_works_from_another_runtime).over_a_connection().in_real_time(),
    case!(calls_end_when_the_clients_runtime_ends).over_one_connection().in_real_time(),
    case!(a_dropped_channel_closes_although_its_runtime_is_not_driven)
        .over_a_connection()
        .in_real_time(),
    case!(calls_end_when_the_servers_runtime_ends).over_a_connection().in_real_time(),
    case!(a_handler_is_dropped_when_the_clients_runtime_ends).over_a_connection().in_real_time(),
];

/// A client whose connection lives on the island.
async fn client_on(island: &Island, target: &str) -> ConformanceClient {
    let endpoint = endpoint(target);
    let channel = island.run(async move { connect(&endpoint).await });
    ConformanceClient::new(channel.await)
}

fn assert_unavailable(status: &Status, executed: Executed) {
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, executed), "{status}");
}

async fn a_channel_works_from_another_runtime(fixture: Fixture) {
    let (_pair, serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(20)).await;
    let island = Island::new();
    let client = client_on(&island, serving.target()).await;
    let mut calls = JoinSet::new();
    for number in 0..100_usize {
        let payload = pattern::payload(number * 1000, 1);
        let call = client.echo(Blob { payload: payload.clone() });
        calls.spawn(async move { (payload, call.await) });
    }
    while let Some(ended) = calls.join_next().await {
        let (payload, reply) = ended.expect("no panic");
        assert_eq!(reply.expect("echo").get_ref().payload, payload);
    }
    island.sink().await;
}

async fn calls_end_when_the_clients_runtime_ends(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(3)).await;
    let island = Island::new();
    let client = client_on(&island, serving.target()).await;
    let open = [1, 2, 3].map(|number| tokio::spawn(client.hang(Ticket { number })));
    pair.witness.until(|log| log.running == 3).await;
    let waiting = begin(client.hang(Ticket { number: 4 })).await;
    island.sink().await;
    for call in open {
        let status = call.await.expect("no panic").expect_err("nobody receives");
        assert_unavailable(&status, Executed::Maybe);
        assert!(status.message().contains("runtime"), "{status}");
    }
    let status = waiting.await.expect("no panic").expect_err("it was not sent");
    assert_unavailable(&status, Executed::No);
    let late = client.echo(Blob::default()).await.expect_err("nobody receives");
    assert_unavailable(&late, Executed::No);
    assert!(late.message().contains("runtime"), "{late}");
}

async fn a_handler_is_dropped_when_the_clients_runtime_ends(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let island = Island::new();
    let client = client_on(&island, serving.target()).await;
    let call = tokio::spawn(client.hang(Ticket { number: 1 }));
    pair.witness.until(|log| log.running == 1).await;
    island.sink().await;
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    call.await.expect("no panic").expect_err("nobody receives");
}

async fn a_dropped_channel_closes_although_its_runtime_is_not_driven(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let island = Island::new();
    let client = client_on(&island, serving.target()).await;
    let call = begin(client.hang(Ticket { number: 1 })).await;
    pair.witness.until(|log| log.running == 1).await;
    island.freeze().await;
    drop(client);
    call.abort();
    // No CANCEL goes out: the end of the connection is what the server sees.
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn calls_end_when_the_servers_runtime_ends(fixture: Fixture) {
    let (island, desk, target) = (Island::new(), Desk::default(), fixture.target());
    let builder = offering(&desk);
    let serving = island.run(async move { Serving::start(builder, &target).await }).await;
    let client = serving.client().await;
    let open = [1, 2, 3].map(|number| tokio::spawn(client.hang(Ticket { number })));
    desk.witness().until(|log| log.running == 3).await;
    island.sink().await;
    for call in open {
        let status = call.await.expect("no panic").expect_err("the server is gone");
        assert_unavailable(&status, Executed::Maybe);
    }
    assert_eq!(desk.witness().log().dropped.len(), 3);
    let error = endpoint(serving.target()).connect().await;
    error.expect_err("nothing listens");
}
