//! Messages that say that they are compressed, and are not, or are bombs, from either side.

use std::io::Write;

use bytes::Bytes;
use flate2::write::GzEncoder;
use verbwire::compression::{Encoding, EncodingId};
use verbwire::{Code, Executed, Status};
use verbwire_core::message::{CallId, Form, Head, MethodId, ReplyForm};
use verbwire_core::wire::tlv::{ENCODING, Tlv};
use verbwire_core::wire::{Header, Hello, Kind};
use verbwire_tests::fixture::{Fixture, connect, endpoint};
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, ScanRequest};
use verbwire_tests::raw::{self, Frame, RawListener, RawPeer, call, compressed, message};

use crate::bad::{ECHO, PLENTY, Victim};
use crate::over_sockets;
use crate::streams::{COLLECT, open};

over_sockets!(
    bad_compressed_requests_end_their_calls_only,
    bad_compressed_replies_end_their_calls_only,
    a_tlv_of_an_encoding_that_is_wrong_ends_the_connection,
    a_server_gets_compressed_what_it_has_announced_and_nothing_else,
);

const GZIP: EncodingId = Encoding::Gzip.id();

const TEN_MIB: usize = 10 << 20;

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(plain).expect("a Vec grows");
    encoder.finish().expect("a Vec grows")
}

/// What is wrong, and how that is told.
struct Bad {
    encoding: EncodingId,
    body: Vec<u8>,
    /// At a server, and at a client.
    codes: (Code, Code),
    words: &'static str,
}

fn bad() -> Vec<Bad> {
    let good = gzip(&[0; 3000]);
    let none = "does not decompress as gzip";
    let internal = |body: Vec<u8>| {
        let codes = (Code::Internal, Code::Internal);
        Bad { encoding: GZIP, body, codes, words: none }
    };
    // A member that says of itself that it has another length, and one whose block is of no known kind.
    let mut lies = good.clone();
    *lies.last_mut().expect("it has a length") ^= 0x80;
    let mut no_block = good.clone();
    no_block[10] |= 0x06;
    let bomb = gzip(&vec![0; TEN_MIB]);
    assert!(bomb.len() < 16 << 10, "{} bytes", bomb.len());
    let members = gzip(&[0; 1000]).repeat(1100);
    let too_long = |body| Bad {
        encoding: GZIP,
        body,
        codes: (Code::ResourceExhausted, Code::ResourceExhausted),
        words: "exceeds max_message_size of 1 MiB when it is decompressed",
    };
    vec![
        internal(Vec::new()),
        internal(b"no gzip".to_vec()),
        internal(good[..good.len() - 1].to_vec()),
        internal(good[..3].to_vec()),
        internal([&good[..], b"garbage"].concat()),
        internal(lies),
        internal(no_block),
        too_long(bomb),
        too_long(members),
        Bad {
            encoding: EncodingId(200),
            body: good,
            codes: (Code::Unimplemented, Code::Internal),
            words: "compressed by number 200, which this",
        },
    ]
}

/// A REQUEST of a call whose request is one message.
fn request(id: CallId, path: &str, bad: &Bad) -> Vec<u8> {
    let (method, path) = (MethodId::NONE, Some(path.to_owned().into()));
    let (form, reply) = (Form::Whole, ReplyForm::Whole);
    let head = Head::Request { call: id, method, path, timeout: PLENTY, form, reply, slot: None };
    compressed(&head, bad.encoding, &bad.body)
}

async fn response(peer: &mut RawPeer) -> Frame {
    loop {
        let frame = peer.frame().await.expect("the connection goes on");
        if frame.header.kind == Kind::Response {
            return frame;
        }
    }
}

fn assert_failed(frame: &Frame, id: CallId, bad: &Bad, executed: Executed) {
    let code = bad.codes.0;
    assert_eq!(frame.head(), Head::Response { call: id, code, executed, messages: None });
    let words = String::from_utf8_lossy(&frame.body);
    assert!(words.contains(bad.words), "{words}");
}

async fn bad_compressed_requests_end_their_calls_only(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    for (generation, bad) in (0..).zip(bad()) {
        let whole = CallId { slot: 0, generation };
        peer.send(&request(whole, ECHO, &bad)).await;
        assert_failed(&response(&mut peer).await, whole, &bad, Executed::No);

        let stream = CallId { slot: 1, generation };
        let item = Head::Message { call: stream, number: 0 };
        peer.send(&[open(stream, COLLECT), compressed(&item, bad.encoding, &bad.body)].concat())
            .await;
        assert_failed(&response(&mut peer).await, stream, &bad, Executed::Yes);
    }
    // The same connection, and what is compressed well.
    let good = Bad { body: gzip(b"\x0a\x02ok"), ..bad().remove(0) };
    peer.send(&request(call(2), ECHO, &good)).await;
    let frame = response(&mut peer).await;
    assert_eq!((frame.header.aux, &frame.body[..]), (0, &b"\x0a\x02ok"[..]));
    victim.assert_serves().await;
}

