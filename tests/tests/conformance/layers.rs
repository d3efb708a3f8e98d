//! tower's layers around the calls of generated clients.

use std::error::Error;
use std::future::{Future, Ready, poll_fn, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;
use tower::limit::{ConcurrencyLimitLayer, RateLimitLayer};
use tower::load_shed::{LoadShedLayer, error::Overloaded};
use tower::retry::Policy;
use tower::timeout::{TimeoutLayer, error::Elapsed};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use verbwire::interceptor::{Interceptor, Next, Outcome, Payload};
use verbwire::{Channel, Code, Executed, Request, Response, Status};
use verbwire_core::client::Client;
use verbwire_core::codec::{Codec, Prost};
use verbwire_core::service::{MethodDescriptor, ServiceDescriptor};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, LONG, Late, begin, in_time, on_time};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{Blob, FailRequest, Ticket};
use verbwire_tests::streams::items;
use verbwire_tower::{TowerChannel, TowerRequest, layer};

use crate::streams::{next, scan, take};

pub(crate) const CASES: &[Case] = &[
    case!(a_timeout_layer_ends_a_call_with_deadline_exceeded),
    case!(calls_beyond_a_concurrency_limit_wait_and_all_finish),
    case!(a_load_shed_layer_turns_calls_away_unsent),
    case!(a_load_shed_layer_knows_when_the_connection_takes_no_more_calls).over_one_connection(),
    case!(a_rate_limit_spreads_calls_behind_a_buffer),
    case!(a_retry_layer_repeats_what_did_not_run_and_nothing_else),
    case!(a_buffer_layer_hands_calls_on_and_their_statuses_back),
    case!(a_status_comes_through_layers_as_it_is).over_one_path(),
    case!(a_stream_is_one_call_for_layers),
    case!(layers_of_all_kinds_stand_before_one_client),
    case!(a_call_that_is_dropped_in_a_layer_leaves_its_place),
    case!(the_deadline_covers_layers),
    // In process a client needs all methods of the service in its descriptor.
    case!(a_stream_that_has_begun_is_not_repeated_and_keeps_its_status).over_a_connection(),
    case!(a_busy_task_finds_a_free_channel_ready).over_one_connection(),
    case!(a_channel_is_a_service_that_is_ready_when_a_call_need_not_wait).over_one_connection(),
    case!(a_connection_that_has_ended_is_told_by_the_call).over_a_connection(),
];

fn blob() -> Blob {
    Blob { payload: pattern::payload(100, 1) }
}

fn layered<L>(client: &ConformanceClient, layers: L) -> ConformanceClient
where
    L: tower::Layer<TowerChannel>,
    L::Service: Service<TowerRequest, Response = Response<Payload>> + Clone + Send + 'static,
    <L::Service as Service<TowerRequest>>::Error: Into<BoxError>,
    <L::Service as Service<TowerRequest>>::Future: Send,
{
    ConformanceClient::new(layer(client.channel().clone(), layers))
}

async fn a_timeout_layer_ends_a_call_with_deadline_exceeded(fixture: Fixture) {
    let pair = fixture.pair().await;
    let quick = layered(&pair.client, TimeoutLayer::new(LONG));
    quick.echo(blob()).await.expect("quick enough");
    in_time(async |time| {
        let client = layered(&pair.client, TimeoutLayer::new(time));
        let status = client.hang(Ticket { number: 1 }).await.expect_err("it hangs");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(status.source().expect("kept").is::<Elapsed>());
        pair.witness.entered_in_time(1)?;
        // It was sent, and nobody waited for what came of it.
        assert_eq!(status.executed(), Executed::Maybe);
        pair.witness.until(|log| log.dropped.contains(&1)).await;
        Ok(())
    })
    .await;
}

