//! Metadata of requests, replies and statuses.

use bytes::Bytes;
use verbwire::metadata::{MetadataMap, MetadataValue};
use verbwire::{Code, Executed, Request};
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::context::{self, offering};
use verbwire_tests::fixture::{Fixture, Serving, connect};
use verbwire_tests::pattern;
use verbwire_tests::proto::context::MirrorRequest;
use verbwire_tests::proto::context::context_client::ContextClient;
use verbwire_tests::streams::items;

pub(crate) const CASES: &[Case] = &[
    case!(a_stream_of_requests_is_answered_with_trailers),
    case!(replies_that_fail_have_their_trailers_in_their_status),
    case!(trailers_of_replies_may_have_the_clients_limit_and_not_a_byte_more).over_a_connection(),
    case!(duplicates_come_in_order),
    case!(bytes_come_as_they_are),
    case!(a_call_without_metadata_has_none),
    case!(a_status_has_metadata),
    case!(reserved_names_are_refused_before_anything_is_sent),
    case!(metadata_may_have_the_servers_limit_and_not_a_byte_more).over_a_connection(),
    case!(metadata_of_replies_may_have_the_clients_limit_and_not_a_byte_more).over_a_connection(),
    case!(metadata_of_a_status_that_is_too_long_is_left_out_in_words).over_a_connection(),
    case!(the_longest_metadata_travels_with_every_length_of_body).over_a_connection(),
];

/// Bytes that an entry takes beside its key and value.
const ENTRY: usize = 6;

fn request(entries: &[(&'static str, &str)]) -> Request<MirrorRequest> {
    let mut request = Request::new(MirrorRequest::default());
    for (key, value) in entries {
        let value = value.parse().expect("printable");
        request.metadata_mut().append(*key, value).expect("a name");
    }
    request
}

fn all(map: &MetadataMap, key: &str) -> Vec<String> {
    map.get_all(key).map(|value| value.as_str().to_owned()).collect()
}

/// As in gRPC's interoperability tests.
pub(crate) async fn custom_metadata(fixture: Fixture) {
    let (initial, trailing) = ("x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin");
    let client = context::client(&fixture).await;
    let mut request = request(&[(initial, "test_initial_metadata_value")]);
    let ab = MetadataValue::from_bytes(&[0xab, 0xab, 0xab]);
    request.metadata_mut().insert_bin(trailing, ab.clone()).expect("a name");
    let response = client.mirror(request).await.expect("mirror");
    assert_eq!(all(response.metadata(), initial), ["test_initial_metadata_value"]);
    assert_eq!(response.trailers().get_bin(trailing), Some(&ab));
    assert_eq!((response.metadata().len(), response.trailers().len()), (1, 1));
    let mut replies = {
        let mut request = Request::new(items([saying("abc"), saying("de")]));
        let value = "test_initial_metadata_value".parse().expect("printable");
        request.metadata_mut().insert(initial, value).expect("a name");
        request.metadata_mut().insert_bin(trailing, ab.clone()).expect("a name");
        let response = client.mirror_each(request).await.expect("mirror");
        assert_eq!(all(response.metadata(), initial), ["test_initial_metadata_value"]);
        assert_eq!((response.metadata().len(), response.trailers().len()), (1, 0));
        response.into_inner()
    };
    let first = replies.message().await.expect("no error").expect("two replies");
    assert_eq!(first.payload, "abc");
    // What was not taken is dropped.
    let trailers = replies.trailers().await.expect("no error").expect("said at the end");
    assert_eq!((trailers.get_bin(trailing), trailers.len()), (Some(&ab), 1));
    assert!(replies.trailers().await.expect("no error").is_none(), "it was taken");
}

fn saying(payload: &'static str) -> MirrorRequest {
    MirrorRequest { payload: payload.into(), ..MirrorRequest::default() }
}

async fn a_stream_of_requests_is_answered_with_trailers(fixture: Fixture) {
    let client = context::client(&fixture).await;
    let mut request = Request::new(items([saying("abc"), saying("de")]));
    for (key, value) in [("a", "1"), ("trailing", "t1"), ("trailing", "t2")] {
        let value = value.parse().expect("printable");
        request.metadata_mut().append(key, value).expect("a name");
    }
    let response = client.mirror_all(request).await.expect("mirror");
    assert_eq!(response.get_ref().payload, "abcde");
    assert_eq!(all(response.metadata(), "a"), ["1"]);
    assert_eq!(all(response.trailers(), "trailing"), ["t1", "t2"]);
}

async fn replies_that_fail_have_their_trailers_in_their_status(fixture: Fixture) {
    let client = context::client(&fixture).await;
    let fails = MirrorRequest { code: 9, message: "no more".into(), ..MirrorRequest::default() };
    let mut request = Request::new(items([saying("abc"), fails]));
    request.metadata_mut().insert("trailing", "t".parse().expect("printable")).expect("a name");
    let mut replies = client.mirror_each(request).await.expect("mirror").into_inner();
    assert!(replies.message().await.expect("no error").is_some());
    let status = replies.trailers().await.expect_err("told to fail");
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "no more"));
    assert_eq!(all(status.metadata(), "trailing"), ["t"]);
    assert!(replies.trailers().await.expect("the error was the last").is_none());
}

