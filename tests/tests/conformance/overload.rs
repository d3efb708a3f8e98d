//! Bounds of a server, and what those beyond them are told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use verbwire::error_details::RetryInfo;
use verbwire::{
    Code, Executed, Landing, Limited, LoadLimits, LongRequest, Request, Response, Server, Status,
};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Serving, begin, offering};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::conformance_server::ConformanceServer;
use verbwire_tests::proto::conformance::second_client::SecondClient;
use verbwire_tests::proto::conformance::second_server::SecondServer;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{Blob, Ticket};
use verbwire_tests::service::Desk;
use verbwire_tests::streams::{fed, items};

use crate::stream_layers::refused;
use crate::streams::{ask, next, scan, step, take};

pub(crate) const CASES: &[Case] = &[
    case!(calls_beyond_the_servers_bound_are_turned_away_with_a_hint).over_a_connection(),
    case!(a_services_own_bound_leaves_others_alone).over_a_connection(),
    case!(requests_beyond_the_bound_on_bytes_are_turned_away).over_a_connection(),
    case!(a_stream_runs_until_it_has_ended_for_the_servers_bound).over_a_connection(),
    case!(messages_of_a_stream_wait_for_room_within_the_bound_on_bytes).over_a_connection(),
    case!(a_message_that_waits_for_room_keeps_its_sender_waiting).over_a_connection(),
    case!(what_streams_have_not_read_is_bounded_per_connection).over_one_connection(),
    case!(a_connection_beyond_the_bound_is_told_so).over_a_connection(),
    case!(a_fallback_answers_for_methods_that_no_service_has).over_a_connection(),
    case!(a_fallback_of_messages_takes_no_streams_of_requests).over_a_connection(),
    case!(a_server_says_where_long_payloads_land_and_refuses_some).over_a_connection(),
    case!(a_panic_while_a_payload_is_placed_fails_its_call_and_no_other).over_a_connection(),
];

/// Longer than what comes with its head, over every transport.
const PAYLOAD: usize = 300_000;

fn blob(len: usize) -> Blob {
    Blob { payload: pattern::payload(len, 1) }
}

fn assert_turned_away(status: &Status, words: &str) {
    let (code, executed) = (status.code(), status.executed());
    assert_eq!((code, executed), (Code::ResourceExhausted, Executed::No), "{status}");
    assert!(status.message().contains(words), "{status}");
    let details = status.error_details().expect("the standard form");
    let delay = details.retry_info().and_then(RetryInfo::delay);
    assert_eq!(delay, Some(Duration::from_millis(70)));
}

