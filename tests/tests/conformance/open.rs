//! Calls by path, and services whose methods nobody has described.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;
use verbwire::codegen::Stream;
use verbwire::codegen::prost::Message;
use verbwire::error_details::{ErrorDetails, ErrorInfo};
use verbwire::interceptor::{Intercepted, Interceptor, Next, Outcome, Payload, ReplyForm};
use verbwire::open::{Messages, Open, OpenService, StreamHandlerFuture, StreamInput, StreamOutput};
use verbwire::{
    Body, Channel, Code, Executed, Limited, LoadLimits, Request, Response, Server, Status,
};
use verbwire_core::codec::{Codec, Prost};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::context;
use verbwire_tests::fixture::{Fixture, LONG, Serving, in_time, on_time, short};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::second_client::SecondClient;
use verbwire_tests::proto::conformance::second_server::SecondServer;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{Blob, DigestReply, FailRequest, Step, Ticket};
use verbwire_tests::proto::context::MirrorRequest;
use verbwire_tests::service::Desk;
use verbwire_tests::streams::{fed, items};

use crate::interceptors::Notes;
use crate::streams::{next, scan, step, take};

pub(crate) const CASES: &[Case] = &[
    case!(a_call_by_path_has_the_form_of_its_method),
    case!(a_stream_is_the_one_request_of_a_method_only_if_it_is_one),
    case!(a_call_by_path_ends_at_its_deadline_and_when_it_is_dropped),
    case!(a_handle_cancels_a_call_by_path),
    case!(a_call_by_path_brings_status_details_metadata_and_trailers),
    case!(a_call_by_path_is_refused_where_nobody_answers_for_it),
    case!(a_call_by_path_goes_through_interceptors_in_the_form_that_it_has),
    case!(an_open_service_answers_in_the_form_that_its_caller_expects),
    case!(an_open_service_has_bounds_and_interceptors_of_its_own).over_a_connection(),
    case!(a_panic_of_an_open_service_says_which_path_was_called),
    case!(many_paths_do_not_wear_a_connection_out).over_a_connection(),
];

/// A stream of encoded messages.
struct Encoded<S>(Pin<Box<S>>);

impl<S: Stream<Item: Message + Default> + Send> Messages for Encoded<S> {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        self.0.as_mut().poll_next(cx).map(|item| item.map(|item| Ok(body(&item))))
    }
}

fn body<M: Message + Default>(message: &M) -> Body {
    Prost.encode(message)
}

fn one<M: Message + Default>(message: &M) -> Request<StreamInput> {
    Request::new(StreamInput::Whole(body(message)))
}

fn many<S>(stream: S) -> Request<StreamInput>
where
    S: Stream<Item: Message + Default> + Send + 'static,
{
    Request::new(StreamInput::Stream(Box::new(Encoded(Box::pin(stream)))))
}

/// The one message of a reply.
fn whole<M: Message + Default>(reply: Response<StreamOutput>) -> M {
    let body = match reply.into_inner() {
        StreamOutput::Whole(body) => Some(body),
        StreamOutput::Stream(_) => None,
    };
    Prost.decode(body.expect("one reply")).expect("it decodes")
}

fn replies(reply: Response<StreamOutput>) -> Box<dyn Messages> {
    let replies = match reply.into_inner() {
        StreamOutput::Stream(replies) => Some(replies),
        StreamOutput::Whole(_) => None,
    };
    replies.expect("a stream")
}

async fn message(replies: &mut dyn Messages) -> Option<Result<Blob, Status>> {
    let item = poll_fn(|cx| replies.poll_message(cx)).await?;
    Some(item.map(|body| Prost.decode(body).expect("it decodes")))
}

/// Lengths of the replies, to a good end.
async fn lengths(mut replies: Box<dyn Messages>) -> Vec<usize> {
    let mut all = Vec::new();
    while let Some(blob) = message(&mut *replies).await {
        all.push(blob.expect("they end well").payload.len());
    }
    all
}

fn path(method: &str) -> String {
    format!("/conformance.Conformance/{method}")
}

fn blob(len: usize) -> Blob {
    Blob { payload: pattern::payload(len, 1) }
}

