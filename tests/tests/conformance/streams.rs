//! Streams: order, ends by either side, windows, and what one stream leaves to others.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::timeout;
use verbwire::{Code, Executed, Status, Streaming};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Pair, Serving, connect};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{Blob, ScanRequest, Step};
use verbwire_tests::streams::{fed, items};

pub(crate) const CASES: &[Case] = &[
    case!(a_stream_of_requests_arrives_in_order_and_whole),
    case!(a_stream_of_replies_arrives_in_order_and_whole),
    case!(both_directions_go_on_by_themselves),
    case!(long_and_short_messages_keep_their_order),
    case!(the_end_of_the_requests_leaves_the_replies_open),
    case!(a_handler_may_answer_before_the_requests_end),
    case!(a_handler_may_stop_reading_and_go_on_answering),
    case!(dropped_replies_drop_the_handlers_stream),
    case!(an_error_behind_messages_comes_behind_them),
    case!(a_failing_handler_ends_both_streams),
    case!(a_panic_amid_a_stream_fails_its_call_and_no_other),
    case!(a_panic_of_the_callers_stream_fails_its_call).in_real_time(),
    case!(a_stream_that_nobody_reads_stops_at_its_window).over_a_connection(),
    case!(a_handler_that_does_not_read_stops_its_caller_at_the_window).over_a_connection(),
    case!(streams_that_nobody_reads_keep_no_other_waiting).over_a_connection(),
    case!(a_message_beyond_the_receivers_limit_fails_its_call_only).over_a_connection(),
    case!(streams_opened_and_cancelled_in_a_flood_leave_nothing_behind).over_one_connection(),
    case!(streams_use_slots_like_other_calls).over_one_connection(),
    case!(the_end_of_the_server_ends_every_stream).over_a_connection(),
    case!(the_end_of_the_client_ends_every_handler).over_a_connection(),
];

/// A step that is taken.
pub(crate) fn take(payload: impl Into<bytes::Bytes>) -> Step {
    Step { payload: payload.into(), ..Step::default() }
}

/// A step of a visit.
pub(crate) fn step(act: Act, ticket: u64) -> Step {
    Step { act: act.into(), ticket, ..Step::default() }
}

/// What a scan gives: `count` blobs of these lengths.
pub(crate) fn scan(ticket: u64, count: u64, lens: &[u64], then: Act) -> ScanRequest {
    ScanRequest { ticket, count, lens: lens.to_vec(), then: then.into() }
}

/// Takes the rest of a stream that ends well.
async fn rest(replies: &mut Streaming<Blob>) -> Vec<Blob> {
    let mut all = Vec::new();
    while let Some(blob) = replies.message().await.expect("the stream ends well") {
        all.push(blob);
    }
    all
}

/// The next reply.
pub(crate) async fn next(replies: &mut Streaming<Blob>) -> Blob {
    replies.message().await.expect("no error").expect("one more")
}

/// Says a step and takes its answer.
pub(crate) async fn ask(sender: &Sender<Step>, replies: &mut Streaming<Blob>, text: &'static str) {
    sender.send(take(text)).await.expect("the stream is polled");
    assert_eq!(next(replies).await.payload, text);
}

async fn assert_answers(client: &ConformanceClient) {
    client.echo(Blob { payload: "x".into() }).await.expect("other calls go on");
}

async fn a_stream_of_requests_arrives_in_order_and_whole(fixture: Fixture) {
    let pair = fixture.pair().await;
    for count in [0, 1, 2, 1000] {
        let payloads: Vec<_> = (0..count).map(|seed| pattern::payload(100, seed)).collect();
        let all = payloads.concat();
        let reply = pair.client.collect(items(payloads.into_iter().map(take))).await;
        let reply = reply.expect("collect").into_inner();
        assert_eq!((reply.messages, reply.len), (count, all.len() as u64));
        assert_eq!(reply.checksum, pattern::checksum(&all));
    }
}

