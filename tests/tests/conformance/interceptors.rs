//! Code around calls, on both sides.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use verbwire::interceptor::{Interceptor, Next, Outcome, Payload, from_fn};
use verbwire::{Channel, Code, Executed, LoadLimits, Request, Server, Status};
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::context::{Surroundings, Who, offering};
use verbwire_tests::fixture::{Fixture, LONG, Late, Serving, begin, in_time, short};
use verbwire_tests::proto::context::context_client::ContextClient;
use verbwire_tests::proto::context::context_server::ContextServer;
use verbwire_tests::proto::context::{LeftRequest, MirrorRequest};
use verbwire_tests::runner::ON_PURPOSE;

pub(crate) const CASES: &[Case] = &[
    case!(a_function_adds_metadata_on_the_client),
    case!(a_function_refuses_calls_on_the_server_and_they_do_not_run),
    case!(a_function_that_refuses_on_the_client_sends_nothing),
    case!(an_interceptor_sees_the_call_as_a_whole_on_both_sides),
    case!(the_last_interceptor_comes_first),
    case!(a_servers_interceptor_hands_its_findings_to_every_handler).over_a_connection(),
    case!(an_interceptor_sees_the_path_that_a_fallback_answers_for).over_a_connection(),
    case!(an_interceptor_may_run_a_call_again),
    case!(an_interceptor_may_answer_by_itself),
    case!(the_deadline_covers_interceptors),
    case!(a_cancel_reaches_through_interceptors),
    case!(a_call_that_waits_in_an_interceptor_is_cancelled_at_once),
    case!(a_call_that_ends_in_a_servers_interceptor_was_not_executed),
    case!(a_call_that_ends_before_a_server_is_through_with_it_was_not_executed).over_a_connection(),
    case!(a_server_whose_interceptor_panics_says_whether_the_handler_ran),
    case!(an_interceptor_that_fails_with_ok_fails_with_unknown),
];

