//! Streams without end, and peers that take nothing of them: memory stays bounded, and others are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use verbwire::codegen::prost::Message as _;
use verbwire::{Code, Request};
use verbwire_core::message::{CallId, Head, ReplyForm};
use verbwire_tests::fixture::{Fixture, LONG, connect, endpoint};
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{ScanRequest, Step};
use verbwire_tests::raw::{self, RawListener, call, message};
use verbwire_tests::streams::items;

use crate::bad::{MAX_CALLS, PLENTY, Victim};
use crate::over_sockets;
use crate::streams::{COLLECT, open, step};

over_sockets!(
    streams_opened_and_cancelled_by_a_peer_that_reads_nothing_cost_their_slots,
    a_client_that_reads_no_replies_stops_their_streams,
    windows_of_calls_that_are_over_cost_nothing,
    a_server_that_reads_nothing_stops_the_callers_streams,
);

/// How long the other side takes nothing before it counts as not reading any more.
const PATIENCE: Duration = Duration::from_millis(500);

/// What sockets, a send queue and windows may hold, by far. Who does not stop there does not stop.
const BOUND: u64 = 100 << 20;

async fn streams_opened_and_cancelled_by_a_peer_that_reads_nothing_cost_their_slots(
    fixture: Fixture,
) {
    const ROUNDS: u32 = 20_000;
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let flood = (0..ROUNDS).map(|round| {
        let id = CallId { slot: round % MAX_CALLS, generation: round / MAX_CALLS };
        [open(id, COLLECT), step(id, 0), message(&Head::Cancel { call: id }, b"")].concat()
    });
    let flood = flood.collect::<Vec<_>>().concat();
    let taken = peer.send_while_taken(&flood, LONG).await;
    assert_eq!(taken, flood.len(), "the server stopped reading");
    victim.assert_serves().await;
    // The last is answered, and nothing runs by then.
    loop {
        let frame = peer.frame().await.expect("the connection lives");
        let last = (ROUNDS - 1) / MAX_CALLS;
        if matches!(frame.head(), Head::Cancelled { call, .. } if call.generation == last) {
            break;
        }
    }
    victim.witness.until(|log| log.running == 0).await;
    let most = victim.witness.log().most_running;
    assert!(most <= MAX_CALLS as usize, "{most} handlers ran in {MAX_CALLS} slots");
}

/// Waits until `count` stands still.
async fn standstill(count: impl Fn() -> u64) {
    loop {
        let before = count();
        sleep(PATIENCE).await;
        assert!(before < BOUND, "{before} bytes, and it goes on");
        if before > 0 && count() == before {
            return;
        }
    }
}

async fn a_client_that_reads_no_replies_stops_their_streams(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    for slot in 0..MAX_CALLS {
        let endless = ScanRequest { count: u64::MAX, lens: vec![10_000], ..ScanRequest::default() };
        let path = "/conformance.Conformance/Scan";
        let (reply, body) = (ReplyForm::Stream, endless.encode_to_vec());
        peer.send(&raw::request_for(call(slot), path, PLENTY, reply, &body)).await;
        // No window stops them.
        let granted = Head::Window { call: call(slot), granted: u64::MAX };
        peer.send(&message(&granted, b"")).await;
    }
    standstill(|| victim.witness.log().produced).await;
    victim.assert_serves().await;
    victim.witness.until(|log| log.running == MAX_CALLS as usize).await;
    drop(peer);
    victim.witness.until(|log| log.running == 0).await;
}

async fn windows_of_calls_that_are_over_cost_nothing(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let window = |granted| {
        let id = CallId { slot: 1, generation: 7 };
        message(&Head::Window { call: id, granted }, b"")
    };
    let flood = (0..300_000).map(window).collect::<Vec<_>>().concat();
    let taken = peer.send_while_taken(&flood, LONG).await;
    assert_eq!(taken, flood.len(), "the server stopped reading");
    // None was answered: the first frame is what this asks for.
    peer.send(&message(&Head::Cancel { call: call(0) }, b"")).await;
    let frame = peer.frame().await.expect("the connection lives");
    assert!(matches!(frame.head(), Head::Cancelled { .. }), "{:?}", frame.head());
    victim.assert_serves().await;
}

async fn a_server_that_reads_nothing_stops_the_callers_streams(fixture: Fixture) {
    let (listener, target) = RawListener::bind(&fixture.target()).await;
    let endpoint = endpoint(&target);
    // No window stops them.
    let mut ours = raw::hello();
    ours.stream_window = u32::MAX;
    let (channel, _silent) = tokio::join!(connect(&endpoint), listener.greet(&ours));
    let client = ConformanceClient::new(channel);
    let polled = Arc::new(AtomicU64::new(0));
    let mut calls = Vec::new();
    for _ in 0..4 {
        let polled = Arc::clone(&polled);
        let endless = std::iter::repeat_with(move || {
            polled.fetch_add(10_000, Ordering::Relaxed);
            Step { payload: vec![0; 10_000].into(), ..Step::default() }
        });
        let mut request = Request::new(items(endless));
        request.set_timeout(PATIENCE * 4);
        calls.push(tokio::spawn(client.collect(request)));
    }
    standstill(|| polled.load(Ordering::Relaxed)).await;
    for call in calls {
        let status = call.await.expect("no panic").expect_err("nobody answers");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    }
    // The calls are over, and no stream is polled on.
    standstill(|| polled.load(Ordering::Relaxed)).await;
}
