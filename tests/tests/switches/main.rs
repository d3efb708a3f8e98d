//! Calls that move between two paths while the second one dies again and again: this process first, the software NIC beside it.
//!
//! Each seed is one run on a clock of its own, and the same each time. The death points are work requests of either side, chosen by the
//! seed: a post that fails, a process that ends, a machine that loses its power. After each the path comes back. Every call ends
//! once, by its deadline; what it carries is intact; its handler runs at most once, unless its method may run twice; and what a
//! status says of its handler is true. `SEED=7 cargo test --test switches` runs one again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use verbwire_core::client::Client;
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
use verbwire_core::transport::mem::MemTransport;
use verbwire_core::transport::{Auto, Transport};
use verbwire_core::{Body, Channel, Executed, Request, Response, Server, Status, Target};
use verbwire_rdma::fabric::{Death, Fabric, FabricConfig, Fate, Profile};
use verbwire_rdma::{FabricTransport, RdmaConfig};
use verbwire_tests::pattern;

/// Runs, and how often each moves to the second path: a thousand in all.
const SEEDS: u64 = 8;
const SWITCHES: u64 = 125;

/// Callers at a time.
const CALLERS: u64 = 8;

/// Deadline of each call: longer than it takes to find that a machine lost its power.
const DEADLINE: Duration = Duration::from_secs(20);

/// The method whose handler may run twice.
const IDEMPOTENT: usize = 1;

static LEDGER: ServiceDescriptor = ServiceDescriptor::new(
    "test.Ledger",
    &[
        MethodDescriptor::new("Once", "/test.Ledger/Once"),
        MethodDescriptor::new("Again", "/test.Ledger/Again").idempotent(),
    ],
);

/// By call: how often its handler ran.
type Runs = Arc<Mutex<BTreeMap<u64, u32>>>;

struct Ledger(Runs);

impl Service for Ledger {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &LEDGER
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        let runs = Arc::clone(&self.0);
        unary(request, |request: Request<Bytes>| async move {
            let message = request.into_inner();
            let number = number(&message);
            *lock(&runs).entry(number).or_default() += 1;
            if number.is_multiple_of(3) {
                sleep(Duration::from_millis(number % 40)).await;
            }
            Ok(Response::new(message))
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The message of a call: its number, and bytes that follow from it.
fn message(number: u64, len: usize) -> Bytes {
    [&number.to_le_bytes()[..], &pattern::payload(len, number)].concat().into()
}

fn number(message: &[u8]) -> u64 {
    message.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number))
}

/// What is said of a run: the same for the same seed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    switches: u64,
    replies: u64,
    failures: BTreeMap<String, u64>,
    /// Calls whose handler is said never to have run.
    not_executed: Vec<u64>,
    /// Calls whose handler ran more than once.
    twice: u64,
    trace: u64,
}

struct World {
    seed: u64,
    fabric: Fabric,
    channel: Channel,
    runs: Runs,
    report: Mutex<Report>,
}

impl World {
    async fn new(seed: u64) -> (Arc<Self>, verbwire_rdma::Published) {
        let profile = [Profile::Rxe, Profile::Siw, Profile::Mlx5Like][(seed % 3) as usize];
        let fabric = Fabric::new(FabricConfig { profile, ..FabricConfig::new(seed) });
        let net = format!("switches-{seed}-{:?}", std::thread::current().id());
        let net = net.replace(['(', ')'], "-");
        let published = FabricTransport::publish(&net, &fabric).expect("a free name");
        let auto = || {
            let second = Arc::new(FabricTransport::new(RdmaConfig::default()));
            let auto = Auto::new(("mem", Arc::new(MemTransport)), ("fabric", second));
            let beside = Target::new("fabric", format!("{net}/server:0"));
            Arc::new(auto.listening_at(beside)) as Arc<dyn Transport>
        };
        let (runs, target) = (Runs::default(), Target::new("mem", &*net));
        let server = Server::builder().random(Random::from_seed(seed));
        let server = server.add_service(Ledger(Arc::clone(&runs)));
        let bound = server.bind([(auto(), target.clone())]).await.expect("a free name");
        tokio::spawn(bound.serve());
        let mut config = ClientConfig::default();
        config.random = Random::from_seed(seed + 1);
        config.path_backoff = (Duration::from_millis(1), Duration::from_millis(50));
        let channel = Channel::connect(auto(), &target, &config).await.expect("it serves");
        let report = Mutex::default();
        (Arc::new(Self { seed, fabric, channel, runs, report }), published)
    }

    fn switches(&self) -> u64 {
        self.channel.paths().expect("the first path lives").switches
    }

