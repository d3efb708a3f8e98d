use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::buf::Body;
use crate::client::channel::Way;
use crate::client::{Channel, Client};
use crate::config::Random;
use crate::error::ErrorKind;
use crate::error_details::{ErrorDetails, RetryInfo};
use crate::request::{Request, Response};
use crate::server::{Server, Sessions};
use crate::service::{HandlerFuture, MethodDescriptor, Service, unary, unknown_method};
use crate::status::Code;
use crate::transport::mem::MemTransport;
use crate::transport::{BoxFuture, Established, Listener, LocalSide};

const SECOND: Duration = Duration::from_secs(1);

static ONE: ServiceDescriptor =
    ServiceDescriptor::new("test.One", &[MethodDescriptor::new("Echo", "/test.One/Echo")]);
static TWO: ServiceDescriptor = ServiceDescriptor::new(
    "test.Two",
    &[
        MethodDescriptor::new("Ping", "/test.Two/Ping"),
        MethodDescriptor::new("Echo", "/test.Two/Echo"),
    ],
);

/// Answers with the path that was called, and what came.
struct Echo(&'static ServiceDescriptor);

impl Service for Echo {
    fn descriptor(&self) -> &ServiceDescriptor {
        self.0
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        let Some(method) = self.0.methods.get(method) else {
            return unknown_method(self.0, method);
        };
        unary(request, |_: Request<Bytes>| async { Ok(Response::new(Bytes::from(method.path))) })
    }
}

/// `mem://` of which the first attempts fail, and which notes when each is made.
#[derive(Default)]
struct Flaky {
    fails: usize,
    made: Mutex<Vec<Instant>>,
    under_way: AtomicUsize,
}

impl Flaky {
    fn failing(fails: usize) -> Arc<Self> {
        Arc::new(Self { fails, ..Self::default() })
    }

    fn made(&self) -> Vec<Instant> {
        lock(&self.made).clone()
    }
}

impl Transport for Flaky {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        Box::pin(async move {
            assert_eq!(self.under_way.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            lock(&self.made).push(Instant::now());
            sleep(SECOND / 10).await;
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            if self.made().len() <= self.fails {
                return Err(Error::new(ErrorKind::Unreachable, "nobody is there, as told"));
            }
            MemTransport.connect(target, local).await
        })
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        MemTransport.listen(target)
    }

    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        MemTransport.alloc(len, deadline)
    }
}

fn config() -> ClientConfig {
    ClientConfig {
        reconnect_backoff: (SECOND, 10 * SECOND),
        random: Random::from_seed(3),
        ..ClientConfig::default()
    }
}

async fn serve(name: &str, max_methods: u32) -> JoinHandle<()> {
    let builder = Server::builder().add_service(Echo(&ONE)).add_service(Echo(&TWO));
    let at = Target::new("mem", name);
    let builder = builder.max_interned_methods(max_methods);
    let bound = builder.bind([(Arc::new(MemTransport) as _, at)]).await.expect("a free name");
    tokio::spawn(async move { drop(bound.serve().await) })
}

fn lazy(transport: &Arc<Flaky>, name: &str) -> Channel {
    Channel::connect_lazy(Arc::clone(transport) as _, &Target::new("mem", name), &config())
}

fn patient() -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    request.set_wait_for_ready(true);
    request
}

async fn call(client: &Client, method: usize) -> Result<Bytes, Status> {
    client.unary(method, patient()).await.map(Response::into_inner)
}

fn client(channel: &Channel, service: &'static ServiceDescriptor) -> Client {
    Client::new(channel.clone(), service)
}