/// Messages of a kind, in order.
#[derive(Debug, Default, Clone)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(note.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn has(&self, note: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|one| one == note)
    }

    /// Waits until `note` is there.
    pub(crate) async fn until(&self, note: &str) {
        let begun = Instant::now();
        while !self.has(note) {
            assert!(begun.elapsed() < LONG, "{note} was not noted within {LONG:?}");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Notes what it sees of each call, under a name.
struct Watch(&'static str, Notes);

impl Interceptor for Watch {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let left = request.deadline().map(|due| due.saturating_duration_since(Instant::now()));
        let has_deadline = left.is_some_and(|left| left > Duration::ZERO && left <= LONG);
        let (path, side) = (next.path().to_owned(), next.side());
        let (len, entries) = (request.get_ref().len(), request.metadata().len());
        let Self(name, notes) = self;
        notes.add(format!("{name} {side:?} {path} {len} {entries} {has_deadline}"));
        let outcome = next.run(request).await;
        match &outcome {
            Ok(response) => notes.add(format!(
                "{name} {} {}",
                response.get_ref().len(),
                response.metadata().len() + response.trailers().len()
            )),
            Err(status) => notes.add(format!("{name} {:?} {:?}", status.code(), status.executed())),
        }
        outcome
    }
}

/// A channel to `service`.
pub(crate) async fn channel(
    fixture: &Fixture,
    service: impl verbwire_core::service::Service,
) -> Channel {
    if fixture.backend().place == Place::InProcess {
        return Channel::in_process(service);
    }
    let builder = Server::builder().add_service(service);
    Serving::start(builder, &fixture.target()).await.connect().await
}

async fn plain(fixture: &Fixture) -> (Channel, Surroundings) {
    let service = Surroundings::default();
    (channel(fixture, ContextServer::new(service.clone())).await, service)
}

fn mirror(payload: &[u8]) -> Request<MirrorRequest> {
    let payload = payload.to_vec().into();
    let mut request = Request::new(MirrorRequest { payload, ..MirrorRequest::default() });
    request.set_timeout(LONG);
    request
}

async fn a_function_adds_metadata_on_the_client(fixture: Fixture) {
    let (channel, _) = plain(&fixture).await;
    let mut count = 0;
    let client = ContextClient::with_interceptor(channel, move |mut request: Request<()>| {
        count += 1;
        request.metadata_mut().insert("authorization", "Bearer x".parse()?)?;
        request.metadata_mut().insert("count", count.into())?;
        Ok(request)
    });
    for count in ["1", "2"] {
        let response = client.mirror(mirror(b"abc")).await.expect("mirror");
        assert_eq!(response.get_ref().payload, "abc");
        assert_eq!(response.metadata().get("authorization").expect("added"), "Bearer x");
        assert_eq!(response.metadata().get("count").expect("added"), count);
    }
}

async fn a_function_refuses_calls_on_the_server_and_they_do_not_run(fixture: Fixture) {
    let service = Surroundings::default();
    let guarded = ContextServer::with_interceptor(service.clone(), |request: Request<()>| {
        match request.metadata().get("authorization") {
            Some(token) if token == "Bearer x" => Ok(request),
            _ => Err(Status::unauthenticated("who are you?")),
        }
    });
    let client = ContextClient::new(channel(&fixture, guarded).await);
    let status = client.hang(LeftRequest {}).await.expect_err("no token");
    assert_eq!((status.code(), status.executed()), (Code::Unauthenticated, Executed::No));
    assert_eq!(status.message(), "who are you?");
    let mut request = mirror(b"");
    let token = "Bearer x".parse().expect("printable");
    request.metadata_mut().insert("authorization", token).expect("a name");
    client.mirror(request).await.expect("the right token");
    assert!(!service.events().has("hangs"));
}

async fn a_function_that_refuses_on_the_client_sends_nothing(fixture: Fixture) {
    let (channel, service) = plain(&fixture).await;
    let refuse = |_request| Err(Status::resource_exhausted("enough"));
    let client = ContextClient::with_interceptor(channel, refuse);
    let status = client.hang(LeftRequest {}).await.expect_err("refused");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No));
    assert!(!service.events().has("hangs"));
}

async fn an_interceptor_sees_the_call_as_a_whole_on_both_sides(fixture: Fixture) {
    let (here, there) = (Notes::default(), Notes::default());
    let service = ContextServer::new(Surroundings::default());
    let watched = verbwire::interceptor::Intercepted::new(service, Watch("s", there.clone()));
    let channel = channel(&fixture, watched).await.intercepted(Watch("c", here.clone()));
    let client = ContextClient::new(channel);
    let mut request = mirror(b"seven b");
    request.metadata_mut().insert("k", "v".parse().expect("printable")).expect("a name");
    client.mirror(request).await.expect("mirror");
    let path = "/context.Context/Mirror";
    // A tag, a length and seven bytes; what comes back has its entry again.
    assert_eq!(here.take(), [&format!("c Client {path} 9 1 true"), "c 9 1"]);
    assert_eq!(there.take(), [&format!("s Server {path} 9 1 true"), "s 9 1"]);
    let mut fails = mirror(b"");
    fails.get_mut().code = 5;
    client.mirror(fails).await.expect_err("told to fail");
    assert_eq!(here.take()[1], "c NotFound Yes");
    assert_eq!(there.take()[1], "s NotFound Yes");
}

async fn the_last_interceptor_comes_first(fixture: Fixture) {
    let notes = Notes::default();
    let watch = |name| Watch(name, notes.clone());
    let (channel, _) = plain(&fixture).await;
    let channel = channel.intercepted(watch("inner")).intercepted(watch("outer"));
    ContextClient::new(channel).mirror(mirror(b"")).await.expect("mirror");
    let order: Vec<_> =
        notes.take().iter().filter_map(|note| note.split(' ').next().map(str::to_owned)).collect();
    assert_eq!(order, ["outer", "inner", "inner", "outer"]);
}

