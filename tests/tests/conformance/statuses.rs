//! Statuses from handlers to callers.

use bytes::Bytes;
use verbwire::{Code, Executed};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, connect};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, FailRequest};

pub(crate) const CASES: &[Case] = &[
    case!(every_code_comes_with_its_message_and_details),
    case!(a_status_without_words_is_still_a_status),
    case!(a_handler_cannot_fail_with_ok),
    case!(no_limit_keeps_a_caller_from_its_status).over_a_connection(),
];

async fn every_code_comes_with_its_message_and_details(fixture: Fixture) {
    let pair = fixture.pair().await;
    for code in 1..=16 {
        let message = format!("größer als {code} % ✓\n\"zweite Zeile\"");
        let details = Bytes::from(vec![0, 255, 0, 7]);
        let request = FailRequest { code, message: message.clone(), details: details.clone() };
        let status = pair.client.fail(request).await.expect_err("told to fail");
        assert_eq!(status.code(), Code::from(code));
        assert_ne!(status.code(), Code::Ok);
        assert_eq!(status.message(), message);
        assert_eq!(*status.details(), details);
        assert_eq!(status.executed(), Executed::Yes);
    }
}

async fn a_status_without_words_is_still_a_status(fixture: Fixture) {
    let pair = fixture.pair().await;
    let request = FailRequest { code: 5, ..FailRequest::default() };
    let status = pair.client.fail(request).await.expect_err("told to fail");
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!((status.message(), status.details().len()), ("", 0));
}

async fn a_handler_cannot_fail_with_ok(fixture: Fixture) {
    let pair = fixture.pair().await;
    let request = FailRequest { code: 0, message: "fine".to_owned(), details: Bytes::new() };
    let status = pair.client.fail(request).await.expect_err("told to fail");
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(status.message(), "fine");
}

async fn no_limit_keeps_a_caller_from_its_status(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let message = "lang ".repeat(100_000);
    let details = pattern::payload(100_000, 1);
    let request = FailRequest { code: 9, message: message.clone(), details: details.clone() };
    let tight = connect(&serving.endpoint().max_message_size(100)).await;
    let tight = ConformanceClient::new(tight);
    // What does not fit into a reply is left out.
    for (client, expected) in [(&pair.client, details), (&tight, Bytes::new())] {
        let status = client.fail(request.clone()).await.expect_err("told to fail");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(status.executed(), Executed::Yes);
        assert!(message.starts_with(status.message()));
        assert!((1000..10_000).contains(&status.message().len()));
        assert_eq!(*status.details(), expected);
        client.echo(Blob::default()).await.expect("the connection lives");
    }
}
