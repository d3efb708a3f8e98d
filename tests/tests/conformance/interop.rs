//! The cases of gRPC's interoperability tests, under their names.
//!
//! They are defined in `doc/interop-test-descriptions.md` of grpc/grpc; sizes and words are those of that document.

use std::time::Duration;

use tokio::task::JoinSet;
use verbwire::{Code, Executed, Request, Status};
use verbwire_core::client::Client;
use verbwire_core::service::{MethodDescriptor, ServiceDescriptor};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::context;
use verbwire_tests::fixture::Fixture;
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{Blob, FailRequest, ProduceRequest};
use verbwire_tests::proto::context::MirrorRequest;
use verbwire_tests::service::Desk;
use verbwire_tests::streams::{fed, items};

use crate::metadata::custom_metadata;
use crate::streams::{next, scan, step, take};

/// A case through a proxy.
macro_rules! proxied {
    ($function:ident) => {
        Case {
            topic: "proxied",
            run: |fixture| Box::pin($function(fixture.proxied())),
            ..case!($function)
        }
    };
}

/// A case with a server whose services are tonic's.
macro_rules! bridged {
    ($function:ident) => {
        Case {
            topic: "tonic_server",
            run: |fixture| Box::pin($function(fixture.bridged())),
            ..case!($function)
        }
    };
}

/// All of them, each made by this macro.
macro_rules! all {
    ($made:ident) => {
        &[
            $made!(empty_unary),
            $made!(large_unary),
            $made!(client_streaming),
            $made!(server_streaming),
            $made!(ping_pong),
            $made!(empty_stream),
            $made!(status_code_and_message),
            $made!(special_status_message),
            $made!(unimplemented_method).over_a_connection(),
            $made!(unimplemented_service).over_a_connection(),
            $made!(cancel_after_begin),
            $made!(cancel_after_first_response),
            $made!(timeout_on_sleeping_server),
            $made!(concurrent_large_unary),
            $made!(custom_metadata),
        ]
    };
}

pub(crate) const CASES: &[Case] = all!(case);

/// The same through a proxy that knows none of the methods.
pub(crate) const PROXIED: &[Case] = all!(proxied);

/// The same with services that tonic generated.
pub(crate) const TONIC_SERVER: &[Case] = all!(bridged);

pub(crate) const REQUEST_SIZES: [usize; 4] = [27_182, 8, 1828, 45_904];

pub(crate) const REPLY_SIZES: [u64; 4] = [31_415, 9, 2653, 58_979];

async fn empty_unary(fixture: Fixture) {
    let pair = fixture.pair().await;
    assert_eq!(
        pair.client.echo(Blob::default()).await.expect("echo").into_inner(),
        Blob::default()
    );
}

async fn large_unary(fixture: Fixture) {
    let pair = fixture.pair().await;
    let payload = pattern::payload(271_828, 1);
    let digest = pair.client.digest(Blob { payload: payload.clone() }).await.expect("digest");
    assert_eq!(digest.get_ref().checksum, pattern::checksum(&payload));
    let reply = pair.client.produce(ProduceRequest { len: 314_159, seed: 2 }).await;
    assert_eq!(reply.expect("produce").get_ref().payload, pattern::payload(314_159, 2));
}

async fn client_streaming(fixture: Fixture) {
    let pair = fixture.pair().await;
    let steps = REQUEST_SIZES.map(|len| take(vec![0; len]));
    let reply = pair.client.collect(items(steps)).await.expect("collect");
    assert_eq!(reply.get_ref().len, 74_922);
}

async fn server_streaming(fixture: Fixture) {
    let pair = fixture.pair().await;
    let request = scan(1, 4, &REPLY_SIZES, Act::Take);
    let mut replies = pair.client.scan(request).await.expect("scan").into_inner();
    for len in REPLY_SIZES {
        assert_eq!(next(&mut replies).await.payload.len() as u64, len);
    }
    assert!(replies.message().await.expect("no error").is_none());
}

async fn ping_pong(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut replies = pair.client.talk(requests).await.expect("talk").into_inner();
    for len in REQUEST_SIZES {
        let payload = pattern::payload(len, 3);
        sender.send(take(payload.clone())).await.expect("the stream is polled");
        assert_eq!(next(&mut replies).await.payload, payload);
    }
    drop(sender);
    assert!(replies.message().await.expect("no error").is_none());
}

async fn empty_stream(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut replies = pair.client.talk(items([])).await.expect("talk").into_inner();
    assert!(replies.message().await.expect("no error").is_none());
}

