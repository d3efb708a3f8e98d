//! The cases of gRPC's interoperability tests with clients that tonic generated, against native services and against services
//! that tonic generated.
//!
//! Those of native clients against tonic's services are in `interop`.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::metadata::BinaryMetadataValue;
use tonic::{Code, Request, Status, Streaming};
use verbwire_tests::bridge::{self, Client, ContextClient};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::context;
use verbwire_tests::fixture::{Fixture, LONG, Pair};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{Blob, FailRequest, ProduceRequest};
use verbwire_tests::proto::context::MirrorRequest;
use verbwire_tests::streams::{fed, items};

use crate::interop::{REPLY_SIZES, REQUEST_SIZES, SPECIAL};
use crate::streams::{scan, step, take};

/// A case with a service that tonic generated, too.
macro_rules! both {
    ($function:ident) => {
        Case {
            topic: "tonic_both",
            run: |fixture| Box::pin($function(fixture.bridged())),
            ..case!($function)
        }
    };
}

macro_rules! all {
    ($made:ident) => {
        &[
            $made!(empty_unary),
            $made!(large_unary),
            $made!(client_streaming),
            $made!(server_streaming),
            $made!(ping_pong),
            $made!(empty_stream),
            $made!(custom_metadata),
            $made!(status_code_and_message),
            $made!(special_status_message),
            $made!(unimplemented_method).over_a_connection(),
            $made!(unimplemented_service).over_a_connection(),
            $made!(cancel_after_begin),
            $made!(cancel_after_first_response),
            $made!(timeout_on_sleeping_server),
            $made!(concurrent_large_unary),
        ]
    };
}

pub(crate) const CASES: &[Case] = all!(case);

/// The same with tonic at both ends.
pub(crate) const BOTH: &[Case] = all!(both);

/// tonic's client of a pair.
pub(crate) async fn pair(fixture: &Fixture) -> (Client, Pair) {
    let pair = fixture.pair().await;
    (bridge::client(pair.client.channel()), pair)
}

/// tonic's client of the service that says metadata back.
pub(crate) async fn mirror(fixture: &Fixture) -> ContextClient {
    let native = context::client(fixture).await;
    ContextClient::new(verbwire_tonic::Channel::new(native.channel().clone()))
}

pub(crate) async fn next(replies: &mut Streaming<Blob>) -> Blob {
    replies.message().await.expect("no error").expect("one more")
}

async fn assert_ended(replies: &mut Streaming<Blob>) {
    assert!(replies.message().await.expect("no error").is_none());
}

async fn empty_unary(fixture: Fixture) {
    let (mut client, _pair) = pair(&fixture).await;
    let reply = client.echo(Blob::default()).await.expect("echo");
    assert_eq!(reply.into_inner(), Blob::default());
}

async fn large_unary(fixture: Fixture) {
    let (mut client, _pair) = pair(&fixture).await;
    let payload = pattern::payload(271_828, 1);
    let digest = client.digest(Blob { payload: payload.clone() }).await.expect("digest");
    assert_eq!(digest.get_ref().checksum, pattern::checksum(&payload));
    let reply = client.produce(ProduceRequest { len: 314_159, seed: 2 }).await;
    assert_eq!(reply.expect("produce").get_ref().payload, pattern::payload(314_159, 2));
}

async fn client_streaming(fixture: Fixture) {
    let (mut client, _pair) = pair(&fixture).await;
    let steps = REQUEST_SIZES.map(|len| take(vec![0; len]));
    let reply = client.collect(items(steps)).await.expect("collect");
    assert_eq!(reply.get_ref().len, 74_922);
}

async fn server_streaming(fixture: Fixture) {
    let (mut client, _pair) = pair(&fixture).await;
    let request = scan(1, 4, &REPLY_SIZES, Act::Take);
    let mut replies = client.scan(request).await.expect("scan").into_inner();
    for len in REPLY_SIZES {
        assert_eq!(next(&mut replies).await.payload.len() as u64, len);
    }
    assert_ended(&mut replies).await;
}

async fn ping_pong(fixture: Fixture) {
    let (mut client, _pair) = pair(&fixture).await;
    let (sender, requests) = fed();
    let mut replies = client.talk(requests).await.expect("talk").into_inner();
    for len in REQUEST_SIZES {
        let payload = pattern::payload(len, 3);
        sender.send(take(payload.clone())).await.expect("the stream is polled");
        assert_eq!(next(&mut replies).await.payload, payload);
    }
    drop(sender);
    assert_ended(&mut replies).await;
}

async fn empty_stream(fixture: Fixture) {
    let (mut client, _pair) = pair(&fixture).await;
    let mut replies = client.talk(items([])).await.expect("talk").into_inner();
    assert_ended(&mut replies).await;
}

