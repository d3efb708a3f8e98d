//! Messages that are compressed: which are, and what becomes of those that should not be.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::write::GzEncoder;
use verbwire::codegen::prost::Message;
use verbwire::compression::{Compression, Encoding, Encodings};
use verbwire::metadata::MetadataMap;
use verbwire::open::{Messages, Open, ReplyForm, StreamHandlerFuture, StreamInput, StreamOutput};
use verbwire::{
    Body, Channel, Code, Executed, LoadLimits, Request, Response, Server, Sessions, Status,
};
use verbwire_core::codec::{Codec, Prost};
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Serving, begin, connect, offering};
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{Blob, ScanRequest, Step, Ticket};
use verbwire_tests::service::Desk;
use verbwire_tests::streams::items;

use crate::streams::{next, scan, step, take};

pub(crate) const CASES: &[Case] = &[
    case!(messages_of_every_shape_are_compressed_both_ways).over_a_connection(),
    case!(nothing_is_compressed_that_nobody_asked_for_or_takes).over_a_connection(),
    case!(a_large_message_of_unknown_fields_is_not_compressed_unless_that_is_asked_for)
        .over_a_connection(),
    case!(what_was_made_compressed_is_decompressed_within_its_senders_limit).over_a_connection(),
    case!(a_request_says_itself_whether_it_is_compressed).over_a_connection(),
    case!(a_large_payload_is_not_compressed_unless_that_is_asked_for).over_a_connection(),
    case!(what_one_side_does_not_take_is_decompressed_on_the_way).over_a_connection(),
    case!(a_bomb_at_a_server_fails_its_call_and_no_other).over_a_connection(),
    case!(a_bomb_at_a_client_fails_its_call_and_no_other).over_a_connection(),
    case!(bytes_that_do_not_decompress_fail_their_call_and_no_other).over_a_connection(),
    case!(a_repeat_may_be_compressed_otherwise).over_a_connection(),
    case!(the_bound_on_bytes_counts_what_is_decompressed).over_a_connection(),
    case!(a_full_server_decompresses_nothing_that_it_turns_away).over_a_connection(),
    case!(a_compressed_message_is_understood_in_process_too),
];

/// Bytes of a payload that is copied into its message, and is worth compressing.
const SHORT: usize = 4000;

/// What sides of these cases accept at most.
const LIMIT: usize = 64 << 10;

fn zeroes(len: usize) -> Blob {
    Blob { payload: vec![0; len].into() }
}

/// What went by: how it was compressed, and its length as it went.
type Passed = Vec<(Option<Encoding>, usize)>;

/// Notes of messages that went by.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Passed>>);

impl Notes {
    fn add(&self, body: &Body) {
        let encoding = body.encoding().expect("it was announced");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((encoding, body.len()));
    }

    fn take(&self) -> Passed {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Hands calls on over a channel, and notes the messages of both ways as they came.
struct Spy {
    to: Channel,
    requests: Notes,
    replies: Notes,
}

/// Messages that are noted.
struct Noted(Box<dyn Messages>, Notes);

impl Messages for Noted {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let polled = self.0.poll_message(cx);
        if let Poll::Ready(Some(Ok(body))) = &polled {
            self.1.add(body);
        }
        polled
    }

    fn take_trailers(&mut self) -> MetadataMap {
        self.0.take_trailers()
    }
}

impl Open for Spy {
    fn call(
        self: Arc<Self>,
        path: Arc<str>,
        _: ReplyForm,
        request: Request<StreamInput>,
    ) -> StreamHandlerFuture {
        let notes = self.requests.clone();
        let request = request.map(|input| match input {
            StreamInput::Whole(body) => {
                notes.add(&body);
                StreamInput::Whole(body)
            }
            StreamInput::Stream(messages) => StreamInput::Stream(Box::new(Noted(messages, notes))),
        });
        Box::pin(async move {
            let reply = self.to.call(path, request).await?;
            Ok(reply.map(|output| match output {
                StreamOutput::Whole(body) => {
                    self.replies.add(&body);
                    StreamOutput::Whole(body)
                }
                StreamOutput::Stream(messages) => {
                    StreamOutput::Stream(Box::new(Noted(messages, self.replies.clone())))
                }
            }))
        })
    }
}

/// Answers every call with one message.
#[derive(Clone)]
struct Always(Body);

impl Open for Always {
    fn call(
        self: Arc<Self>,
        _: Arc<str>,
        reply: ReplyForm,
        _: Request<StreamInput>,
    ) -> StreamHandlerFuture {
        let body = self.0.clone();
        let output = match reply {
            ReplyForm::Stream => StreamOutput::Stream(Box::new(Once(Some(body)))),
            ReplyForm::Whole | ReplyForm::Either => StreamOutput::Whole(body),
        };
        Box::pin(async move { Ok(Response::new(output)) })
    }
}

/// A stream of one message.
struct Once(Option<Body>);

impl Messages for Once {
    fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        Poll::Ready(self.0.take().map(Ok))
    }
}