async fn a_stream_of_replies_arrives_in_order_and_whole(fixture: Fixture) {
    let pair = fixture.pair().await;
    for count in [0, 1, 2, 1000] {
        let replies = pair.client.scan(scan(1, count, &[100], Act::Take)).await;
        let all = rest(&mut replies.expect("scan").into_inner()).await;
        assert_eq!(all.len() as u64, count);
        for (seed, blob) in (0..).zip(all) {
            assert_eq!(blob.payload, pattern::payload(100, seed));
        }
    }
    pair.witness.until(|log| log.running == 0).await;
    assert!(pair.witness.log().dropped.is_empty());
}

async fn both_directions_go_on_by_themselves(fixture: Fixture) {
    let pair = fixture.pair().await;
    let payloads: Vec<_> = (0..700).map(|seed| pattern::payload(500, seed)).collect();
    let steps = payloads.clone().into_iter().map(take);
    let mut replies = pair.client.talk(items(steps)).await.expect("talk").into_inner();
    let answers: Vec<_> = rest(&mut replies).await.into_iter().map(|blob| blob.payload).collect();
    assert!(answers == payloads);
    assert!(replies.message().await.expect("no error").is_none(), "the end stays the end");
}

/// Lengths around every limit: in one frame, in pieces, by Write.
const MIXED: [usize; 7] = [0, 1 << 20, 10, 20_000, 300_000, 7, 40_000];

async fn long_and_short_messages_keep_their_order(fixture: Fixture) {
    let pair = fixture.pair().await;
    let payloads: Vec<_> = (0..21)
        .zip(MIXED.into_iter().cycle())
        .map(|(seed, len)| pattern::payload(len, seed))
        .collect();
    let all = payloads.concat();
    let steps = payloads.clone().into_iter().map(take);
    let reply = pair.client.collect(items(steps.clone())).await.expect("collect").into_inner();
    assert_eq!((reply.messages, reply.len), (21, all.len() as u64));
    assert_eq!(reply.checksum, pattern::checksum(&all));
    let mut replies = pair.client.talk(items(steps)).await.expect("talk").into_inner();
    let answers: Vec<_> = rest(&mut replies).await.into_iter().map(|blob| blob.payload).collect();
    assert!(answers == payloads);
}

async fn the_end_of_the_requests_leaves_the_replies_open(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut replies = pair.client.talk(requests).await.expect("talk").into_inner();
    ask(&sender, &mut replies, "a").await;
    let mut last = step(Act::Gate, 1);
    last.payload = "b".into();
    sender.send(last).await.expect("the stream is polled");
    drop(sender);
    let early = timeout(Duration::from_millis(50), replies.message()).await;
    assert!(early.is_err(), "the gate is closed");
    pair.witness.open(1);
    assert_eq!(next(&mut replies).await.payload, "b");
    assert!(replies.message().await.expect("no error").is_none());
}

async fn a_handler_may_answer_before_the_requests_end(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let call = tokio::spawn(pair.client.collect(requests));
    sender.send(take("abc")).await.expect("the stream is polled");
    sender.send(step(Act::Answer, 1)).await.expect("the stream is polled");
    let reply = call.await.expect("no panic").expect("collect").into_inner();
    assert_eq!((reply.messages, reply.len), (1, 3));
    // The task that polled the stream has ended, and dropped it.
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    let (sender, requests) = fed();
    let mut replies = pair.client.talk(requests).await.expect("talk").into_inner();
    ask(&sender, &mut replies, "a").await;
    sender.send(step(Act::Answer, 1)).await.expect("the stream is polled");
    assert!(replies.message().await.expect("no error").is_none());
    drop(replies);
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
}

async fn a_handler_may_stop_reading_and_go_on_answering(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut replies = pair.client.talk(requests).await.expect("talk").into_inner();
    sender.send(step(Act::Deafen, 1)).await.expect("the stream is polled");
    assert_eq!(next(&mut replies).await.payload, "");
    drop(replies);
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    assert_answers(&pair.client).await;
}