async fn calls_beyond_a_concurrency_limit_wait_and_all_finish(fixture: Fixture) {
    let pair = fixture.pair().await;
    let client = layered(&pair.client, ConcurrencyLimitLayer::new(2));
    let mut calls = Vec::new();
    for number in 0..6 {
        calls.push(begin(client.gate(Ticket { number })).await);
    }
    pair.witness.until(|log| log.running == 2).await;
    (0..6).for_each(|number| pair.witness.open(number));
    for call in calls {
        call.await.expect("no panic").expect("gate");
    }
    assert_eq!(pair.witness.log().most_running, 2);
}

fn assert_shed(status: &Status) {
    let (code, executed) = (status.code(), status.executed());
    assert_eq!((code, executed), (Code::ResourceExhausted, Executed::No), "{status}");
    assert!(status.source().expect("kept").is::<Overloaded>());
}

async fn a_load_shed_layer_turns_calls_away_unsent(fixture: Fixture) {
    let pair = fixture.pair().await;
    let layers = ServiceBuilder::new().load_shed().concurrency_limit(1);
    let client = layered(&pair.client, layers);
    let first = begin(client.gate(Ticket { number: 1 })).await;
    pair.witness.until(|log| log.running == 1).await;
    assert_shed(&client.gate(Ticket { number: 2 }).await.expect_err("one too many"));
    pair.witness.open(1);
    first.await.expect("no panic").expect("gate");
    client.echo(blob()).await.expect("there is room again");
    assert!(!pair.witness.log().entered.contains(&2));
}

async fn a_stream_is_one_call_for_layers(fixture: Fixture) {
    let pair = fixture.pair().await;
    let layers = || ServiceBuilder::new().load_shed().concurrency_limit(1);
    let client = layered(&pair.client, layers().timeout(LONG));
    let steps = (0..3).map(|_| take("abc"));
    let reply = client.collect(items(steps.clone())).await.expect("collect");
    assert_eq!(reply.get_ref().len, 9);
    let mut replies = client.talk(items(steps)).await.expect("talk").into_inner();
    for _ in 0..3 {
        assert_eq!(next(&mut replies).await.payload, "abc");
    }
    assert!(replies.message().await.expect("no error").is_none());
    // It has its place until it ends, here by the timeout.
    let tickets = AtomicU64::new(1);
    in_time(async |time| {
        let client = layered(&pair.client, layers().timeout(time));
        let ticket = tickets.fetch_add(2, Ordering::SeqCst);
        let mut replies =
            on_time(client.scan(scan(ticket, 1, &[10], Act::Hang)).await)?.into_inner();
        on_time(replies.message().await)?.expect("one");
        let status = match client.scan(scan(ticket + 1, 1, &[10], Act::Take)).await {
            Err(status) if status.code() != Code::DeadlineExceeded => status,
            _ => return Err(Late("a second stream did not come before the first had ended")),
        };
        assert_shed(&status);
        let status = replies.message().await.expect_err("it hangs");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        pair.witness.until(|log| log.dropped.contains(&ticket)).await;
        on_time(client.echo(blob()).await)?;
        assert!(!pair.witness.log().entered.contains(&(ticket + 1)));
        Ok(())
    })
    .await;
}

async fn a_load_shed_layer_knows_when_the_connection_takes_no_more_calls(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(2)).await;
    let client = layered(&pair.client, LoadShedLayer::new());
    let through = begin(client.gate(Ticket { number: 1 })).await;
    // One that goes past the layer takes a place as well.
    let past = begin(pair.client.gate(Ticket { number: 2 })).await;
    pair.witness.until(|log| log.running == 2).await;
    assert_shed(&client.gate(Ticket { number: 3 }).await.expect_err("one too many"));
    let waits = begin(pair.client.gate(Ticket { number: 4 })).await;
    for number in [1, 2, 4] {
        pair.witness.open(number);
    }
    for call in [through, past, waits] {
        call.await.expect("no panic").expect("gate");
    }
    client.echo(blob()).await.expect("there is room again");
}