/// A server, a spy before it, and what that notes.
struct Watched {
    spy: Serving,
    requests: Notes,
    replies: Notes,
    server: Serving,
}

impl Watched {
    async fn before(fixture: &Fixture, server: verbwire::Builder, spy: verbwire::Builder) -> Self {
        let server = Serving::start(server, &fixture.target()).await;
        let (requests, replies) = (Notes::default(), Notes::default());
        let to = server.connect().await;
        let open = Spy { to, requests: requests.clone(), replies: replies.clone() };
        let spy = Serving::start(spy.fallback(open), &fixture.target()).await;
        Self { spy, requests, replies, server }
    }

    async fn client(&self, compression: impl Into<Compression>) -> ConformanceClient {
        let endpoint = self.spy.endpoint().send_compressed(compression);
        ConformanceClient::new(connect(&endpoint).await)
    }

    #[track_caller]
    fn assert_passed(&self, requests: &[Option<Encoding>], replies: &[Option<Encoding>]) {
        for (notes, expected, what) in
            [(&self.requests, requests, "requests"), (&self.replies, replies, "replies")]
        {
            let passed = notes.take();
            let encodings: Vec<_> = passed.iter().map(|(encoding, _)| *encoding).collect();
            assert_eq!(encodings, expected, "{what}");
            let is_short = |(encoding, len): &(Option<Encoding>, usize)| {
                encoding.is_none() || *len < SHORT / 10
            };
            assert!(passed.iter().all(is_short), "{what}: {passed:?}");
        }
    }
}

async fn messages_of_every_shape_are_compressed_both_ways(fixture: Fixture) {
    for encoding in Encoding::ALL.iter().copied() {
        let server = offering(&Desk::default()).send_compressed(encoding);
        let watched = Watched::before(&fixture, server, Server::builder()).await;
        let client = watched.client(encoding).await;
        let zip = Some(encoding);

        let reply = client.echo(zeroes(SHORT)).await.expect("echo");
        assert_eq!(reply.into_inner(), zeroes(SHORT));
        watched.assert_passed(&[zip], &[zip]);

        let steps = [take(vec![0; SHORT]), take(vec![0; 10]), take(vec![0; SHORT])];
        let reply = client.collect(items(steps.clone())).await.expect("collect").into_inner();
        assert_eq!((reply.messages, reply.len), (3, 2 * SHORT as u64 + 10));
        watched.assert_passed(&[zip, None, zip], &[None]);

        let mut blobs = client.talk(items(steps)).await.expect("talk").into_inner();
        for len in [SHORT, 10, SHORT] {
            assert_eq!(next(&mut blobs).await, zeroes(len));
        }
        assert_eq!(blobs.message().await.expect("a good end"), None);
        watched.assert_passed(&[zip, None, zip], &[zip, None, zip]);

        let server = Server::builder().fallback(Always(Prost.encode(&zeroes(SHORT))));
        let watched =
            Watched::before(&fixture, server.send_compressed(encoding), Server::builder()).await;
        let client = watched.client(encoding).await;
        let mut blobs = client.scan(long_scan()).await.expect("scan").into_inner();
        assert_eq!(next(&mut blobs).await, zeroes(SHORT));
        assert_eq!(blobs.message().await.expect("a good end"), None);
        watched.assert_passed(&[zip], &[zip]);
    }
}