async fn a_call_by_path_has_the_form_of_its_method(fixture: Fixture) {
    let pair = fixture.pair().await;
    let channel = pair.client.channel();
    let call = async |method, request| channel.call(path(method), request).await.expect(method);
    // Twice, since the second call has a number instead of a path.
    for _ in 0..2 {
        for len in [0, 10, 300_000] {
            assert_eq!(whole::<Blob>(call("Echo", one(&blob(len))).await), blob(len));
            assert_eq!(whole::<Blob>(call("Echo", many(items([blob(len)]))).await), blob(len));
        }
        let digest: DigestReply = whole(call("Collect", one(&take("abc"))).await);
        assert_eq!((digest.messages, digest.len), (1, 3));
        let steps = items([take("a"), take(vec![0; 200_000]), take("b")]);
        let digest: DigestReply = whole(call("Collect", many(steps)).await);
        assert_eq!((digest.messages, digest.len), (3, 200_002));
        let digest: DigestReply = whole(call("Collect", many(items([] as [Step; 0]))).await);
        assert_eq!(digest.messages, 0);
        let request = scan(1, 3, &[1, 300_000], Act::Take);
        assert_eq!(lengths(replies(call("Scan", one(&request)).await)).await, [1, 300_000, 1]);
        let request = many(items([request]));
        assert_eq!(lengths(replies(call("Scan", request).await)).await, [1, 300_000, 1]);
        assert_eq!(lengths(replies(call("Talk", one(&take("abc"))).await)).await, [3]);
    }
    let (sender, requests) = fed();
    let mut talk = replies(call("Talk", many(requests)).await);
    for len in [10, 0, 100_000] {
        sender.send(take(vec![0; len])).await.expect("the stream is polled");
        let reply = message(&mut *talk).await.expect("goes on").expect("no error");
        assert_eq!(reply.payload.len(), len);
    }
    drop(sender);
    assert!(message(&mut *talk).await.is_none());
}

async fn a_stream_is_the_one_request_of_a_method_only_if_it_is_one(fixture: Fixture) {
    let pair = fixture.pair().await;
    let channel = pair.client.channel();
    let ticket = |number| Ticket { number };
    for method in ["Gate", "Scan"] {
        for tickets in [vec![], vec![ticket(1), ticket(1)]] {
            let status = channel.call(path(method), many(items(tickets))).await.expect_err(method);
            let found = (status.code(), status.executed());
            assert_eq!(found, (Code::Unimplemented, Executed::No), "{status}");
            assert!(status.message().contains("takes one request"), "{status}");
        }
    }
    assert!(pair.witness.log().entered.is_empty());
    // It is not entered before the stream has ended.
    let (sender, requests) = fed();
    let call = tokio::spawn(channel.call(path("Gate"), many(requests)));
    sender.send(ticket(7)).await.expect("the stream is polled");
    pair.client.echo(blob(1)).await.expect("others go on");
    assert!(pair.witness.log().entered.is_empty());
    drop(sender);
    pair.witness.until(|log| log.entered.contains(&7)).await;
    pair.witness.open(7);
    assert_eq!(whole::<Ticket>(call.await.expect("no panic").expect("gate")), ticket(7));
}

