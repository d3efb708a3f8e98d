//! Received messages that a program holds: it is told, their short fields are copied out, and beyond a budget nothing more
//! is received. Also whose device is removed meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use verbwire_core::client::Client;
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput,
    client_streaming, server_streaming, unary, unknown_method,
};
use verbwire_core::transport::pressure::{Pressure, PressureWatch};
use verbwire_core::transport::{Flush, Transport};
use verbwire_core::{
    Body, Channel, Code, ErrorKind, Executed, Request, Response, Server, Status, Streaming, Target,
};
use verbwire_rdma::fabric::Death;
use verbwire_rdma::pool::PoolSnapshot;
use verbwire_rdma::{Peers, RdmaConfig};

use crate::pair::{Net, PROFILES, drive, exact, pattern, receive_all, request, send};

const LEN: usize = 1 << 20;
/// As a message of `Bytes`: a tag of one byte and a length of three before it.
const ENCODED: usize = LEN + 4;
/// A region for so much.
const REGION: usize = LEN + 8192;

static KEEP: ServiceDescriptor = ServiceDescriptor::new(
    "test.Keep",
    &[
        MethodDescriptor::new("Keep", "/test.Keep/Keep"),
        MethodDescriptor::new("Give", "/test.Keep/Give"),
        MethodDescriptor::new("KeepAll", "/test.Keep/KeepAll").client_streaming(),
        MethodDescriptor::new("GiveAll", "/test.Keep/GiveAll").server_streaming(),
        MethodDescriptor::new("Ignore", "/test.Keep/Ignore").client_streaming(),
    ],
);

type Kept = Arc<Mutex<Vec<Bytes>>>;

/// Keeps what it is sent, or never looks at it; or sends a megabyte, or many of them.
struct Keep {
    kept: Kept,
    watches: UnboundedSender<PressureWatch>,
}

impl Service for Keep {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &KEEP
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        let (kept, watches) = (Arc::clone(&self.kept), self.watches.clone());
        match method {
            0 => unary(request, |request: Request<Bytes>| async move {
                watches.send(request.memory_pressure()).expect("the test listens");
                lock(&kept).push(request.into_inner());
                Ok(Response::new(Bytes::new()))
            }),
            1 => unary(
                request,
                |_: Request<Bytes>| async move { Ok(Response::new(pattern(1, LEN))) },
            ),
            other => unknown_method(&KEEP, other),
        }
    }

    fn call_streaming(&self, method: usize, request: Request<StreamInput>) -> StreamHandlerFuture {
        let kept = Arc::clone(&self.kept);
        if method == 2 {
            return client_streaming(request, |mut all: Request<Streaming<Bytes>>| async move {
                while let Some(message) = all.get_mut().message().await? {
                    lock(&kept).push(message);
                }
                Ok(Response::new(Bytes::new()))
            });
        }
        if method == 4 {
            return client_streaming(request, |unread: Request<Streaming<Bytes>>| async move {
                std::future::pending::<()>().await;
                drop(unread);
                Ok(Response::new(Bytes::new()))
            });
        }
        server_streaming(request, |_: Request<Bytes>| async move {
            Ok(Response::new(tokio_stream::iter((0..8).map(|number| Ok(pattern(number, LEN))))))
        })
    }
}

fn lock(kept: &Kept) -> std::sync::MutexGuard<'_, Vec<Bytes>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// May hold four messages; reads them in place.
fn small() -> RdmaConfig {
    let mut config = exact();
    config.peers = Peers::Trusted;
    config.landing.pinned_budget = 4 * REGION;
    config
}

struct Rig {
    net: Net,
    channel: Channel,
    client: Client,
    kept: Kept,
    watches: tokio::sync::mpsc::UnboundedReceiver<PressureWatch>,
}

impl Rig {
    async fn new(configs: [RdmaConfig; 2]) -> Self {
        let net = Net::with(PROFILES[0], 1, configs);
        let transport = |at: usize| Arc::new(net.transports[at].clone()) as Arc<dyn Transport>;
        let target = Target::new("fabric", "far:7");
        let (kept, (sender, watches)) = (Kept::default(), unbounded_channel());
        let service = Keep { kept: Arc::clone(&kept), watches: sender };
        let builder = Server::builder().add_service(service).random(Random::from_seed(1));
        let bound = builder.bind([(transport(1), target.clone())]).await.expect("free");
        tokio::spawn(async move { bound.serve().await });
        let mut config = ClientConfig::default();
        config.random = Random::from_seed(2);
        let channel = Channel::connect_once(transport(0), &target, &config).await.expect("connect");
        let client = Client::new(channel.clone(), &KEEP);
        Self { net, channel, client, kept, watches }
    }

