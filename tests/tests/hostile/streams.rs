//! Streams that keep to no rule, from either side.

use verbwire::{Code, Executed};
use verbwire_core::message::{CallId, Form, Head, MethodId, ReplyForm};
use verbwire_core::wire::Kind;
use verbwire_tests::fixture::{Fixture, connect, endpoint};
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, ScanRequest};
use verbwire_tests::raw::{self, RawListener, RawPeer, call, message};

use crate::bad::{ECHO, PLENTY, Victim};
use crate::over_sockets;

over_sockets!(
    streams_that_break_the_rules_are_told_so_and_end_the_connection,
    a_stream_against_the_methods_shape_ends_its_call_only,
    a_stream_that_is_not_the_one_request_of_a_method_ends_its_call_only,
    messages_of_calls_that_are_over_are_late,
    a_server_that_breaks_the_rules_of_streams_ends_the_connection,
    a_stream_where_one_reply_is_expected_ends_its_call_only,
);

pub(crate) const COLLECT: &str = "/conformance.Conformance/Collect";

/// A REQUEST whose request is a stream.
pub(crate) fn open(id: CallId, path: &str) -> Vec<u8> {
    open_for(id, path, ReplyForm::Whole)
}

/// The same of a caller that takes the reply in this form.
fn open_for(id: CallId, path: &str, reply: ReplyForm) -> Vec<u8> {
    let (method, path) = (MethodId::NONE, Some(path.to_owned().into()));
    let (timeout, form) = (PLENTY, Form::Stream);
    message(&Head::Request { call: id, method, path, timeout, form, reply, slot: None }, b"")
}

fn item(id: CallId, number: u32, len: usize) -> Vec<u8> {
    message(&Head::Message { call: id, number }, &vec![0x0a; len])
}

/// A message that decodes, and that the handler takes.
pub(crate) fn step(id: CallId, number: u32) -> Vec<u8> {
    message(&Head::Message { call: id, number }, b"\x12\x01x")
}

fn end(id: CallId, messages: u32) -> Vec<u8> {
    message(&Head::End { call: id, messages }, b"")
}

async fn streams_that_break_the_rules_are_told_so_and_end_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let id = call(0);
    let begun = open(id, COLLECT);
    // Behind a gap, so that the handler takes none of them.
    let beyond = [begun.clone(), item(id, 1, 200_000), item(id, 2, 100_000), item(id, 3, 1)];
    let hang = raw::request(id, crate::bad::HANG, PLENTY, &[0x08, 1]);
    let cases = [
        (item(id, 0, 1), "call 0.0, which was never requested"),
        (end(id, 0), "call 0.0, which was never requested"),
        (item(call(9999), 0, 1), "beyond max_concurrent_calls"),
        ([hang, item(id, 0, 1)].concat(), "call 0.0, whose request is no stream"),
        (beyond.concat(), "message 3 of the stream is beyond its window"),
        ([begun.clone(), item(id, 5000, 1)].concat(), "message 5000 of the stream is beyond"),
        (
            [begun.clone(), item(id, 1, 1), item(id, 1, 1)].concat(),
            "message 1 of the stream came twice",
        ),
        ([begun.clone(), end(id, 1), item(id, 1, 1)].concat(), "has ended after 1 messages"),
        (
            [begun.clone(), item(id, 1, 1), end(id, 1)].concat(),
            "ends after 1 messages, more have come",
        ),
        ([begun.clone(), end(id, 2), end(id, 2)].concat(), "the stream ended twice"),
        (message(&Head::Headers { call: id }, b""), "only servers send"),
    ];
    for (bytes, words) in cases {
        victim.assert_goes_away(&bytes, words).await;
    }
}

async fn a_stream_against_the_methods_shape_ends_its_call_only(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let refused = [
        open(call(0), ECHO),
        raw::request(call(1), COLLECT, PLENTY, b""),
        raw::request_for(call(2), ECHO, PLENTY, ReplyForm::Stream, b""),
        raw::request(call(3), "/conformance.Conformance/Scan", PLENTY, b""),
    ];
    for (slot, request) in (0..).zip(refused) {
        peer.send(&request).await;
        let (code, executed) = (Code::Unimplemented, Executed::No);
        let expected = Head::Response { call: call(slot), code, executed, messages: None };
        assert_eq!(peer.frame().await.expect("a RESPONSE").head(), expected);
    }
    // The messages of a refused stream come all the same.
    peer.send(&[step(call(0), 0), end(call(0), 1)].concat()).await;
    assert_collects(&mut peer, CallId { slot: 0, generation: 1 }).await;
}

async fn a_stream_that_is_not_the_one_request_of_a_method_ends_its_call_only(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let any = |id| open_for(id, ECHO, ReplyForm::Either);
    for (slot, messages) in [
        (0, vec![end(call(0), 0)]),
        (1, vec![item(call(1), 0, 0), item(call(1), 1, 0)]),
        // The second one comes first.
        (2, vec![end(call(2), 2), item(call(2), 1, 0), item(call(2), 0, 0)]),
    ] {
        peer.send(&[any(call(slot)), messages.concat()].concat()).await;
        let (code, executed) = (Code::Unimplemented, Executed::No);
        let expected = Head::Response { call: call(slot), code, executed, messages: None };
        assert_eq!(peer.frame().await.expect("a RESPONSE").head(), expected);
    }
    // What follows is late.
    peer.send(&[item(call(1), 2, 0), end(call(1), 3)].concat()).await;
    assert_collects(&mut peer, call(3)).await;
    let next = CallId { slot: 0, generation: 1 };
    peer.send(&[any(next), item(next, 0, 0), end(next, 1)].concat()).await;
    let (code, executed) = (Code::Ok, Executed::Yes);
    let expected = Head::Response { call: next, code, executed, messages: None };
    assert_eq!(peer.frame().await.expect("a RESPONSE").head(), expected);
}