async fn a_call_by_path_ends_at_its_deadline_and_when_it_is_dropped(fixture: Fixture) {
    let pair = fixture.pair().await;
    let channel = pair.client.channel();
    let within = |time, mut request: Request<StreamInput>| {
        request.set_timeout(time);
        request
    };
    in_time(async |time| {
        let status = channel.call(path("Hang"), within(time, one(&Ticket { number: 1 }))).await;
        assert_eq!(status.expect_err("never").code(), Code::DeadlineExceeded);
        pair.witness.entered_in_time(1)?;
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
    // Of a stream, and of a request that does not come to its end.
    in_time(async |time| {
        let request = within(time, one(&scan(2, 1, &[1], Act::Hang)));
        let mut replies = replies(on_time(channel.call(path("Scan"), request).await)?);
        on_time(message(&mut *replies).await.expect("one"))?;
        let status = message(&mut *replies).await.expect("an end").expect_err("never");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        Ok(())
    })
    .await;
    let (sender, requests) = fed();
    let call = tokio::spawn(channel.call(path("Hang"), within(short(), many(requests))));
    // The call may end before.
    let _sent = sender.send(Ticket { number: 3 }).await;
    let status = call.await.expect("no panic").expect_err("never");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(!pair.witness.log().entered.contains(&3));
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    let call = tokio::spawn(channel.call(path("Hang"), one(&Ticket { number: 4 })));
    pair.witness.until(|log| log.entered.contains(&4)).await;
    call.abort();
    pair.witness.until(|log| log.dropped.contains(&4)).await;
    pair.client.echo(blob(1)).await.expect("the connection lives");
}

async fn a_handle_cancels_a_call_by_path(fixture: Fixture) {
    let pair = fixture.pair().await;
    let channel = pair.client.channel();
    let mut call = channel.call(path("Hang"), one(&Ticket { number: 1 }));
    let handle = call.cancel_handle();
    let call = tokio::spawn(call);
    pair.witness.until(|log| log.entered.contains(&1)).await;
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes), "{status}");
    let mut call = channel.call(path("Scan"), one(&scan(2, 1, &[1], Act::Hang)));
    let handle = call.cancel_handle();
    let mut replies = replies(call.await.expect("scan"));
    message(&mut *replies).await.expect("one").expect("no error");
    handle.cancel();
    let status = message(&mut *replies).await.expect("an end").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes), "{status}");
    pair.witness.until(|log| log.dropped.contains(&2)).await;
}

async fn a_call_by_path_brings_status_details_metadata_and_trailers(fixture: Fixture) {
    let pair = fixture.pair().await;
    let details = ErrorDetails::default().with(ErrorInfo::of("A", "b"));
    let known = Status::not_found("no block").with_error_details(&details);
    let (message, details) = (known.message().to_owned(), known.details().clone());
    let request = FailRequest { code: 5, message, details };
    let status =
        pair.client.channel().call(path("Fail"), one(&request)).await.expect_err("told to");
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no block"));
    assert_eq!(status.details(), known.details());
    let client = context::client(&fixture).await;
    let said = |mut request: Request<StreamInput>| {
        let metadata = request.metadata_mut();
        metadata.insert("lang", "de".parse().expect("ASCII")).expect("a name");
        metadata.insert("trailing", "late".parse().expect("ASCII")).expect("a name");
        request
    };
    let call = |method: &str, request| {
        client.channel().call(format!("/context.Context/{method}"), said(request))
    };
    let reply = call("Mirror", one(&MirrorRequest::default())).await.expect("mirror");
    assert_eq!(reply.metadata().get("lang").expect("said back"), "de");
    assert_eq!(reply.trailers().get("trailing").expect("said back"), "late");
    let request = MirrorRequest { code: 9, ..MirrorRequest::default() };
    let status = call("Mirror", one(&request)).await.expect_err("told to");
    assert_eq!(status.metadata().get("trailing").expect("said back"), "late");
    let each = MirrorRequest::default();
    let reply = call("MirrorEach", many(items([each]))).await.expect("mirror");
    assert_eq!(reply.metadata().get("lang").expect("said back"), "de");
    let mut replies = replies(reply);
    while let Some(reply) = poll_fn(|cx| replies.poll_message(cx)).await {
        reply.expect("they end well");
    }
    assert_eq!(replies.take_trailers().get("trailing").expect("said back"), "late");
}

async fn a_call_by_path_is_refused_where_nobody_answers_for_it(fixture: Fixture) {
    let pair = fixture.pair().await;
    let channel = pair.client.channel();
    for request in [one(&blob(1)), many(items([blob(1), blob(2)]))] {
        let status = channel.call("/nobody.Knows/It", request).await.expect_err("unknown");
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::Unimplemented, Executed::No), "{status}");
    }
    // What no path can be is not sent.
    let long = "x".repeat(2000);
    let status = channel.call(long, one(&blob(1))).await.expect_err("too long");
    assert_eq!(status.executed(), Executed::No, "{status}");
    pair.client.echo(blob(1)).await.expect("the connection lives");
}

/// Notes path, form and traffic of every call.
struct Watch(Notes);

impl Interceptor for Watch {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let (path, traffic, reply) = (next.path().to_owned(), next.traffic(), next.method().reply);
        let outcome = next.run(request).await;
        let (requests, replies) = (traffic.requests().messages, traffic.replies().messages);
        let end = outcome.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.0.add(format!("{path} {reply:?} {requests} {replies} {end:?}"));
        outcome
    }
}