    async fn keep(&self, number: u32) -> Result<(), Status> {
        let mut request = Request::new(pattern(number, LEN));
        request.set_timeout(Duration::from_secs(2));
        self.client.unary::<_, Bytes>(0, request).await.map(drop)
    }

    async fn give(&self) -> Result<Bytes, Status> {
        let mut request = Request::new(Bytes::new());
        request.set_timeout(Duration::from_secs(2));
        self.client.unary::<_, Bytes>(1, request).await.map(Response::into_inner)
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_requests_is_told_and_beyond_its_budget_callers_are() {
    let mut rig = Rig::new([exact(), small()]).await;
    rig.keep(0).await.expect("room");
    let mut watch = rig.watches.recv().await.expect("a request came");
    assert_eq!((watch.now(), watch.pinned(), watch.budget()), (Pressure::None, REGION, 4 * REGION));
    for number in 1..4 {
        rig.keep(number).await.expect("room");
    }
    assert_eq!(watch.changed().await, Some(Pressure::High));
    let status = rig.keep(4).await.expect_err("the budget is spent");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No));
    let words = format!("pin {0} bytes, the budget is {0}", 4 * REGION);
    assert!(status.message().contains(&words), "{status}");
    lock(&rig.kept).truncate(1);
    assert_eq!(watch.changed().await, Some(Pressure::None));
    rig.keep(5).await.expect("room again");
    lock(&rig.kept).clear();
    assert_eq!(rig.channel.memory_pressure().now(), Pressure::None, "the other side holds nothing");
    sleep(Duration::from_millis(100)).await;
    rig.net.assert_pools_idle();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_replies_is_told_and_beyond_its_budget_by_its_own_deadline() {
    let rig = Rig::new([small(), exact()]).await;
    let mut watch = rig.channel.memory_pressure();
    let mut kept = Vec::new();
    for _ in 0..4 {
        kept.push(rig.give().await.expect("room"));
    }
    assert_eq!(watch.changed().await, Some(Pressure::High));
    let status = rig.give().await.expect_err("the budget is spent");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let words = format!("pin {0} bytes, the budget is {0}", 4 * REGION);
    assert!(status.message().contains(&words), "{status}");
    kept.clear();
    assert_eq!(watch.changed().await, Some(Pressure::None));
    rig.give().await.expect("room again");
    sleep(Duration::from_millis(100)).await;
    rig.net.assert_pools_idle();
}

#[tokio::test(start_paused = true)]
async fn a_stream_beyond_what_a_server_keeps_ends_in_time_to_say_so() {
    let rig = Rig::new([exact(), small()]).await;
    for number in 0..4 {
        rig.keep(number).await.expect("room");
    }
    let mut request = Request::new(tokio_stream::iter((0..8).map(|number| pattern(number, LEN))));
    request.set_timeout(Duration::from_secs(2));
    let called = rig.client.client_streaming::<Bytes, Bytes, _>(2, request).await;
    let status = called.expect_err("the budget is spent");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::Yes));
    let words = format!("pin {0} bytes, the budget is {0}", 4 * REGION);
    assert!(status.message().contains(&words), "{status}");
    assert_eq!(lock(&rig.kept).len(), 4, "no message of the stream came");
    lock(&rig.kept).clear();
    rig.keep(0).await.expect("room again");
    lock(&rig.kept).clear();
    sleep(Duration::from_millis(100)).await;
    rig.net.assert_pools_idle();
}