async fn a_rate_limit_spreads_calls_behind_a_buffer(fixture: Fixture) {
    let pair = fixture.pair().await;
    let pace = Duration::from_millis(150);
    let layers = ServiceBuilder::new().buffer(8).layer(RateLimitLayer::new(1, pace));
    let client = layered(&pair.client, layers);
    let begun = Instant::now();
    let calls: Vec<_> = (0..4).map(|_| tokio::spawn(client.echo(blob()))).collect();
    for call in calls {
        call.await.expect("no panic").expect("echo");
    }
    assert!(begun.elapsed() >= pace * 3, "{:?}", begun.elapsed());
}

/// At most this many more tries, of calls that may be repeated.
#[derive(Clone)]
struct Again(u32);

impl<E> Policy<TowerRequest, Response<Payload>, E> for Again
where
    E: AsStatus,
{
    type Future = Ready<()>;

    fn retry(
        &mut self,
        request: &mut TowerRequest,
        outcome: &mut Result<Response<Payload>, E>,
    ) -> Option<Ready<()>> {
        let status = outcome.as_ref().err()?.as_status()?;
        let is_worth_it = status.code() == Code::Unavailable && request.may_repeat(status);
        self.0 = self.0.checked_sub(is_worth_it.then_some(1)?)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &TowerRequest) -> Option<TowerRequest> {
        request.copy()
    }
}

/// What a layer behind this one fails with.
trait AsStatus {
    fn as_status(&self) -> Option<&Status>;
}

impl AsStatus for Status {
    fn as_status(&self) -> Option<&Status> {
        Some(self)
    }
}

impl AsStatus for BoxError {
    fn as_status(&self) -> Option<&Status> {
        self.downcast_ref()
    }
}

/// Counts calls, and fails the first ones: as if they had not run, or as if nobody knew.
#[derive(Clone)]
struct Fails {
    calls: Arc<AtomicUsize>,
    first: usize,
    executed: Executed,
}

impl Interceptor for Fails {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        if self.calls.fetch_add(1, Ordering::SeqCst) >= self.first {
            return next.run(request).await;
        }
        if self.executed != Executed::No {
            next.run(request).await?;
        }
        Err(Status::unavailable("as told"))
    }
}

async fn a_retry_layer_repeats_what_did_not_run_and_nothing_else(fixture: Fixture) {
    let pair = fixture.pair().await;
    let calls = Arc::<AtomicUsize>::default();
    let failing = |first, executed| {
        calls.store(0, Ordering::SeqCst);
        let fails = Fails { calls: Arc::clone(&calls), first, executed };
        let channel = pair.client.channel().intercepted(fails);
        ConformanceClient::new(layer(channel, ServiceBuilder::new().retry(Again(2))))
    };
    pair.witness.open(1);
    let ticket = || Ticket { number: 1 };
    failing(2, Executed::No).gate(ticket()).await.expect("the third try");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    let status = failing(3, Executed::No).gate(ticket()).await.expect_err("two more and no third");
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::No));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    // One that ran is repeated only where its method is idempotent.
    pair.witness.open(1);
    let status = failing(1, Executed::Yes).gate(ticket()).await.expect_err("not idempotent");
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Yes));
    assert_eq!((calls.load(Ordering::SeqCst), pair.witness.log().entries), (1, 2));
    failing(1, Executed::Yes).echo(blob()).await.expect("idempotent");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// Repeats what may be repeated, and counts that.
#[derive(Clone)]
struct Eager(Arc<AtomicUsize>);

impl Policy<TowerRequest, Response<Payload>, Status> for Eager {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        request: &mut TowerRequest,
        outcome: &mut Result<Response<Payload>, Status>,
    ) -> Option<Ready<()>> {
        request.may_repeat(outcome.as_ref().err()?).then(|| {
            assert!(self.0.fetch_add(1, Ordering::SeqCst) < 3, "without end");
            ready(())
        })
    }

    fn clone_request(&mut self, request: &TowerRequest) -> Option<TowerRequest> {
        request.copy()
    }
}

static SCAN: ServiceDescriptor = ServiceDescriptor::new(
    "conformance.Conformance",
    &[MethodDescriptor::new("Scan", "/conformance.Conformance/Scan")
        .server_streaming()
        .idempotent()],
);