async fn a_servers_interceptor_hands_its_findings_to_every_handler(fixture: Fixture) {
    let identify = from_fn(|mut request: Request<()>| {
        let name = request.metadata().get("name").ok_or(Status::unauthenticated("no name"))?;
        let who = Who(name.as_str().to_owned());
        request.extensions_mut().insert(who);
        Ok(request)
    });
    let builder = offering().intercept(identify);
    let channel = Serving::start(builder, &fixture.target()).await.connect().await;
    let client = ContextClient::new(channel);
    let mut request = mirror(b"");
    request.metadata_mut().insert("name", "ada".parse().expect("printable")).expect("a name");
    // What this side knows is not sent.
    request.extensions_mut().insert(Who("mallory".to_owned()));
    let response = client.mirror(request).await.expect("mirror");
    assert_eq!(response.metadata().get("who").expect("found out"), "ada");
    let status = client.mirror(mirror(b"")).await.expect_err("no name");
    assert_eq!((status.code(), status.executed()), (Code::Unauthenticated, Executed::No));
}

async fn an_interceptor_sees_the_path_that_a_fallback_answers_for(fixture: Fixture) {
    let notes = Notes::default();
    let builder = Server::builder()
        .intercept(Watch("s", notes.clone()))
        .load_limits(&LoadLimits::new().max_running_calls(10))
        .fallback(|_: Arc<str>, request: Request<verbwire::Body>| async move {
            Ok(verbwire::Response::new(request.into_inner()))
        });
    let channel = Serving::start(builder, &fixture.target()).await.connect().await;
    let mut request = Request::new(LeftRequest {});
    request.set_timeout(LONG);
    ContextClient::new(channel).left(request).await.expect("an empty reply");
    assert_eq!(notes.take(), ["s Server /context.Context/Left 0 0 true", "s 0 0"]);
}

/// Runs calls that fail with `Unavailable` again.
struct Again(Arc<AtomicUsize>);

impl Interceptor for Again {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        loop {
            let Some(copy) = request.copy() else { return next.run(request).await };
            match next.clone().run(copy).await {
                Err(status) if status.code() == Code::Unavailable => {
                    self.0.fetch_add(1, Ordering::SeqCst);
                }
                other => return other,
            }
        }
    }
}

async fn an_interceptor_may_run_a_call_again(fixture: Fixture) {
    let (channel, _) = plain(&fixture).await;
    let mut left = 3;
    let fails_at_first = from_fn(move |request: Request<()>| {
        if left == 0 {
            return Ok(request);
        }
        left -= 1;
        Err(Status::unavailable("not yet"))
    });
    let tries = Arc::new(AtomicUsize::new(0));
    let channel = channel.intercepted(fails_at_first).intercepted(Again(Arc::clone(&tries)));
    let client = ContextClient::new(channel);
    let mut request = mirror(b"once");
    request.metadata_mut().insert("k", "v".parse().expect("printable")).expect("a name");
    let response = client.mirror(request).await.expect("mirror");
    assert_eq!(response.get_ref().payload, "once");
    assert_eq!(response.metadata().get("k").expect("kept"), "v");
    assert_eq!(tries.load(Ordering::SeqCst), 3);
}

/// Answers every call with the request.
struct Parrot;

impl Interceptor for Parrot {
    async fn intercept(&self, request: Request<Payload>, _: Next) -> Outcome {
        Ok(verbwire::Response::new(request.into_inner()))
    }
}

async fn an_interceptor_may_answer_by_itself(fixture: Fixture) {
    let (channel, service) = plain(&fixture).await;
    let client = ContextClient::new(channel.intercepted(Parrot));
    client.hang(LeftRequest {}).await.expect("the parrot answers");
    assert!(!service.events().has("hangs"));
}