#[tokio::test(start_paused = true)]
async fn a_stream_beyond_what_a_client_keeps_says_so_at_its_deadline() {
    let rig = Rig::new([small(), exact()]).await;
    let mut kept = Vec::new();
    for _ in 0..4 {
        kept.push(rig.give().await.expect("room"));
    }
    let mut request = Request::new(Bytes::new());
    request.set_timeout(Duration::from_secs(2));
    let called = rig.client.server_streaming::<Bytes, Bytes>(3, request).await;
    let mut replies = called.expect("it begins").into_inner();
    let status = replies.message().await.expect_err("the budget is spent");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let words = format!("pin {0} bytes, the budget is {0}", 4 * REGION);
    assert!(status.message().contains(&words), "{status}");
    drop(kept);
    rig.give().await.expect("room again");
    sleep(Duration::from_millis(100)).await;
    rig.net.assert_pools_idle();
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_messages_no_region_of_its_client_holds_ends_at_once_in_words() {
    let mut short = small();
    short.landing.size.longest = LEN / 2;
    let rig = Rig::new([short, exact()]).await;
    let mut request = Request::new(Bytes::new());
    request.set_timeout(PATIENT);
    let begun = Instant::now();
    let called = rig.client.server_streaming::<Bytes, Bytes>(3, request).await;
    let mut replies = called.expect("it begins").into_inner();
    let status = replies.message().await.expect_err("it does not fit");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("no memory to receive a message in"), "{status}");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn streams_of_requests_that_nobody_reads_hold_a_quarter_of_what_may_be_held() {
    let rig = Rig::new([exact(), small()]).await;
    let unread = (0..12).map(|_| {
        let client = rig.client.clone();
        tokio::spawn(async move {
            let requests = tokio_stream::iter((0..8).map(|number| pattern(number, LEN)));
            let mut request = Request::new(requests);
            request.set_timeout(PATIENT);
            client.client_streaming::<Bytes, Bytes, _>(4, request).await
        })
    });
    let unread: Vec<_> = unread.collect();
    sleep(Duration::from_secs(1)).await;
    let landing = rig.landing(1);
    assert_eq!((landing.pinned_bytes, landing.copied_bytes), (REGION, 11 * ENCODED as u64));
    for number in 0..3 {
        rig.keep(number).await.expect("three quarters are left to others");
    }
    lock(&rig.kept).clear();
    unread.iter().for_each(|call| call.abort());
    sleep(Duration::from_millis(100)).await;
    rig.net.assert_pools_idle();
}

#[tokio::test(start_paused = true)]
async fn streams_of_replies_that_nobody_reads_hold_a_quarter_of_what_may_be_held() {
    let rig = Rig::new([small(), exact()]).await;
    let mut unread = Vec::new();
    for _ in 0..12 {
        let mut request = Request::new(Bytes::new());
        request.set_timeout(PATIENT);
        let called = rig.client.server_streaming::<Bytes, Bytes>(3, request).await;
        unread.push(called.expect("it begins").into_inner());
    }
    sleep(Duration::from_secs(1)).await;
    let landing = rig.landing(0);
    assert_eq!((landing.pinned_bytes, landing.copied_bytes), (REGION, 11 * ENCODED as u64));
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(rig.give().await.expect("three quarters are left to others"));
    }
    for (number, replies) in (0..).zip(&mut unread) {
        let first = replies.message().await.expect("it goes on").expect("there are more");
        assert!(first == pattern(0, LEN), "stream {number}");
    }
    drop((kept, unread));
    sleep(Duration::from_millis(100)).await;
    rig.net.assert_pools_idle();
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_read_is_not_copied_however_long_it_is() {
    let rig = Rig::new([small(), exact()]).await;
    for _ in 0..3 {
        let called = rig.client.server_streaming::<Bytes, Bytes>(3, Request::new(Bytes::new()));
        let mut replies = called.await.expect("it begins").into_inner();
        while let Some(reply) = replies.message().await.expect("it goes on") {
            assert_eq!(reply.len(), LEN);
        }
    }
    let landing = rig.landing(0);
    assert_eq!((landing.pinned_bytes, landing.copied_bytes), (0, 0));
}

/// What of a message a program keeps: a field of this length.
fn field(body: Body, len: usize) -> Bytes {
    let mut reader = body.reader();
    let field = reader.copy_to_bytes(len);
    reader.advance(reader.remaining());
    field
}

#[tokio::test(start_paused = true)]
async fn under_pressure_a_field_below_an_eighth_of_its_buffer_does_not_hold_it() {
    for profile in PROFILES {
        let net = Net::with(profile, 1, [exact(), small()]);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let landing = || net.transports[1].pools().landing;
        let receive = async |number| {
            send(&near, request(number, pattern(number, LEN)), Flush::Now).await.expect("open");
            receive_all(&far, 1).await.remove(0).body
        };
        let relaxed = field(receive(1).await, 8192);
        assert_eq!((landing().pinned_bytes, landing().copied_bytes), (REGION, 0));
        let held = [field(receive(2).await, LEN), field(receive(3).await, LEN)];
        assert_eq!(landing().pinned_bytes, 3 * REGION);
        let short = field(receive(4).await, LEN / 8 - 1);
        assert_eq!(
            (landing().pinned_bytes, landing().copied_bytes),
            (3 * REGION, LEN as u64 / 8 - 1)
        );
        assert!(short == pattern(4, LEN)[..LEN / 8 - 1]);
        let long = field(receive(5).await, LEN / 8);
        assert_eq!(landing().pinned_bytes, 4 * REGION);
        drop((relaxed, held, long));
        assert_eq!(landing().pinned_bytes, 0);
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

/// May hold one message.
fn tiny() -> RdmaConfig {
    let mut config = small();
    config.landing.pinned_budget = REGION;
    config
}

/// More than its calls need, were they served.
const PATIENT: Duration = Duration::from_secs(3600);

impl Rig {
    /// Calls `method` that often, on connections in turn, and waits until so many bodies wait for landing memory of host `at`.
    async fn waiting(&self, at: usize, method: usize, count: usize) -> JoinSet<Status> {
        let mut calls = JoinSet::new();
        let transport = Arc::new(self.net.transports[0].clone()) as Arc<dyn Transport>;
        let (target, config) = (Target::new("fabric", "far:7"), ClientConfig::default());
        for number in 0..count {
            let connecting = Channel::connect_once(Arc::clone(&transport), &target, &config);
            let client = Client::new(connecting.await.expect("connect"), &KEEP);
            let mut request = Request::new(pattern(1, if method == 0 { LEN } else { 0 }));
            request.set_timeout(PATIENT);
            calls.spawn(async move {
                let called = client.unary::<_, Bytes>(method, request).await;
                called.map(drop).expect_err("there is no memory for it")
            });
            while self.landing(at).waiting <= number {
                sleep(Duration::from_millis(1)).await;
            }
        }
        calls
    }

    fn landing(&self, at: usize) -> PoolSnapshot {
        self.net.transports[at].pools().landing
    }

    /// Removes the device of host `at`: how the calls end, and after which time.
    async fn removed(
        &self,
        at: usize,
        death: Death,
        calls: JoinSet<Status>,
    ) -> (Vec<Status>, Duration) {
        let begun = Instant::now();
        self.net.hosts[at].kill(death);
        let ended = calls.join_all().await;
        let took = begun.elapsed();
        // What the drivers of the connections held goes with them.
        sleep(Duration::from_secs(10)).await;
        assert_eq!(self.landing(at).waiting, 0, "{death:?}");
        (ended, took)
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_memory_of_a_device_that_is_removed_end_in_words() {
    for death in [Death::Process, Death::Host] {
        let rig = Rig::new([exact(), tiny()]).await;
        rig.keep(0).await.expect("room for one");
        let calls = rig.waiting(1, 0, 3).await;
        let (ended, took) = rig.removed(1, death, calls).await;
        assert_eq!(ended.len(), 3);
        // Of a host without power callers hear nothing, and have nothing to send: keep-alive finds it.
        let bound = Duration::from_secs(if death == Death::Process { 1 } else { 30 });
        ended.iter().for_each(|status| assert_eq!(status.code(), Code::Unavailable, "{status}"));
        assert!(took <= bound, "{death:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn replies_that_wait_for_memory_of_a_device_that_is_removed_end_in_words() {
    for death in [Death::Process, Death::Host] {
        let rig = Rig::new([tiny(), exact()]).await;
        let held = rig.give().await.expect("room for one");
        let calls = rig.waiting(0, 1, 3).await;
        let (ended, took) = rig.removed(0, death, calls).await;
        assert_eq!(ended.len(), 3);
        ended.iter().for_each(|status| assert_eq!(status.code(), Code::Unavailable, "{status}"));
        assert!(took < Duration::from_secs(1), "its own device: {took:?}");
        assert!(held == pattern(1, LEN), "what was received outlives its device");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_memory_to_send_from_outlives_the_device() {
    let mut config = exact();
    (config.staging.longest, config.staging.cap) = (LEN, LEN);
    let rig = Rig::new([config, exact()]).await;
    rig.keep(0).await.expect("the connection stands");
    let alloc = |within| {
        let transport = rig.net.transports[0].clone();
        tokio::spawn(async move { transport.alloc(LEN, Instant::now() + within).await })
    };
    let held = alloc(PATIENT).await.expect("no panic").expect("the only one");
    let (patient, hasty) = (alloc(PATIENT), alloc(Duration::from_secs(1)));
    sleep(Duration::from_millis(1)).await;
    rig.net.hosts[0].kill(Death::Process);
    let error = hasty.await.expect("no panic").expect_err("the only one is held");
    assert_eq!(error.kind(), ErrorKind::LocalResource, "{error}");
    assert!(error.to_string().contains("no buffer of 1048576 bytes came free"), "{error}");
    drop(held);
    assert_eq!(patient.await.expect("no panic").expect("it came free").len(), LEN);
}
