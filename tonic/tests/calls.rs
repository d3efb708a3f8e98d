//! What is said of calls that fail, and what becomes of messages that are compressed, come late or have something beside them.

mod parts;

use std::collections::VecDeque;
use std::future::{Future, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service as _;
use verbwire::compression::Encoding;
use verbwire::open::{
    Messages, Open, OpenService, ReplyForm, StreamHandlerFuture, StreamInput, StreamOutput,
};
use verbwire::{Code, Executed, Request, Response, Status};
use verbwire_tonic::{Attachment, Bridge, Channel, Detach, TonicService};

use parts::{Answers, MESSAGE, OK, Part, body, headers};

const PATH: &str = "/hostile.Answers/M";

/// `{ 1: "a" }` and `{ 1: "b" }`.
const A: &[u8] = b"\x0a\x01a";
const B: &[u8] = b"\x0a\x01b";

const A_ZIPPED: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\x02\x03\xe3bL\x04\0K<x\xd1\x03\0\0\0";
const B_ZIPPED: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\x02\x03\xe3bL\x02\0\xf1mqH\x03\0\0\0";

fn zipped(bytes: impl Into<Bytes>) -> verbwire::Body {
    verbwire::Body::from(bytes.into()).with_encoding(Encoding::Gzip)
}

/// Messages that come late: each behind a poll that finds nothing, and their end too.
struct Late(VecDeque<verbwire::Body>, bool);

impl Messages for Late {
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<verbwire::Body, Status>>> {
        self.1 = !self.1;
        if self.1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

fn late(messages: &[&'static [u8]]) -> Box<dyn Messages> {
    let bodies = messages.iter().map(|message| Bytes::from_static(message).into());
    Box::new(Late(bodies.collect(), false))
}

/// A native service whose reply is always this.
#[derive(Clone)]
struct Always(Arc<dyn Fn() -> StreamOutput + Send + Sync>);

impl Open for Always {
    fn call(
        self: Arc<Self>,
        _: Arc<str>,
        _: ReplyForm,
        _: Request<StreamInput>,
    ) -> StreamHandlerFuture {
        Box::pin(ready(Ok(Response::new((self.0)()))))
    }
}

/// tonic's channel to one.
fn always(reply: impl Fn() -> StreamOutput + Send + Sync + 'static) -> Channel {
    let service = OpenService::new("hostile.Answers", Always(Arc::new(reply)));
    Channel::new(verbwire::Channel::in_process(service))
}

fn to_send(body: Body) -> http::Request<Body> {
    http::Request::builder().uri(PATH).body(body).expect("a request")
}

async fn send(
    channel: &Channel,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, tonic::Status> {
    channel.clone().call(request).await
}

/// The bytes of a body.
async fn bytes_of(body: Body) -> Result<Vec<u8>, tonic::Status> {
    let (mut body, mut all) = (pin!(body), Vec::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        all.extend(frame?.into_data().unwrap_or_default());
    }
    Ok(all)
}

type Answer = Result<http::Response<Body>, Box<dyn std::error::Error + Send + Sync>>;

type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A service of tonic's as a function.
#[derive(Clone)]
struct Does {
    is_ready: bool,
    call: fn(http::Request<Body>) -> Answering,
}

impl NamedService for Does {
    const NAME: &'static str = "hostile.Answers";
}

impl tower_service::Service<http::Request<Body>> for Does {
    type Response = http::Response<Body>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match self.is_ready {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err("never ready".into())),
        }
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        (self.call)(request)
    }
}

fn does(call: fn(http::Request<Body>) -> Answering) -> Does {
    Does { is_ready: true, call }
}

/// An answer that is a status, and nothing else.
fn unavailable() -> http::Response<Body> {
    let mut answer = http::Response::new(Body::empty());
    *answer.headers_mut() = headers(&[("grpc-status", "14")]);
    answer
}

/// Calls a service of tonic's natively: its first reply, or how it failed.
async fn call(channel: verbwire::Channel, input: StreamInput) -> Result<verbwire::Body, Status> {
    let mut request = Request::new(input);
    request.set_timeout(Duration::from_secs(30));
    let reply = channel.call(PATH, request).await?;
    let mut messages = match reply.into_inner() {
        StreamOutput::Whole(body) => return Ok(body),
        StreamOutput::Stream(messages) => messages,
    };
    let mut first = None;
    while let Some(message) = poll_fn(|cx| messages.poll_message(cx)).await {
        first.get_or_insert(message?);
    }
    Ok(first.expect("one message"))
}

fn serving<S: TonicService + NamedService>(service: S) -> verbwire::Channel {
    verbwire::Channel::in_process(verbwire_tonic::service(service))
}

fn whole(message: &'static [u8]) -> StreamInput {
    StreamInput::Whole(Bytes::from_static(message).into())
}

#[tokio::test]
async fn a_call_of_a_service_is_unexecuted_only_where_nobody_called_it() {
    let drops_early = does(|request| {
        drop(request);
        Box::pin(async { Ok(unavailable()) })
    });
    let holds = does(|request| {
        Box::pin(async move {
            drop(request);
            Ok(unavailable())
        })
    });
    let errs = does(|request| {
        drop(request);
        Box::pin(async { Err("a layer".into()) })
    });
    let not_ready = Does { is_ready: false, ..holds.clone() };
    for (service, expected) in [
        (drops_early, Executed::Maybe),
        (holds, Executed::Yes),
        (errs, Executed::Maybe),
        (not_ready, Executed::No),
    ] {
        let status = call(serving(service), whole(A)).await.expect_err("told to");
        assert_eq!(status.executed(), expected, "{status}");
    }
}

#[tokio::test]
async fn what_fails_behind_the_head_of_a_reply_was_executed() {
    const NOT_FOUND: Part = Part::Trailers(&[("grpc-status", "5")]);
    for body in [
        &[MESSAGE, NOT_FOUND][..],
        &[NOT_FOUND],
        &[MESSAGE, Part::Later, NOT_FOUND],
        &[MESSAGE, Part::Fails],
        &[Part::Data(b"\x07\0\0\0\0")],
    ] {
        let answers = Answers { http: 200, head: &[], body };
        let status = call(serving(answers), whole(A)).await.expect_err("told to");
        assert_eq!(status.executed(), Executed::Yes, "{status}");
    }
}

#[tokio::test]
async fn a_reply_that_does_not_decompress_was_executed() {
    let stream = || {
        let items = VecDeque::from([zipped(&b"no gzip"[..])]);
        StreamOutput::Stream(Box::new(Late(items, false)))
    };
    for channel in [always(|| StreamOutput::Whole(zipped(&b"no gzip"[..]))), always(stream)] {
        let reply = send(&channel, to_send(body(&[MESSAGE]))).await.expect("it has a head");
        let status = bytes_of(reply.into_body()).await.expect_err("no gzip");
        assert_eq!(status.code(), tonic::Code::Internal, "{status}");
        let native = verbwire_tonic::native(&status).expect("it ended here");
        assert_eq!(native.executed(), Executed::Yes, "{native}");
    }
}

#[tokio::test]
async fn a_request_that_does_not_decompress_reaches_no_service() {
    let service = serving(does(|_| unreachable!("nobody may call it")));
    let junk = StreamInput::Whole(zipped(&b"no gzip"[..]));
    let status = call(service, junk).await.expect_err("no gzip");
    assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::No), "{status}");
}

#[tokio::test]
async fn what_comes_compressed_is_whole_and_plain_to_tonic_whatever_it_accepts() {
    let members = || zipped([A_ZIPPED, B_ZIPPED].concat());
    let stream = move || StreamOutput::Stream(Box::new(Late(VecDeque::from([members()]), false)));
    for channel in [always(move || StreamOutput::Whole(members())), always(stream)] {
        let mut request = to_send(body(&[MESSAGE]));
        *request.headers_mut() = headers(&[("grpc-accept-encoding", "gzip,identity")]);
        let reply = send(&channel, request).await.expect("a reply");
        assert!(reply.headers().get("grpc-encoding").is_none(), "{:?}", reply.headers());
        let found = bytes_of(reply.into_body()).await.expect("it decompresses");
        assert_eq!(found, [&b"\0\0\0\0\x06"[..], A, B].concat());
    }
}

/// A request that wants field 1 of its reply beside it.
fn detaching() -> http::Request<Body> {
    let mut request = to_send(body(&[MESSAGE]));
    request.extensions_mut().insert(Detach(1));
    request
}

#[tokio::test]
async fn what_goes_beside_a_reply_is_found_however_late_its_end_is() {
    let channel = always(|| StreamOutput::Stream(late(&[A])));
    let reply = send(&channel, detaching()).await.expect("a reply");
    assert_eq!(reply.extensions().get::<Attachment>().expect("beside it").bytes(), "a");
    assert_eq!(bytes_of(reply.into_body()).await.expect("the rest"), b"\0\0\0\0\0");
    for several in [&[A, B][..], &[]] {
        let channel = always(|| StreamOutput::Stream(late(several)));
        let status = send(&channel, detaching()).await.expect_err("not one message");
        assert!(status.message().contains("one message"), "{status}");
        let native = verbwire_tonic::native(&status).expect("it ended here");
        assert_eq!((native.code(), native.executed()), (Code::Internal, Executed::Yes));
    }
    // How it failed comes first.
    let failing =
        Answers { http: 200, head: &[], body: &[Part::Trailers(&[("grpc-status", "5")])] };
    let failed = send(&Channel::new(serving(failing)), detaching()).await;
    assert_eq!(failed.expect_err("told to").code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn what_goes_beside_a_request_is_found_however_late_its_end_is() {
    let finds = does(|request| {
        let found = request.extensions().get::<Attachment>().map(|one| one.bytes().clone());
        assert_eq!(found.expect("beside it"), "a");
        Box::pin(async { Ok(http::Response::new(body(&[MESSAGE, OK]))) })
    });
    let bridge = || {
        let service = Bridge::new(finds.clone()).detach("M", 1).into_service();
        verbwire::Channel::in_process(service)
    };
    for input in [StreamInput::Stream(late(&[A])), whole(A)] {
        call(bridge(), input).await.expect("one message");
    }
    let several = StreamInput::Stream(late(&[A, B]));
    let status = call(bridge(), several).await.expect_err("several messages");
    assert_eq!((status.code(), status.executed()), (Code::Unimplemented, Executed::No), "{status}");
}

#[tokio::test]
async fn a_service_attaches_to_replies_that_come_late_or_compressed() {
    const HEAD: &[Part] = &[Part::Data(b"\x01\0\0\0\x17")];
    let attaches = |field, head, parts: Vec<Part>| {
        let mut answer = http::Response::new(body(&parts));
        *answer.headers_mut() = headers(head);
        answer.extensions_mut().insert(Attachment::new(field, "x"));
        answer
    };
    let plain = Part::Data(b"\0\0\0\0\x03\x0a\x01a");
    assert_eq!(A_ZIPPED.len(), 0x17);
    let zipped = [HEAD, &[Part::Data(A_ZIPPED), OK]].concat();
    let gzip = &[("grpc-encoding", "gzip")][..];
    for (head, parts) in [
        (&[][..], vec![plain.clone(), OK]),
        (&[], vec![plain.clone(), Part::Later, OK]),
        (&[], vec![plain.clone(), Part::Empty(1000), OK]),
        (gzip, zipped),
    ] {
        let answer = attaches(2, head, parts);
        let reply = call(serving(Gives::new(answer)), whole(A)).await;
        assert_eq!(reply.expect("one message").into_bytes(), &b"\x0a\x01a\x12\x01x"[..]);
    }
    for (field, parts, words) in [
        (0, vec![plain.clone(), OK], "number 0"),
        (2, vec![plain.clone(), plain, OK], "one message"),
    ] {
        let answer = attaches(field, &[], parts);
        let reply = call(serving(Gives::new(answer)), whole(A)).await;
        let status = reply.expect_err("no attachment");
        assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes), "{status}");
        assert!(status.message().contains(words), "{status}");
    }
}

/// Gives one answer, once.
#[derive(Clone)]
struct Gives(Arc<std::sync::Mutex<Option<http::Response<Body>>>>);

impl Gives {
    fn new(answer: http::Response<Body>) -> Self {
        Self(Arc::new(std::sync::Mutex::new(Some(answer))))
    }
}

impl NamedService for Gives {
    const NAME: &'static str = "hostile.Answers";
}

impl tower_service::Service<http::Request<Body>> for Gives {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.0.lock().expect("no panic").take().expect("called once");
        Box::pin(async move {
            drop(request);
            Ok(answer)
        })
    }
}

#[tokio::test]
async fn a_clients_body_that_panics_fails_its_call_and_not_its_caller() {
    let channel = always(|| StreamOutput::Whole(Bytes::from_static(A).into()));
    let calls = async |parts: &'static [Part]| {
        let (channel, sent) = (channel.clone(), to_send(body(parts)));
        let call = tokio::spawn(async move { send(&channel, sent).await.map(drop) });
        call.await.expect("the caller does not panic")
    };
    let status = calls(&[Part::Panics]).await.expect_err("it panicked");
    assert_eq!(status.code(), tonic::Code::Internal, "{status}");
    let native = verbwire_tonic::native(&status).expect("it ended here");
    assert_eq!(native.executed(), Executed::No, "{native}");
    // The service answers whatever comes behind the first message.
    for later in [Part::Panics, Part::PanicsInDrop] {
        let parts = Vec::leak(vec![MESSAGE, later]);
        calls(parts).await.expect("it is answered");
    }
    calls(&[Part::Data(b"\x07\0\0\0\0"), Part::PanicsInDrop]).await.expect_err("a bad flag");
}