async fn custom_metadata(fixture: Fixture) {
    let (initial, trailing) = ("x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin");
    let said = |metadata: &mut tonic::metadata::MetadataMap| {
        metadata.insert(initial, "test_initial_metadata_value".parse().expect("printable"));
        metadata.insert_bin(trailing, BinaryMetadataValue::from_bytes(&[0xab, 0xab, 0xab]));
    };
    let assert_trailing = |metadata: &tonic::metadata::MetadataMap| {
        let value = metadata.get_bin(trailing).expect("said back").to_bytes().expect("base64");
        assert_eq!(&value[..], [0xab, 0xab, 0xab]);
    };
    let mut client = mirror(&fixture).await;
    let mut request = Request::new(MirrorRequest::default());
    said(request.metadata_mut());
    let reply = client.mirror(request).await.expect("mirror");
    assert_eq!(reply.metadata().get(initial).expect("said"), "test_initial_metadata_value");
    assert_trailing(reply.metadata());
    let saying = |payload: &'static str| MirrorRequest {
        payload: payload.into(),
        ..MirrorRequest::default()
    };
    let mut request = Request::new(items([saying("abc"), saying("de")]));
    said(request.metadata_mut());
    let reply = client.mirror_each(request).await.expect("mirror");
    assert_eq!(reply.metadata().get(initial).expect("said"), "test_initial_metadata_value");
    assert!(reply.metadata().get_bin(trailing).is_none(), "trailers come at the end");
    let mut replies = reply.into_inner();
    for payload in ["abc", "de"] {
        assert_eq!(replies.message().await.expect("no error").expect("two").payload, payload);
    }
    assert_trailing(&replies.trailers().await.expect("no error").expect("trailers"));
}

async fn status_code_and_message(fixture: Fixture) {
    let message = "test status message".to_owned();
    {
        let (mut client, _pair) = pair(&fixture).await;
        let request = FailRequest { code: 2, message: message.clone(), details: "\0\u{ff}".into() };
        let status = client.fail(request).await.expect_err("it fails");
        assert_eq!((status.code(), status.message()), (Code::Unknown, &*message));
        assert_eq!(status.details(), "\0\u{ff}".as_bytes());
    }
    let mut client = mirror(&fixture).await;
    let request = MirrorRequest { code: 2, message, ..MirrorRequest::default() };
    let mut replies = client.mirror_each(items([request])).await.expect("mirror").into_inner();
    let status = replies.message().await.expect_err("it fails");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "test status message"));
}

async fn special_status_message(fixture: Fixture) {
    let (mut client, _pair) = pair(&fixture).await;
    let request = FailRequest { code: 2, message: SPECIAL.into(), ..Default::default() };
    let status = client.fail(request).await.expect_err("it fails");
    assert_eq!((status.code(), status.message()), (Code::Unknown, SPECIAL));
}

/// Calls a path that nobody serves, in two forms.
async fn assert_not_served(fixture: Fixture, path: &'static str) {
    let (mut client, pair) = pair(&fixture).await;
    let channel = verbwire_tonic::Channel::new(pair.client.channel().clone());
    let mut grpc = tonic::client::Grpc::new(channel);
    let path = http::uri::PathAndQuery::from_static(path);
    let codec = tonic_prost::ProstCodec::<Blob, Blob>::default();
    grpc.ready().await.expect("ready");
    let refused = grpc.unary(Request::new(Blob::default()), path.clone(), codec).await;
    assert_eq!(refused.expect_err("unknown").code(), Code::Unimplemented);
    let codec = tonic_prost::ProstCodec::<Blob, Blob>::default();
    let requests = Request::new(items([Blob::default(), Blob::default()]));
    let refused = grpc.streaming(requests, path, codec).await;
    assert_eq!(refused.expect_err("unknown").code(), Code::Unimplemented);
    client.echo(Blob::default()).await.expect("the connection lives");
}

async fn unimplemented_method(fixture: Fixture) {
    assert_not_served(fixture, "/conformance.Conformance/Unknown").await;
}

async fn unimplemented_service(fixture: Fixture) {
    assert_not_served(fixture, "/conformance.Unknown/Echo").await;
}

async fn cancel_after_begin(fixture: Fixture) {
    let (mut client, pair) = pair(&fixture).await;
    let (sender, requests) = fed();
    sender.send(step(Act::Take, 1)).await.expect("there is room");
    let call = tokio::spawn(async move { client.collect(requests).await });
    pair.witness.until(|log| log.entered.contains(&1)).await;
    call.abort();
    timeout(LONG, sender.closed()).await.expect("the stream of requests is dropped");
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn cancel_after_first_response(fixture: Fixture) {
    let (mut client, pair) = pair(&fixture).await;
    let (sender, requests) = fed();
    let mut replies = client.talk(requests).await.expect("talk").into_inner();
    sender.send(step(Act::Take, 1)).await.expect("the stream is polled");
    next(&mut replies).await;
    drop(replies);
    timeout(LONG, sender.closed()).await.expect("the stream of requests is dropped");
    pair.witness.until(|log| log.dropped.contains(&1)).await;
}

async fn timeout_on_sleeping_server(fixture: Fixture) {
    let (mut client, _pair) = pair(&fixture).await;
    let (sender, requests) = fed();
    let mut request = Request::new(requests);
    request.set_timeout(Duration::from_millis(1));
    let call = tokio::spawn(async move {
        let mut replies = client.talk(request).await?.into_inner();
        replies.message().await
    });
    // The call may end before.
    let _sent = sender.send(step(Act::Hang, 1)).await;
    let status: Status = call.await.expect("no panic").expect_err("too late");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}

async fn concurrent_large_unary(fixture: Fixture) {
    let (client, _pair) = pair(&fixture).await;
    let mut calls = JoinSet::new();
    for seed in 0..20 {
        let mut client = client.clone();
        calls.spawn(async move {
            let payload = pattern::payload(271_828, seed);
            let reply = client.echo(Blob { payload: payload.clone() }).await.expect("echo");
            assert_eq!(reply.get_ref().payload, payload);
        });
    }
    while let Some(ended) = calls.join_next().await {
        ended.expect("no panic");
    }
}