/// Waits before it hands calls on.
struct Slow(Duration, Notes);

impl Interceptor for Slow {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        self.1.add("waits");
        sleep(self.0).await;
        next.run(request).await
    }
}

async fn the_deadline_covers_interceptors(fixture: Fixture) {
    let (channel, service) = plain(&fixture).await;
    let slow = channel.intercepted(Slow(LONG * 2, Notes::default()));
    let mut request = Request::new(LeftRequest {});
    request.set_timeout(Duration::from_millis(100));
    let status = ContextClient::new(slow).hang(request).await.expect_err("too slow");
    assert_eq!((status.code(), status.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(!service.events().has("hangs"));
    // What an interceptor uses up is not there for the handler.
    let quick = channel.intercepted(Slow(Duration::from_millis(100), Notes::default()));
    let mut request = Request::new(LeftRequest {});
    request.set_timeout(LONG);
    let reply = ContextClient::new(quick).left(request).await.expect("left");
    let left = Duration::from_micros(reply.get_ref().left_us);
    assert!(left <= LONG - Duration::from_millis(100), "{left:?}");
}

async fn a_cancel_reaches_through_interceptors(fixture: Fixture) {
    let (channel, service) = plain(&fixture).await;
    let notes = Notes::default();
    let channel = channel.intercepted(Watch("a", notes.clone())).intercepted(Watch("b", notes));
    let client = ContextClient::new(channel);
    let mut call = client.hang(LeftRequest {});
    let handle = call.cancel_handle();
    let call = begin(call).await;
    service.events().until("hangs").await;
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::Yes));
    service.events().until("handler dropped").await;
}

async fn a_call_that_waits_in_an_interceptor_is_cancelled_at_once(fixture: Fixture) {
    let (channel, service) = plain(&fixture).await;
    let notes = Notes::default();
    let client = ContextClient::new(channel.intercepted(Slow(LONG * 2, notes.clone())));
    let mut call = client.hang(LeftRequest {});
    let handle = call.cancel_handle();
    let call = begin(call).await;
    assert_eq!(notes.take(), ["waits"]);
    let begun = Instant::now();
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::No));
    assert!(begun.elapsed() < LONG);
    assert!(!service.events().has("hangs"));
}

/// Holds calls until its door is opened.
pub(crate) struct Waits(Notes, Arc<Semaphore>);

impl Waits {
    /// The interceptor, and its door. It notes "waits" for each call.
    pub(crate) fn new(notes: Notes) -> (Self, Arc<Semaphore>) {
        let door = Arc::new(Semaphore::new(0));
        (Self(notes, Arc::clone(&door)), door)
    }
}

impl Interceptor for Waits {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        self.0.add("waits");
        self.1.acquire().await.expect("it is never closed").forget();
        next.run(request).await
    }
}

/// A call with this deadline is held until that has passed, here and at the server.
pub(crate) async fn expires_at_the_door<T: Debug>(
    notes: &Notes,
    time: Duration,
    call: JoinHandle<Result<T, Status>>,
) -> Result<(), Late> {
    while !notes.has("waits") {
        if call.is_finished() {
            return Err(Late("the call did not come to the interceptor"));
        }
        sleep(Duration::from_millis(1)).await;
    }
    // The server's deadline is later than the client's, by what the request took.
    let deadline = Instant::now() + time;
    let status = call.await.expect("no panic").expect_err("too slow");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    // A client that was first to see the deadline cannot know.
    assert_ne!(status.executed(), Executed::Yes, "{status}");
    sleep_until(deadline).await;
    Ok(())
}