/// The connection of `peer` still serves streams.
async fn assert_collects(peer: &mut RawPeer, id: CallId) {
    peer.send(&[open(id, COLLECT), step(id, 0), step(id, 1), end(id, 2)].concat()).await;
    loop {
        let frame = peer.frame().await.expect("a RESPONSE");
        if frame.header.kind != Kind::Window {
            assert_eq!(frame.header.call, id);
            assert!(matches!(frame.head(), Head::Response { code: Code::Ok, .. }), "{frame:?}");
            return;
        }
    }
}

async fn messages_of_calls_that_are_over_are_late(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    assert_collects(&mut peer, call(0)).await;
    peer.send(&[step(call(0), 9), end(call(0), 9), step(call(0), 0)].concat()).await;
    let granted = Head::Window { call: call(0), granted: u64::MAX };
    let never = Head::Window { call: call(3), granted: 0 };
    peer.send(&[message(&granted, b""), message(&never, b"")].concat()).await;
    let next = CallId { slot: 0, generation: 1 };
    assert_collects(&mut peer, next).await;
    // The last use of the slot was another one.
    peer.send(&step(call(0), 1)).await;
    assert_collects(&mut peer, CallId { slot: 0, generation: 2 }).await;
}

/// A client of a raw server, which has read the client's HELLO.
async fn pair(fixture: &Fixture) -> (ConformanceClient, RawPeer) {
    let (listener, target) = RawListener::bind(&fixture.target()).await;
    let endpoint = endpoint(&target);
    let ours = raw::hello();
    let (channel, peer) = tokio::join!(connect(&endpoint), listener.greet(&ours));
    (ConformanceClient::new(channel), peer)
}

async fn request(peer: &mut RawPeer) -> CallId {
    let frame = peer.frame().await.expect("a REQUEST");
    assert_eq!(frame.header.kind, Kind::Request);
    frame.header.call
}

async fn a_server_that_breaks_the_rules_of_streams_ends_the_connection(fixture: Fixture) {
    let headers = |id| message(&Head::Headers { call: id }, b"");
    let response = |id, messages| {
        let (code, executed, messages) = (Code::Ok, Executed::Yes, Some(messages));
        message(&Head::Response { call: id, code, executed, messages }, b"")
    };
    type Frames = Box<dyn Fn(CallId) -> Vec<u8>>;
    let trailer = raw::metadata_entry(0x8001, 1, b"kv");
    let cases: [(Frames, &str); 7] = [
        (Box::new(|id| item(id, 0, 1)), "a message came before HEADERS"),
        (Box::new(move |id| headers(id).repeat(2)), "the replies began twice"),
        (
            Box::new(move |id| raw::with_metadata(&headers(id), &trailer)),
            "trailers came before the end",
        ),
        (
            Box::new(move |id| {
                [headers(id), item(id, 1, 200_000), item(id, 2, 100_000), item(id, 3, 1)].concat()
            }),
            "message 3 of the stream is beyond its window",
        ),
        (
            Box::new(move |id| [headers(id), item(id, 1, 1), item(id, 1, 1)].concat()),
            "message 1 of the stream came twice",
        ),
        (
            Box::new(move |id| [headers(id), item(id, 1, 1), response(id, 1)].concat()),
            "ends after 1 messages, more have come",
        ),
        (
            Box::new(move |id| [headers(id), response(id, 2), response(id, 2)].concat()),
            "answered twice",
        ),
    ];
    for (frames, words) in cases {
        let (client, mut peer) = pair(&fixture).await;
        let call = tokio::spawn(async move {
            let mut replies = client.scan(ScanRequest::default()).await?.into_inner();
            replies.message().await
        });
        let id = request(&mut peer).await;
        peer.send(&frames(id)).await;
        let status = call.await.expect("no panic").expect_err(words);
        assert_eq!(
            (status.code(), status.executed()),
            (Code::Internal, Executed::Maybe),
            "{status}"
        );
        let text =
            format!("{status} {:?}", std::error::Error::source(&status).map(ToString::to_string));
        assert!(text.contains(words), "{text}");
    }
}

async fn a_stream_where_one_reply_is_expected_ends_its_call_only(fixture: Fixture) {
    let (client, mut peer) = pair(&fixture).await;
    let running = tokio::spawn(client.echo(Blob::default()));
    let id = request(&mut peer).await;
    peer.send(&message(&Head::Headers { call: id }, b"")).await;
    assert_eq!(peer.frame().await.expect("a CANCEL").head(), Head::Cancel { call: id });
    peer.send(&message(&Head::Cancelled { call: id, executed: Executed::Yes }, b"")).await;
    let status = running.await.expect("no panic").expect_err("no reply");
    assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes), "{status}");
    assert!(status.message().contains("a stream where one reply is expected"), "{status}");
    // And the other way round.
    let running = tokio::spawn(client.scan(ScanRequest::default()));
    let id = request(&mut peer).await;
    let (code, executed) = (Code::Ok, Executed::Yes);
    peer.send(&message(&Head::Response { call: id, code, executed, messages: None }, b"")).await;
    let status = running.await.expect("no panic").expect_err("no stream");
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert!(status.message().contains("one reply where a stream is expected"), "{status}");
}