#[tokio::test(start_paused = true)]
async fn attempts_are_made_one_at_a_time_after_delays_that_grow() {
    let flaky = Flaky::failing(6);
    let channel = lazy(&flaky, "managed-grow");
    let _server = serve("managed-grow", 100).await;
    let calls: Vec<_> = (0..50)
        .map(|_| tokio::spawn(client(&channel, &ONE).unary::<_, Bytes>(0, patient())))
        .collect();
    for call in calls {
        call.await.expect("no panic").expect("the seventh attempt succeeds");
    }
    let made = flaky.made();
    let waits: Vec<_> = made.windows(2).map(|pair| pair[1] - pair[0] - SECOND / 10).collect();
    assert_eq!(waits.len(), 6);
    for (wait, expected) in waits.iter().zip([1.0, 1.6, 2.56, 4.096, 6.5536, 10.0]) {
        let share = wait.as_secs_f64() / expected;
        assert!((0.79..=1.21).contains(&share), "{wait:?} for {expected} s");
    }
}

async fn until(channel: &Channel, state: ConnectivityState) {
    let reached = async {
        let mut now = channel.state();
        while now != state {
            now = channel.state_changed(now).await;
        }
    };
    assert!(timeout(100 * SECOND, reached).await.is_ok(), "not {state}: {}", channel.state());
}

async fn connected(transport: &Arc<Flaky>, name: &str) -> Channel {
    let target = Target::new("mem", name);
    let channel = Channel::connect(Arc::clone(transport) as _, &target, &config()).await;
    channel.expect("it listens")
}

async fn end(server: JoinHandle<()>) {
    server.abort();
    assert!(server.await.is_err_and(|error| error.is_cancelled()));
}

