//! Calls between clients and services that tonic generated: deadlines, ends, back-pressure, interceptors, what is handed on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tonic::codec::CompressionEncoding;
use tonic::codegen::BoxStream;
use tonic::metadata::BinaryMetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Status};
use verbwire::compression::Encoding;
use verbwire::interceptor::{Intercepted, Interceptor, Next, Outcome, Payload, from_fn};
use verbwire::open::{OpenService, StreamInput, StreamOutput};
use verbwire::{Body, Executed, Limited, LoadLimits, Server};
use verbwire_tests::backends::Place;
use verbwire_tests::bridge::{self, Client, TonicDesk};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Late, Serving, in_time, many, offering, short};
use verbwire_tests::island::Island;
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::second_client::SecondClient;
use verbwire_tests::proto::conformance::second_server::SecondServer;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{
    Blob, DigestReply, FailRequest, Nothing, ProduceRequest, ScanRequest, Ticket,
};
use verbwire_tests::proto::context::MirrorRequest;
use verbwire_tests::service::Desk;
use verbwire_tests::streams::{fed, items};
use verbwire_tests::tonic_proto::conformance::conformance_client::ConformanceClient as TonicClient;
use verbwire_tests::tonic_proto::conformance::conformance_server::ConformanceServer;
use verbwire_tonic::{AddTonic, Attachment, Detach};

use crate::interceptors::channel;
use crate::streams::{scan, step, take};
use crate::tonic_client::{mirror, next, pair};

pub(crate) const CASES: &[Case] = &[
    case!(five_hundred_calls_of_tonics_run_at_a_time),
    case!(a_deadline_of_tonics_ends_what_never_answers),
    case!(a_deadline_of_tonics_covers_a_stream_to_its_end),
    case!(a_deadline_of_tonics_ends_every_call_to_a_silent_server)
        .over_a_connection()
        .in_real_time(),
    case!(a_deadline_that_is_no_timeout_fails_its_call_unsent),
    case!(a_call_of_tonics_has_what_is_left_of_its_handlers_deadline).over_a_connection(),
    case!(replies_of_tonics_that_nobody_reads_stop_at_their_window).over_a_connection(),
    case!(requests_of_tonics_that_nobody_reads_stop_at_their_window).over_a_connection(),
    case!(requests_of_tonics_that_break_off_do_not_end_well).over_a_connection(),
    case!(metadata_of_tonics_comes_in_order_and_as_it_is),
    case!(a_status_of_tonics_has_its_details_and_metadata),
    case!(interceptors_of_tonics_stand_on_both_sides),
    case!(handlers_of_tonics_find_what_native_interceptors_know).over_one_path(),
    case!(native_and_tonics_services_share_a_server).over_a_connection(),
    case!(an_attachment_of_tonics_is_a_field_to_native_peers),
    case!(what_tonic_compresses_travels_as_it_is),
    case!(tonic_and_native_peers_read_what_the_other_compresses),
    case!(a_gateway_of_tonics_hands_its_requests_on).over_a_connection(),
];

/// tonic's client of its own service.
async fn both(fixture: Fixture) -> (Client, verbwire_tests::fixture::Pair, Fixture) {
    let fixture = fixture.bridged();
    let (client, pair) = pair(&fixture).await;
    (client, pair, fixture)
}

fn blob(payload: &'static str) -> Blob {
    Blob { payload: payload.into() }
}

fn within<T>(message: T, time: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(time);
    request
}

async fn five_hundred_calls_of_tonics_run_at_a_time(fixture: Fixture) {
    let ((client, pair, _fixture), calls) = (both(fixture).await, many(500));
    let mut running = JoinSet::new();
    for number in 0..calls {
        let mut client = client.clone();
        running.spawn(async move { client.gate(Ticket { number }).await });
    }
    pair.witness.until(|log| log.running as u64 == calls).await;
    (0..calls).for_each(|number| pair.witness.open(number));
    while let Some(ended) = running.join_next().await {
        ended.expect("no panic").expect("gate");
    }
    assert_eq!(pair.witness.log().finished.len() as u64, calls);
}

