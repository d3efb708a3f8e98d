//! Interceptors around calls that have streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use verbwire::interceptor::{Form, Interceptor, Next, Outcome, Payload, ReplyForm, from_fn};
use verbwire::{Code, Executed, Request, Response, Status};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::context::Surroundings;
use verbwire_tests::fixture::{Fixture, LONG, Late, Pair, begin, in_time, on_time, short};
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::conformance_server::ConformanceServer;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::context::MirrorRequest;
use verbwire_tests::proto::context::context_client::ContextClient;
use verbwire_tests::proto::context::context_server::ContextServer;
use verbwire_tests::service::{Desk, Witness};
use verbwire_tests::streams::{fed, items};

use crate::interceptors::{Notes, Waits, channel, expires_at_the_door};
use crate::streams::{ask, next, scan, step, take};

pub(crate) const CASES: &[Case] = &[
    case!(a_function_adds_metadata_to_streams_on_the_client),
    case!(a_function_refuses_streams_on_the_server_and_they_do_not_run),
    case!(a_function_that_refuses_streams_on_the_client_polls_and_sends_nothing),
    case!(an_interceptor_sees_streams_to_their_end_on_both_sides),
    case!(an_interceptor_may_end_a_stream),
    case!(what_an_interceptor_drops_of_a_stream_is_cancelled),
    case!(an_interceptor_may_change_trailers_and_the_status_of_replies),
    case!(an_interceptor_may_change_the_metadata_with_which_replies_begin),
    case!(an_interceptor_cannot_answer_a_stream_by_itself),
    case!(a_stream_of_replies_runs_again_only_until_it_has_begun),
    case!(cancels_and_drops_reach_through_interceptors_of_streams),
    case!(the_deadline_covers_interceptors_of_streams),
    case!(a_stream_that_ends_in_a_servers_interceptor_was_not_executed),
];

/// A client of a desk, behind interceptors on both sides.
async fn pair(fixture: &Fixture, client: impl Interceptor, server: impl Interceptor) -> Pair {
    let desk = Desk::default();
    let witness = Arc::clone(desk.witness());
    let service = verbwire::codegen::Intercepted::new(ConformanceServer::new(desk), server);
    let channel = channel(fixture, service).await.intercepted(client);
    Pair { client: ConformanceClient::new(channel), witness }
}

/// Does nothing.
struct Idle;

impl Interceptor for Idle {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        next.run(request).await
    }
}

async fn a_function_adds_metadata_to_streams_on_the_client(fixture: Fixture) {
    let channel = channel(&fixture, ContextServer::new(Surroundings::default())).await;
    let client = ContextClient::with_interceptor(channel, |mut request: Request<()>| {
        request.metadata_mut().insert("authorization", "Bearer x".parse()?)?;
        Ok(request)
    });
    let requests = || items([MirrorRequest { payload: "abc".into(), ..Default::default() }]);
    let response = client.mirror_all(requests()).await.expect("mirror");
    assert_eq!(response.metadata().get("authorization").expect("added"), "Bearer x");
    assert_eq!(response.get_ref().payload, "abc");
    let response = client.mirror_each(requests()).await.expect("mirror");
    assert_eq!(response.metadata().get("authorization").expect("added"), "Bearer x");
    let mut replies = response.into_inner();
    assert_eq!(replies.message().await.expect("no error").expect("one").payload, "abc");
    assert!(replies.message().await.expect("no error").is_none());
}

/// Calls of the three shapes, which are refused.
pub(crate) async fn refused(client: &ConformanceClient) -> [Status; 3] {
    [
        client.collect(items([take("a")])).await.expect_err("refused"),
        client.scan(scan(1, 1, &[1], Act::Take)).await.expect_err("refused"),
        client.talk(items([take("a")])).await.expect_err("refused"),
    ]
}

async fn a_function_refuses_streams_on_the_server_and_they_do_not_run(fixture: Fixture) {
    let refuse = from_fn(|_: Request<()>| Err(Status::unauthenticated("who are you?")));
    let pair = pair(&fixture, Idle, refuse).await;
    for status in refused(&pair.client).await {
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::Unauthenticated, Executed::No), "{status}");
        assert_eq!(status.message(), "who are you?");
    }
    assert_eq!(pair.witness.log().entries, 0);
}

