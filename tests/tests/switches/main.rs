//! Calls that move between two paths while the second one dies again and again: this process first, the software NIC beside it.
//!
//! Each seed is one run on a clock of its own, and the same each time. The death points are work requests of either side, chosen by the
//! seed: a post that fails, a process that ends, a machine that loses its power. After each the path comes back. Every call ends
//! once, by its deadline; what it carries is intact; its handler runs at most once, unless its method may run twice; and what a
//! status says of its handler is true. `SEED=7 cargo test --test switches` runs one again.
//!
//! `device`: the same calls over TCP and a device of the lab that goes away.

#[cfg(feature = "device")]
mod device;
mod ledger;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::transport::mem::MemTransport;
use verbwire_core::transport::{Auto, Transport};
use verbwire_core::{Channel, Server, Target};
use verbwire_rdma::fabric::{Death, Fabric, FabricConfig, Fate, Profile};
use verbwire_rdma::{FabricTransport, RdmaConfig};

use ledger::{Ledger, Load, Report, Runs};

/// Runs, and how often each moves to the second path: a thousand in all.
const SEEDS: u64 = 8;
const SWITCHES: u64 = 125;

/// How long a handler may run on that was cut off.
const SETTLED: Duration = Duration::from_secs(20);

/// A deadline is found on a timer of a millisecond.
const SLACK: Duration = Duration::from_millis(50);

/// What is said of a run: the same for the same seed.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    switches: u64,
    calls: Report,
    trace: u64,
}

struct World {
    seed: u64,
    fabric: Fabric,
    channel: Channel,
    runs: Runs,
}

impl World {
    async fn new(seed: u64) -> (Self, verbwire_rdma::Published) {
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
        (Self { seed, fabric, channel, runs }, published)
    }

    fn switches(&self) -> u64 {
        self.channel.paths().expect("the first path lives").switches
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

async fn run(seed: u64) -> Summary {
    let (world, _published) = World::new(seed).await;
    let load = Load::begin(&world.channel, &world.runs, seed, SLACK);
    world.break_paths().await;
    let calls = load.end(SETTLED).await;
    Summary { switches: world.switches(), calls, trace: world.fabric.trace_digest() }
}

fn run_alone(seed: u64) -> Summary {
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

fn assert_survived(seed: u64, summary: &Summary) {
    println!("seed {seed}: {summary:?}");
    assert!(summary.switches >= SWITCHES, "seed {seed}: {summary:?}");
    assert!(summary.calls.replies > 10 * SWITCHES, "seed {seed}: {summary:?}");
    assert!(summary.calls.cut_off() > 0, "seed {seed}: no death met a call: {summary:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(run_alone(3), run_alone(3));
}
