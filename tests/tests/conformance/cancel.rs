//! Cancelling: by dropping a call, and by its handle.

use verbwire::{Code, Executed, Status};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, Serving, begin, offering};
use verbwire_tests::island::Island;
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::{Blob, Ticket};
use verbwire_tests::service::Desk;

pub(crate) const CASES: &[Case] = &[
    case!(a_dropped_call_drops_its_handler),
    case!(a_handle_ends_the_call_and_says_that_the_handler_ran),
    case!(a_call_cancelled_before_its_first_poll_never_runs),
    case!(a_call_cancelled_while_it_waits_for_a_slot_never_runs).over_one_connection(),
    case!(a_call_cancelled_before_it_ran_says_so).over_a_connection().in_real_time(),
    case!(a_handle_works_from_another_thread).in_real_time(),
    case!(a_handle_of_an_ended_call_does_nothing),
    case!(shielded_work_finishes_without_its_caller),
    case!(cancelled_calls_give_their_slots_back).over_one_connection(),
    case!(calls_dropped_at_any_moment_leave_nothing_behind).over_one_connection(),
    case!(a_long_request_can_be_dropped_half_sent).over_one_connection(),
    case!(a_long_reply_can_be_dropped_half_received).over_one_connection(),
];

fn assert_cancelled(status: &Status, executed: Executed) {
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, executed), "{status}");
}

async fn a_dropped_call_drops_its_handler(fixture: Fixture) {
    let pair = fixture.pair().await;
    let call = tokio::spawn(pair.client.hang(Ticket { number: 1 }));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    assert!(pair.witness.log().dropped.is_empty());
    call.abort();
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    pair.client.echo(Blob::default()).await.expect("echo");
}

async fn a_handle_ends_the_call_and_says_that_the_handler_ran(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut call = pair.client.hang(Ticket { number: 1 });
    let handle = call.cancel_handle();
    let call = tokio::spawn(call);
    pair.witness.until(|log| log.entered.contains(&1)).await;
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_cancelled(&status, Executed::Yes);
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn a_call_cancelled_before_its_first_poll_never_runs(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut call = pair.client.gate(Ticket { number: 1 });
    call.cancel_handle().cancel();
    assert_cancelled(&call.await.expect_err("cancelled"), Executed::No);
    drop(pair.client.gate(Ticket { number: 2 }));
    pair.client.echo(Blob::default()).await.expect("echo");
    assert_eq!(pair.witness.log().entries, 0);
}

async fn a_call_cancelled_while_it_waits_for_a_slot_never_runs(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(1)).await;
    let first = tokio::spawn(pair.client.gate(Ticket { number: 1 }));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    let mut second = pair.client.gate(Ticket { number: 2 });
    let handle = second.cancel_handle();
    let second = begin(second).await;
    handle.cancel();
    assert_cancelled(&second.await.expect("no panic").expect_err("cancelled"), Executed::No);
    pair.witness.open(1);
    first.await.expect("no panic").expect("gate");
    pair.client.echo(Blob::default()).await.expect("echo");
    assert_eq!(pair.witness.log().entries, 1);
}

async fn a_call_cancelled_before_it_ran_says_so(fixture: Fixture) {
    let (island, desk, target) = (Island::new(), Desk::default(), fixture.target());
    let builder = offering(&desk);
    let serving = island.run(async move { Serving::start(builder, &target).await }).await;
    let client = serving.client().await;
    client.echo(Blob::default()).await.expect("the server runs");
    island.freeze().await;
    let mut call = client.hang(Ticket { number: 1 });
    let handle = call.cancel_handle();
    let call = begin(call).await;
    handle.cancel();
    let second = begin(client.echo(Blob::default())).await;
    island.thaw();
    let status = call.await.expect("no panic").expect_err("cancelled");
    second.await.expect("no panic").expect("echo");
    let ran = desk.witness().log().entered.contains(&1);
    assert_cancelled(&status, if ran { Executed::Yes } else { Executed::No });
}