async fn a_function_that_refuses_streams_on_the_client_polls_and_sends_nothing(fixture: Fixture) {
    let entered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&entered);
    let counts = from_fn(move |request: Request<()>| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(request)
    });
    let refuse = from_fn(|_: Request<()>| Err(Status::resource_exhausted("enough")));
    let pair = pair(&fixture, refuse, counts).await;
    for status in refused(&pair.client).await {
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::ResourceExhausted, Executed::No), "{status}");
    }
    let (sender, requests) = fed();
    pair.client.talk(requests).await.expect_err("refused");
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    assert_eq!(entered.load(Ordering::SeqCst), 0);
}

/// Notes what it sees of each call, under a name.
struct Watch(&'static str, Notes);

impl Interceptor for Watch {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let Self(name, notes) = self;
        let method = next.method();
        let shape = [method.request.into(), method.reply].map(|form| match form {
            ReplyForm::Whole => "one",
            ReplyForm::Stream => "many",
            ReplyForm::Either => "either",
        });
        assert!(request.deadline().is_some());
        let is_stream = request.get_ref().is_stream();
        assert_eq!(is_stream, method.request == Form::Stream);
        notes.add(format!("{name} {:?} {} {}", next.side(), next.path(), shape.join(" to ")));
        let traffic = next.traffic();
        let outcome = next.run(request).await;
        let (requests, replies) = (traffic.requests(), traffic.replies());
        let end = match &outcome {
            Ok(response) => {
                assert_eq!(response.get_ref().len() as u64, replies.bytes);
                "Ok".to_owned()
            }
            Err(status) => format!("{:?} {:?}", status.code(), status.executed()),
        };
        notes.add(format!(
            "{name} {end} {} of {} and {} of {}",
            requests.messages, requests.bytes, replies.messages, replies.bytes
        ));
        outcome
    }
}

async fn an_interceptor_sees_streams_to_their_end_on_both_sides(fixture: Fixture) {
    let (here, there) = (Notes::default(), Notes::default());
    let (ours, theirs) = (Watch("c", here.clone()), Watch("s", there.clone()));
    let pair = pair(&fixture, ours, theirs).await;
    let assert_seen = |method: &str, end: &str| {
        for (notes, name, side) in [(&here, "c", "Client"), (&there, "s", "Server")] {
            let begin = format!("{name} {side} /conformance.Conformance/{method}");
            assert_eq!(notes.take(), [begin, format!("{name} {end}")]);
        }
    };
    // A tag, a length and ten bytes.
    let steps = || (0..3).map(|_| take(vec![7; 10]));
    let reply = pair.client.collect(items(steps())).await.expect("collect").into_inner();
    let len = verbwire::codegen::prost::Message::encoded_len(&reply);
    assert_seen("Collect many to one", &format!("Ok 3 of 36 and 1 of {len}"));
    let request = scan(1, 4, &[10], Act::Take);
    let request_len = verbwire::codegen::prost::Message::encoded_len(&request);
    let mut replies = pair.client.scan(request).await.expect("scan").into_inner();
    for _ in 0..4 {
        next(&mut replies).await;
    }
    assert_eq!(here.take().len(), 1, "the call goes on");
    assert!(replies.message().await.expect("no error").is_none());
    assert_eq!(here.take(), [format!("c Ok 1 of {request_len} and 4 of 48")]);
    assert_eq!(there.take()[1], format!("s Ok 1 of {request_len} and 4 of 48"));
    let failing = steps().chain([step(Act::Fail, 1)]);
    let mut replies = pair.client.talk(items(failing)).await.expect("talk").into_inner();
    for _ in 0..3 {
        next(&mut replies).await;
    }
    replies.message().await.expect_err("it fails");
    // The step that fails has an act and a ticket, of two bytes each.
    assert_seen("Talk many to many", "DataLoss Yes 4 of 40 and 3 of 36");
}

/// What has to come before an interceptor ends a stream.
const BEGUN: Late = Late("a stream did not begin");

/// Ends calls with a status after this time.
struct Impatient(Duration);