/// A client with a limit of 1 MiB, and the server that it has connected to.
async fn pair(fixture: &Fixture, ours: &Hello) -> (ConformanceClient, RawPeer) {
    let (listener, target) = RawListener::bind(&fixture.target()).await;
    let endpoint = endpoint(&target).max_message_size(1 << 20).send_compressed(Encoding::Gzip);
    let (channel, peer) = tokio::join!(connect(&endpoint), listener.greet(ours));
    (ConformanceClient::new(channel), peer)
}

async fn asked(peer: &mut RawPeer) -> CallId {
    loop {
        let frame = peer.frame().await.expect("the connection goes on");
        if frame.header.kind == Kind::Request {
            return frame.header.call;
        }
    }
}

fn assert_status(status: &Status, bad: &Bad) {
    assert_eq!((status.code(), status.executed()), (bad.codes.1, Executed::Yes), "{status}");
    assert!(status.message().contains(bad.words), "{status}");
}

async fn bad_compressed_replies_end_their_calls_only(fixture: Fixture) {
    let (client, mut peer) = pair(&fixture, &raw::hello()).await;
    let executed = Executed::Yes;
    for bad in bad() {
        let running = tokio::spawn(client.echo(Blob::default()));
        let call = asked(&mut peer).await;
        let head = Head::Response { call, code: Code::Ok, executed, messages: None };
        peer.send(&compressed(&head, bad.encoding, &bad.body)).await;
        assert_status(&running.await.expect("no panic").expect_err(bad.words), &bad);

        let scanning = client.clone();
        let running = tokio::spawn(async move {
            let mut replies = scanning.scan(ScanRequest::default()).await?.into_inner();
            replies.message().await
        });
        let call = asked(&mut peer).await;
        let item = Head::Message { call, number: 0 };
        let headers = message(&Head::Headers { call }, b"");
        peer.send(&[headers, compressed(&item, bad.encoding, &bad.body)].concat()).await;
        assert_status(&running.await.expect("no panic").expect_err(bad.words), &bad);
        peer.send(&message(&Head::Cancelled { call, executed }, b"")).await;
    }
    // What it says of a status means nothing.
    let running = tokio::spawn(client.echo(Blob::default()));
    let call = asked(&mut peer).await;
    let head = Head::Response { call, code: Code::NotFound, executed, messages: None };
    peer.send(&compressed(&head, EncodingId(200), b"\x12\x04gone")).await;
    let status = running.await.expect("no panic").expect_err("it failed");
    assert_eq!((status.code(), status.message()), (Code::NotFound, "gone"));
}

async fn a_tlv_of_an_encoding_that_is_wrong_ends_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let header = Header::new(Kind::Message, call(0));
    let mut once = Vec::new();
    Tlv { kind: ENCODING, value: &[1] }.encode(&mut once);
    let twice = once.repeat(2);
    let mut long = Vec::new();
    Tlv { kind: ENCODING, value: &[1, 0] }.encode(&mut long);
    for (tlvs, words) in
        [(&twice, "TLV 0x8003 is there twice"), (&long, "TLV 0x8003 has a malformed value")]
    {
        victim.assert_ends(&raw::with_tlvs(header, tlvs), words).await;
    }
}

async fn a_server_gets_compressed_what_it_has_announced_and_nothing_else(fixture: Fixture) {
    let payload = Bytes::from(vec![7; 3000]);
    for (encodings, is_compressed) in
        [(0, false), (1 << GZIP.0, true), (!(1 << GZIP.0), false), (u32::MAX, true)]
    {
        let ours = Hello { encodings, ..raw::hello() };
        let (client, mut peer) = pair(&fixture, &ours).await;
        let running = tokio::spawn(client.echo(Blob { payload: payload.clone() }));
        let frame = peer.frame().await.expect("a REQUEST");
        assert_eq!(frame.tlvs.ends_with(&[0x03, 0x80, 1, 0, GZIP.0]), is_compressed, "{encodings}");
        assert_eq!(frame.body.len() < 100, is_compressed, "{encodings}");
        running.abort();
    }
}
