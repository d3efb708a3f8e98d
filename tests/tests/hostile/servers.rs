//! Servers that break the rules: the client's calls end in words, and nothing else happens.

use std::future::Future;
use std::time::Duration;

use verbwire::{Code, ErrorKind, Executed, Request, Status};
use verbwire_core::message::{CallId, GoAway, Head, MethodId};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Hello, Kind};
use verbwire_tests::fixture::{Fixture, LONG, connect, endpoint};
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, Ticket};
use verbwire_tests::raw::{self, Frame, RawListener, RawPeer, call, message};

use crate::bad::PLENTY;
use crate::over_sockets;

over_sockets!(
    a_server_without_a_proper_hello_is_an_error_in_words,
    a_server_that_says_nothing_is_given_up,
    bytes_that_break_the_rules_end_the_call_in_words,
    a_response_cut_anywhere_ends_the_call_in_words,
    answers_to_nobody_are_ignored,
    a_reply_that_does_not_decode_ends_its_call_only,
    the_words_of_goaway_reach_the_callers,
    the_servers_limits_are_kept,
    a_dropped_channel_closes_the_socket,
);

async fn connect_error<F>(
    fixture: &Fixture,
    patience: Duration,
    serve: impl FnOnce(RawPeer) -> F,
) -> verbwire::Error
where
    F: Future<Output = RawPeer>,
{
    let (listener, target) = RawListener::bind(&fixture.target()).await;
    let endpoint = endpoint(&target).connect_timeout(patience);
    let served = async { serve(listener.accept().await).await };
    let (connected, _peer) = tokio::join!(endpoint.connect(), served);
    connected.expect_err("no proper HELLO")
}

async fn a_server_without_a_proper_hello_is_an_error_in_words(fixture: Fixture) {
    let strange = Hello { version_min: 5, version_max: 9, ..raw::hello() }.encode_framed();
    let cases: [(&[u8], ErrorKind, &str); 4] = [
        (b"SSH-2.0-OpenSSH_9.2\r\n", ErrorKind::PeerFault, "is the peer a verbwire endpoint?"),
        (b"VERBWIRE\xff\xff\xff\xff", ErrorKind::PeerFault, "at most 4096"),
        (b"VERBWIRE\x02\0\0\0\xff\xff", ErrorKind::PeerFault, "HELLO does not decode"),
        (&strange, ErrorKind::Incompatible, "5 to 9; upgrade the older of the two"),
    ];
    for (bytes, kind, words) in cases {
        let error = connect_error(&fixture, LONG, |mut peer| async move {
            peer.send(bytes).await;
            peer
        });
        let error = error.await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let closed = connect_error(&fixture, LONG, |mut peer| async move {
        peer.finish().await;
        peer
    });
    let closed = closed.await;
    assert_eq!(closed.kind(), ErrorKind::Lost, "{closed}");
    assert!(closed.to_string().contains("after 0 bytes of HELLO"), "{closed}");
}

async fn a_server_that_says_nothing_is_given_up(fixture: Fixture) {
    let patience = Duration::from_millis(300);
    let error = connect_error(&fixture, patience, |peer| async { peer }).await;
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("said nothing in time"), "{error}");
}

/// A client, and the server that it has connected to.
async fn pair(fixture: &Fixture, ours: &Hello) -> (ConformanceClient, RawPeer) {
    let (listener, target) = RawListener::bind(&fixture.target()).await;
    let endpoint = endpoint(&target).max_message_size(1 << 20);
    let (channel, peer) = tokio::join!(connect(&endpoint), listener.greet(ours));
    (ConformanceClient::new(channel), peer)
}

async fn request(peer: &mut RawPeer) -> Frame {
    let frame = peer.frame().await.expect("a REQUEST");
    assert_eq!(frame.header.kind, Kind::Request);
    frame
}

/// How a call ends whose server answers with `bytes`, and closes then if told so.
async fn answered_with(fixture: &Fixture, bytes: &[u8], then: Then) -> Status {
    let (client, mut peer) = pair(fixture, &raw::hello()).await;
    let call = tokio::spawn(client.hang(Ticket { number: 1 }));
    request(&mut peer).await;
    peer.send(bytes).await;
    if then == Then::Closes {
        peer.finish().await;
    }
    call.await.expect("no panic").expect_err("a bad answer")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Closes,
    Stays,
}