impl Interceptor for Impatient {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let run = timeout(self.0, next.run(request)).await;
        run.unwrap_or_else(|_elapsed| Err(Status::aborted("an impatient interceptor")))
    }
}

/// Drops the rest of calls after this time, and sees to it that their handlers are dropped before it says how they end.
struct Drops(Duration, Arc<Witness>);

impl Interceptor for Drops {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let _elapsed = timeout(self.0, next.run(request)).await;
        if self.1.entered_in_time(1).is_ok() {
            self.1.until(|log| log.dropped.contains(&1)).await;
        }
        Err(Status::aborted("dropped"))
    }
}

async fn what_an_interceptor_drops_of_a_stream_is_cancelled(fixture: Fixture) {
    let pair = pair(&fixture, Idle, Idle).await;
    in_time(async |time| {
        let drops = Drops(time, Arc::clone(&pair.witness));
        let client = ConformanceClient::new(pair.client.channel().intercepted(drops));
        let replies = client.scan(scan(1, 1, &[10], Act::Hang)).await.map_err(|_dropped| BEGUN)?;
        let mut replies = replies.into_inner();
        replies.message().await.map_err(|_dropped| BEGUN)?.expect("one");
        let status = replies.message().await.expect_err("dropped");
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::Aborted, Executed::Maybe), "{status}");
        Ok(())
    })
    .await;
}

async fn an_interceptor_may_end_a_stream(fixture: Fixture) {
    for is_client in [true, false] {
        in_time(async |time| assert_ends_streams(&fixture, is_client, time).await).await;
    }
}

async fn assert_ends_streams(
    fixture: &Fixture,
    is_client: bool,
    time: Duration,
) -> Result<(), Late> {
    let impatient = Impatient(time);
    let pair = match is_client {
        true => pair(fixture, impatient, Idle).await,
        false => pair(fixture, Idle, impatient).await,
    };
    let assert_ended = |status: &Status| {
        assert_eq!(status.code(), Code::Aborted, "{status}");
        assert_ne!(status.executed(), Executed::No, "{status}");
    };
    let replies = pair.client.scan(scan(1, 1, &[10], Act::Hang)).await;
    let mut replies = replies.map_err(|_ended| BEGUN)?.into_inner();
    replies.message().await.map_err(|_ended| BEGUN)?.expect("one");
    assert_ended(&replies.message().await.expect_err("too slow"));
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    let (sender, requests) = fed();
    let call = tokio::spawn(pair.client.collect(requests));
    let sent = sender.send(step(Act::Take, 2)).await;
    let status = call.await.expect("no panic").expect_err("too slow");
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    sent.map_err(|_ended| BEGUN)?;
    pair.witness.entered_in_time(2)?;
    assert_ended(&status);
    pair.witness.until(|log| log.dropped.contains(&2)).await;
    Ok(())
}

/// Says who it is at the end of calls, and calls one kind of failure by another name.
struct Signs;

impl Interceptor for Signs {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        match next.run(request).await {
            Ok(mut response) => {
                assert_eq!(response.metadata().get("a").expect("said at the beginning"), "1");
                response.trailers_mut().append("signed", "x".parse()?)?;
                Ok(response)
            }
            Err(_) => Err(Status::out_of_range("another name")),
        }
    }
}

async fn an_interceptor_may_change_trailers_and_the_status_of_replies(fixture: Fixture) {
    let service = ContextServer::new(Surroundings::default());
    let service = verbwire::codegen::Intercepted::new(service, Signs);
    let client = ContextClient::new(channel(&fixture, service).await.intercepted(Signs));
    let request = |code| {
        let requests = items([MirrorRequest { code, ..MirrorRequest::default() }]);
        let mut request = Request::new(requests);
        for (key, value) in [("a", "1"), ("trailing", "t")] {
            request.metadata_mut().insert(key, value.parse().expect("printable")).expect("a name");
        }
        request
    };
    let mut replies = client.mirror_each(request(0)).await.expect("mirror").into_inner();
    let trailers = replies.trailers().await.expect("no error").expect("some");
    assert_eq!(trailers.get("trailing").expect("the handler's"), "t");
    assert_eq!(trailers.get_all("signed").count(), 2, "by both sides");
    let mut replies = client.mirror_each(request(5)).await.expect("mirror").into_inner();
    let status = replies.message().await.expect_err("told to fail");
    let found = (status.code(), status.executed());
    assert_eq!(found, (Code::OutOfRange, Executed::Yes), "{status}");
}