/// Tries again until there is room, which comes a moment after the handler's end.
async fn until_served(client: &ConformanceClient) {
    let begun = Instant::now();
    while let Err(status) = client.echo(blob(1)).await {
        assert!(begun.elapsed() < LONG, "the place never became free: {status}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn limits() -> LoadLimits {
    LoadLimits::new().retry_after(Duration::from_millis(70))
}

async fn calls_beyond_the_servers_bound_are_turned_away_with_a_hint(fixture: Fixture) {
    let desk = Desk::default();
    let builder = offering(&desk).load_limits(&limits().max_running_calls(2));
    let serving = Serving::start(builder, &fixture.target()).await;
    // It holds over all connections.
    let (one, other) = (serving.client().await, serving.client().await);
    let first = begin(one.gate(Ticket { number: 1 })).await;
    let second = begin(other.gate(Ticket { number: 2 })).await;
    desk.witness().until(|log| log.running == 2).await;
    for client in [&one, &other] {
        let status = client.gate(Ticket { number: 3 }).await.expect_err("one too many");
        assert_turned_away(&status, "the server runs max_running_calls of 2 calls already");
    }
    desk.witness().open(1);
    first.await.expect("no panic").expect("gate");
    one.echo(blob(10)).await.expect("there is room again");
    assert!(!desk.witness().log().entered.contains(&3));
    desk.witness().open(2);
    second.await.expect("no panic").expect("gate");
}

async fn a_services_own_bound_leaves_others_alone(fixture: Fixture) {
    let desk = Desk::default();
    let limited =
        Limited::new(ConformanceServer::new(desk.clone()), &limits().max_running_calls(1));
    let builder =
        Server::builder().add_service(limited).add_service(SecondServer::new(desk.clone()));
    let serving = Serving::start(builder, &fixture.target()).await;
    let channel = serving.connect().await;
    let client = ConformanceClient::new(channel.clone());
    let call = begin(client.gate(Ticket { number: 1 })).await;
    desk.witness().until(|log| log.running == 1).await;
    let status = client.echo(blob(1)).await.expect_err("one too many");
    assert_turned_away(&status, "conformance.Conformance runs max_running_calls of 1");
    SecondClient::new(channel).echo(blob(1)).await.expect("another service");
    // A call that is cancelled leaves its place, as one that ends.
    call.abort();
    desk.witness().until(|log| log.running == 0).await;
    until_served(&client).await;
}

async fn requests_beyond_the_bound_on_bytes_are_turned_away(fixture: Fixture) {
    let desk = Desk::default();
    let builder = offering(&desk).load_limits(&limits().max_running_bytes(100_000));
    let serving = Serving::start(builder, &fixture.target()).await;
    let client = serving.client().await;
    let call = begin(client.gate(Ticket { number: 1 })).await;
    desk.witness().until(|log| log.running == 1).await;
    client.echo(blob(90_000)).await.expect("there is room");
    let status = client.echo(blob(200_000)).await.expect_err("too much beside another");
    assert_turned_away(&status, "max_running_bytes of 100000 bytes");
    desk.witness().open(1);
    call.await.expect("no panic").expect("gate");
    client.echo(blob(200_000)).await.expect("alone, whatever its length");
}

async fn a_stream_runs_until_it_has_ended_for_the_servers_bound(fixture: Fixture) {
    let desk = Desk::default();
    let witness = Arc::clone(desk.witness());
    let builder = offering(&desk).load_limits(&limits().max_running_calls(1));
    let client = Serving::start(builder, &fixture.target()).await.client().await;
    // Its handler has returned, and its replies have not ended.
    let request = scan(1, 1, &[10], Act::Gate);
    let mut replies = client.scan(request).await.expect("scan").into_inner();
    next(&mut replies).await;
    for status in refused(&client).await {
        assert_turned_away(&status, "the server runs max_running_calls of 1 calls already");
    }
    witness.open(1);
    assert!(replies.message().await.expect("no error").is_none());
    until_served(&client).await;
    // One that is dropped makes room as well, and a stream of requests takes its place.
    let request = scan(2, 1, &[10], Act::Hang);
    let mut replies = client.scan(request).await.expect("scan").into_inner();
    next(&mut replies).await;
    drop(replies);
    witness.until(|log| log.dropped.contains(&2)).await;
    until_served(&client).await;
    let (sender, requests) = fed();
    let call = tokio::spawn(client.collect(requests));
    sender.send(step(Act::Take, 3)).await.expect("the stream is polled");
    witness.until(|log| log.entered.contains(&3)).await;
    let status = client.echo(Blob::default()).await.expect_err("one too many");
    assert_turned_away(&status, "max_running_calls of 1");
    drop(sender);
    call.await.expect("no panic").expect("collect");
    until_served(&client).await;
}

async fn messages_of_a_stream_wait_for_room_within_the_bound_on_bytes(fixture: Fixture) {
    let desk = Desk::default();
    let witness = Arc::clone(desk.witness());
    let builder = offering(&desk).load_limits(&limits().max_running_bytes(100_000));
    let client = Serving::start(builder, &fixture.target()).await.client().await;
    let (sender, requests) = fed();
    let mut replies = client.talk(requests).await.expect("talk").into_inner();
    let mut large = step(Act::Gate, 1);
    large.payload = pattern::payload(80_000, 1);
    sender.send(large).await.expect("the stream is polled");
    witness.until(|log| log.entered.contains(&1)).await;
    // A request is turned away, and a message waits.
    let blob = Blob { payload: pattern::payload(50_000, 2) };
    let status = client.echo(blob.clone()).await.expect_err("too much beside another");
    assert_turned_away(&status, "max_running_bytes of 100000 bytes");
    let (other, requests) = fed();
    let mut others = client.talk(requests).await.expect("talk").into_inner();
    ask(&other, &mut others, "short").await;
    let mut waits = take(pattern::payload(50_000, 3));
    waits.ticket = 2;
    other.send(waits).await.expect("the stream is polled");
    let early = timeout(Duration::from_millis(50), others.message()).await;
    assert!(early.is_err(), "there is no room");
    witness.open(1);
    assert_eq!(next(&mut replies).await.payload.len(), 80_000);
    // The first stream's handler has asked for its next message.
    assert_eq!(next(&mut others).await.payload, pattern::payload(50_000, 3));
    drop((sender, other));
    assert!(replies.message().await.expect("no error").is_none());
    assert!(others.message().await.expect("no error").is_none());
    until_served(&client).await;
    client.echo(blob).await.expect("all of it is free again");
    // A message of more than the bound is let in alone.
    let reply = client.collect(items([take(pattern::payload(300_000, 4))])).await;
    assert_eq!(reply.expect("collect").get_ref().len, 300_000);
}

async fn a_message_that_waits_for_room_keeps_its_sender_waiting(fixture: Fixture) {
    let desk = Desk::default();
    let witness = Arc::clone(desk.witness());
    let limits = limits().max_running_bytes(100_000);
    let builder = offering(&desk).load_limits(&limits).stream_window(10_000);
    let client = Serving::start(builder, &fixture.target()).await.client().await;
    let mut large = step(Act::Gate, 1);
    large.payload = pattern::payload(80_000, 1);
    let holds = tokio::spawn(client.collect(items([large])));
    witness.until(|log| log.entered.contains(&1)).await;
    let made = Arc::new(AtomicU64::new(0));
    let making = Arc::clone(&made);
    let steps = (0..4).map(move |_| {
        making.fetch_add(1, Ordering::Relaxed);
        take(pattern::payload(50_000, 2))
    });
    let waits = tokio::spawn(client.collect(items(steps)));
    let begun = Instant::now();
    while made.load(Ordering::Relaxed) < 2 {
        assert!(begun.elapsed() < LONG, "the stream is not polled");
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(100)).await;
    // One waits at the server, and its sender has the next one ready.
    assert_eq!(made.load(Ordering::Relaxed), 2, "the window opens only as messages are taken");
    witness.open(1);
    holds.await.expect("no panic").expect("collect");
    let reply = waits.await.expect("no panic").expect("collect").into_inner();
    assert_eq!((reply.messages, reply.len), (4, 200_000));
}

async fn what_streams_have_not_read_is_bounded_per_connection(fixture: Fixture) {
    let (pair, serving) =
        fixture.pair_with(|builder| builder.max_landing_bytes(4 * PAYLOAD + 1000)).await;
    let mut calls = Vec::new();
    for ticket in 1..=8 {
        let (sender, requests) = fed();
        calls.push(tokio::spawn(pair.client.collect(requests)));
        sender.send(step(Act::Gate, ticket)).await.expect("the stream is polled");
        pair.witness.until(|log| log.entered.contains(&ticket)).await;
        sender.send(take(pattern::payload(PAYLOAD, 1))).await.expect("the stream is polled");
        // Comes behind it, and as a whole request needs no room beside what waits.
        pair.client.echo(blob(PAYLOAD)).await.expect("long");
    }
    // Four fit, or three beside an echo that is on its way.
    let begun = Instant::now();
    while calls.iter().filter(|call| call.is_finished()).count() < 4 {
        assert!(begun.elapsed() < LONG, "nothing bounds what is not read");
        sleep(Duration::from_millis(10)).await;
    }
    // Neither what is short nor who has a connection of their own is kept from anything.
    pair.client.echo(blob(10)).await.expect("short");
    pair.client.collect(items([take("short")])).await.expect("a stream of what is short");
    let other = serving.client().await;
    let read = other.collect(items([take(pattern::payload(PAYLOAD, 1))]));
    assert_eq!(read.await.expect("collect").get_ref().len, PAYLOAD as u64);
    (1..=8).for_each(|ticket| pair.witness.open(ticket));
    let mut whole = 0;
    for call in calls {
        match call.await.expect("no panic") {
            Ok(reply) => {
                assert_eq!(reply.get_ref().len, PAYLOAD as u64);
                whole += 1;
            }
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                let words = "and messages that its streams have not read";
                assert!(status.message().contains(words), "{status}");
            }
        }
    }
    assert!((3..=4).contains(&whole), "{whole}");
}

async fn a_connection_beyond_the_bound_is_told_so(fixture: Fixture) {
    let builder = offering(&Desk::default()).max_connections(1);
    let serving = Serving::start(builder, &fixture.target()).await;
    let first = serving.client().await;
    first.echo(blob(1)).await.expect("the first one");
    let second = serving.client().await;
    let status = second.echo(blob(1)).await.expect_err("one too many");
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::No), "{status}");
    assert!(status.message().contains("max_connections of 1"), "{status}");
    first.echo(blob(1)).await.expect("the first one is served on");
    // The second keeps trying, and would take the place.
    drop((first, second));
    let begun = Instant::now();
    while let Err(status) = serving.client().await.echo(blob(1)).await {
        assert!(begun.elapsed() < LONG, "the place never became free: {status}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn a_fallback_answers_for_methods_that_no_service_has(fixture: Fixture) {
    let desk = Desk::default();
    let builder = Server::builder()
        .add_service(SecondServer::new(desk))
        .intercept(verbwire::interceptor::from_fn(|request: Request<()>| {
            match request.metadata().contains_key("refuse") {
                true => Err(Status::permission_denied("as told")),
                false => Ok(request),
            }
        }))
        .fallback(|path: Arc<str>, request: Request<verbwire::Body>| async move {
            match &*path {
                // The same form of message goes back.
                "/conformance.Conformance/Echo" => Ok(Response::new(request.into_inner())),
                other => Err(Status::not_found(format!("nothing at {other}"))),
            }
        });
    let serving = Serving::start(builder, &fixture.target()).await;
    let channel = serving.connect().await;
    let client = ConformanceClient::new(channel.clone());
    for _ in 0..3 {
        let reply = client.echo(blob(100_000)).await.expect("the fallback answers");
        assert_eq!(reply.get_ref().payload, blob(100_000).payload);
    }
    let status = client.gate(Ticket { number: 1 }).await.expect_err("as told");
    assert_eq!((status.code(), status.executed()), (Code::NotFound, Executed::Yes));
    assert_eq!(status.message(), "nothing at /conformance.Conformance/Gate");
    let mut refused = Request::new(blob(1));
    refused.metadata_mut().insert("refuse", 1.into()).expect("a name");
    let status = client.echo(refused).await.expect_err("interceptors come first");
    assert_eq!((status.code(), status.executed()), (Code::PermissionDenied, Executed::No));
    let reply = SecondClient::new(channel).echo(blob(1)).await.expect("a service comes first");
    assert!(reply.get_ref().payload.starts_with(b"second "));
}

async fn a_fallback_of_messages_takes_no_streams_of_requests(fixture: Fixture) {
    let echo = |_: Arc<str>, request: Request<verbwire::Body>| async move {
        Ok(Response::new(request.into_inner()))
    };
    let builder = Server::builder().add_service(SecondServer::new(Desk::default()));
    let client = Serving::start(builder.fallback(echo), &fixture.target()).await.client().await;
    let (sender, requests) = fed();
    let status = client.collect(requests).await.expect_err("a stream");
    let found = (status.code(), status.executed());
    assert_eq!(found, (Code::Unimplemented, Executed::No), "{status}");
    assert!(status.message().contains("/conformance.Conformance/Collect"), "{status}");
    // Of a stream that goes on, the task that feeds it ends with the call.
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    let status = client.talk(items([take("a"), take("b")])).await.expect_err("a stream");
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    // Its reply is a stream of one where a stream is expected: here of a message that is no blob.
    let mut replies = client.scan(scan(1, 0, &[], Act::Take)).await.expect("begun").into_inner();
    let status = replies.message().await.expect_err("no blob");
    assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes), "{status}");
    client.echo(blob(1)).await.expect("the connection lives");
}