async fn a_deadline_of_tonics_ends_what_never_answers(fixture: Fixture) {
    let (mut client, pair, _fixture) = both(fixture).await;
    in_time(async |time| {
        let begun = Instant::now();
        let hang = within(Ticket { number: 1 }, time);
        let status = client.clone().hang(hang).await.expect_err("never");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!((time..LONG).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        pair.witness.entered_in_time(1)?;
        // The handler ignores it, and is dropped.
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
    client.echo(blob("x")).await.expect("the connection lives");
}

async fn a_deadline_of_tonics_covers_a_stream_to_its_end(fixture: Fixture) {
    let (client, pair, _fixture) = both(fixture).await;
    in_time(async |time| {
        let request = within(scan(1, 1, &[1], Act::Hang), time);
        let late = |_ended| Late("no reply came");
        let mut replies = client.clone().scan(request).await.map_err(late)?.into_inner();
        replies.message().await.map_err(late)?.expect("one");
        let status = replies.message().await.expect_err("never");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
    // Of requests that do not come to their end.
    in_time(async |time| {
        let ((sender, requests), mut client) = (fed(), client.clone());
        let call = tokio::spawn(async move { client.collect(within(requests, time)).await });
        let sent = sender.send(step(Act::Take, 2)).await;
        let status = call.await.expect("no panic").expect_err("never");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        timeout(LONG, sender.closed()).await.expect("the stream is dropped");
        sent.map_err(|_ended| Late("the stream was not polled"))?;
        pair.witness.entered_in_time(2)?;
        pair.witness.until(|log| log.dropped.contains(&2)).await;
        Ok(())
    })
    .await;
}

async fn a_deadline_of_tonics_ends_every_call_to_a_silent_server(fixture: Fixture) {
    let (island, target) = (Island::new(), fixture.target());
    let serving = island.run(async move {
        let server = Server::builder().add_service(bridge::conformance(&Desk::default()));
        Serving::start(server, &target).await
    });
    let mut client = bridge::client(&serving.await.connect().await);
    client.echo(blob("x")).await.expect("the server runs");
    island.freeze().await;
    let begun = Instant::now();
    let (sender, requests) = fed();
    let [mut one, mut two, mut three] = [client.clone(), client.clone(), client.clone()];
    let collect =
        tokio::spawn(async move { one.collect(within(requests, short())).await.map(drop) });
    let endless = within(items(std::iter::repeat_with(|| take(vec![0; 1000]))), short());
    let talk = tokio::spawn(async move { two.talk(endless).await.map(drop) });
    let gate = within(Ticket { number: 1 }, short());
    let gate = tokio::spawn(async move { three.gate(gate).await.map(drop) });
    for call in [collect, talk, gate] {
        let status = call.await.expect("no panic").expect_err("nobody answers");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!((short()..LONG / 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    island.thaw();
    client.echo(blob("x")).await.expect("the server runs again");
}

async fn a_deadline_that_is_no_timeout_fails_its_call_unsent(fixture: Fixture) {
    let (mut client, pair, _fixture) = both(fixture).await;
    let mut request = Request::new(Ticket { number: 1 });
    request.metadata_mut().insert("grpc-timeout", "soon".parse().expect("printable"));
    let status = client.hang(request).await.expect_err("no timeout");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let native = verbwire_tonic::native(&status).expect("it ended here");
    assert_eq!(native.executed(), Executed::No);
    assert!(pair.witness.log().entered.is_empty());
}

/// A service of tonic's that asks the one behind it.
#[derive(Clone)]
struct Front(Client);

#[tonic::async_trait]
impl verbwire_tests::tonic_proto::conformance::conformance_server::Conformance for Front {
    async fn hang(&self, request: Request<Ticket>) -> Result<tonic::Response<Nothing>, Status> {
        self.0.clone().hang(request.into_inner()).await
    }
}

async fn a_call_of_tonics_has_what_is_left_of_its_handlers_deadline(fixture: Fixture) {
    let desk = Desk::default();
    let behind = fixture.serve(Server::builder().add_service(bridge::conformance(&desk))).await;
    let front = Front(bridge::client(&behind.connect().await));
    let front = fixture.serve(Server::builder().add_tonic(ConformanceServer::new(front))).await;
    let client = bridge::client(&front.connect().await);
    in_time(async |time| {
        let hang = within(Ticket { number: 1 }, time);
        let status = client.clone().hang(hang).await.expect_err("never");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        desk.witness().entered_in_time(1)?;
        desk.witness().until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

/// What a side holds of a stream that is not read: its window, what tonic's encoder puts together, and the rest in pieces.
const HELD: u64 = (256 << 10) + (32 << 10);

async fn replies_of_tonics_that_nobody_reads_stop_at_their_window(fixture: Fixture) {
    let (mut client, pair, _fixture) = both(fixture).await;
    let request = scan(1, 100, &[10_000], Act::Take);
    let mut replies = client.scan(request).await.expect("scan").into_inner();
    next(&mut replies).await;
    pair.witness.until(|log| log.produced > 256 << 10).await;
    client.echo(blob("x")).await.expect("others go on");
    tokio::time::sleep(Duration::from_millis(50)).await;
    let produced = pair.witness.log().produced;
    assert!(produced <= HELD + 60_000, "{produced} bytes for a reader of 10,000");
    for _ in 0..99 {
        next(&mut replies).await;
    }
    assert!(replies.message().await.expect("no error").is_none());
}

async fn requests_of_tonics_that_nobody_reads_stop_at_their_window(fixture: Fixture) {
    let fixture = fixture.bridged();
    let (pair, _serving) = fixture.pair_with(|builder| builder.stream_window(10_000)).await;
    let mut client = bridge::client(pair.client.channel());
    let (sender, requests) = fed();
    let call = tokio::spawn(async move { client.collect(requests).await });
    sender.send(step(Act::Gate, 1)).await.expect("the stream is polled");
    pair.witness.until(|log| log.entered.contains(&1)).await;
    let mut sent = 0;
    // What the window takes is polled, however late.
    let patience = |sent| if sent < 9 { LONG } else { short() };
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

async fn requests_of_tonics_that_break_off_do_not_end_well(fixture: Fixture) {
    let (client, pair, _fixture) = both(fixture).await;
    for ticket in 0..many(50) {
        let (sender, requests) = fed();
        let mut client = client.clone();
        let call = tokio::spawn(async move { client.collect(requests).await });
        sender.send(step(Act::Take, ticket)).await.expect("the stream is polled");
        pair.witness.until(|log| log.entered.contains(&ticket)).await;
        call.abort();
        pair.witness.until(|log| log.dropped.contains(&ticket)).await;
    }
    assert!(pair.witness.log().finished.is_empty(), "half a stream was taken for all of it");
}

async fn metadata_of_tonics_comes_in_order_and_as_it_is(fixture: Fixture) {
    let mut client = mirror(&fixture.bridged()).await;
    let mut request = Request::new(MirrorRequest::default());
    let metadata = request.metadata_mut();
    for value in ["1", "2", " 3, with ~ and \\"] {
        metadata.append("many", value.parse().expect("printable"));
    }
    metadata.insert("user-agent", "a test".parse().expect("printable"));
    let binary: [&[u8]; 3] = [b"", b"\0\xff\n", &[0xee; 100]];
    for value in binary {
        metadata.append_bin("many-bin", BinaryMetadataValue::from_bytes(value));
    }
    let reply = client.mirror(request).await.expect("mirror");
    let said: Vec<_> = reply.metadata().get_all("many").iter().collect();
    assert_eq!(said, ["1", "2", " 3, with ~ and \\"]);
    assert_eq!(reply.metadata().get("user-agent").expect("said back"), "a test");
    let said = reply.metadata().get_all_bin("many-bin");
    let said: Vec<Bytes> = said.iter().map(|value| value.to_bytes().expect("base64")).collect();
    assert_eq!(said, binary);
    // What is the framework's own is refused, and nothing is sent.
    let mut request = Request::new(MirrorRequest::default());
    request.metadata_mut().insert("grpc-mine", "x".parse().expect("printable"));
    let status = client.mirror(request).await.expect_err("reserved");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("grpc-mine"), "{status}");
}

async fn a_status_of_tonics_has_its_details_and_metadata(fixture: Fixture) {
    let fixture = fixture.bridged();
    let mut client = mirror(&fixture).await;
    for code in 1..17 {
        let message = "100% of it\n".to_owned();
        let mut request = Request::new(MirrorRequest { code, message, ..Default::default() });
        request.metadata_mut().insert("said", "back".parse().expect("printable"));
        request.metadata_mut().insert_bin("said-bin", BinaryMetadataValue::from_bytes(b"\0"));
        let status = client.mirror(request).await.expect_err("told to");
        assert_eq!((status.code(), status.message()), (Code::from(code), "100% of it\n"));
        assert_eq!(status.metadata().get("said").expect("said back"), "back");
        let bytes = status.metadata().get_bin("said-bin").expect("said back").to_bytes();
        assert_eq!(bytes.expect("base64"), &b"\0"[..]);
    }
    let (mut client, _pair) = pair(&fixture).await;
    let details = Bytes::from_static(b"\0\x01\xffdetails");
    let request = FailRequest { code: 9, details: details.clone(), ..FailRequest::default() };
    let status = client.fail(request).await.expect_err("told to");
    assert_eq!((status.code(), status.details()), (Code::FailedPrecondition, &details[..]));
}

async fn interceptors_of_tonics_stand_on_both_sides(fixture: Fixture) {
    let desk = Desk::default();
    let guard = |request: Request<()>| match request.metadata().get("token") {
        Some(token) if token == "right" => Ok(request),
        _ => Err(Status::unauthenticated("who are you?")),
    };
    let server = ConformanceServer::new(TonicDesk::new(&desk));
    let guarded = verbwire_tonic::service(InterceptedService::new(server, guard));
    let channel = channel(&fixture, guarded).await;
    let bridged = verbwire_tonic::Channel::new(channel.clone());
    let mut client = TonicClient::with_interceptor(bridged.clone(), |mut request: Request<()>| {
        request.metadata_mut().insert("token", "right".parse().expect("printable"));
        Ok(request)
    });
    client.echo(blob("x")).await.expect("the token is right");
    let status = TonicClient::new(bridged).gate(Ticket { number: 1 }).await.expect_err("no token");
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "who are you?"));
    // A service may do its work before its future is polled, so that nobody knows that this one has not.
    let native = ConformanceClient::new(channel).gate(Ticket { number: 1 });
    let status = native.await.expect_err("no token");
    assert_eq!(status.code(), verbwire::Code::Unauthenticated, "{status}");
    assert_eq!(status.executed(), Executed::Maybe, "{status}");
    assert!(desk.witness().log().entered.is_empty());
}

/// What an interceptor found out.
#[derive(Debug, Clone, PartialEq)]
struct Who(&'static str);

/// Says who calls, natively and as tonic's handlers look for it.
struct Knows;

impl Interceptor for Knows {
    async fn intercept(&self, mut request: verbwire::Request<Payload>, next: Next) -> Outcome {
        let mut extensions = http::Extensions::new();
        extensions.insert(Who("for tonic"));
        request.extensions_mut().insert(extensions);
        request.extensions_mut().insert(Who("native"));
        next.run(request).await
    }
}

/// Says what it finds.
#[derive(Clone)]
struct Finder;

#[tonic::async_trait]
impl verbwire_tests::tonic_proto::conformance::conformance_server::Conformance for Finder {
    async fn echo(&self, request: Request<Blob>) -> Result<tonic::Response<Blob>, Status> {
        let native = verbwire_tonic::received(&request).expect("the bridge serves it");
        let found = (request.extensions().get::<Who>(), native.extensions().get::<Who>());
        let left = native.deadline().expect("always").saturating_duration_since(Instant::now());
        let said = request.metadata().get("grpc-timeout").is_some();
        let transport = native.path().map(|path| path.transport);
        let who = request.metadata().get("who").expect("said");
        let text = format!("{found:?} {} {said} {transport:?} {who:?}", left <= LONG);
        Ok(tonic::Response::new(Blob { payload: text.into() }))
    }
}

async fn handlers_of_tonics_find_what_native_interceptors_know(fixture: Fixture) {
    let service = verbwire_tonic::service(ConformanceServer::new(Finder));
    let channel = channel(&fixture, Intercepted::new(service, Knows)).await;
    // A native interceptor of the client finds what is in the extensions of tonic's request.
    let channel = channel.intercepted(from_fn(|mut request: verbwire::Request<()>| {
        let found = request.extensions().get::<http::Extensions>().expect("tonic puts some in");
        let Who(name) = *found.get().expect("the caller put it in");
        let name = verbwire::metadata::MetadataValue::from_static(name);
        request.metadata_mut().insert("who", name)?;
        Ok(request)
    }));
    let mut request = within(blob(""), LONG);
    request.extensions_mut().insert(Who("a caller"));
    let reply = bridge::client(&channel).echo(request).await.expect("echo").into_inner();
    let transport = channel.path().map(|path| path.transport);
    let expected = format!(
        r#"(Some(Who("for tonic")), Some(Who("native"))) true true {transport:?} "a caller""#
    );
    assert_eq!(reply.payload, expected);
}

async fn native_and_tonics_services_share_a_server(fixture: Fixture) {
    let desk = Desk::default();
    let limits = LoadLimits::new().max_running_calls(1);
    let builder = Server::builder()
        .add_service(SecondServer::new(desk.clone()))
        .add_service(Limited::new(bridge::conformance(&desk), &limits));
    let channel = Serving::start(builder, &fixture.target()).await.connect().await;
    let mut client = bridge::client(&channel);
    let mut other = client.clone();
    let held = tokio::spawn(async move { other.gate(Ticket { number: 1 }).await });
    desk.witness().until(|log| log.entered.contains(&1)).await;
    let status = client.echo(blob("x")).await.expect_err("full");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    SecondClient::new(channel).echo(blob("x")).await.expect("the native service has no bounds");
    desk.witness().open(1);
    held.await.expect("no panic").expect("gate");
    let steps = items([take("abc")]);
    assert_eq!(client.collect(steps).await.expect("there is room").get_ref().len, 3);
}

/// Takes and gives payloads beside its messages.
#[derive(Clone)]
struct Attaching;

#[tonic::async_trait]
impl verbwire_tests::tonic_proto::conformance::conformance_server::Conformance for Attaching {
    async fn digest(&self, request: Request<Blob>) -> Result<tonic::Response<DigestReply>, Status> {
        assert!(request.get_ref().payload.is_empty(), "it goes beside the message");
        let payload = request.extensions().get::<Attachment>().map(Attachment::bytes);
        Ok(tonic::Response::new(match payload {
            Some(payload) => DigestReply {
                len: payload.len() as u64,
                checksum: pattern::checksum(payload),
                address: payload.as_ptr().addr() as u64,
                messages: 1,
            },
            None => DigestReply::default(),
        }))
    }

    async fn produce(
        &self,
        request: Request<ProduceRequest>,
    ) -> Result<tonic::Response<Blob>, Status> {
        let ProduceRequest { len, seed } = *request.get_ref();
        let payload = pattern::payload(usize::try_from(len).expect("short"), seed);
        let mut response = tonic::Response::new(Blob::default());
        response.extensions_mut().insert(Attachment::new(1, payload));
        Ok(response)
    }
}

/// A client of tonic's with attachments.
async fn assert_attaches(client: &mut Client, is_in_this_memory: bool) {
    for len in [0, 10, 300_000] {
        let payload = pattern::payload(len, 1);
        let mut request = Request::new(Blob::default());
        request.extensions_mut().insert(Attachment::new(1, payload.clone()));
        let digest = client.digest(request).await.expect("digest").into_inner();
        assert_eq!((digest.len, digest.checksum), (len as u64, pattern::checksum(&payload)));
        if is_in_this_memory && len > 4096 {
            assert_eq!(digest.address, payload.as_ptr().addr() as u64, "it was copied");
        }
        let mut request = Request::new(ProduceRequest { len: len as u64, seed: 2 });
        request.extensions_mut().insert(Detach(1));
        let reply = client.produce(request).await.expect("produce");
        assert!(reply.get_ref().payload.is_empty());
        let found = reply.extensions().get::<Attachment>().map(Attachment::bytes);
        // proto3 leaves an empty field out.
        assert!(found.cloned().unwrap_or_default() == pattern::payload(len, 2));
    }
    // Without an attachment it is a message like others.
    assert_eq!(client.digest(Blob::default()).await.expect("digest").get_ref().len, 0);
    let reply = client.produce(ProduceRequest { len: 10, seed: 3 }).await.expect("produce");
    assert_eq!(reply.get_ref().payload, pattern::payload(10, 3));
}

async fn an_attachment_of_tonics_is_a_field_to_native_peers(fixture: Fixture) {
    let is_in_this_memory = matches!(fixture.backend().place, Place::InProcess | Place::Mem);
    let (mut client, pair) = pair(&fixture).await;
    assert_attaches(&mut client, is_in_this_memory).await;
    // A message with an attachment does not go compressed.
    assert_attaches(&mut compressing(pair.client.channel()), is_in_this_memory).await;
    let mut requests = Request::new(items([take("a"), take("b")]));
    requests.extensions_mut().insert(Attachment::new(1, "x"));
    let status = client.collect(requests).await.expect_err("a stream has none");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    // From a service of tonic's, to its client and to a native one.
    let server = ConformanceServer::new(Attaching).send_compressed(CompressionEncoding::Gzip);
    let bridge = verbwire_tonic::Bridge::new(server);
    let channel = channel(&fixture, bridge.detach("Digest", 1).into_service()).await;
    assert_attaches(&mut bridge::client(&channel), is_in_this_memory).await;
    let native = ConformanceClient::new(channel);
    let payload = pattern::payload(300_000, 1);
    let digest = native.digest(Blob { payload: payload.clone() }).await.expect("digest");
    assert_eq!(digest.get_ref().checksum, pattern::checksum(&payload));
    let reply = native.produce(ProduceRequest { len: 300_000, seed: 2 }).await.expect("produce");
    assert!(reply.get_ref().payload == pattern::payload(300_000, 2));
}

/// tonic's client, which sends and takes what is compressed.
fn compressing(channel: &verbwire::Channel) -> Client {
    let client = bridge::client(channel).send_compressed(CompressionEncoding::Gzip);
    client.accept_compressed(CompressionEncoding::Gzip)
}

/// Zeros, which compress well.
fn zeros() -> Blob {
    Blob { payload: vec![0; 100_000].into() }
}

async fn what_tonic_compresses_travels_as_it_is(fixture: Fixture) {
    // What comes is sent back as it came, with a look at it.
    let mirror = |_: Arc<str>, request: verbwire::Request<Body>| async move {
        let body = request.into_inner();
        let found = (body.encoding()?, body.len() < 10_000);
        assert_eq!(found, (Some(Encoding::Gzip), true));
        Ok(verbwire::Response::new(body))
    };
    let channel = channel(&fixture, OpenService::new("conformance.Conformance", mirror)).await;
    // Whether a client accepts it so or not, it gets it as it was before.
    let mut client = bridge::client(&channel).send_compressed(CompressionEncoding::Gzip);
    let reply = client.echo(zeros()).await.expect("echo");
    assert!(reply.into_inner() == zeros());
    let mut client = compressing(&channel);
    let reply = client.echo(zeros()).await.expect("echo");
    assert!(reply.metadata().get("grpc-encoding").is_none());
    assert!(reply.into_inner() == zeros());
}

async fn tonic_and_native_peers_read_what_the_other_compresses(fixture: Fixture) {
    let desk = Desk::default();
    let server = ConformanceServer::new(TonicDesk::new(&desk));
    let server = server.send_compressed(CompressionEncoding::Gzip);
    let server = server.accept_compressed(CompressionEncoding::Gzip);
    let channel = channel(&fixture, verbwire_tonic::service(server)).await;
    let mut body = Body::from(Bytes::from_static(b"\x0a\xa0\x8d\x06"));
    body.push(zeros().payload);
    let request = verbwire::Request::new(StreamInput::Whole(body));
    let reply = channel.call("/conformance.Conformance/Echo", request).await.expect("echo");
    let body = match reply.into_inner() {
        StreamOutput::Whole(body) => Some(body),
        StreamOutput::Stream(_) => None,
    };
    let body = body.expect("one reply");
    assert_eq!(
        (body.encoding().expect("known"), body.len() < 10_000),
        (Some(Encoding::Gzip), true)
    );
    assert!(
        ConformanceClient::new(channel.clone()).echo(zeros()).await.expect("echo").get_ref()
            == &zeros()
    );
    for mut client in [compressing(&channel), bridge::client(&channel)] {
        assert!(client.echo(zeros()).await.expect("echo").get_ref() == &zeros());
        let steps = items([take(zeros().payload), take("a")]);
        let mut replies = client.talk(steps).await.expect("talk").into_inner();
        assert!(next(&mut replies).await == zeros());
        assert_eq!(next(&mut replies).await.payload, "a");
        assert!(replies.message().await.expect("no error").is_none());
    }
    let (pair, _serving) = match fixture.backend().place {
        Place::InProcess => return,
        _ => fixture.pair_with(|builder| builder.send_compressed(Encoding::Gzip)).await,
    };
    // A native service compresses, a client of tonic's reads.
    for mut client in [compressing(pair.client.channel()), bridge::client(pair.client.channel())] {
        assert!(client.echo(zeros()).await.expect("echo").get_ref() == &zeros());
        let request = scan(1, 3, &[10_000], Act::Take);
        let mut replies = client.scan(request).await.expect("scan").into_inner();
        for _ in 0..3 {
            assert_eq!(next(&mut replies).await.payload.len(), 10_000);
        }
        assert!(replies.message().await.expect("no error").is_none());
    }
}

/// A service of tonic's that hands its requests on as they are, with their metadata and extensions.
#[derive(Clone)]
struct Gateway(Client);

#[tonic::async_trait]
impl verbwire_tests::tonic_proto::conformance::conformance_server::Conformance for Gateway {
    async fn echo(&self, request: Request<Blob>) -> Result<tonic::Response<Blob>, Status> {
        self.0.clone().echo(request).await
    }

    async fn scan(
        &self,
        request: Request<ScanRequest>,
    ) -> Result<tonic::Response<BoxStream<Blob>>, Status> {
        let replies = self.0.clone().scan(request).await?;
        Ok(replies.map(|replies| Box::pin(replies) as BoxStream<Blob>))
    }
}

async fn a_gateway_of_tonics_hands_its_requests_on(fixture: Fixture) {
    for backend in [
        offering(&Desk::default()),
        offering(&Desk::default()).send_compressed(Encoding::Gzip),
        Server::builder().add_service(bridge::conformance(&Desk::default())),
    ] {
        let backend = Serving::start(backend, &fixture.target()).await;
        let gateway = Gateway(bridge::client(&backend.connect().await));
        let gateway = Server::builder().add_tonic(ConformanceServer::new(gateway));
        let channel = Serving::start(gateway, &fixture.target()).await.connect().await;
        for mut client in [bridge::client(&channel), compressing(&channel)] {
            let short = Blob { payload: vec![0; 4000].into() };
            let reply = client.echo(short.clone()).await.expect("echo");
            assert!(reply.into_inner() == short);
            let request = scan(1, 2, &[4000], Act::Take);
            let mut replies = client.scan(request).await.expect("scan").into_inner();
            for _ in 0..2 {
                assert_eq!(next(&mut replies).await.payload.len(), 4000);
            }
            assert!(replies.message().await.expect("no error").is_none());
        }
    }
}