async fn a_handle_works_from_another_thread(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut call = pair.client.hang(Ticket { number: 1 });
    let handle = call.cancel_handle();
    let call = tokio::spawn(call);
    pair.witness.until(|log| log.entered.contains(&1)).await;
    std::thread::spawn(move || handle.cancel());
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_cancelled(&status, Executed::Yes);
}

async fn a_handle_of_an_ended_call_does_nothing(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut call = pair.client.echo(Blob { payload: "x".into() });
    let handle = call.cancel_handle();
    assert_eq!(call.await.expect("echo").get_ref().payload, "x");
    let next = tokio::spawn(pair.client.gate(Ticket { number: 1 }));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    handle.cancel();
    pair.witness.open(1);
    next.await.expect("no panic").expect("not this one");
}

async fn shielded_work_finishes_without_its_caller(fixture: Fixture) {
    let pair = fixture.pair().await;
    let call = tokio::spawn(pair.client.shielded(Ticket { number: 1 }));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    call.abort();
    assert!(call.await.is_err_and(|error| error.is_cancelled()));
    // Its CANCEL is read before this is answered.
    pair.client.echo(Blob::default()).await.expect("echo");
    pair.witness.open(1);
    pair.witness.until(|log| log.finished.contains(&1)).await;
    assert!(pair.witness.log().dropped.is_empty());
}

async fn cancelled_calls_give_their_slots_back(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(2)).await;
    for number in 0..100 {
        let mut call = pair.client.hang(Ticket { number });
        let handle = call.cancel_handle();
        let call = tokio::spawn(call);
        pair.witness.until(|log| log.entered.contains(&number)).await;
        if number % 2 == 0 {
            call.abort();
        } else {
            handle.cancel();
            let status = call.await.expect("no panic").expect_err("cancelled");
            assert_cancelled(&status, Executed::Yes);
        }
    }
    pair.client.echo(Blob::default()).await.expect("a slot is free");
    pair.witness.until(|log| log.running == 0).await;
}

async fn calls_dropped_at_any_moment_leave_nothing_behind(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(8)).await;
    let seed = fastrand::u64(..);
    println!("calls dropped at any moment: seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..600 {
        let call = tokio::spawn(pair.client.hang(Ticket { number }));
        for _ in 0..random.u32(0..6) {
            tokio::task::yield_now().await;
        }
        call.abort();
    }
    let echoes = (0..16).map(|_| tokio::spawn(pair.client.echo(Blob::default())));
    for echo in echoes.collect::<Vec<_>>() {
        echo.await.expect("no panic").expect("echo");
    }
    pair.witness.until(|log| log.running == 0).await;
    let log = pair.witness.log();
    assert_eq!(log.dropped, log.entered);
    assert_eq!(log.entries, log.entered.len());
}

async fn a_long_request_can_be_dropped_half_sent(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(4)).await;
    let payload = pattern::payload(8 << 20, 1);
    for turns in 1..11 {
        let call = tokio::spawn(pair.client.digest(Blob { payload: payload.clone() }));
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        call.abort();
        pair.client.echo(Blob::default()).await.expect("echo");
    }
    let reply = pair.client.digest(Blob { payload: payload.clone() }).await.expect("digest");
    assert_eq!(reply.get_ref().checksum, pattern::checksum(&payload));
    while !payload.is_unique() {
        tokio::task::yield_now().await;
    }
}

async fn a_long_reply_can_be_dropped_half_received(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(4)).await;
    for turns in 0..10 {
        let request = Blob { payload: pattern::payload(4 << 20, turns) };
        let call = tokio::spawn(pair.client.echo(request));
        for _ in 0..turns {
            pair.client.echo(Blob::default()).await.expect("echo");
        }
        call.abort();
    }
    let request = Blob { payload: pattern::payload(4 << 20, 99) };
    let reply = pair.client.echo(request.clone()).await.expect("echo");
    assert_eq!(reply.into_inner(), request);
}