/// Says who it is when replies begin, and takes something back that the handler said.
struct Opens(&'static str);

impl Interceptor for Opens {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let name = self.0.parse()?;
        let outcome = next.run_with(request, |metadata| {
            metadata.append("opened", name).expect("a name");
            metadata.remove("secret");
        });
        let response = outcome.await?;
        let is_stream = response.get_ref().is_stream();
        assert_eq!(response.metadata().contains_key("opened"), is_stream, "seen at the end too");
        assert_eq!(response.metadata().contains_key("secret"), !is_stream);
        Ok(response)
    }
}

async fn an_interceptor_may_change_the_metadata_with_which_replies_begin(fixture: Fixture) {
    let service = ContextServer::new(Surroundings::default());
    let service = verbwire::codegen::Intercepted::new(service, Opens("server"));
    let client = ContextClient::new(channel(&fixture, service).await.intercepted(Opens("client")));
    let request = || {
        let mut request = Request::new(items([MirrorRequest::default()]));
        for (key, value) in [("a", "1"), ("secret", "s")] {
            request.metadata_mut().insert(key, value.parse().expect("printable")).expect("a name");
        }
        request
    };
    let response = client.mirror_each(request()).await.expect("mirror");
    let opened: Vec<_> = response.metadata().get_all("opened").map(|by| by.as_str()).collect();
    assert_eq!(opened, ["server", "client"]);
    assert_eq!(response.metadata().get("a").expect("the handler's"), "1");
    assert!(!response.metadata().contains_key("secret"));
    let mut replies = response.into_inner();
    replies.message().await.expect("no error").expect("one");
    assert!(replies.message().await.expect("no error").is_none());
    // Where the reply is one message, the interceptor has all of it in the outcome.
    let response = client.mirror_all(request()).await.expect("mirror");
    assert_eq!(response.metadata().get("secret").expect("the handler's"), "s");
}

/// Answers every call by itself.
struct Parrot;

impl Interceptor for Parrot {
    async fn intercept(&self, _: Request<Payload>, _: Next) -> Outcome {
        Ok(Response::new(Payload::from(verbwire::Body::new())))
    }
}

async fn an_interceptor_cannot_answer_a_stream_by_itself(fixture: Fixture) {
    let pair = pair(&fixture, Parrot, Idle).await;
    let reply = pair.client.collect(items([take("a")])).await.expect("the parrot answers");
    assert_eq!(reply.get_ref().messages, 0);
    let status = pair.client.scan(scan(1, 1, &[1], Act::Take)).await.expect_err("no replies");
    assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::No), "{status}");
    assert!(status.message().contains("an interceptor answered by itself"), "{status}");
    assert_eq!(pair.witness.log().entries, 0);
}

/// Runs calls that fail three times at most.
struct Again(Notes);

impl Interceptor for Again {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        for _ in 0..2 {
            let Some(copy) = request.copy() else {
                self.0.add("once");
                return next.run(request).await;
            };
            match next.clone().run(copy).await {
                Err(status) => self.0.add(format!("{:?}", status.code())),
                done => return done,
            }
        }
        next.run(request).await
    }
}

async fn a_stream_of_replies_runs_again_only_until_it_has_begun(fixture: Fixture) {
    let notes = Notes::default();
    let mut left = 2;
    let fails_at_first = from_fn(move |request: Request<()>| {
        if left == 0 {
            return Ok(request);
        }
        left -= 1;
        Err(Status::unavailable("not yet"))
    });
    let pair = pair(&fixture, Again(notes.clone()), fails_at_first).await;
    let mut replies =
        pair.client.scan(scan(1, 1, &[10], Act::Take)).await.expect("the third time").into_inner();
    next(&mut replies).await;
    assert!(replies.message().await.expect("no error").is_none());
    assert_eq!(notes.take(), ["Unavailable", "Unavailable"]);
    // One that has begun fails for good, whatever else is tried.
    let request = scan(2, 1, &[10], Act::Fail);
    let mut replies = pair.client.scan(request).await.expect("scan").into_inner();
    next(&mut replies).await;
    let status = replies.message().await.expect_err("it fails");
    assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Yes), "{status}");
    assert!(status.message().contains("it cannot run again"), "{status}");
    assert_eq!(notes.take(), ["DataLoss", "Internal"]);
    let mut replies = pair.client.talk(items([take("a")])).await.expect("talk").into_inner();
    assert_eq!(next(&mut replies).await.payload, "a");
    assert_eq!(notes.take(), ["once"]);
}