async fn trailers_of_replies_may_have_the_clients_limit_and_not_a_byte_more(fixture: Fixture) {
    let serving = Serving::start(offering(), &fixture.target()).await;
    let client = ContextClient::new(connect(&serving.endpoint().max_metadata_size(1000)).await);
    let overhead = ENTRY + "trailing".len();
    for (len, is_allowed) in [(1000, true), (1001, false)] {
        let value = "v".repeat(len - overhead).parse().expect("printable");
        let mut request = Request::new(items([saying("abc")]));
        request.metadata_mut().insert("trailing", value).expect("a name");
        let mut replies = client.mirror_each(request).await.expect("mirror").into_inner();
        assert!(replies.message().await.expect("no error").is_some());
        match replies.trailers().await {
            Ok(trailers) => assert!(is_allowed && trailers.is_some_and(|some| some.len() == 1)),
            Err(status) => {
                assert!(!is_allowed, "{status}");
                let found = (status.code(), status.executed());
                assert_eq!(found, (Code::ResourceExhausted, Executed::Yes), "{status}");
                assert!(status.message().contains("max_metadata_size of 1000 bytes"), "{status}");
            }
        }
    }
}

async fn duplicates_come_in_order(fixture: Fixture) {
    let client = context::client(&fixture).await;
    let sent =
        [("a", "1"), ("b", "x"), ("a", ""), ("trailing", "t1"), ("a", "1"), ("trailing", "t0")];
    let response = client.mirror(request(&sent)).await.expect("mirror");
    assert_eq!(all(response.metadata(), "a"), ["1", "", "1"]);
    assert_eq!(all(response.metadata(), "b"), ["x"]);
    assert_eq!(all(response.trailers(), "trailing"), ["t1", "t0"]);
    let order: Vec<_> = response.metadata().iter().map(|entry| entry.key().to_owned()).collect();
    assert_eq!(order, ["a", "b", "a", "a"]);
}

async fn bytes_come_as_they_are(fixture: Fixture) {
    let client = context::client(&fixture).await;
    let mut request = Request::new(MirrorRequest::default());
    let values = [&b""[..], b"\0", b"\xff\xfe, \n\r", b"plain", &[7; 3000]];
    for value in values {
        let value = MetadataValue::from_bytes(value);
        request.metadata_mut().append_bin("raw-bin", value).expect("a name");
    }
    let response = client.mirror(request).await.expect("mirror");
    let received: Vec<Bytes> =
        response.metadata().get_all_bin("raw-bin").map(MetadataValue::to_bytes).collect();
    assert_eq!(received, values);
}

async fn a_call_without_metadata_has_none(fixture: Fixture) {
    let client = context::client(&fixture).await;
    let response = client.mirror(MirrorRequest::default()).await.expect("mirror");
    assert!(response.metadata().is_empty() && response.trailers().is_empty());
    let fails = MirrorRequest { code: 5, ..MirrorRequest::default() };
    let status = client.mirror(fails).await.expect_err("told to fail");
    assert!(status.metadata().is_empty());
}

async fn a_status_has_metadata(fixture: Fixture) {
    let client = context::client(&fixture).await;
    let mut request = request(&[("hint", "later"), ("trailing", "t"), ("hint", "elsewhere")]);
    request.get_mut().code = 9;
    let status = client.mirror(request).await.expect_err("told to fail");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(all(status.metadata(), "hint"), ["later", "elsewhere"]);
    assert_eq!(all(status.metadata(), "trailing"), ["t"]);
}