async fn dropped_replies_drop_the_handlers_stream(fixture: Fixture) {
    let pair = fixture.pair().await;
    let request = scan(1, 2, &[10], Act::Hang);
    let mut replies = pair.client.scan(request).await.expect("scan").into_inner();
    next(&mut replies).await;
    assert!(pair.witness.log().dropped.is_empty());
    drop(replies);
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    let (sender, requests) = fed();
    let mut replies = pair.client.talk(requests).await.expect("talk").into_inner();
    sender.send(step(Act::Take, 2)).await.expect("the stream is polled");
    next(&mut replies).await;
    drop(replies);
    pair.witness.until(|log| log.dropped.contains(&2)).await;
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    assert_answers(&pair.client).await;
}

fn assert_failed(status: &Status) {
    assert_eq!((status.code(), status.executed()), (Code::DataLoss, Executed::Yes), "{status}");
    assert_eq!(status.message(), "a step that fails");
}

async fn an_error_behind_messages_comes_behind_them(fixture: Fixture) {
    let pair = fixture.pair().await;
    let request = scan(1, 30, &[10, 300_000], Act::Fail);
    let mut replies = pair.client.scan(request).await.expect("scan").into_inner();
    for seed in 0..30 {
        let len = if seed % 2 == 0 { 10 } else { 300_000 };
        assert_eq!(next(&mut replies).await.payload, pattern::payload(len, seed));
    }
    assert_failed(&replies.message().await.expect_err("it fails"));
    assert!(replies.message().await.expect("the error was the last").is_none());
}

async fn a_failing_handler_ends_both_streams(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let call = tokio::spawn(pair.client.collect(requests));
    sender.send(step(Act::Fail, 1)).await.expect("the stream is polled");
    assert_failed(&call.await.expect("no panic").expect_err("it fails"));
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    let (sender, requests) = fed();
    let mut replies = pair.client.talk(requests).await.expect("talk").into_inner();
    ask(&sender, &mut replies, "a").await;
    sender.send(step(Act::Fail, 2)).await.expect("the stream is polled");
    assert_failed(&replies.message().await.expect_err("it fails"));
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
}

async fn a_panic_amid_a_stream_fails_its_call_and_no_other(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut other = pair.client.talk(requests).await.expect("talk").into_inner();
    ask(&sender, &mut other, "before").await;
    let assert_panicked = |status: &Status| {
        assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes));
        assert!(!status.message().contains("a step that panics"), "{status}");
    };
    let request = scan(1, 2, &[10], Act::Panic);
    let mut replies = pair.client.scan(request).await.expect("scan").into_inner();
    next(&mut replies).await;
    next(&mut replies).await;
    assert_panicked(&replies.message().await.expect_err("it panics"));
    let status = pair.client.collect(items([take("a"), step(Act::Panic, 1)])).await;
    assert_panicked(&status.expect_err("it panics"));
    let steps = items([take("a"), step(Act::Panic, 2)]);
    let mut replies = pair.client.talk(steps).await.expect("talk").into_inner();
    assert_eq!(next(&mut replies).await.payload, "a");
    assert_panicked(&replies.message().await.expect_err("it panics"));
    ask(&sender, &mut other, "after").await;
}

#[expect(clippy::panic, reason = "what the case is about")]
async fn a_panic_of_the_callers_stream_fails_its_call(fixture: Fixture) {
    let pair = fixture.pair().await;
    let requests = (0..3).map(|number| if number < 2 { take("a") } else { panic!("on purpose") });
    let call = tokio::spawn(pair.client.collect(items(requests)));
    match call.await {
        Ok(outcome) => assert_eq!(outcome.expect_err("it panics").code(), Code::Internal),
        // In process the handler polls the stream.
        Err(panic) => assert!(panic.is_panic()),
    }
    assert_answers(&pair.client).await;
}