fn response(executed_bits: u8, code: u32) -> Header {
    let flags = Flags(executed_bits << Flags::EXECUTED_SHIFT);
    Header { flags, aux: code, ..Header::new(Kind::Response, call(0)) }
}

async fn bytes_that_break_the_rules_end_the_call_in_words(fixture: Fixture) {
    let ok = response(2, 0);
    let too_long = Header { body_len: u32::MAX, ..ok };
    let data = Header { body_len: 8, ..Header::new(Kind::Data, call(0)) };
    let backwards = raw::request(call(0), "/a/B", PLENTY, b"");
    let mut unknown = ok.encode();
    unknown[0] = 0x77;
    let entry = raw::metadata_entry(1, 1, b"a\n");
    let metadata = |block| raw::with_metadata(&ok.encode(), block);
    let cases: [(&[u8], &str); 11] = [
        (&metadata(&entry), "metadata value has the byte 0x0a at 0"),
        (&metadata(&[0; 5]), "metadata at byte 0 needs 6 bytes, 5 are left"),
        (&metadata(&[0; 16_385]), "metadata of 16385 bytes exceeds max_metadata_size of 16384"),
        (&unknown, "unknown frame type 0x77"),
        (&response(3, 0).encode(), "executed is 3"),
        (&response(0, 99).encode(), "status code is 99"),
        (&too_long.encode(), "exceeds max_message_size of 1048576"),
        (&data.encode(), "no body to come"),
        (&backwards, "only clients send"),
        (&message(&Head::Cancel { call: call(0) }, b""), "only clients send"),
        (&raw::with_tlvs(ok, b"\xbc\x8a\0\0"), "unknown mandatory TLV 0x8abc"),
    ];
    for (bytes, words) in cases {
        let status = answered_with(&fixture, bytes, Then::Stays).await;
        assert_eq!(
            (status.code(), status.executed()),
            (Code::Internal, Executed::Maybe),
            "{status}"
        );
        assert!(status.message().contains(words), "{status}");
    }
}

async fn a_response_cut_anywhere_ends_the_call_in_words(fixture: Fixture) {
    let head =
        Head::Response { call: call(0), code: Code::Ok, executed: Executed::Yes, messages: None };
    let whole = message(&head, b"\x0a\x03abc");
    for len in 0..whole.len() {
        let status = answered_with(&fixture, &whole[..len], Then::Closes).await;
        assert_eq!(
            (status.code(), status.executed()),
            (Code::Unavailable, Executed::Maybe),
            "{status}"
        );
        let words = if len == 0 { "closed the connection" } else { "within a frame" };
        assert!(status.message().contains(words), "{len}: {status}");
    }
}

async fn answers_to_nobody_are_ignored(fixture: Fixture) {
    let (client, mut peer) = pair(&fixture, &raw::hello()).await;
    let call_of_ours = tokio::spawn(client.echo(Blob::default()));
    let id = request(&mut peer).await.header.call;
    let executed = Executed::Yes;
    let others = [
        CallId { slot: id.slot, generation: id.generation + 1 },
        CallId { slot: id.slot + 1, generation: 0 },
        CallId { slot: u32::MAX, generation: u32::MAX },
    ];
    for call in others {
        peer.send(&message(
            &Head::Response { call, code: Code::Aborted, executed, messages: None },
            b"",
        ))
        .await;
        peer.send(&message(&Head::Cancelled { call, executed }, b"")).await;
    }
    let reply = Head::Response { call: id, code: Code::Ok, executed, messages: None };
    // The second one comes when its call has ended.
    peer.send(&message(&reply, b"\x0a\x02ok").repeat(2)).await;
    let reply = call_of_ours.await.expect("no panic").expect("echo");
    assert_eq!(reply.get_ref().payload, "ok");
    let next = tokio::spawn(client.echo(Blob::default()));
    let id = request(&mut peer).await.header.call;
    peer.send(&message(&Head::Cancelled { call: id, executed }, b"")).await;
    let status = next.await.expect("no panic").expect_err("the server stopped it");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes));
}