async fn a_server_says_where_long_payloads_land_and_refuses_some(fixture: Fixture) {
    let desk = Desk::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&seen);
    let builder = offering(&desk).place_payloads(move |request: &LongRequest<'_>| {
        let tenant = request.metadata().get("tenant").map(|value| value.as_str().to_owned());
        let method = request.method().name;
        noting.lock().expect("no panic").push((method, request.len() / PAYLOAD, tenant.clone()));
        match tenant.as_deref() {
            Some("stranger") => Err(Status::permission_denied("no payloads of strangers")),
            Some("cache") => Ok(Landing::Owned),
            _ => Ok(Landing::Pooled),
        }
    });
    let serving = Serving::start(builder, &fixture.target()).await;
    let client = serving.client().await;
    let echo = |tenant: &'static str| {
        let mut request = Request::new(blob(PAYLOAD));
        let value = tenant.parse().expect("ASCII");
        request.metadata_mut().insert("tenant", value).expect("a name");
        client.echo(request)
    };
    for tenant in ["cache", "other"] {
        let reply = echo(tenant).await.expect("placed").into_inner();
        assert!(reply == blob(PAYLOAD), "{tenant}");
    }
    let status = echo("stranger").await.expect_err("refused");
    let (code, executed) = (status.code(), status.executed());
    assert_eq!((code, executed), (Code::PermissionDenied, Executed::No), "{status}");
    assert_eq!(status.message(), "no payloads of strangers");
    // What comes with its head needs no place.
    client.echo(blob(10)).await.expect("short");
    let asked = |tenant: &str| ("Echo", 1, Some(tenant.to_owned()));
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen, ["cache", "other", "stranger"].map(asked));
}

async fn a_panic_while_a_payload_is_placed_fails_its_call_and_no_other(fixture: Fixture) {
    let desk = Desk::default();
    let builder = offering(&desk).place_payloads(|request: &LongRequest<'_>| {
        assert!(request.len() < 2 * PAYLOAD, "a test's panic");
        Ok(Landing::Pooled)
    });
    let serving = Serving::start(builder, &fixture.target()).await;
    let client = serving.client().await;
    let status = client.echo(blob(2 * PAYLOAD)).await.expect_err("panicked");
    let (code, executed) = (status.code(), status.executed());
    assert_eq!((code, executed), (Code::Internal, Executed::No), "{status}");
    assert!(status.message().contains("placing the payload"), "{status}");
    client.echo(blob(PAYLOAD)).await.expect("the connection lives on");
}