/// One whose request is worth compressing.
fn long_scan() -> ScanRequest {
    scan(1, 1, &[0; SHORT], Act::Take)
}

async fn nothing_is_compressed_that_nobody_asked_for_or_takes(fixture: Fixture) {
    let none = Encodings::NONE;
    let gzip = Encoding::Gzip;
    let zipping = || offering(&Desk::default()).send_compressed(gzip);
    let watched =
        Watched::before(&fixture, zipping(), Server::builder().accept_compressed(none)).await;
    let client = watched.client(gzip).await;
    client.echo(zeroes(SHORT)).await.expect("echo");
    // The spy is a client that takes what the server sends.
    watched.assert_passed(&[None], &[Some(gzip)]);

    let endpoint = watched.server.endpoint().accept_compressed(none).send_compressed(gzip);
    let client = ConformanceClient::new(connect(&endpoint).await);
    assert_eq!(client.echo(zeroes(SHORT)).await.expect("echo").into_inner(), zeroes(SHORT));

    let watched = Watched::before(&fixture, offering(&Desk::default()), Server::builder()).await;
    let client = watched.client(Compression::NONE).await;
    client.echo(zeroes(SHORT)).await.expect("echo");
    watched.assert_passed(&[None], &[None]);
}

async fn a_request_says_itself_whether_it_is_compressed(fixture: Fixture) {
    let watched = Watched::before(&fixture, offering(&Desk::default()), Server::builder()).await;
    let (gzip, none) = (Encoding::Gzip.into(), Compression::NONE);
    for (channels, says, expected) in [
        (gzip, None, Some(Encoding::Gzip)),
        (gzip, Some(none), None),
        (none, Some(gzip), Some(Encoding::Gzip)),
    ] {
        let client = watched.client(channels).await;
        let mut request = Request::new(zeroes(SHORT));
        says.into_iter().for_each(|says: Compression| request.set_compression(says));
        client.echo(request).await.expect("echo");
        watched.assert_passed(&[expected], &[None]);
        let mut request = Request::new(items([take(vec![0; SHORT])]));
        says.into_iter().for_each(|says| request.set_compression(says));
        client.collect(request).await.expect("collect");
        watched.assert_passed(&[expected], &[None]);
    }
}

async fn a_large_payload_is_not_compressed_unless_that_is_asked_for(fixture: Fixture) {
    let gzip = Compression::new(Encoding::Gzip);
    let server = || offering(&Desk::default()).send_compressed(gzip);
    let watched = Watched::before(&fixture, server(), Server::builder()).await;
    let client = watched.client(gzip).await;
    client.echo(zeroes(2 * SHORT)).await.expect("echo");
    watched.assert_passed(&[None], &[None]);
    let all = gzip.compress_payloads(true);
    let watched = Watched::before(&fixture, server().send_compressed(all), Server::builder()).await;
    let reply = watched.client(all).await.echo(zeroes(2 * SHORT)).await.expect("echo");
    assert_eq!(reply.into_inner(), zeroes(2 * SHORT));
    watched.assert_passed(&[Some(Encoding::Gzip)], &[Some(Encoding::Gzip)]);

    if fixture.backend().place == Place::Mem {
        let client =
            ConformanceClient::new(connect(&watched.server.endpoint().send_compressed(gzip)).await);
        let sent = zeroes(2 * SHORT);
        let reply = client.digest(sent.clone()).await.expect("digest");
        assert_eq!(reply.get_ref().address, sent.payload.as_ptr().addr() as u64);
    }
}

async fn a_large_message_of_unknown_fields_is_not_compressed_unless_that_is_asked_for(
    fixture: Fixture,
) {
    let watched = Watched::before(&fixture, offering(&Desk::default()), Server::builder()).await;
    let gzip = Compression::new(Encoding::Gzip);
    let client = watched.client(gzip).await;
    let encoded = Prost.encode(&scan(1, 1, &[0; 3 * SHORT], Act::Take));
    let one_piece = encoded.clone().into_bytes();
    let pieces = || [one_piece.slice(..SHORT), one_piece.slice(SHORT..)].into_iter().collect();
    let zip = Some(Encoding::Gzip);
    for (body, compression, expected) in [
        (encoded, gzip, zip),
        (Body::from(one_piece.clone()), gzip, None),
        (pieces(), gzip, None),
        (pieces(), gzip.compress_payloads(true), zip),
    ] {
        let mut request = Request::new(StreamInput::Whole(body));
        request.set_compression(compression);
        client.channel().call(path("Scan"), request).await.expect("it begins");
        let passed = watched.requests.take();
        assert!(matches!(&passed[..], [(encoding, _)] if *encoding == expected), "{passed:?}");
    }
}

