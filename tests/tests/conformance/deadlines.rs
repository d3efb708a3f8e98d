//! Deadlines: every call ends by its own, whatever the peer does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use verbwire::interceptor::{Interceptor, Next, Outcome, Payload};
use verbwire::{Code, Executed, Request, Status};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{
    Fixture, LONG, Late, Serving, begin, connect, endpoint, in_time, offering, short,
};
use verbwire_tests::island::Island;
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, Nothing, Ticket};
use verbwire_tests::service::Desk;

pub(crate) const CASES: &[Case] = &[
    case!(a_silent_peer_holds_no_call).over_a_connection().in_real_time(),
    case!(a_long_request_to_a_silent_peer_expires_and_the_connection_lives)
        .over_a_connection()
        .in_real_time(),
    case!(the_handler_is_dropped_at_the_deadline),
    case!(a_call_without_a_timeout_has_the_channels).over_a_connection(),
    case!(the_deadline_runs_from_the_call_of_the_method),
    case!(a_call_without_time_is_not_sent),
    case!(the_handler_sees_the_time_that_is_left),
    case!(each_call_ends_at_its_own_deadline),
    case!(a_timeout_beyond_all_clocks_is_allowed),
    case!(settings_beyond_all_clocks_are_allowed).over_a_connection(),
    case!(an_expired_call_leaves_its_slot_to_others).over_one_connection(),
    case!(a_handler_is_not_entered_late_because_of_an_interceptor)
        .over_a_connection()
        .in_real_time(),
];

fn ticket(number: u64, timeout: Duration) -> Request<Ticket> {
    let mut request = Request::new(Ticket { number });
    request.set_timeout(timeout);
    request
}

fn assert_expired(status: &Status, begun: Instant, timeout: Duration) {
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let took = begun.elapsed();
    assert!(took >= timeout && took < LONG, "{took:?} for {timeout:?}");
}

async fn a_silent_peer_holds_no_call(fixture: Fixture) {
    let island = Island::new();
    let target = fixture.target();
    let serving =
        island.run(async move { Serving::start(offering(&Desk::default()), &target).await });
    let client = serving.await.client().await;
    client.echo(Blob::default()).await.expect("the server runs");
    island.freeze().await;
    let begun = Instant::now();
    let mut calls = Vec::new();
    for number in 0..20 {
        // Sent at once: what expires in a queue of this machine's scheduler is not executed for certain.
        calls.push(begin(client.gate(ticket(number, short()))).await);
    }
    for call in calls {
        let status = call.await.expect("no panic").expect_err("nobody answers");
        assert_expired(&status, begun, short());
        assert_eq!(status.executed(), Executed::Maybe, "{status}");
    }
    island.thaw();
    client.echo(Blob::default()).await.expect("the server runs again");
}

async fn a_long_request_to_a_silent_peer_expires_and_the_connection_lives(fixture: Fixture) {
    let (island, desk, target) = (Island::new(), Desk::default(), fixture.target());
    let builder = offering(&desk).max_concurrent_calls(2);
    let serving = island.run(async move { Serving::start(builder, &target).await }).await;
    let client = serving.client().await;
    client.echo(Blob::default()).await.expect("the server runs");
    for round in 0..3 {
        island.freeze().await;
        let payload = pattern::payload(8 << 20, round);
        let mut request = Request::new(Blob { payload: payload.clone() });
        request.set_timeout(short());
        let begun = Instant::now();
        let status = client.digest(request).await.expect_err("nobody answers");
        assert_expired(&status, begun, short());
        island.thaw();
        // What was sent of the other one does not get into the way of this one.
        let checksum = pattern::checksum(&payload);
        let reply = client.digest(Blob { payload }).await.expect("the server runs again");
        assert_eq!(reply.get_ref().checksum, checksum);
    }
}