/// Attempts in a minute in which the server ends each connection at once, after a call or without any.
async fn attempts_at_a_dying_server(name: &str, calls: bool) -> usize {
    let flaky = Flaky::failing(0);
    let mut server = serve(name, 0).await;
    let channel = connected(&flaky, name).await;
    let begun = Instant::now();
    while begun.elapsed() < 60 * SECOND {
        until(&channel, ConnectivityState::Ready).await;
        if calls {
            call(&client(&channel, &ONE), 0).await.expect("echo");
        }
        end(server).await;
        channel.state_changed(ConnectivityState::Ready).await;
        server = serve(name, 0).await;
    }
    flaky.made().len()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_connections_and_drops_them_is_not_stormed() {
    let made = attempts_at_a_dying_server("managed-drops", false).await;
    assert!((5..=14).contains(&made), "{made} attempts in a minute");
    let made = attempts_at_a_dying_server("managed-serves", true).await;
    assert!(made > 300, "where calls succeed it is connected to at once, not {made} times");
}

#[tokio::test(start_paused = true)]
async fn a_client_keeps_its_method_numbers_over_connections() {
    for max in [100, 2, 0] {
        let name = format!("managed-numbers-{max}");
        let flaky = Flaky::failing(0);
        let server = serve(&name, 100).await;
        let channel = connected(&flaky, &name).await;
        let (two, one) = (client(&channel, &TWO), client(&channel, &ONE));
        for _ in 0..3 {
            assert_eq!(call(&one, 0).await.expect("echo"), "/test.One/Echo");
        }
        end(server).await;
        until(&channel, ConnectivityState::TransientFailure).await;
        // A server that remembers fewer numbers ends connections that use more of them.
        let _server = serve(&name, max).await;
        for _ in 0..3 {
            assert_eq!(call(&one, 0).await.expect("echo"), "/test.One/Echo");
            assert_eq!(call(&two, 1).await.expect("echo"), "/test.Two/Echo");
            assert_eq!(call(&two, 0).await.expect("ping"), "/test.Two/Ping");
        }
        // The first, one that failed, and one that has lasted.
        assert_eq!(flaky.made().len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_plain_call_fails_with_the_first_attempt_that_does_and_says_why() {
    let flaky = Flaky::failing(usize::MAX);
    let channel = lazy(&flaky, "managed-none");
    let begun = Instant::now();
    let status = client(&channel, &ONE).unary::<_, Bytes>(0, Request::new(Bytes::new()));
    let status = status.await.expect_err("nobody is there");
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::No));
    let words = status.message();
    assert!(words.contains("mem://managed-none") && words.contains("as told"), "{words}");
    assert!(words.contains("set_wait_for_ready"), "{words}");
    assert_eq!(begun.elapsed(), SECOND / 10);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_ends_at_its_deadline_and_says_what_it_waited_for() {
    let flaky = Flaky::failing(usize::MAX);
    let channel = lazy(&flaky, "managed-late");
    let mut request = patient();
    request.set_timeout(7 * SECOND);
    let begun = Instant::now();
    let status = client(&channel, &ONE).unary::<_, Bytes>(0, request).await;
    let status = status.expect_err("nobody is there");
    assert_eq!(begun.elapsed(), 7 * SECOND);
    assert_eq!((status.code(), status.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(status.message().contains("as told"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_channel_tries_no_more() {
    let flaky = Flaky::failing(usize::MAX);
    let channel = lazy(&flaky, "managed-dropped");
    let call = client(&channel, &ONE).unary::<_, Bytes>(0, Request::new(Bytes::new()));
    call.await.expect_err("nobody is there");
    let before = flaky.made().len();
    drop(channel);
    sleep(1000 * SECOND).await;
    assert_eq!(flaky.made().len(), before);
    assert_eq!(runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[test]
fn a_channel_whose_runtime_is_gone_says_so() {
    let build = || runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (other, own) = (build(), build());
    let channel = other.block_on(async { lazy(&Flaky::failing(0), "managed-gone") });
    drop(other);
    let ended = own.block_on(call(&client(&channel, &ONE), 0)).expect_err("nobody connects");
    assert_eq!((ended.code(), ended.executed()), (Code::Unavailable, Executed::No));
    assert!(ended.message().contains("runtime"), "{ended}");
    assert_eq!(channel.state(), ConnectivityState::Shutdown);
}

fn managed(channel: &Channel) -> &Managed {
    match channel.innermost() {
        Way::Managed(managed) => managed,
        _ => unreachable!("it is managed"),
    }
}

impl Managed {
    fn one(&self) -> &Arc<Subchannel> {
        match &self.to {
            To::One(subchannel) => subchannel,
            To::Many(_) => unreachable!("it has one address"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_go_over_the_preferred_connection_while_it_lives_and_then_over_the_primary() {
    let (flaky, name) = (Flaky::failing(0), "managed-preferred");
    let _server = serve(name, 100).await;
    let channel = connected(&flaky, name).await;
    let subchannel = managed(&channel).one();
    let primary = subchannel.link().expect("connected");
    let methods = Arc::clone(&managed(&channel).methods);
    let second = Connector::new(Arc::new(MemTransport), subchannel.target(), &config(), methods);
    let preferred = second.connect().await.expect("it listens");
    subchannel.prefer(&primary, Arc::clone(&preferred));
    let picked = |turn: Option<&Turn>| match managed(&channel).pick(turn, None) {
        Picked::Link(found) => found.link,
        _ => unreachable!("there is a connection"),
    };
    assert!(Arc::ptr_eq(&picked(None), &preferred));
    // Who has a turn goes where it is worth something.
    let turn = Turn::on(Arc::clone(primary.shared())).await;
    assert!(Arc::ptr_eq(&picked(Some(&turn)), &primary));
    call(&client(&channel, &ONE), 0).await.expect("echo");
    assert!(preferred.shared().has_served() && !primary.shared().has_served());
    preferred.shared().connection.close(Error::new(ErrorKind::Lost, "as told"));
    call(&client(&channel, &ONE), 0).await.expect("made again over the other");
    assert!(primary.shared().has_served());
    assert!(Arc::ptr_eq(&picked(None), &primary));
    assert_eq!((channel.state(), flaky.made().len()), (ConnectivityState::Ready, 1));
    // Of a generation that is over.
    primary.shared().connection.close(Error::new(ErrorKind::Lost, "as told"));
    until(&channel, ConnectivityState::Connecting).await;
    subchannel.prefer(&primary, preferred);
    until(&channel, ConnectivityState::Ready).await;
    call(&client(&channel, &ONE), 0).await.expect("echo");
    assert_eq!(flaky.made().len(), 2);
}

/// Waits until it may answer.
struct Gate(Arc<Semaphore>, Arc<AtomicUsize>);

impl Service for Gate {
    fn descriptor(&self) -> &ServiceDescriptor {
        &ONE
    }

    fn call(&self, _method: usize, request: Request<Body>) -> HandlerFuture {
        self.1.fetch_add(1, Ordering::SeqCst);
        let gate = Arc::clone(&self.0);
        unary(request, |_: Request<Bytes>| async move {
            gate.acquire().await.expect("it is not closed").forget();
            Ok(Response::new(Bytes::from_static(b"once")))
        })
    }
}

/// The server lives, and its connection does not.
#[tokio::test(start_paused = true)]
async fn a_call_with_a_slot_that_was_cut_off_has_the_answer_of_its_first_attempt() {
    let (flaky, name) = (Flaky::failing(0), "managed-slot");
    let (gate, sessions) = (Arc::new(Semaphore::new(0)), Sessions::default());
    let entered = Arc::new(AtomicUsize::new(0));
    let service = Gate(Arc::clone(&gate), Arc::clone(&entered));
    let builder = Server::builder().add_service(service).sessions(&sessions);
    let at = Target::new("mem", name);
    let bound = builder.bind([(Arc::new(MemTransport) as _, at)]).await.expect("a free name");
    tokio::spawn(bound.serve());
    let channel = connected(&flaky, name).await;
    let slot = channel.open_session().await.expect("it has sessions").slot().await;
    let mut request = patient();
    request.set_slot(slot.id());
    let call = tokio::spawn(client(&channel, &ONE).unary::<_, Bytes>(0, request));
    sleep(SECOND).await;
    assert_eq!(entered.load(Ordering::SeqCst), 1, "it runs");
    let link = managed(&channel).one().link().expect("connected");
    link.shared().connection.close(Error::new(ErrorKind::Lost, "as told"));
    sleep(SECOND).await;
    gate.add_permits(2);
    let reply = call.await.expect("no panic").expect("the first attempt's answer");
    assert_eq!(reply.into_inner(), "once");
    assert_eq!((entered.load(Ordering::SeqCst), gate.available_permits()), (1, 1));
    assert_eq!(flaky.made().len(), 2);
}

/// Fails so many calls with `Unavailable`, and says when to come back if it is told to.
struct Fails {
    service: &'static ServiceDescriptor,
    left: Arc<AtomicUsize>,
    entered: Arc<AtomicUsize>,
    says: Option<Duration>,
}

static REPEATED: ServiceDescriptor = ServiceDescriptor::new(
    "test.Repeated",
    &[MethodDescriptor::new("Echo", "/test.Repeated/Echo").idempotent()],
);

impl Service for Fails {
    fn descriptor(&self) -> &ServiceDescriptor {
        self.service
    }

    fn call(&self, _method: usize, request: Request<Body>) -> HandlerFuture {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let take = |left: usize| left.checked_sub(1);
        let fails = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        let mut status = Status::unavailable("as told");
        if let Some(after) = self.says {
            let details = ErrorDetails::new().with(RetryInfo::after(after));
            status = status.with_error_details(&details);
        }
        unary(request, move |_: Request<Bytes>| async move {
            if fails { Err(status) } else { Ok(Response::new(Bytes::new())) }
        })
    }
}

/// A channel to a server that fails so many calls; how many came to it.
async fn failing(
    name: &str,
    service: &'static ServiceDescriptor,
    fails: usize,
    says: Option<Duration>,
    retry: Option<RetryPolicy>,
) -> (Client, Arc<AtomicUsize>) {
    let (left, entered) = (Arc::new(AtomicUsize::new(fails)), Arc::new(AtomicUsize::new(0)));
    let service_of = Fails { service, left, entered: Arc::clone(&entered), says };
    let target = Target::new("mem", name);
    let at = [(Arc::new(MemTransport) as _, target.clone())];
    let bound = Server::builder().add_service(service_of).bind(at).await.expect("a free name");
    tokio::spawn(bound.serve());
    let config = ClientConfig { retry, ..config() };
    let channel = Channel::connect(Arc::new(MemTransport), &target, &config).await;
    (Client::new(channel.expect("it listens"), service), entered)
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_call_is_made_again_as_the_policy_says() {
    let policy = || Some(RetryPolicy::default().backoff(SECOND, SECOND));
    let (client, entered) = failing("retry-yes", &REPEATED, 2, None, policy()).await;
    let begun = Instant::now();
    call(&client, 0).await.expect("the third attempt");
    assert_eq!(entered.load(Ordering::SeqCst), 3);
    let took = begun.elapsed().as_secs_f64();
    assert!((1.6..=2.5).contains(&took), "{took} s for two waits");
    // Not more often than that.
    let (client, entered) = failing("retry-three", &REPEATED, 9, None, policy()).await;
    let status = call(&client, 0).await.expect_err("three attempts");
    assert_eq!((entered.load(Ordering::SeqCst), status.executed()), (3, Executed::Yes));
    // Nor where a repeat would run a handler twice that must run once.
    let (client, entered) = failing("retry-no", &ONE, 1, None, policy()).await;
    call(&client, 0).await.expect_err("it ran");
    assert_eq!(entered.load(Ordering::SeqCst), 1);
    // Nor without a policy.
    let (client, entered) = failing("retry-none", &REPEATED, 1, None, None).await;
    call(&client, 0).await.expect_err("nobody asked for more");
    assert_eq!(entered.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_as_the_server_says_and_never_beyond_the_deadline() {
    let says = Some(7 * SECOND);
    let (client, entered) = failing("retry-told", &REPEATED, 1, says, None).await;
    let request = |timeout| {
        let mut request = patient();
        request.set_timeout(timeout);
        request.set_retry(RetryPolicy::default());
        request
    };
    let begun = Instant::now();
    let reply = client.unary::<_, Bytes>(0, request(20 * SECOND)).await;
    reply.expect("the second attempt");
    assert_eq!((begun.elapsed(), entered.load(Ordering::SeqCst)), (7 * SECOND, 2));
    let (client, entered) = failing("retry-late", &REPEATED, 1, says, None).await;
    let begun = Instant::now();
    let status = client.unary::<_, Bytes>(0, request(6 * SECOND)).await.expect_err("no time");
    assert_eq!((status.code(), entered.load(Ordering::SeqCst)), (Code::Unavailable, 1));
    assert!(begun.elapsed() < SECOND, "it does not wait in vain");
}

#[tokio::test(start_paused = true)]
async fn retries_stop_where_most_calls_fail() {
    let policy = RetryPolicy::default().max_attempts(2);
    let (client, entered) = failing("retry-budget", &REPEATED, 10_000, None, Some(policy)).await;
    for _ in 0..1000 {
        call(&client, 0).await.expect_err("all fail");
    }
    let entered = entered.load(Ordering::SeqCst);
    assert!((1001..1060).contains(&entered), "{entered} attempts at 1000 calls");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_no_connection_is_made_again_as_the_policy_says() {
    let flaky = Flaky::failing(2);
    let _server = serve("retry-connect", 100).await;
    let channel = lazy(&flaky, "retry-connect");
    let mut request = Request::new(Bytes::new());
    request.set_retry(RetryPolicy::default().max_attempts(9).backoff(SECOND, 2 * SECOND));
    // Not executed, so that it need not be idempotent.
    let reply = client(&channel, &ONE).unary::<_, Bytes>(0, request).await;
    reply.expect("the third attempt to connect succeeds");
}