async fn what_was_made_compressed_is_decompressed_within_its_senders_limit(fixture: Fixture) {
    let builder = Server::builder().accept_compressed(Encodings::NONE);
    let builder = builder.max_message_size(LIMIT).fallback(Always(compressed(bomb())));
    let serving = Serving::start(builder, &fixture.target()).await;
    let endpoint = serving.endpoint().accept_compressed(Encodings::NONE);
    let status = ConformanceClient::new(connect(&endpoint).await).echo(zeroes(1)).await;
    let status = status.expect_err("the server does not decompress it");
    assert_bomb(&status, "set by the server's max_message_size(..)");
    assert_eq!(status.executed(), Executed::Yes);

    let channel = connect(&endpoint.max_message_size(LIMIT)).await;
    let status = fails(channel.call(path("Echo"), whole(&bomb()))).await;
    assert_bomb(&status, "set by the client's max_message_size(..)");
    assert_eq!(status.executed(), Executed::No);
}

async fn what_one_side_does_not_take_is_decompressed_on_the_way(fixture: Fixture) {
    let server = offering(&Desk::default()).accept_compressed(Encodings::NONE);
    let watched = Watched::before(&fixture, server, Server::builder()).await;
    let client = watched.client(Encoding::Gzip).await;
    assert_eq!(client.echo(zeroes(SHORT)).await.expect("echo").into_inner(), zeroes(SHORT));
    let reply = client.collect(items([take(vec![0; SHORT])])).await.expect("collect");
    assert_eq!(reply.get_ref().len, SHORT as u64);
    watched.assert_passed(&[Some(Encoding::Gzip), Some(Encoding::Gzip)], &[None, None]);

    let server = offering(&Desk::default()).send_compressed(Encoding::Gzip);
    let watched = Watched::before(&fixture, server, Server::builder()).await;
    let endpoint = watched.spy.endpoint().accept_compressed(Encodings::NONE);
    let client = ConformanceClient::new(connect(&endpoint).await);
    assert_eq!(client.echo(zeroes(SHORT)).await.expect("echo").into_inner(), zeroes(SHORT));
    watched.assert_passed(&[None], &[Some(Encoding::Gzip)]);
}

/// `message` as somebody else compresses it.
fn zipped(message: &impl Message) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&message.encode_to_vec()).expect("a Vec grows");
    encoder.finish().expect("a Vec grows").into()
}

fn compressed(bytes: Bytes) -> Body {
    Body::from(bytes).with_encoding(Encoding::Gzip)
}

/// Sixteen times the limit; compressed, a sixtieth of it.
fn bomb() -> Bytes {
    let bomb = zipped(&zeroes(16 * LIMIT));
    assert!(bomb.len() < LIMIT / 40, "{} bytes", bomb.len());
    bomb
}

fn whole(bytes: &Bytes) -> Request<StreamInput> {
    Request::new(StreamInput::Whole(compressed(bytes.clone())))
}

fn stream(bytes: &Bytes) -> Request<StreamInput> {
    Request::new(StreamInput::Stream(Box::new(Once(Some(compressed(bytes.clone()))))))
}

fn path(method: &str) -> String {
    format!("/conformance.Conformance/{method}")
}

async fn fails(call: verbwire::open::OpenCall) -> Status {
    let mut replies = match call.await.map(Response::into_inner) {
        Err(status) => return status,
        Ok(StreamOutput::Stream(replies)) => replies,
        Ok(StreamOutput::Whole(_)) => unreachable!("the call fails"),
    };
    let first = std::future::poll_fn(|cx| replies.poll_message(cx)).await;
    first.expect("not the end").expect_err("the call fails")
}