async fn a_stream_that_has_begun_is_not_repeated_and_keeps_its_status(fixture: Fixture) {
    let pair = fixture.pair().await;
    let repeats = Arc::<AtomicUsize>::default();
    let layers = ServiceBuilder::new().retry(Eager(Arc::clone(&repeats)));
    let client = Client::new(layer(pair.client.channel().clone(), layers), &SCAN);
    let call = client.server_streaming(0, Request::new(scan(1, 1, &[10], Act::Fail)));
    let mut replies = call.await.expect("it begins").into_inner();
    next(&mut replies).await;
    let status = replies.message().await.expect_err("told to fail");
    assert_eq!((status.code(), status.executed()), (Code::DataLoss, Executed::Yes), "{status}");
    assert_eq!((repeats.load(Ordering::SeqCst), pair.witness.log().entries), (0, 1));
}

fn told() -> FailRequest {
    FailRequest { code: 5, message: "no such block".to_owned(), details: b"details"[..].into() }
}

fn assert_same(one: &Status, other: &Status) {
    assert_eq!(
        (one.code(), one.message(), one.details(), one.executed(), one.origin(), one.peer()),
        (
            other.code(),
            other.message(),
            other.details(),
            other.executed(),
            other.origin(),
            other.peer()
        )
    );
}

async fn a_buffer_layer_hands_calls_on_and_their_statuses_back(fixture: Fixture) {
    let pair = fixture.pair().await;
    let client = layered(&pair.client, ServiceBuilder::new().buffer(2));
    let calls: Vec<_> = (0..10)
        .map(|number| {
            pair.witness.open(number);
            tokio::spawn(client.gate(Ticket { number }))
        })
        .collect();
    for (call, number) in calls.into_iter().zip(0..) {
        let ticket = call.await.expect("no panic").expect("gate").into_inner();
        assert_eq!(ticket.number, number);
    }
    let status = client.fail(told()).await.expect_err("as told");
    let plain = pair.client.fail(told()).await.expect_err("as told");
    // Not whose they are: the second call may take another path.
    assert_eq!(
        (status.code(), status.message(), status.details(), status.executed()),
        (plain.code(), plain.message(), plain.details(), plain.executed())
    );
}

async fn a_status_comes_through_layers_as_it_is(fixture: Fixture) {
    let pair = fixture.pair().await;
    let plain = pair.client.fail(told()).await.expect_err("as told");
    assert_eq!((plain.code(), plain.executed()), (Code::NotFound, Executed::Yes));
    let layers = ServiceBuilder::new()
        .buffer(4)
        .load_shed()
        .concurrency_limit(4)
        .timeout(LONG)
        .retry(Again(1));
    let status = layered(&pair.client, layers).fail(told()).await.expect_err("as told");
    assert_same(&status, &plain);
}

async fn layers_of_all_kinds_stand_before_one_client(fixture: Fixture) {
    let pair = fixture.pair().await;
    let layers = ServiceBuilder::new()
        .buffer(64)
        .rate_limit(1000, Duration::from_millis(1))
        .load_shed()
        .retry(Again(1))
        .timeout(LONG)
        .concurrency_limit(64);
    let client = layered(&pair.client, layers);
    let calls: Vec<_> = (0..32).map(|_| tokio::spawn(client.echo(blob()))).collect();
    for call in calls {
        let reply = call.await.expect("no panic").expect("echo");
        assert_eq!(reply.into_inner(), blob());
    }
}

async fn a_call_that_is_dropped_in_a_layer_leaves_its_place(fixture: Fixture) {
    let pair = fixture.pair().await;
    let client = layered(&pair.client, ConcurrencyLimitLayer::new(1));
    let runs = begin(client.hang(Ticket { number: 1 })).await;
    pair.witness.until(|log| log.running == 1).await;
    let waits = begin(client.hang(Ticket { number: 2 })).await;
    let mut cancelled = client.hang(Ticket { number: 3 });
    let handle = cancelled.cancel_handle();
    let cancelled = begin(cancelled).await;
    waits.abort();
    handle.cancel();
    let status = cancelled.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::No), "{status}");
    runs.abort();
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    client.echo(blob()).await.expect("the place is free");
    assert_eq!(pair.witness.log().entries, 1);
}

