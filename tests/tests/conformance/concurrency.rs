//! The limit on calls at a time.

use std::time::Duration;

use tokio::task::JoinSet;
use verbwire::{Code, Executed, Request};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, begin};
use verbwire_tests::proto::conformance::{Blob, Ticket};

pub(crate) const CASES: &[Case] = &[
    case!(calls_beyond_the_limit_wait_and_all_finish).over_one_connection(),
    case!(a_waiting_call_that_is_dropped_gives_its_turn_up).over_one_connection(),
    case!(a_call_that_waits_too_long_expires_unexecuted).over_one_connection(),
    case!(the_first_to_wait_is_the_first_to_run).over_one_connection(),
    case!(one_call_at_a_time_is_enough).over_one_connection(),
];

async fn calls_beyond_the_limit_wait_and_all_finish(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(4)).await;
    let mut calls = JoinSet::new();
    for number in 0..40 {
        calls.spawn(pair.client.gate(Ticket { number }));
    }
    pair.witness.until(|log| log.running == 4).await;
    (0..40).for_each(|number| pair.witness.open(number));
    while let Some(ended) = calls.join_next().await {
        ended.expect("no panic").expect("gate");
    }
    let log = pair.witness.log();
    assert_eq!((log.entries, log.finished.len(), log.most_running), (40, 40, 4));
}

async fn a_waiting_call_that_is_dropped_gives_its_turn_up(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(1)).await;
    let first = tokio::spawn(pair.client.gate(Ticket { number: 1 }));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    let second = begin(pair.client.gate(Ticket { number: 2 })).await;
    let third = begin(pair.client.gate(Ticket { number: 3 })).await;
    second.abort();
    assert!(second.await.is_err_and(|error| error.is_cancelled()));
    (1..=3).for_each(|number| pair.witness.open(number));
    first.await.expect("no panic").expect("gate");
    third.await.expect("no panic").expect("gate");
    assert!(!pair.witness.log().entered.contains(&2));
}

async fn a_call_that_waits_too_long_expires_unexecuted(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(1)).await;
    let first = tokio::spawn(pair.client.gate(Ticket { number: 1 }));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    let mut request = Request::new(Ticket { number: 2 });
    request.set_timeout(Duration::from_millis(80));
    let status = pair.client.gate(request).await.expect_err("no slot");
    assert_eq!((status.code(), status.executed()), (Code::DeadlineExceeded, Executed::No));
    pair.witness.open(1);
    first.await.expect("no panic").expect("gate");
    assert!(!pair.witness.log().entered.contains(&2));
}

async fn the_first_to_wait_is_the_first_to_run(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(1)).await;
    let mut calls = Vec::new();
    for number in 0..10 {
        calls.push(begin(pair.client.gate(Ticket { number })).await);
    }
    for (number, call) in (0..).zip(calls) {
        pair.witness.until(|log| log.entered.contains(&number)).await;
        assert_eq!(pair.witness.log().entries as u64, number + 1);
        pair.witness.open(number);
        call.await.expect("no panic").expect("gate");
    }
}

async fn one_call_at_a_time_is_enough(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(1)).await;
    let mut calls = JoinSet::new();
    for number in 0..200 {
        let payload = format!("call {number}").into();
        calls.spawn(pair.client.echo(Blob { payload }));
    }
    while let Some(ended) = calls.join_next().await {
        ended.expect("no panic").expect("echo");
    }
}
