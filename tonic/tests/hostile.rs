//! Bodies and answers that break gRPC's rules, from clients and from services: each fails its call in words, and nothing else.

mod parts;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tonic::body::Body;
use tower_service::Service as _;
use verbwire::open::{OpenService, StreamInput};
use verbwire::{Code, Executed, Request, Response, Status};
use verbwire_tonic::Channel;

use parts::{Answers, MESSAGE, OK, Part, body};

/// Calls the service natively, in the form in which nobody knows the method's; all replies, or how it failed.
async fn call(answers: Answers, path: &str) -> Result<Vec<Bytes>, Status> {
    let channel = verbwire::Channel::in_process(verbwire_tonic::service(answers));
    let mut request = Request::new(StreamInput::Whole(Bytes::from_static(b"x").into()));
    request.set_timeout(Duration::from_secs(30));
    let reply = channel.call(path.to_owned(), request).await?;
    let mut all = Vec::new();
    match reply.into_inner() {
        verbwire::open::StreamOutput::Whole(body) => all.push(body.into_bytes()),
        verbwire::open::StreamOutput::Stream(mut messages) => {
            while let Some(body) = std::future::poll_fn(|cx| messages.poll_message(cx)).await {
                all.push(body?.into_bytes());
            }
        }
    }
    Ok(all)
}

#[tokio::test]
async fn answers_of_a_service_that_break_the_rules_fail_their_call_in_words() {
    const NONE: &[(&str, &str)] = &[];
    type Head = &'static [(&'static str, &'static str)];
    let cases: [(u16, Head, &'static [Part], Code, &str); 16] = [
        (200, NONE, &[], Code::Unknown, "no grpc-status"),
        (200, NONE, &[MESSAGE], Code::Unknown, "no grpc-status"),
        (404, NONE, &[], Code::Unimplemented, "HTTP status 404"),
        (503, NONE, &[MESSAGE, OK], Code::Unavailable, "HTTP status 503"),
        (200, NONE, &[Part::Data(b"\x07\0\0\0\0")], Code::Internal, "flag 7"),
        (200, NONE, &[Part::Data(b"\x01\0\0\0\0")], Code::Internal, "compressed"),
        (
            200,
            NONE,
            &[Part::Data(b"\0\xff\xff\xff\xff")],
            Code::ResourceExhausted,
            "4294967295 bytes",
        ),
        (
            200,
            NONE,
            &[Part::Data(b"\0\0\0\0\x09ab"), OK],
            Code::Internal,
            "inside a frame, after 7",
        ),
        (200, NONE, &[Part::Data(b"\0\0"), OK], Code::Internal, "inside a frame, after 2"),
        (200, NONE, &[MESSAGE, Part::Fails], Code::Unknown, "a body that fails"),
        (200, &[("grpc-status", "5"), ("grpc-message", "%zz%20x")], &[], Code::NotFound, "%zz x"),
        (200, &[("grpc-status", "5"), ("grpc-message", "%ff")], &[], Code::Unknown, "message"),
        (200, &[("grpc-status", "many")], &[], Code::Unknown, ""),
        (
            200,
            &[("grpc-status", "5"), ("grpc-status-details-bin", "?")],
            &[],
            Code::Internal,
            "base64",
        ),
        (200, &[("x-bin", "?")], &[MESSAGE, OK], Code::Internal, "\"x-bin\" of 1 bytes"),
        (
            200,
            NONE,
            &[MESSAGE, Part::Trailers(&[("grpc-status", "0"), ("x", "\u{e9}")])],
            Code::Internal,
            "0xc3",
        ),
    ];
    for (http, head, body, code, words) in cases {
        let failed = call(Answers { http, head, body }, "/hostile.Answers/M").await;
        let status = failed.expect_err(words);
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(words), "{status}");
    }
}

#[tokio::test]
async fn answers_that_are_odd_and_allowed_are_taken() {
    let one = [Bytes::from_static(b"ab")];
    for (head, body) in [
        // The status in the head.
        (&[("grpc-status", "0")][..], &[MESSAGE][..]),
        (&[], &[Part::Empty(1000), MESSAGE, Part::Empty(1000), OK]),
        (&[], &[Part::Data(b"\0\0"), Part::Data(b"\0\0\x02a"), Part::Data(b"b"), OK]),
    ] {
        let found = call(Answers { http: 200, head, body }, "/hostile.Answers/M").await;
        assert_eq!(found.expect("it is allowed"), one);
    }
    let none = call(Answers { http: 200, head: &[], body: &[OK] }, "/hostile.Answers/M").await;
    assert!(none.expect("an empty stream").is_empty());
}

#[tokio::test]
async fn a_path_that_tonic_would_read_otherwise_is_refused() {
    for method in ["M?x", "M#x", "M x"] {
        let answers = Answers { http: 200, head: &[], body: &[MESSAGE, OK] };
        let status =
            call(answers, &format!("/hostile.Answers/{method}")).await.expect_err("no path");
        assert_eq!(
            (status.code(), status.executed()),
            (Code::Unimplemented, Executed::No),
            "{status}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_ends_with_its_deadline() {
    for body in [&[MESSAGE, Part::Hangs][..], &[Part::Hangs]] {
        let answers = Answers { http: 200, head: &[], body };
        let status = call(answers, "/hostile.Answers/M").await.expect_err("it hangs");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    }
}

/// A channel whose server takes whatever comes and says how long it was.
fn sink() -> Channel {
    let sink = |_: Arc<str>, request: Request<verbwire::Body>| async move {
        Ok(Response::new(Bytes::from(request.get_ref().len().to_string()).into()))
    };
    Channel::new(verbwire::Channel::in_process(OpenService::new("hostile.Sink", sink)))
}

async fn send(channel: Channel, parts: &[Part]) -> Result<http::Response<Body>, tonic::Status> {
    let request = http::Request::builder().uri("/hostile.Sink/M").body(body(parts));
    channel.clone().call(request.expect("a request")).await
}

#[tokio::test]
async fn requests_that_break_the_rules_fail_their_call_unsent() {
    let cases: [(&[Part], tonic::Code, &str); 6] = [
        (&[Part::Data(b"\x07\0\0\0\0")], tonic::Code::Internal, "flag 7"),
        (&[Part::Data(b"\x01\0\0\0\0")], tonic::Code::Internal, "compressed"),
        (&[Part::Data(b"\0\xff\xff\xff\xff")], tonic::Code::ResourceExhausted, "max_message_size"),
        (&[Part::Data(b"\0\0\0\0\x09ab")], tonic::Code::Internal, "inside a frame, after 7"),
        (&[Part::Fails], tonic::Code::Unknown, "a body that fails"),
        (&[Part::Data(b"\0\0\0\0\x0b")], tonic::Code::ResourceExhausted, "takes 10"),
    ];
    for (parts, code, words) in cases {
        let status = send(sink().max_message_size(10), parts).await.expect_err(words);
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(words), "{status}");
        let native = verbwire_tonic::native(&status).expect("it ended here");
        assert_eq!(native.executed(), Executed::No, "{native}");
    }
    let answer = send(sink(), &[MESSAGE]).await.expect("it is good");
    assert_eq!(answer.headers().get("content-type").expect("always"), "application/grpc");
    // Behind a good message it is a stream that breaks.
    let broken = [MESSAGE, Part::Data(b"\x09\0\0\0\0")];
    let answer = send(sink(), &broken).await;
    let status = answer.expect_err("a bad flag");
    assert!(status.message().contains("flag 9"), "{status}");
}