async fn cancels_and_drops_reach_through_interceptors_of_streams(fixture: Fixture) {
    let pair = pair(&fixture, Idle, Idle).await;
    let client = ConformanceClient::new(pair.client.channel().intercepted(Idle));
    let mut call = client.scan(scan(1, 1, &[10], Act::Hang));
    let handle = call.cancel_handle();
    let mut replies = call.await.expect("scan").into_inner();
    next(&mut replies).await;
    let waiting = tokio::spawn(async move { replies.message().await });
    tokio::task::yield_now().await;
    handle.cancel();
    let status = waiting.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes), "{status}");
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    let (sender, requests) = fed();
    let mut replies = client.talk(requests).await.expect("talk").into_inner();
    sender.send(step(Act::Take, 2)).await.expect("the stream is polled");
    next(&mut replies).await;
    ask(&sender, &mut replies, "goes both ways").await;
    drop(replies);
    pair.witness.until(|log| log.dropped.contains(&2)).await;
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
    let (sender, requests) = fed();
    let mut call = client.collect(requests);
    let handle = call.cancel_handle();
    let call = tokio::spawn(call);
    sender.send(step(Act::Take, 3)).await.expect("the stream is polled");
    pair.witness.until(|log| log.entered.contains(&3)).await;
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes), "{status}");
    pair.witness.until(|log| log.dropped.contains(&3)).await;
}

/// Stays for this time when a call has ended.
struct Lingers(Duration);

impl Interceptor for Lingers {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let outcome = next.run(request).await;
        sleep(self.0).await;
        outcome
    }
}

async fn the_deadline_covers_interceptors_of_streams(fixture: Fixture) {
    let pair = pair(&fixture, Lingers(LONG * 2), Idle).await;
    for then in [Act::Take, Act::Hang] {
        in_time(async |time| {
            let mut request = Request::new(scan(1, 1, &[10], then));
            request.set_timeout(time);
            let mut replies = on_time(pair.client.scan(request).await)?.into_inner();
            on_time(replies.message().await)?.expect("one");
            let status = replies.message().await.expect_err("no end comes");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            Ok(())
        })
        .await;
    }
    // Nobody waits for an interceptor whose call was cancelled.
    let mut call = pair.client.scan(scan(2, 0, &[], Act::Take));
    let handle = call.cancel_handle();
    let mut replies = call.await.expect("scan").into_inner();
    let waiting = tokio::spawn(async move { replies.message().await });
    pair.witness.until(|log| log.finished.contains(&2)).await;
    sleep(Duration::from_millis(50)).await;
    handle.cancel();
    let status = waiting.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes), "{status}");
}

async fn a_stream_that_ends_in_a_servers_interceptor_was_not_executed(fixture: Fixture) {
    let notes = Notes::default();
    let (waits, door) = Waits::new(notes.clone());
    let Pair { client, witness } = pair(&fixture, Idle, waits).await;
    let mut call = client.scan(scan(1, 1, &[1], Act::Take));
    let handle = call.cancel_handle();
    let call = begin(call).await;
    notes.until("waits").await;
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::No), "{status}");
    in_time(async |time| {
        notes.take();
        let mut request = Request::new(scan(1, 1, &[1], Act::Take));
        request.set_timeout(time);
        expires_at_the_door(&notes, time, tokio::spawn(client.scan(request))).await
    })
    .await;
    door.add_permits(10);
    sleep(short()).await;
    assert_eq!(witness.log().entries, 0);
}