async fn reserved_names_are_refused_before_anything_is_sent(fixture: Fixture) {
    let client = context::client(&fixture).await;
    let mut request = Request::new(MirrorRequest::default());
    for key in ["grpc-timeout", "grpc-status", "verbwire-anything", ":path"] {
        let error = request.metadata_mut().insert(key, "x".parse().expect("printable"));
        assert!(error.expect_err(key).to_string().contains(key));
    }
    let key = "grpc-trace-bin";
    let error = request.metadata_mut().insert_bin(key, vec![1].into()).expect_err(key);
    assert!(error.to_string().contains(key), "{error}");
    let response = client.mirror(request).await.expect("mirror");
    assert!(response.metadata().is_empty());
}

/// A request whose metadata takes `len` bytes.
fn of_length(len: usize) -> Request<MirrorRequest> {
    request(&[("k", &"v".repeat(len - ENTRY - 1))])
}

async fn metadata_may_have_the_servers_limit_and_not_a_byte_more(fixture: Fixture) {
    let serving = Serving::start(offering().max_metadata_size(1000), &fixture.target()).await;
    let client = ContextClient::new(serving.connect().await);
    for len in [999, 1000] {
        client.mirror(of_length(len)).await.expect("within the limit");
    }
    for len in [1001, 100_000, 1 << 20] {
        let status = client.mirror(of_length(len)).await.expect_err("beyond the limit");
        assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No));
        assert!(status.message().contains("max_metadata_size of 1000 bytes"), "{status}");
    }
    client.mirror(of_length(1000)).await.expect("the connection lives");
}

async fn metadata_of_replies_may_have_the_clients_limit_and_not_a_byte_more(fixture: Fixture) {
    let serving = Serving::start(offering(), &fixture.target()).await;
    let client = ContextClient::new(connect(&serving.endpoint().max_metadata_size(1000)).await);
    let filled = |filling| MirrorRequest { filling, ..MirrorRequest::default() };
    let overhead = u32::try_from(ENTRY + "filling".len()).expect("short");
    let response = client.mirror(filled(1000 - overhead)).await.expect("within the limit");
    assert_eq!(all(response.metadata(), "filling")[0].len(), 987);
    let status = client.mirror(filled(1001 - overhead)).await.expect_err("beyond the limit");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::Yes));
    assert!(status.message().contains("max_metadata_size of 1000 bytes"), "{status}");
    client.mirror(MirrorRequest::default()).await.expect("the connection lives");
}

async fn metadata_of_a_status_that_is_too_long_is_left_out_in_words(fixture: Fixture) {
    let serving = Serving::start(offering(), &fixture.target()).await;
    let client = ContextClient::new(connect(&serving.endpoint().max_metadata_size(100)).await);
    let message = "told to fail".to_owned();
    let request = MirrorRequest { filling: 1000, code: 9, message, ..MirrorRequest::default() };
    let status = client.mirror(request).await.expect_err("told to fail");
    assert_eq!((status.code(), status.executed()), (Code::FailedPrecondition, Executed::Yes));
    assert!(status.message().starts_with("told to fail (left out: "), "{status}");
    assert!(status.metadata().is_empty());
}

async fn the_longest_metadata_travels_with_every_length_of_body(fixture: Fixture) {
    let serving = Serving::start(offering().max_metadata_size(16384), &fixture.target()).await;
    let client = ContextClient::new(serving.connect().await);
    // Over RDMA a receive of 8 KiB must hold it together with a header and the longest path.
    let is_rdma = matches!(fixture.backend().place, Place::Fabric | Place::Rdma);
    let max = if is_rdma { 7095 } else { 16384 };
    for len in [0, 100, 10_000, 100_000, 1_000_000] {
        let mut request = of_length(max);
        request.get_mut().payload = pattern::payload(len, 1);
        let response = client.mirror(request).await.expect("mirror");
        assert_eq!(response.get_ref().payload, pattern::payload(len, 1));
        assert_eq!(all(response.metadata(), "k")[0].len(), max - ENTRY - 1);
    }
    let status = client.mirror(of_length(max + 1)).await.expect_err("beyond the limit");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No));
}
