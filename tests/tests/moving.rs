//! What a call sees of the move to a second path, in time: nothing. Both paths are networks of software NICs on a clock of their own, with
//! a delay for every message.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use verbwire_core::client::Client;
use verbwire_core::config::ClientConfig;
use verbwire_core::metadata::MetadataValue;
use verbwire_core::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
use verbwire_core::transport::{Auto, Transport};
use verbwire_core::{Body, Channel, Code, Executed, Request, Response, Server, Status, Target};
use verbwire_rdma::fabric::{Death, Fabric, FabricConfig, Fate, Latency};
use verbwire_rdma::{FabricTransport, Published};

/// There and back.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// When nobody answers who connects.
const GIVEN_UP: Duration = Duration::from_millis(500);
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
        let latency = Latency { base: ROUND_TRIP / 2, ..Latency::NONE };
        let config =
            |seed| FabricConfig { latency, cm_timeout: GIVEN_UP, ..FabricConfig::new(seed) };
        let nets = [1, 2].map(|seed| Fabric::new(config(seed)));
        let names = ["first", "second"].map(|which| format!("{name}-{which}"));
        let published = [0, 1].map(|which| {
            FabricTransport::publish(&names[which], &nets[which]).expect("a free name")
        });
        let over = || ("fabric", Arc::new(FabricTransport::default()) as Arc<dyn Transport>);
        let beside = Target::new("fabric", format!("{}/server:0", names[1]));
        let auto = Arc::new(Auto::new(over(), over()).listening_at(beside)) as Arc<dyn Transport>;
        let target = Target::new("auto", format!("{}/server:0", names[0]));
        let builder = Server::builder().add_service(Echo);
        let bound = builder.bind([(Arc::clone(&auto), target)]).await.expect("a free port");
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

/// How many calls ended, and how long the longest took.
#[derive(Debug)]
struct Pace {
    calls: usize,
    longest: Duration,
}

/// A call begins every millisecond, until `done`.
async fn calls_until(channel: &Channel, done: impl Future<Output = ()>) -> Pace {
    let mut calls = JoinSet::new();
    let begin = async {
        loop {
            let channel = channel.clone();
            calls.spawn(async move {
                let began = Instant::now();
                echo(&channel, 0).await.expect("it may run again");
                began.elapsed()
            });
            sleep(Duration::from_millis(1)).await;
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
    let world = World::new("no-answer").await;
    world.nets[1].host("server").kill(Death::Host);
    let channel = world.connect().await;
    let failed = async {
        let tried =
            || channel.paths().expect("connected").why_not.contains("could not be connected");
        while !tried() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let began = Instant::now();
    let pace = calls_until(&channel, failed).await;
    assert!(began.elapsed() > GIVEN_UP, "somebody answered: {pace:?}");
    assert!(pace.longest <= ROUND_TRIP + TICKS, "{pace:?}");
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