/// The default window and what a sender may have beyond it: a message, and what is on its way.
const HELD: u64 = 256 << 10;

async fn a_stream_that_nobody_reads_stops_at_its_window(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut replies =
        pair.client.scan(scan(1, 100, &[10_000], Act::Take)).await.expect("scan").into_inner();
    next(&mut replies).await;
    pair.witness.until(|log| log.produced > HELD).await;
    assert_answers(&pair.client).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let produced = pair.witness.log().produced;
    assert!(produced <= HELD + 40_000, "{produced} bytes for a reader of 10,000");
    assert_eq!(rest(&mut replies).await.len(), 99);
}

async fn a_handler_that_does_not_read_stops_its_caller_at_the_window(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.stream_window(10_000)).await;
    let (sender, requests) = fed();
    let call = tokio::spawn(pair.client.collect(requests));
    sender.send(step(Act::Gate, 1)).await.expect("the stream is polled");
    pair.witness.until(|log| log.entered.contains(&1)).await;
    let mut sent = 0;
    // What the window takes is polled, however late.
    let patience = |sent| if sent < 9 { LONG } else { Duration::from_millis(50) };
    while timeout(patience(sent), sender.send(take(vec![0; 900]))).await.is_ok() {
        sent += 1;
        assert!(sent < 100, "nothing stops the caller");
    }
    assert!(sent >= 9, "{sent}");
    pair.witness.open(1);
    // The one that was given up.
    sender.send(take(vec![0; 900])).await.expect("the stream is polled");
    drop(sender);
    let reply = call.await.expect("no panic").expect("collect").into_inner();
    assert_eq!(reply.len, 900 * (sent + 1));
}

async fn streams_that_nobody_reads_keep_no_other_waiting(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut unread = Vec::new();
    for ticket in 0..10 {
        // All of it is on its way, and none is taken.
        let request = scan(ticket, 40, &[10_000], Act::Take);
        unread.push(pair.client.scan(request).await.expect("scan").into_inner());
    }
    pair.witness.until(|log| log.produced > 10 * HELD).await;
    let mut talks = Vec::new();
    for _ in 0..10 {
        let (sender, requests) = fed();
        let replies = pair.client.talk(requests).await.expect("talk").into_inner();
        talks.push((sender, replies));
    }
    // Each takes less than what would make it grant more.
    for _ in 0..6 {
        for (sender, replies) in &mut talks {
            ask(sender, replies, "below every threshold").await;
        }
    }
    let long = pair.client.scan(scan(99, 10, &[100_000], Act::Take)).await.expect("scan");
    assert_eq!(rest(&mut long.into_inner()).await.len(), 10);
    for mut replies in unread {
        assert_eq!(rest(&mut replies).await.len(), 40);
    }
}

async fn a_message_beyond_the_receivers_limit_fails_its_call_only(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder.max_message_size(50_000)).await;
    let channel = connect(&serving.endpoint().max_message_size(50_000)).await;
    let client = ConformanceClient::new(channel);
    let (sender, requests) = fed();
    let mut other = client.talk(requests).await.expect("talk").into_inner();
    let assert_refused = |status: &Status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().contains("max_message_size of 50000 bytes"), "{status}");
    };
    let long = items([take(vec![0; 10]), take(vec![0; 60_000])]);
    assert_refused(&client.collect(long).await.expect_err("too long"));
    let request = scan(1, 3, &[10, 60_000], Act::Take);
    let mut replies = client.scan(request).await.expect("scan").into_inner();
    assert_eq!(next(&mut replies).await.payload.len(), 10);
    assert_refused(&replies.message().await.expect_err("too long"));
    pair.witness.until(|log| log.running == 0).await;
    ask(&sender, &mut other, "goes on").await;
}

