//! What a call sees of the move to a second path, in time: nothing. Both paths are networks of software NICs on a clock of their own, with
//! a delay for every message.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use verbwire_core::client::Client;
use verbwire_core::config::ClientConfig;
use verbwire_core::metadata::MetadataValue;
use verbwire_core::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
use verbwire_core::transport::{
    Accepting, Auto, BoxFuture, Established, Listener, LocalSide, Transport,
};
use verbwire_core::{
    Body, Buffer, Channel, Code, Error, Executed, Request, Response, Server, Status, Target,
};
use verbwire_rdma::fabric::{Fabric, FabricConfig, Fate, Latency};
use verbwire_rdma::{FabricTransport, Published};

/// There and back.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Timers tick in milliseconds.
const TICKS: Duration = Duration::from_millis(3);

static ECHO: ServiceDescriptor = ServiceDescriptor::new(
    "test.Echo",
    &[MethodDescriptor::new("Echo", "/test.Echo/Echo").idempotent()],
);

/// Answers with as many bytes of metadata as it was asked for.
struct Echo;

impl Service for Echo {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &ECHO
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        unary(request, |request: Request<u32>| async move {
            let len = request.into_inner();
            let mut response = Response::new(len);
            if len > 0 {
                let value = "x".repeat(len as usize);
                let value = MetadataValue::try_from(value).expect("text");
                response.metadata_mut().insert("k", value).expect("a name");
            }
            Ok(response)
        })
    }
}

struct World {
    /// Of the first and of the second path.
    nets: [Fabric; 2],
    auto: Arc<dyn Transport>,
    target: Target,
    _published: [Published; 2],
}

impl World {
    async fn new(name: &str) -> Self {
        Self::with(name, Arc::new(FabricTransport::default())).await
    }

    /// The server listens for second paths by `second`.
    async fn with(name: &str, second: Arc<dyn Transport>) -> Self {
        let latency = Latency { base: ROUND_TRIP / 2, ..Latency::NONE };
        let nets =
            [1, 2].map(|seed| Fabric::new(FabricConfig { latency, ..FabricConfig::new(seed) }));
        let names = ["first", "second"].map(|which| format!("{name}-{which}"));
        let published = [0, 1].map(|which| {
            FabricTransport::publish(&names[which], &nets[which]).expect("a free name")
        });
        let over = || ("fabric", Arc::new(FabricTransport::default()) as Arc<dyn Transport>);
        let beside = Target::new("fabric", format!("{}/server:0", names[1]));
        let served = Arc::new(Auto::new(over(), ("fabric", second)).listening_at(beside));
        let auto = Arc::new(Auto::new(over(), over())) as Arc<dyn Transport>;
        let target = Target::new("auto", format!("{}/server:0", names[0]));
        let builder = Server::builder().add_service(Echo);
        let bound =
            builder.bind([(served as Arc<dyn Transport>, target)]).await.expect("a free port");
        let target = bound.local_targets()[0].clone();
        tokio::spawn(bound.serve());
        Self { nets, auto, target, _published: published }
    }

    async fn connect(&self) -> Channel {
        let mut config = ClientConfig::default();
        config.path_backoff = (Duration::from_millis(200), Duration::from_secs(1));
        Channel::connect(Arc::clone(&self.auto), &self.target, &config).await.expect("it serves")
    }
}

async fn echo(channel: &Channel, len: u32) -> Result<Response<u32>, Status> {
    Client::new(channel.clone(), &ECHO).unary(0, Request::new(len)).await
}

async fn moved(channel: &Channel) {
    let second = async {
        while channel.paths().is_none_or(|paths| paths.second.is_none()) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), second).await.expect("it moves");
}

/// Listens, and answers nobody.
struct Mute(FabricTransport);

struct MuteListener(Box<dyn Listener>);

impl Transport for Mute {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        self.0.connect(target, local)
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        Box::pin(async move {
            let listener = self.0.listen(target).await?;
            Ok(Box::new(MuteListener(listener)) as Box<dyn Listener>)
        })
    }

    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.0.alloc(len, deadline)
    }
}

impl Listener for MuteListener {
    fn local_target(&self) -> &Target {
        self.0.local_target()
    }

    fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        Poll::Pending
    }
}

/// How many calls ended, and how long the longest took.
#[derive(Debug)]
struct Pace {
    calls: usize,
    longest: Duration,
}

/// A call begins every millisecond, until `done`.
async fn calls_until(channel: &Channel, done: impl Future<Output = ()>) -> Pace {
    calls_every(Duration::from_millis(1), channel, done).await
}