fn assert_bomb(status: &Status, side: &str) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    for words in ["exceeds max_message_size of 64 KiB when it is decompressed", side] {
        assert!(status.message().contains(words), "{status}");
    }
}

/// A server with the limit and a channel to it.
async fn limited(fixture: &Fixture) -> (Serving, Channel) {
    let builder = offering(&Desk::default()).max_message_size(LIMIT);
    let serving = Serving::start(builder, &fixture.target()).await;
    let channel = serving.connect().await;
    (serving, channel)
}

async fn a_bomb_at_a_server_fails_its_call_and_no_other(fixture: Fixture) {
    let (_serving, channel) = limited(&fixture).await;
    let client = ConformanceClient::new(channel.clone());
    let other = begin(client.hang(Ticket { number: 1 })).await;
    let bomb = bomb();
    for (method, request) in [
        ("Echo", whole(&bomb)),
        ("Scan", whole(&bomb)),
        ("Collect", stream(&bomb)),
        ("Talk", stream(&bomb)),
    ] {
        let status = fails(channel.call(path(method), request)).await;
        assert_bomb(&status, "set by the server's max_message_size(..)");
        let is_whole = matches!(method, "Echo" | "Scan");
        assert_eq!(status.executed() == Executed::No, is_whole, "{method}: {status}");
    }
    // What just fits comes through, and the connection is the same.
    let fits = zipped(&zeroes(LIMIT - 4));
    let reply = channel.call(path("Digest"), whole(&fits)).await.expect("it fits").into_inner();
    assert!(matches!(reply, StreamOutput::Whole(_)));
    assert!(!other.is_finished(), "another call ended");
}

async fn a_bomb_at_a_client_fails_its_call_and_no_other(fixture: Fixture) {
    let builder = Server::builder().fallback(Always(compressed(bomb())));
    let serving = Serving::start(builder, &fixture.target()).await;
    let client = ConformanceClient::new(connect(&serving.endpoint().max_message_size(LIMIT)).await);
    let side = "set by the client's max_message_size(..)";
    for _ in 0..2 {
        let statuses = [
            client.echo(zeroes(1)).await.expect_err("a bomb"),
            client.collect(items([take(vec![1])])).await.expect_err("a bomb"),
            scan_fails(&client).await,
            talk_fails(&client).await,
        ];
        for status in statuses {
            assert_bomb(&status, side);
            assert_eq!(status.executed(), Executed::Yes, "{status}");
        }
    }
}

async fn scan_fails(client: &ConformanceClient) -> Status {
    let mut replies = client.scan(long_scan()).await.expect("it begins").into_inner();
    replies.message().await.expect_err("the first reply is none")
}

async fn talk_fails(client: &ConformanceClient) -> Status {
    let mut replies = client.talk(items([take(vec![1])])).await.expect("it begins").into_inner();
    replies.message().await.expect_err("the first reply is none")
}

async fn bytes_that_do_not_decompress_fail_their_call_and_no_other(fixture: Fixture) {
    let (_serving, channel) = limited(&fixture).await;
    let good = zipped(&zeroes(SHORT));
    let bad = [
        good.slice(..good.len() - 1),
        good.slice(..5),
        [&good, &b"garbage"[..]].concat().into(),
        Bytes::from_static(b"no gzip at all"),
    ];
    for bytes in &bad {
        for (method, request) in [("Echo", whole(bytes)), ("Talk", stream(bytes))] {
            let status = fails(channel.call(path(method), request)).await;
            assert_eq!(status.code(), Code::Internal, "{status}");
            assert!(status.message().contains("does not decompress as gzip"), "{status}");
        }
    }
    let members = [zipped(&zeroes(SHORT)), zipped(&Blob::default())].concat().into();
    let reply = channel.call(path("Echo"), whole(&members)).await.expect("two members");
    assert!(matches!(reply.into_inner(), StreamOutput::Whole(_)));

    let serving = Serving::start(
        Server::builder().fallback(Always(compressed(bad[0].clone()))),
        &fixture.target(),
    )
    .await;
    let client = serving.client().await;
    for status in [client.echo(zeroes(1)).await.expect_err("cut off"), talk_fails(&client).await] {
        assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes), "{status}");
    }
}

