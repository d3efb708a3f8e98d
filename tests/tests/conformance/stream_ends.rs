//! Deadlines and cancelling of every shape of a call that has streams.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use verbwire::{Code, Executed, Request, Status};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Late, Serving, in_time, offering, on_time, short};
use verbwire_tests::island::Island;
use verbwire_tests::proto::conformance::Blob;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::service::Desk;
use verbwire_tests::streams::{fed, items};

use crate::streams::{ask, next, scan, step, take};

pub(crate) const CASES: &[Case] = &[
    case!(a_stream_of_requests_ends_at_its_deadline),
    case!(a_stream_of_replies_ends_at_its_deadline_though_its_handler_has_returned),
    case!(a_stream_each_way_ends_at_its_deadline),
    case!(a_stream_that_is_always_ready_ends_at_its_deadline),
    case!(streams_to_a_silent_peer_end_at_their_deadline).over_a_connection().in_real_time(),
    case!(a_handle_cancels_a_stream_of_requests),
    case!(a_handle_cancels_a_stream_of_replies_that_is_being_read),
    case!(a_handle_cancels_a_stream_each_way),
    case!(a_stream_cancelled_before_its_first_poll_never_runs),
];

fn within<T>(time: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(time);
    request
}

fn assert_expired(status: &Status, begun: Instant, timeout: Duration) {
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let took = begun.elapsed();
    assert!(took >= timeout && took < LONG, "{took:?}");
}

async fn a_stream_of_requests_ends_at_its_deadline(fixture: Fixture) {
    let pair = fixture.pair().await;
    in_time(async |time| {
        let (sender, requests) = fed();
        let begun = Instant::now();
        let call = tokio::spawn(pair.client.collect(within(time, requests)));
        let sent = sender.send(step(Act::Take, 1)).await;
        assert_expired(&call.await.expect("no panic").expect_err("no end comes"), begun, time);
        timeout(LONG, sender.closed()).await.expect("the stream is dropped");
        sent.map_err(|_ended| Late("the stream was not polled"))?;
        pair.witness.entered_in_time(1)?;
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

async fn a_stream_of_replies_ends_at_its_deadline_though_its_handler_has_returned(
    fixture: Fixture,
) {
    let pair = fixture.pair().await;
    in_time(async |time| {
        let begun = Instant::now();
        let request = within(time, scan(1, 2, &[10], Act::Hang));
        let mut replies = on_time(pair.client.scan(request).await)?.into_inner();
        on_time(replies.message().await)?.expect("one");
        on_time(replies.message().await)?.expect("one more");
        assert_expired(&replies.message().await.expect_err("no end comes"), begun, time);
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

async fn a_stream_each_way_ends_at_its_deadline(fixture: Fixture) {
    let pair = fixture.pair().await;
    in_time(async |time| {
        let (sender, requests) = fed();
        let begun = Instant::now();
        let mut replies = on_time(pair.client.talk(within(time, requests)).await)?.into_inner();
        let sent = sender.send(step(Act::Take, 1)).await;
        sent.map_err(|_ended| Late("the stream was not polled"))?;
        on_time(replies.message().await)?.expect("one");
        assert_expired(&replies.message().await.expect_err("no end comes"), begun, time);
        timeout(LONG, async {
            drop(replies);
            sender.closed().await;
        })
        .await
        .expect("the stream is dropped");
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

async fn a_stream_that_is_always_ready_ends_at_its_deadline(fixture: Fixture) {
    let pair = fixture.pair().await;
    in_time(async |time| {
        let begun = Instant::now();
        let request = within(time, scan(1, u64::MAX, &[10], Act::Take));
        let mut replies = on_time(pair.client.scan(request).await)?.into_inner();
        let status = loop {
            if let Err(status) = replies.message().await {
                break status;
            }
            // So that a virtual clock goes on as well.
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_expired(&status, begun, time);
        drop(replies);
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

async fn streams_to_a_silent_peer_end_at_their_deadline(fixture: Fixture) {
    let (island, target) = (Island::new(), fixture.target());
    let serving =
        island.run(async move { Serving::start(offering(&Desk::default()), &target).await });
    let client = serving.await.client().await;
    client.echo(Blob::default()).await.expect("the server runs");
    island.freeze().await;
    let begun = Instant::now();
    let (sender, requests) = fed();
    let collect = tokio::spawn(client.collect(within(short(), requests)));
    let endless = items(std::iter::repeat_with(|| take(vec![0; 1000])));
    let talk = tokio::spawn(client.talk(within(short(), endless)));
    let scan = client.scan(within(short(), scan(1, 1, &[1], Act::Take))).await;
    assert_expired(&scan.expect_err("nobody answers"), begun, short());
    assert_expired(&talk.await.expect("no panic").expect_err("nobody answers"), begun, short());
    assert_expired(&collect.await.expect("no panic").expect_err("nobody answers"), begun, short());
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    island.thaw();
    client.echo(Blob::default()).await.expect("the server runs again");
}

fn assert_cancelled(status: &Status, executed: Executed) {
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, executed), "{status}");
}

async fn a_handle_cancels_a_stream_of_requests(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut call = pair.client.collect(requests);
    let handle = call.cancel_handle();
    let call = tokio::spawn(call);
    sender.send(step(Act::Take, 1)).await.expect("the stream is polled");
    pair.witness.until(|log| log.entered.contains(&1)).await;
    handle.cancel();
    assert_cancelled(&call.await.expect("no panic").expect_err("cancelled"), Executed::Yes);
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn a_handle_cancels_a_stream_of_replies_that_is_being_read(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut call = pair.client.scan(scan(1, 1, &[10], Act::Hang));
    let handle = call.cancel_handle();
    let mut replies = call.await.expect("scan").into_inner();
    next(&mut replies).await;
    let waiting = tokio::spawn(async move { replies.message().await });
    tokio::task::yield_now().await;
    handle.cancel();
    assert_cancelled(&waiting.await.expect("no panic").expect_err("cancelled"), Executed::Yes);
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn a_handle_cancels_a_stream_each_way(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut call = pair.client.talk(requests);
    let handle = call.cancel_handle();
    let mut replies = call.await.expect("talk").into_inner();
    sender.send(step(Act::Take, 1)).await.expect("the stream is polled");
    next(&mut replies).await;
    ask(&sender, &mut replies, "a").await;
    handle.cancel();
    assert_cancelled(&replies.message().await.expect_err("cancelled"), Executed::Yes);
    drop(replies);
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn a_stream_cancelled_before_its_first_poll_never_runs(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut call = pair.client.scan(scan(1, 1, &[10], Act::Take));
    call.cancel_handle().cancel();
    assert_cancelled(&call.await.expect_err("cancelled"), Executed::No);
    let (sender, requests) = fed();
    drop(pair.client.collect(requests));
    assert!(sender.is_closed());
    pair.client.echo(Blob::default()).await.expect("echo");
    assert_eq!(pair.witness.log().entries, 0);
}