async fn the_handler_is_dropped_at_the_deadline(fixture: Fixture) {
    let pair = fixture.pair().await;
    in_time(async |time| {
        let begun = Instant::now();
        let status = pair.client.hang(ticket(1, time)).await.expect_err("hangs");
        assert_expired(&status, begun, time);
        pair.witness.entered_in_time(1)?;
        assert_ne!(status.executed(), Executed::No);
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

async fn a_call_without_a_timeout_has_the_channels(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    in_time(async |time| {
        let channel = connect(&serving.endpoint().default_timeout(time)).await;
        let client = ConformanceClient::new(channel);
        let begun = Instant::now();
        let status = client.hang(Ticket { number: 1 }).await.expect_err("hangs");
        assert_expired(&status, begun, time);
        pair.witness.entered_in_time(1)?;
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

async fn the_deadline_runs_from_the_call_of_the_method(fixture: Fixture) {
    let pair = fixture.pair().await;
    let call = pair.client.gate(ticket(1, short()));
    tokio::time::sleep(short()).await;
    let status = call.await.expect_err("too late");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(status.executed(), Executed::No);
    pair.client.echo(Blob::default()).await.expect("echo");
    assert_eq!(pair.witness.log().entries, 0);
}

async fn a_call_without_time_is_not_sent(fixture: Fixture) {
    let pair = fixture.pair().await;
    let status = pair.client.gate(ticket(1, Duration::ZERO)).await;
    let status = status.expect_err("no time");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(status.executed(), Executed::No);
    pair.client.echo(Blob::default()).await.expect("echo");
    assert_eq!(pair.witness.log().entries, 0);
}

async fn the_handler_sees_the_time_that_is_left(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut request = Request::new(Nothing {});
    request.set_timeout(LONG);
    let call = pair.client.inspect(request);
    tokio::time::sleep(short()).await;
    let left = Duration::from_micros(call.await.expect("inspect").get_ref().left_us);
    // What was waited here is gone from it.
    assert!(left <= LONG - short(), "{left:?}");
    assert!(left > LONG / 2, "{left:?}");
}

async fn each_call_ends_at_its_own_deadline(fixture: Fixture) {
    let pair = fixture.pair().await;
    let begun = Instant::now();
    let long = tokio::spawn(pair.client.hang(ticket(1, LONG)));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    let client = Arc::new(pair.client);
    // The later ones begin first and the other way round.
    let timeouts = [300, 100, 200, 150, 250].map(Duration::from_millis);
    let calls = timeouts.map(|timeout| {
        let call = client.hang(ticket(2, timeout));
        (timeout, tokio::spawn(async move { (call.await, begun.elapsed()) }))
    });
    for (timeout, call) in calls {
        let (ended, took) = call.await.expect("no panic");
        assert_eq!(ended.expect_err("hangs").code(), Code::DeadlineExceeded);
        assert!(took >= timeout && took < LONG, "{took:?} for {timeout:?}");
    }
    assert!(!long.is_finished());
    long.abort();
}

async fn a_timeout_beyond_all_clocks_is_allowed(fixture: Fixture) {
    let pair = fixture.pair().await;
    pair.witness.open(1);
    pair.client.gate(ticket(1, Duration::MAX)).await.expect("gate");
}

async fn settings_beyond_all_clocks_are_allowed(fixture: Fixture) {
    let builder = offering(&Desk::default())
        .handshake_timeout(Duration::MAX)
        .drain_timeout(Duration::MAX)
        .max_message_size(usize::MAX)
        .max_landing_bytes(usize::MAX);
    let serving = Serving::start(builder, &fixture.target()).await;
    let endpoint = endpoint(serving.target())
        .connect_timeout(Duration::MAX)
        .default_timeout(Duration::MAX)
        .max_message_size(usize::MAX);
    let channel = connect(&endpoint).await;
    let payload = channel.alloc(10).await.expect("room").freeze();
    let client = ConformanceClient::new(channel);
    let reply = client.echo(Blob { payload: payload.clone() }).await.expect("echo");
    assert_eq!(reply.get_ref().payload, payload);
    serving.shut_down().await.expect("no panic").expect("drained");
}

async fn an_expired_call_leaves_its_slot_to_others(fixture: Fixture) {
    let desk = Desk::default();
    let builder = offering(&desk).max_concurrent_calls(1);
    let serving = Serving::start(builder, &fixture.target()).await;
    let client = ConformanceClient::new(connect(&endpoint(serving.target())).await);
    for number in 0..5 {
        let status = client.hang(ticket(number, short() / 4)).await.expect_err("hangs");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        client.echo(Blob::default()).await.expect("the slot is free");
    }
    desk.witness().until(|log| log.running == 0).await;
}

/// Keeps its thread until the deadline has passed, so that nobody can stop the call meanwhile, and tells what then came of it.
struct Blocks(Arc<AtomicUsize>, UnboundedSender<Result<(), (Code, Executed)>>);

impl Interceptor for Blocks {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        self.0.fetch_add(1, Ordering::SeqCst);
        let deadline = request.deadline().expect("a received request has one");
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let outcome = next.run(request).await;
        let told = outcome.as_ref().map(|_| ()).map_err(|why| (why.code(), why.executed()));
        self.1.send(told).expect("the case waits");
        outcome
    }
}

async fn a_handler_is_not_entered_late_because_of_an_interceptor(fixture: Fixture) {
    let (tell, mut told) = unbounded_channel();
    let entered = Arc::new(AtomicUsize::new(0));
    let blocks = Blocks(Arc::clone(&entered), tell);
    let (pair, _serving) = fixture.pair_with(|builder| builder.intercept(blocks)).await;
    pair.witness.open(1);
    in_time(async |time| {
        let status = pair.client.gate(ticket(1, time)).await.expect_err("it is blocked");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        match entered.load(Ordering::SeqCst) {
            0 => Err(Late("the interceptor was not entered")),
            _ => Ok(()),
        }
    })
    .await;
    let outcome = told.recv().await.expect("the server runs");
    assert_eq!(outcome, Err((Code::DeadlineExceeded, Executed::No)));
    assert_eq!(pair.witness.log().entries, 0);
}