async fn a_repeat_may_be_compressed_otherwise(fixture: Fixture) {
    let sessions = Sessions::default();
    let (pair, _serving) = fixture.pair_with(|builder| builder.sessions(&sessions)).await;
    let session = pair.client.channel().open_session().await.expect("the server has sessions");
    let slot = session.slot().await;
    let attempt = |blob, compression: Compression| {
        let mut request = Request::new(blob);
        request.set_slot(slot.id());
        request.set_compression(compression);
        pair.client.digest(request)
    };
    let first = attempt(zeroes(SHORT), Compression::NONE).await.expect("digest").into_inner();
    let again = attempt(zeroes(SHORT), Encoding::Gzip.into()).await.expect("the same");
    assert_eq!(again.into_inner(), first, "also where the handler found it");
    let other = attempt(zeroes(SHORT - 1), Encoding::Gzip.into()).await.expect_err("another");
    assert_eq!(other.code(), Code::InvalidArgument, "{other}");
}

async fn the_bound_on_bytes_counts_what_is_decompressed(fixture: Fixture) {
    let limits = LoadLimits::new().max_running_bytes(SHORT + 1000);
    let (pair, serving) = fixture.pair_with(|builder| builder.load_limits(&limits)).await;
    let endpoint = serving.endpoint().send_compressed(Encoding::Gzip);
    let client = ConformanceClient::new(connect(&endpoint).await);
    let held = Step { payload: vec![0; SHORT].into(), ..step(Act::Gate, 1) };
    let holder = begin(client.collect(items([held]))).await;
    pair.witness.until(|log| log.entered.contains(&1)).await;
    client.echo(zeroes(500)).await.expect("there is room for it");
    let status = client.echo(zeroes(SHORT)).await.expect_err("there is none for it");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No));
    assert!(status.message().contains("max_running_bytes"), "{status}");
    pair.witness.open(1);
    let reply = holder.await.expect("no panic").expect("collect");
    assert_eq!(reply.get_ref().len, SHORT as u64);
}

async fn a_full_server_decompresses_nothing_that_it_turns_away(fixture: Fixture) {
    let large = compressed(zipped(&zeroes(32 << 20)));
    for (limits, bound) in [
        (LoadLimits::new().max_running_calls(1).max_running_bytes(64 << 20), "max_running_calls"),
        (LoadLimits::new().max_running_bytes(1000), "max_running_bytes"),
    ] {
        let (pair, _serving) = fixture.pair_with(|builder| builder.load_limits(&limits)).await;
        let held = Step { payload: vec![0; 500].into(), ..step(Act::Gate, 1) };
        let holder = begin(pair.client.collect(items([held]))).await;
        pair.witness.until(|log| log.entered.contains(&1)).await;
        let begun = Instant::now();
        large.clone().decompressed().expect("32 MiB are allowed");
        let decompressing = begun.elapsed();
        // One that decompresses is never so quick; any other is at some time, also where others use the processor.
        let (mut quickest, trying) = (Duration::MAX, Instant::now());
        while quickest >= decompressing / 4 && trying.elapsed() < LONG {
            let request = Request::new(StreamInput::Whole(large.clone()));
            let begun = Instant::now();
            let status = fails(pair.client.channel().call(path("Echo"), request)).await;
            quickest = quickest.min(begun.elapsed());
            assert!(status.message().contains(bound), "{status}");
        }
        assert!(quickest < decompressing / 4, "{quickest:?} of {decompressing:?}, {bound}");
        pair.witness.open(1);
        holder.await.expect("no panic").expect("collect");
    }
}

async fn a_compressed_message_is_understood_in_process_too(fixture: Fixture) {
    let pair = fixture.pair().await;
    let good = zipped(&zeroes(SHORT));
    for (method, request) in [("Echo", whole(&good)), ("Digest", whole(&good))] {
        let reply = pair.client.channel().call(path(method), request).await.expect(method);
        assert!(matches!(reply.into_inner(), StreamOutput::Whole(_)));
    }
    let status = fails(pair.client.channel().call(path("Talk"), stream(&good.slice(1..)))).await;
    assert_eq!(status.code(), Code::Internal, "{status}");
}