/// Ends calls in their handlers' places, before a door: one is cancelled there, and one reaches its deadline.
async fn assert_not_executed(
    client: &ContextClient,
    service: &Surroundings,
    notes: &Notes,
    door: &Semaphore,
) {
    let mut call = client.hang(LeftRequest {});
    let handle = call.cancel_handle();
    let call = begin(call).await;
    notes.until("waits").await;
    handle.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::No), "{status}");
    in_time(async |time| {
        notes.take();
        let mut request = Request::new(LeftRequest {});
        request.set_timeout(time);
        expires_at_the_door(notes, time, tokio::spawn(client.hang(request))).await
    })
    .await;
    door.add_permits(10);
    sleep(short()).await;
    assert!(!service.events().has("hangs"), "the interceptor waits no more");
}

async fn a_call_that_ends_in_a_servers_interceptor_was_not_executed(fixture: Fixture) {
    let (service, notes) = (Surroundings::default(), Notes::default());
    let (waits, door) = Waits::new(notes.clone());
    let waits = verbwire::interceptor::Intercepted::new(ContextServer::new(service.clone()), waits);
    let client = ContextClient::new(channel(&fixture, waits).await);
    assert_not_executed(&client, &service, &notes, &door).await;
}

async fn a_call_that_ends_before_a_server_is_through_with_it_was_not_executed(fixture: Fixture) {
    let (service, notes) = (Surroundings::default(), Notes::default());
    let (waits, door) = Waits::new(notes.clone());
    let bounded = verbwire::Limited::new(ContextServer::new(service.clone()), &LoadLimits::new());
    let builder = Server::builder()
        .add_service(bounded)
        .sessions(&verbwire::Sessions::default())
        .load_limits(&LoadLimits::new().max_running_calls(10))
        .intercept(waits)
        .intercept(Watch("outer", Notes::default()));
    let channel = Serving::start(builder, &fixture.target()).await.connect().await;
    assert_not_executed(&ContextClient::new(channel), &service, &notes, &door).await;
}

/// Panics before the handler, or after it.
struct Falls(Moment);

enum Moment {
    Before,
    After,
}

#[expect(clippy::panic, reason = "what the case is about")]
impl Interceptor for Falls {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        if let Moment::After = self.0 {
            next.run(request).await?;
        }
        panic!("{ON_PURPOSE}: in an interceptor");
    }
}

async fn a_server_whose_interceptor_panics_says_whether_the_handler_ran(fixture: Fixture) {
    for (moment, executed) in [(Moment::Before, Executed::No), (Moment::After, Executed::Yes)] {
        let service = ContextServer::new(Surroundings::default());
        let falls = verbwire::interceptor::Intercepted::new(service, Falls(moment));
        let client = ContextClient::new(channel(&fixture, falls).await);
        let status = client.mirror(mirror(b"")).await.expect_err("it panics");
        assert_eq!((status.code(), status.executed()), (Code::Internal, executed), "{status}");
        let requests = verbwire_tests::streams::items([MirrorRequest::default()]);
        let status = client.mirror_all(requests).await.expect_err("it panics");
        assert_eq!((status.code(), status.executed()), (Code::Internal, executed), "{status}");
    }
}

/// Fails with the code of success.
struct Fine;

impl Interceptor for Fine {
    async fn intercept(&self, _: Request<Payload>, _: Next) -> Outcome {
        Err(Status::new(Code::Ok, "fine"))
    }
}

async fn an_interceptor_that_fails_with_ok_fails_with_unknown(fixture: Fixture) {
    let service =
        verbwire::interceptor::Intercepted::new(ContextServer::new(Surroundings::default()), Fine);
    let there = channel(&fixture, service).await;
    let here = plain(&fixture).await.0.intercepted(Fine);
    for client in [ContextClient::new(there), ContextClient::new(here)] {
        let unary = client.mirror(mirror(b"")).await.expect_err("it fails");
        let requests = verbwire_tests::streams::items([MirrorRequest::default()]);
        let streaming = client.mirror_each(requests).await.expect_err("it fails");
        for status in [unary, streaming] {
            let (code, executed) = (status.code(), status.executed());
            assert_eq!((code, executed, status.message()), (Code::Unknown, Executed::No, "fine"));
        }
    }
}