async fn status_code_and_message(fixture: Fixture) {
    let pair = fixture.pair().await;
    let request =
        FailRequest { code: 2, message: "test status message".into(), ..Default::default() };
    let status = pair.client.fail(request).await.expect_err("it fails");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "test status message"));
    drop(pair);
    let client = context::client(&fixture).await;
    let message = "test status message".to_owned();
    let request = MirrorRequest { code: 2, message, ..MirrorRequest::default() };
    let mut replies = client.mirror_each(items([request])).await.expect("mirror").into_inner();
    let status = replies.message().await.expect_err("it fails");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "test status message"));
}

pub(crate) const SPECIAL: &str = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";

async fn special_status_message(fixture: Fixture) {
    let pair = fixture.pair().await;
    let request = FailRequest { code: 2, message: SPECIAL.into(), ..Default::default() };
    let status = pair.client.fail(request).await.expect_err("it fails");
    assert_eq!((status.code(), status.message()), (Code::Unknown, SPECIAL));
}

fn assert_unimplemented(status: &Status, executed: Executed) {
    assert_eq!((status.code(), status.executed()), (Code::Unimplemented, executed), "{status}");
}

/// A service that is offered, with methods that it has not.
static UNKNOWN_METHODS: ServiceDescriptor = ServiceDescriptor::new(
    "conformance.Conformance",
    &[
        MethodDescriptor::new("Unknown", "/conformance.Conformance/Unknown"),
        MethodDescriptor::new("UnknownTalk", "/conformance.Conformance/UnknownTalk")
            .client_streaming()
            .server_streaming(),
    ],
);

/// A service that is not offered.
static UNKNOWN_SERVICE: ServiceDescriptor = ServiceDescriptor::new(
    "conformance.Unknown",
    &[
        MethodDescriptor::new("Echo", "/conformance.Unknown/Echo"),
        MethodDescriptor::new("Talk", "/conformance.Unknown/Talk")
            .client_streaming()
            .server_streaming(),
    ],
);

/// Calls the two methods of `service`, which the server has not.
async fn assert_not_served(
    fixture: Fixture,
    service: &'static ServiceDescriptor,
    executed: Executed,
) {
    let serving = fixture.serve(fixture.offering(&Desk::default())).await;
    let client = serving.client().await;
    let unknown = Client::new(client.channel().clone(), service);
    let refused = unknown.unary::<_, Blob>(0, Request::new(Blob::default())).await;
    assert_unimplemented(&refused.expect_err("unknown"), executed);
    let requests = Request::new(items([Blob::default(), Blob::default()]));
    let refused = unknown.bidi_streaming::<_, Blob, _>(1, requests).await;
    assert_unimplemented(&refused.expect_err("unknown"), executed);
    client.echo(Blob::default()).await.expect("the connection lives");
}

async fn unimplemented_method(fixture: Fixture) {
    // Which methods a service of tonic's has is known to itself alone, and it has been called.
    let executed = if fixture.is_bridged() { Executed::Maybe } else { Executed::No };
    assert_not_served(fixture, &UNKNOWN_METHODS, executed).await;
}

async fn unimplemented_service(fixture: Fixture) {
    assert_not_served(fixture, &UNKNOWN_SERVICE, Executed::No).await;
}

async fn cancel_after_begin(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut call = pair.client.collect(requests);
    let handle = call.cancel_handle();
    let call = tokio::spawn(call);
    tokio::task::yield_now().await;
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_eq!(status.code(), Code::Cancelled, "{status}");
    drop(sender);
}

async fn cancel_after_first_response(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut call = pair.client.talk(requests);
    let handle = call.cancel_handle();
    let mut replies = call.await.expect("talk").into_inner();
    sender.send(take(vec![0; 27_182])).await.expect("the stream is polled");
    next(&mut replies).await;
    handle.cancel();
    let status = replies.message().await.expect_err("cancelled");
    assert_eq!(status.code(), Code::Cancelled, "{status}");
}

async fn timeout_on_sleeping_server(fixture: Fixture) {
    let pair = fixture.pair().await;
    let (sender, requests) = fed();
    let mut request = Request::new(requests);
    request.set_timeout(Duration::from_millis(1));
    let call = tokio::spawn(async move {
        let mut replies = pair.client.talk(request).await?.into_inner();
        replies.message().await
    });
    // The call may end before.
    let _sent = sender.send(step(Act::Hang, 1)).await;
    let status = call.await.expect("no panic").expect_err("too late");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}

async fn concurrent_large_unary(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut calls = JoinSet::new();
    for seed in 0..20 {
        let client = pair.client.clone();
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
