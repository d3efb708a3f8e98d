//! Statuses from handlers to callers.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use verbwire::error_details::{BadRequest, ErrorDetails, ErrorInfo, RetryInfo};
use verbwire::{Code, Executed, Origin, Request, Status};
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, begin, connect};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, FailRequest, Ticket};

pub(crate) const CASES: &[Case] = &[
    case!(every_code_comes_with_its_message_and_details),
    case!(a_status_without_words_is_still_a_status),
    case!(a_handler_cannot_fail_with_ok),
    case!(no_limit_keeps_a_caller_from_its_status).over_a_connection(),
    case!(status_code_and_message),
    case!(special_status_message),
    case!(standard_details_are_read_as_they_were_sent),
    case!(a_status_says_who_ended_the_call),
    case!(a_lost_connection_is_told_with_its_cause_and_its_address).over_a_connection(),
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

async fn assert_fails_with(fixture: &Fixture, message: &str) {
    let pair = fixture.pair().await;
    let request = FailRequest { code: 2, message: message.to_owned(), details: Bytes::new() };
    let status = pair.client.fail(request).await.expect_err("told to fail");
    assert_eq!((status.code(), status.message()), (Code::Unknown, message));
}

/// As in gRPC's interoperability tests.
async fn status_code_and_message(fixture: Fixture) {
    assert_fails_with(&fixture, "test status message").await;
}

/// As in gRPC's interoperability tests.
async fn special_status_message(fixture: Fixture) {
    let message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";
    assert_fails_with(&fixture, message).await;
}

async fn standard_details_are_read_as_they_were_sent(fixture: Fixture) {
    let pair = fixture.pair().await;
    let details = ErrorDetails::new()
        .with(BadRequest::of("name", "ist leer ☺"))
        .with(ErrorInfo::of("EMPTY", "shop.example.com"))
        .with(RetryInfo::after(Duration::from_millis(250)));
    let status = Status::invalid_argument("no name").with_error_details(&details);
    let request = FailRequest {
        code: 3,
        message: status.message().to_owned(),
        details: status.details().clone(),
    };
    let status = pair.client.fail(request).await.expect_err("told to fail");
    assert_eq!(status.error_details().expect("the standard form"), details);
}

async fn a_status_says_who_ended_the_call(fixture: Fixture) {
    let is_connected = fixture.backend().place != Place::InProcess;
    let pair = fixture.pair().await;
    let request = FailRequest { code: 5, ..FailRequest::default() };
    let status = pair.client.fail(request).await.expect_err("told to fail");
    // In process there is no other side.
    let answered = if is_connected { Origin::Peer } else { Origin::Local };
    assert_eq!((status.origin(), status.peer().is_some()), (answered, is_connected));
    let mut request = Request::new(Ticket { number: 1 });
    request.set_timeout(Duration::ZERO);
    let status = pair.client.hang(request).await.expect_err("no time");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!((status.origin(), status.peer().is_some()), (Origin::Local, is_connected));
}

async fn a_lost_connection_is_told_with_its_cause_and_its_address(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let peer = pair.client.channel().path().expect("a connection").peer;
    let mut request = Request::new(Ticket { number: 1 });
    request.set_timeout(LONG);
    let call = begin(pair.client.hang(request)).await;
    pair.witness.until(|log| log.entered.contains(&1)).await;
    serving.drop_serving().await;
    let status = call.await.expect("no panic").expect_err("the server is gone");
    let late = pair.client.echo(Blob::default()).await.expect_err("the server is gone");
    for (status, executed) in [(status, Executed::Maybe), (late, Executed::No)] {
        assert_eq!((status.code(), status.executed()), (Code::Unavailable, executed), "{status}");
        assert_eq!(status.origin(), Origin::Transport, "{status}");
        assert_eq!(status.peer(), Some(&*peer));
        let mut cause = status.source().expect("the connection's end");
        while let Some(next) = cause.source() {
            cause = next;
        }
        assert!(status.to_string().contains(&cause.to_string()), "{status}: {cause}");
        assert!(status.to_string().contains(&peer), "{status}");
    }
}