async fn a_call_by_path_goes_through_interceptors_in_the_form_that_it_has(fixture: Fixture) {
    let (pair, notes) = (fixture.pair().await, Notes::default());
    let channel = pair.client.channel().intercepted(Watch(notes.clone()));
    let channel = channel.intercepted(Watch(notes.clone()));
    let call = async |method, request| channel.call(path(method), request).await;
    assert_eq!(whole::<Blob>(call("Echo", one(&blob(5))).await.expect("echo")), blob(5));
    assert_eq!(notes.take(), [const { "/conformance.Conformance/Echo Either 1 1 Ok" }; 2]);
    let request = one(&scan(1, 2, &[1], Act::Take));
    assert_eq!(lengths(replies(call("Scan", request).await.expect("scan"))).await, [1, 1]);
    assert_eq!(notes.take(), [const { "/conformance.Conformance/Scan Either 1 2 Ok" }; 2]);
    let request = many(items([take("a"), step(Act::Fail, 1)]));
    let mut talk = replies(call("Talk", request).await.expect("talk"));
    message(&mut *talk).await.expect("one").expect("no error");
    let status = message(&mut *talk).await.expect("an end").expect_err("it fails");
    assert_eq!(status.code(), Code::DataLoss, "{status}");
    assert_eq!(notes.take(), [const { "/conformance.Conformance/Talk Either 2 1 DataLoss" }; 2]);
    let mut hang = one(&Ticket { number: 1 });
    hang.set_timeout(Duration::from_millis(50));
    let status = call("Hang", hang).await.expect_err("never");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let mut cancelled = channel.call(path("Hang"), one(&Ticket { number: 2 }));
    let handle = cancelled.cancel_handle();
    let cancelled = tokio::spawn(cancelled);
    pair.witness.until(|log| log.entered.contains(&2)).await;
    handle.cancel();
    let status = cancelled.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes), "{status}");
}

/// Says which form of reply is expected, and how it was called; then gives as many messages as the last part of the path says,
/// or one that is no stream.
struct Teller;

impl Open for Teller {
    fn call(
        self: Arc<Self>,
        path: Arc<str>,
        reply: ReplyForm,
        request: Request<StreamInput>,
    ) -> StreamHandlerFuture {
        Box::pin(async move {
            let mut requests = 0;
            if let StreamInput::Stream(mut messages) = request.into_inner() {
                while let Some(message) = poll_fn(|cx| messages.poll_message(cx)).await {
                    message?;
                    requests += 1;
                }
            }
            let text = format!("{reply:?} {requests}");
            let told = Blob { payload: text.into_bytes().into() };
            let count = path.rsplit_once('-').map(|(_, count)| count.parse().expect("a number"));
            let mut response = Response::new(match count {
                None => StreamOutput::Whole(body(&told)),
                Some(count) => {
                    let told = items(std::iter::repeat_n(told, count));
                    StreamOutput::Stream(Box::new(Encoded(Box::pin(told))))
                }
            });
            response.trailers_mut().insert("told", "all".parse()?)?;
            Ok(response)
        })
    }
}

/// A channel to an open service in the place of the conformance service.
async fn open(fixture: &Fixture, service: OpenService<impl Open>) -> Channel {
    if fixture.backend().place == verbwire_tests::backends::Place::InProcess {
        return Channel::in_process(service);
    }
    let builder = Server::builder().add_service(service);
    Serving::start(builder, &fixture.target()).await.connect().await
}