    /// One caller: one call after the other, until nobody wants more.
    async fn call_on(self: Arc<Self>, caller: u64, stop: tokio::sync::watch::Receiver<bool>) {
        let client = Client::new(self.channel.clone(), &LEDGER);
        let mut random = fastrand::Rng::with_seed(self.seed << 8 | caller);
        for turn in 0.. {
            if *stop.borrow() {
                return;
            }
            let method = random.usize(0..2);
            let number = 2 * (turn * CALLERS + caller) + method as u64;
            let len = match random.u8(0..20) {
                0 => random.usize(0..300_000),
                1..4 => random.usize(0..30_000),
                _ => random.usize(0..600),
            };
            let sent = message(number, len);
            let mut request = Request::new(sent.clone());
            request.set_timeout(DEADLINE);
            let reply = client.unary::<Bytes, Bytes>(method, request);
            // A deadline is found on a timer of a millisecond.
            let ended = timeout(DEADLINE + Duration::from_millis(50), reply).await;
            assert!(ended.is_ok(), "seed {}: call {number} never ended", self.seed);
            let ended = ended.expect("looked at above");
            self.judge(number, &sent, ended);
            sleep(Duration::from_micros(random.u64(0..80_000))).await;
        }
    }

    fn judge(&self, number: u64, sent: &Bytes, ended: Result<Response<Bytes>, Status>) {
        let runs = lock(&self.runs).get(&number).copied().unwrap_or(0);
        let seed = self.seed;
        let mut report = lock(&self.report);
        match ended {
            Ok(reply) => {
                assert!(
                    reply.into_inner() == *sent,
                    "seed {seed}: call {number} came back changed"
                );
                assert!(runs >= 1, "seed {seed}: call {number} has a reply and did not run");
                report.replies += 1;
            }
            Err(status) => {
                let executed = status.executed();
                match executed {
                    Executed::No => report.not_executed.push(number),
                    Executed::Yes => assert!(runs >= 1, "seed {seed}: call {number}: {status:?}"),
                    Executed::Maybe => {}
                }
                let what = format!("{:?}, executed {executed:?}", status.code());
                *report.failures.entry(what).or_default() += 1;
            }
        }
    }

    /// Lets the second path die, as the seed says, as soon as it is there.
    async fn break_paths(&self) {
        let mut random = fastrand::Rng::with_seed(self.seed);
        for switch in 1..=SWITCHES {
            let up = async {
                while self.switches() < switch {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            let came = timeout(Duration::from_secs(300), up).await;
            assert!(came.is_ok(), "seed {}: {:?}", self.seed, self.channel.paths());
            let host = self.fabric.host(["client", "server"][random.usize(0..2)]);
            let nth = host.counters().work_requests + random.u64(1..60);
            match random.u8(0..8) {
                0 => host.kill_at(nth, Death::Process),
                1 => host.kill_at(nth, Death::Host),
                2 => host.kill(Death::Process),
                _ => host.script(nth, Fate::PartialPost),
            }
        }
    }
}

async fn run(seed: u64) -> Report {
    let (world, _published) = World::new(seed).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(Arc::clone(&world).call_on(caller, stopped.clone()));
    }
    world.break_paths().await;
    stop.send_replace(true);
    while let Some(ended) = callers.join_next().await {
        assert!(ended.is_ok(), "seed {seed}: {ended:?}");
    }
    // What a handler that was cut off did late shows, too.
    sleep(DEADLINE).await;
    let mut report = std::mem::take(&mut *lock(&world.report));
    let runs = lock(&world.runs);
    for (number, runs) in runs.iter().filter(|(_, runs)| **runs > 1) {
        let is_idempotent = number % 2 == IDEMPOTENT as u64;
        assert!(is_idempotent, "seed {seed}: call {number} ran {runs} times");
        report.twice += 1;
    }
    for number in &report.not_executed {
        assert_eq!(
            runs.get(number),
            None,
            "seed {seed}: call {number} ran, and was said not to have"
        );
    }
    drop(runs);
    report.switches = world.switches();
    report.trace = world.fabric.trace_digest();
    report
}

fn run_alone(seed: u64) -> Report {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build();
    runtime.expect("the system gives what a runtime needs").block_on(run(seed))
}

#[test]
fn calls_survive_a_thousand_deaths_of_their_second_path() {
    let only = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let seeds = only.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    // Each is a world of its own.
    std::thread::scope(|scope| {
        for seed in seeds {
            scope.spawn(move || assert_survived(seed, &run_alone(seed)));
        }
    });
}

fn assert_survived(seed: u64, report: &Report) {
    println!("seed {seed}: {report:?}");
    assert!(report.switches >= SWITCHES, "seed {seed}: {report:?}");
    assert!(report.replies > 10 * SWITCHES, "seed {seed}: {report:?}");
    let cut_off: u64 = report.failures.values().sum();
    assert!(cut_off > 0, "seed {seed}: no death met a call: {report:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(run_alone(3), run_alone(3));
}