async fn a_reply_that_does_not_decode_ends_its_call_only(fixture: Fixture) {
    let (client, mut peer) = pair(&fixture, &raw::hello()).await;
    for (code, body, words) in [
        (Code::Ok, &b"\xff\xff"[..], "does not decode"),
        (Code::NotFound, b"\xff\xff", "does not decode"),
    ] {
        let running = tokio::spawn(client.echo(Blob::default()));
        let call = request(&mut peer).await.header.call;
        let head = Head::Response { call, code, executed: Executed::Yes, messages: None };
        peer.send(&message(&head, body)).await;
        let status = running.await.expect("no panic").expect_err("garbage");
        let expected = if code == Code::Ok { Code::Internal } else { code };
        assert_eq!((status.code(), status.executed()), (expected, Executed::Yes));
        assert!(status.message().contains(words), "{status}");
    }
}

async fn the_words_of_goaway_reach_the_callers(fixture: Fixture) {
    let (client, mut peer) = pair(&fixture, &raw::hello()).await;
    let open = tokio::spawn(client.hang(Ticket { number: 1 }));
    request(&mut peer).await;
    let reason = GoAway::Unknown(77);
    peer.send(&message(&Head::GoAway { reason }, "Umzug".as_bytes())).await;
    let refused = loop {
        // Short, since the first ones may be sent before the GOAWAY is read, and nobody answers them.
        let mut request = Request::new(Blob::default());
        request.set_timeout(Duration::from_millis(20));
        let status = client.echo(request).await.expect_err("nobody answers");
        if status.code() != Code::DeadlineExceeded {
            break status;
        }
    };
    assert_eq!((refused.code(), refused.executed()), (Code::Unavailable, Executed::No));
    assert!(refused.message().contains("Umzug"), "{refused}");
    assert!(!open.is_finished());
    drop(peer);
    open.await.expect("no panic").expect_err("the server is gone");
    // A server that ends the connection for a violation says which, and that is the cause.
    let (client, mut peer) = pair(&fixture, &raw::hello()).await;
    let open = tokio::spawn(client.hang(Ticket { number: 1 }));
    request(&mut peer).await;
    let reason = GoAway::ProtocolViolation;
    peer.send(&message(&Head::GoAway { reason }, b"call 0.0 is too loud")).await;
    peer.finish().await;
    let status = open.await.expect("no panic").expect_err("the server is gone");
    assert!(status.message().contains("call 0.0 is too loud"), "{status}");
    assert_eq!(status.executed(), Executed::Maybe);
}

async fn the_servers_limits_are_kept(fixture: Fixture) {
    let small = Hello {
        max_concurrent_calls: 1,
        max_message_size: 5000,
        max_interned_methods: 0,
        ..raw::hello()
    };
    let (client, mut peer) = pair(&fixture, &small).await;
    let status = client.echo(Blob { payload: vec![0; 6000].into() }).await;
    let status = status.expect_err("too long");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No));
    let calls = [(); 3].map(|()| tokio::spawn(client.echo(Blob::default())));
    for _ in 0..calls.len() {
        let frame = request(&mut peer).await;
        assert_eq!(frame.header.call.slot, 0, "one call at a time");
        assert_eq!(frame.header.method, MethodId::NONE.0);
        assert!(matches!(frame.head(), Head::Request { path: Some(_), .. }));
        let call = frame.header.call;
        let head = Head::Response { call, code: Code::Ok, executed: Executed::Yes, messages: None };
        peer.send(&message(&head, b"")).await;
    }
    for call in calls {
        call.await.expect("no panic").expect("echo");
    }
}

async fn a_dropped_channel_closes_the_socket(fixture: Fixture) {
    let (client, mut peer) = pair(&fixture, &raw::hello()).await;
    let call = tokio::spawn(client.echo(Blob::default()));
    request(&mut peer).await;
    drop(client);
    call.abort();
    let rest = peer.rest().await;
    // Whether the CANCEL still went out is a race; nothing else may have.
    assert!(rest.iter().all(|frame| frame.header.kind == Kind::Cancel), "{rest:?}");
}