async fn an_open_service_answers_in_the_form_that_its_caller_expects(fixture: Fixture) {
    let channel = open(&fixture, OpenService::new("conformance.Conformance", Teller)).await;
    let client = ConformanceClient::new(channel.clone());
    let told = |blob: &Blob| String::from_utf8(blob.payload.to_vec()).expect("text");
    let reply = client.echo(blob(1)).await.expect("echo");
    assert_eq!(told(reply.get_ref()), "Whole 0");
    assert_eq!(reply.trailers().get("told").expect("trailers"), "all");
    let mut replies = client.scan(scan(1, 1, &[1], Act::Take)).await.expect("scan").into_inner();
    assert_eq!(told(&next(&mut replies).await), "Stream 0");
    let trailers = replies.trailers().await.expect("no error").expect("trailers");
    assert_eq!(trailers.get("told").expect("trailers"), "all");
    let talk = client.talk(items([take("a"), take("b")])).await;
    assert_eq!(told(&next(&mut talk.expect("talk").into_inner()).await), "Stream 2");
    // By path it is as it is given.
    let call = async |method, request| channel.call(path(method), request).await.expect(method);
    let request = many(items([take("a"), take("b"), take("c")]));
    assert_eq!(told(&whole(call("X", request).await)), "Either 3");
    assert_eq!(lengths(self::replies(call("X-3", one(&blob(1))).await)).await, [8, 8, 8]);
    assert!(lengths(self::replies(call("X-0", one(&blob(1))).await)).await.is_empty());
}

async fn an_open_service_has_bounds_and_interceptors_of_its_own(fixture: Fixture) {
    let (notes, desk) = (Notes::default(), Desk::default());
    let behind = ConformanceClient::in_process(desk.clone()).channel().clone();
    let proxy = verbwire_tests::proxy::Proxy(behind);
    let service = OpenService::new("conformance.Conformance", proxy);
    let limits = LoadLimits::new().max_running_calls(1);
    let service = Limited::new(Intercepted::new(service, Watch(notes.clone())), &limits);
    let builder =
        Server::builder().add_service(SecondServer::new(desk.clone())).add_service(service);
    let channel = Serving::start(builder, &fixture.target()).await.connect().await;
    let client = ConformanceClient::new(channel.clone());
    let held = tokio::spawn(client.gate(Ticket { number: 1 }));
    desk.witness().until(|log| log.entered.contains(&1)).await;
    for refused in [
        client.echo(blob(1)).await.map(drop).expect_err("full"),
        client.scan(scan(1, 1, &[1], Act::Take)).await.map(drop).expect_err("full"),
        channel.call(path("Echo"), one(&blob(1))).await.map(drop).expect_err("full"),
    ] {
        let found = (refused.code(), refused.executed());
        assert_eq!(found, (Code::ResourceExhausted, Executed::No), "{refused}");
    }
    SecondClient::new(channel.clone()).echo(blob(1)).await.expect("the other service");
    desk.witness().open(1);
    held.await.expect("no panic").expect("gate");
    assert_eq!(notes.take(), ["/conformance.Conformance/Gate Whole 1 1 Ok"]);
    let request = one(&scan(2, 2, &[1], Act::Take));
    let reply = channel.call(path("Scan"), request).await.expect("scan");
    assert_eq!(lengths(replies(reply)).await, [1, 1]);
    assert_eq!(notes.take(), ["/conformance.Conformance/Scan Either 1 2 Ok"]);
    let request = one(&blob(9));
    let reply = channel.call(path("Echo"), request).await.expect("echo");
    assert_eq!(whole::<Blob>(reply), blob(9));
    assert_eq!(notes.take(), ["/conformance.Conformance/Echo Either 1 1 Ok"]);
}

async fn a_panic_of_an_open_service_says_which_path_was_called(fixture: Fixture) {
    let panics = |_: Arc<str>, request: Request<Body>| async move {
        assert!(request.get_ref().len() > 1000, "a test's panic");
        Ok(Response::new(request.into_inner()))
    };
    let channel = open(&fixture, OpenService::new("conformance.Conformance", panics)).await;
    let client = ConformanceClient::new(channel);
    let status = client.echo(blob(1)).await.expect_err("it panics");
    assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes), "{status}");
    assert!(status.message().contains("/conformance.Conformance/Echo"), "{status}");
    client.echo(blob(2000)).await.expect("the next one");
}

async fn many_paths_do_not_wear_a_connection_out(fixture: Fixture) {
    let channel = open(&fixture, OpenService::new("conformance.Conformance", Teller)).await;
    let client = ConformanceClient::new(channel.clone());
    for number in 0..1500 {
        let reply = channel.call(path(&format!("X{number}")), one(&blob(1))).await.expect("told");
        assert_eq!(whole::<Blob>(reply).payload, "Either 0");
    }
    client.echo(blob(1)).await.expect("a method with a number");
}