async fn calls_every(pause: Duration, channel: &Channel, done: impl Future<Output = ()>) -> Pace {
    let mut calls = JoinSet::new();
    let begin = async {
        loop {
            let channel = channel.clone();
            calls.spawn(async move {
                let began = Instant::now();
                echo(&channel, 0).await.expect("it may run again");
                began.elapsed()
            });
            sleep(pause).await;
        }
    };
    tokio::select! {
        () = begin => {}
        () = done => {}
    }
    let took = calls.join_all().await;
    Pace { calls: took.len(), longest: took.into_iter().max().unwrap_or_default() }
}

#[tokio::test(start_paused = true)]
async fn the_first_call_over_auto_takes_as_long_as_over_its_first_path_alone() {
    let world = World::new("first-call").await;
    let plain = Target::new("fabric", world.target.address());
    let began = Instant::now();
    let alone = Arc::new(FabricTransport::default());
    let alone = Channel::connect(alone, &plain, &ClientConfig::default()).await.expect("it serves");
    echo(&alone, 0).await.expect("served");
    let alone = began.elapsed();
    assert!(alone >= 2 * ROUND_TRIP, "{alone:?} is no time for connecting and calling");
    let began = Instant::now();
    let channel = world.connect().await;
    echo(&channel, 0).await.expect("served");
    let auto = began.elapsed();
    assert!(auto <= alone + TICKS, "{auto:?} over auto, {alone:?} over its first path alone");
    assert!(channel.paths().expect("connected").second.is_none(), "it has not moved yet");
    moved(&channel).await;
}

#[tokio::test(start_paused = true)]
async fn a_move_to_the_second_path_stalls_no_call() {
    let world = World::new("no-stall").await;
    let channel = world.connect().await;
    let pace = calls_until(&channel, async {
        moved(&channel).await;
        sleep(5 * ROUND_TRIP).await;
    })
    .await;
    assert!(pace.calls > 100 && pace.longest <= ROUND_TRIP + TICKS, "{pace:?}");
    let paths = channel.paths().expect("connected");
    let over = [paths.first.traffic.calls, paths.current().traffic.calls];
    assert!(over.iter().all(|calls| *calls > 20), "{over:?} of {pace:?}");
}

#[tokio::test(start_paused = true)]
async fn a_second_path_that_breaks_costs_the_calls_on_it_one_round_trip_and_others_nothing() {
    let world = World::new("no-stall-back").await;
    let channel = world.connect().await;
    moved(&channel).await;
    let host = world.nets[1].host("client");
    let broken = calls_until(&channel, async {
        sleep(2 * ROUND_TRIP).await;
        host.script(host.counters().work_requests + 1, Fate::PartialPost);
        while channel.paths().expect("connected").second.is_some() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(broken.longest > ROUND_TRIP + TICKS, "a call was cut off: {broken:?}");
    assert!(broken.longest <= 2 * ROUND_TRIP + TICKS, "{broken:?}");
    let back = calls_until(&channel, async {
        moved(&channel).await;
        sleep(2 * ROUND_TRIP).await;
    })
    .await;
    assert!(back.longest <= ROUND_TRIP + TICKS, "{back:?}");
    assert_eq!(channel.paths().expect("connected").switches, 2);
}

#[tokio::test(start_paused = true)]
async fn a_second_path_on_which_nobody_answers_stalls_no_call() {
    let mute = Arc::new(Mute(FabricTransport::default()));
    let world = World::with("no-answer", mute).await;
    let channel = world.connect().await;
    let why_not = || channel.paths().expect("connected").why_not;
    let failed = async {
        while !why_not().contains("could not be connected") {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let failed = async { timeout(Duration::from_secs(60), failed).await.expect("it gives up") };
    let began = Instant::now();
    let pace = calls_every(ROUND_TRIP, &channel, failed).await;
    assert!(began.elapsed() > Duration::from_secs(10), "somebody answered: {}", why_not());
    assert!(pace.calls > 100 && pace.longest <= ROUND_TRIP + TICKS, "{pace:?}");
}

#[tokio::test(start_paused = true)]
async fn metadata_of_a_reply_for_which_rdma_has_no_room_fails_its_call_in_words() {
    let world = World::new("reply-metadata").await;
    let channel = world.connect().await;
    let most = 6000;
    assert_eq!(echo(&channel, most).await.expect("over the first path").into_inner(), most);
    moved(&channel).await;
    assert_eq!(echo(&channel, most).await.expect("over the second").into_inner(), most);
    let status = echo(&channel, 8000).await.expect_err("there is no room");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::Yes));
    for words in ["reply metadata of 80", "eager_len", "PathPolicy::TcpOnly"] {
        assert!(status.message().contains(words), "{status}");
    }
    assert_eq!(echo(&channel, 0).await.expect("the path stands").into_inner(), 0);
    assert_eq!(channel.paths().expect("connected").switches, 1);
}