async fn the_deadline_covers_layers(fixture: Fixture) {
    let pair = fixture.pair().await;
    let client = layered(&pair.client, ConcurrencyLimitLayer::new(1));
    let runs = begin(client.gate(Ticket { number: 1 })).await;
    pair.witness.until(|log| log.running == 1).await;
    let mut request = Request::new(Ticket { number: 2 });
    request.set_timeout(Duration::from_millis(100));
    let status = client.gate(request).await.expect_err("it waits too long");
    let (code, executed) = (status.code(), status.executed());
    assert_eq!((code, executed), (Code::DeadlineExceeded, Executed::No), "{status}");
    pair.witness.open(1);
    runs.await.expect("no panic").expect("gate");
}

static ECHO: ServiceDescriptor = ServiceDescriptor::new(
    "conformance.Conformance",
    &[MethodDescriptor::new("Echo", "/conformance.Conformance/Echo")],
);

fn poll_ready(service: &mut TowerChannel) -> Poll<Result<(), Status>> {
    service.poll_ready(&mut Context::from_waker(Waker::noop()))
}

fn echo(channel: &Channel) -> TowerRequest {
    let client = Client::new(channel.clone(), &ECHO);
    let payload = Payload::from(Prost.encode(&blob()));
    let mut request = Request::new(payload);
    request.set_timeout(LONG);
    TowerRequest::new(&client, 0, request)
}

async fn a_channel_is_a_service_that_is_ready_when_a_call_need_not_wait(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(1)).await;
    let channel = pair.client.channel().clone();
    let mut service = TowerChannel::new(channel.clone());
    let reply = service.ready().await.expect("always").call(echo(&channel)).await.expect("echo");
    let reply: Blob =
        Prost.decode(reply.get_ref().body().expect("one message").clone()).expect("a blob");
    assert_eq!(reply, blob());
    // The place is kept for the call, and a clone has another: there is none.
    assert!(poll_ready(&mut service).is_ready());
    let mut other = service.clone();
    assert!(poll_ready(&mut other).is_pending());
    let waits = begin(pair.client.echo(blob())).await;
    service.call(echo(&channel)).await.expect("echo");
    // Who waits has its turn in order, and who is dropped makes room.
    poll_fn(|cx| other.poll_ready(cx)).await.expect("always");
    assert!(!waits.is_finished());
    drop(other);
    waits.await.expect("no panic").expect("echo");
}

async fn a_busy_task_finds_a_free_channel_ready(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_concurrent_calls(1)).await;
    let mut service = TowerChannel::new(pair.client.channel().clone());
    let plenty = tokio::sync::Semaphore::new(1);
    let is_ready = poll_fn(|cx| {
        // tokio lets a task do so much at a time, and then has it wait for everything.
        let has_budget =
            |cx: &mut Context<'_>| std::pin::pin!(plenty.acquire()).poll(cx).is_ready();
        assert!((0..10_000).any(|_| !has_budget(cx)), "the budget is used up");
        Poll::Ready(service.poll_ready(cx).is_ready())
    });
    assert!(is_ready.await);
}

async fn a_connection_that_has_ended_is_told_by_the_call(fixture: Fixture) {
    let (_pair, serving) = fixture.pair_with(|builder| builder).await;
    // One that connected again would shed the load meanwhile.
    let channel = serving.endpoint().connect_once().await.expect("it listens");
    let client = ConformanceClient::new(channel);
    let client = layered(&client, ServiceBuilder::new().buffer(4).load_shed());
    client.echo(blob()).await.expect("echo");
    serving.drop_serving().await;
    for _ in 0..2 {
        let status = client.echo(blob()).await.expect_err("the server is gone");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        // GOAWAY may have come before the end: it has no cause but its words.
        let has_cause = status.source().is_some() || status.message().contains("shutting down");
        assert!(status.peer().is_some() && has_cause, "{status:?}");
    }
}