async fn streams_opened_and_cancelled_in_a_flood_leave_nothing_behind(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(8)).await;
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..90 {
        match round % 3 {
            0 => {
                let request = scan(round, 50, &[10, 40_000], Act::Hang);
                let mut replies = pair.client.scan(request).await.expect("scan").into_inner();
                for _ in 0..random.u32(0..4) {
                    next(&mut replies).await;
                }
            }
            1 => {
                let steps = (0..50).map(move |_| take(vec![0; 20_000])).chain([step(Act::Hang, 1)]);
                let mut replies = pair.client.talk(items(steps)).await.expect("talk").into_inner();
                for _ in 0..random.u32(0..4) {
                    next(&mut replies).await;
                }
            }
            _ => {
                let (sender, requests) = fed();
                let call = tokio::spawn(pair.client.collect(requests));
                if random.bool() {
                    sender.send(step(Act::Hang, round)).await.expect("the stream is polled");
                }
                call.abort();
            }
        }
    }
    pair.witness.until(|log| log.running == 0).await;
    assert_answers(&pair.client).await;
}

async fn streams_use_slots_like_other_calls(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(2)).await;
    let mut open = Vec::new();
    for ticket in 0..2 {
        let request = scan(ticket, 1, &[10], Act::Hang);
        open.push(pair.client.scan(request).await.expect("scan").into_inner());
    }
    let waiting = tokio::spawn(pair.client.scan(scan(2, 1, &[10], Act::Take)));
    pair.witness.until(|log| log.entered == BTreeSet::from([0, 1])).await;
    drop(open.pop());
    let mut replies = waiting.await.expect("no panic").expect("scan").into_inner();
    assert_eq!(rest(&mut replies).await.len(), 1);
    assert_answers(&pair.client).await;
}

/// One stream of each shape that is under way.
struct Open {
    sender: Sender<Step>,
    talk: Streaming<Blob>,
    scan: Streaming<Blob>,
    collect: tokio::task::JoinHandle<Result<u64, Status>>,
    collecting: Sender<Step>,
}

async fn open(pair: &Pair) -> Open {
    let (sender, requests) = fed();
    let mut talk = pair.client.talk(requests).await.expect("talk").into_inner();
    sender.send(step(Act::Take, 1)).await.expect("the stream is polled");
    next(&mut talk).await;
    let request = scan(2, 1, &[10], Act::Hang);
    let mut scan = pair.client.scan(request).await.expect("scan").into_inner();
    next(&mut scan).await;
    let (collecting, requests) = fed();
    let call = pair.client.collect(requests);
    let collect = tokio::spawn(async { call.await.map(|reply| reply.into_inner().messages) });
    collecting.send(step(Act::Take, 3)).await.expect("the stream is polled");
    pair.witness.until(|log| log.running == 3).await;
    Open { sender, talk, scan, collect, collecting }
}

async fn the_end_of_the_server_ends_every_stream(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let mut open = open(&pair).await;
    Serving::drop_serving(serving).await;
    let ended = [
        open.talk.message().await.expect_err("the server is gone"),
        open.scan.message().await.expect_err("the server is gone"),
        open.collect.await.expect("no panic").expect_err("the server is gone"),
    ];
    for status in ended {
        assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe));
    }
    timeout(LONG, open.sender.closed()).await.expect("the stream is dropped");
    timeout(LONG, open.collecting.closed()).await.expect("the stream is dropped");
    pair.witness.until(|log| log.running == 0).await;
}

async fn the_end_of_the_client_ends_every_handler(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder.drain_timeout(LONG)).await;
    let open = open(&pair).await;
    drop(pair.client);
    assert_eq!(pair.witness.log().running, 3, "open streams keep the connection");
    open.collect.abort();
    drop((open.talk, open.scan));
    pair.witness.until(|log| log.running == 0).await;
    assert_eq!(pair.witness.log().dropped, BTreeSet::from([1, 2, 3]));
    serving.shut_down().await.expect("no panic").expect("no connection is left");
}
