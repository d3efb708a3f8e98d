//! One run: hosts, servers and clients of a plan, its calls, and what must be true when all is over.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::transport::Transport;
use verbwire_core::{Channel, Server, Target};
use verbwire_rdma::fabric::{Fabric, FabricHost, FaultCounts, Malice};
use verbwire_rdma::{BufferCounts, PoolCounts, RdmaConfig, RdmaTransport};

use crate::calls::{Swap, make};
use crate::plan::{Moment, Plan, Weather};
use crate::world::World;

/// Longer than any call of any plan takes.
const ALL_CALLS: Duration = Duration::from_secs(300);

/// What a run has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) calls: usize,
    pub(crate) replies: usize,
    pub(crate) faults: FaultCounts,
    pub(crate) writes: u64,
    pub(crate) digest: u64,
    pub(crate) failures: Vec<String>,
}

/// Runs the scenario of a seed on a clock and a thread of its own.
pub(crate) fn run(seed: u64) -> Report {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("the system gives what a runtime needs");
    let report = runtime.block_on(scenario(Plan::new(seed)));
    drop(runtime);
    report
}

/// A host with its transport.
struct Place {
    host: FabricHost,
    transport: RdmaTransport,
}

impl Place {
    fn new(fabric: &Fabric, name: &str, config: &RdmaConfig) -> Self {
        let host = fabric.host(name);
        let transport = RdmaTransport::over_fabric(&host, config.clone());
        Self { host, transport }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.transport.clone())
    }
}

/// A server that serves.
struct Serving {
    target: Target,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn scenario(plan: Plan) -> Report {
    let world = Arc::new(World::new(plan));
    let plan = &world.plan;
    tracing::debug!(?plan, "the scenario");
    let fabric = Fabric::new(plan.fabric.clone());
    let places = |kind: &str, configs: &[RdmaConfig]| -> Vec<Place> {
        let place = |(at, config)| Place::new(&fabric, &format!("{kind}{at}"), config);
        configs.iter().enumerate().map(place).collect()
    };
    let (clients, servers) = (places("client", &plan.clients), places("server", &plan.servers));
    let serving = serve(&world, &servers).await;
    let hosts: Vec<_> = clients.iter().chain(&servers).map(|place| place.host.clone()).collect();
    doom(plan, &hosts);
    let channels = connect(&world, &clients, &serving).await;
    call_all(&world, &channels).await;
    fabric.set_malice(Malice::default());
    sleep(Duration::from_secs(10)).await;
    if plan.weather == Weather::Fair {
        check_quarantine(&world, &clients, &servers);
    }
    drop(channels);
    sleep(Duration::from_secs(5)).await;
    for Serving { stop, task, .. } in serving {
        // A server whose host has died may have ended.
        let _told = stop.send(());
        if timeout(Duration::from_secs(60), task).await.is_err() {
            world.fail("a server does not end");
        }
    }
    sleep(Duration::from_secs(120)).await;
    check_clean(&world, &fabric, clients.iter().chain(&servers));
    let (faults, digest) = (fabric.faults(), fabric.trace_digest());
    let writes = fabric.counters().writes;
    drop((clients, servers, hosts, fabric));
    sleep(Duration::from_secs(5)).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    if tasks > 0 {
        world.fail(format_args!("{tasks} tasks live on when all is gone"));
    }
    let (replies, failures) = world.judge();
    let (seed, calls) = (plan.seed, plan.calls.len());
    Report { seed, calls, replies, faults, writes, digest, failures }
}

async fn serve(world: &Arc<World>, servers: &[Place]) -> Vec<Serving> {
    let plan = &world.plan;
    let mut serving = Vec::new();
    for (server, place) in servers.iter().enumerate() {
        let target = Target::new("fabric", format!("server{server}:7"));
        let bound = Server::builder()
            .add_service(Swap { world: Arc::clone(world), server })
            .max_message_size(plan.max_message)
            .max_concurrent_calls(plan.concurrent)
            .random(Random::from_seed(plan.seed ^ server as u64))
            .bind([(place.transport(), target.clone())])
            .await
            .expect("a free port");
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let signal = async {
                // Dropped or sent, it is over.
                let _told = stopped.await;
            };
            // Calls that had to be cut off are judged by their callers.
            let _served = bound.serve_with_shutdown(signal).await;
        });
        serving.push(Serving { target, stop, task });
    }
    serving
}

/// Sees to the deaths of the plan.
fn doom(plan: &Plan, hosts: &[FabricHost]) {
    for (at, moment, death) in plan.deaths.iter().copied() {
        let host = hosts[at].clone();
        match moment {
            Moment::AtWorkRequest(nth) => host.kill_at(nth, death),
            Moment::After(time) => {
                tokio::spawn(async move {
                    sleep(time).await;
                    host.kill(death);
                });
            }
        }
    }
}

/// A channel from each client to each server, by client and server; `None` where that failed.
async fn connect(
    world: &World,
    clients: &[Place],
    serving: &[Serving],
) -> Vec<Vec<Option<Channel>>> {
    let mut channels = Vec::new();
    for (client, place) in clients.iter().enumerate() {
        let mut row = Vec::new();
        for server in serving {
            let mut config = ClientConfig::default();
            config.limits.max_message_size = world.plan.max_message;
            config.random = Random::from_seed(world.plan.seed ^ 77 ^ client as u64);
            let channel = Channel::connect_once(place.transport(), &server.target, &config).await;
            if let (Err(error), Weather::Fair) = (&channel, world.plan.weather) {
                world.fail(format_args!("connecting to {}: {error}", server.target));
            }
            row.push(channel.ok());
        }
        channels.push(row);
    }
    channels
}

async fn call_all(world: &Arc<World>, channels: &[Vec<Option<Channel>>]) {
    let mut calls = JoinSet::new();
    for call in &world.plan.calls {
        let channel = channels[call.client][call.server].clone();
        calls.spawn(make(Arc::clone(world), call.number, channel));
    }
    let all = async {
        while let Some(ended) = calls.join_next().await {
            if let Err(panic) = ended {
                world.fail(panic);
            }
        }
    };
    if timeout(ALL_CALLS, all).await.is_err() {
        world.fail(format_args!("{} calls never ended", calls.len()));
        calls.shutdown().await;
    }
}

/// While connections live: no call is under way, so nothing waits for a peer.
fn check_quarantine(world: &World, clients: &[Place], servers: &[Place]) {
    for Place { host, transport } in clients.iter().chain(servers) {
        let PoolCounts { users, staging, landing, .. } = transport.pools();
        for pool in [users, staging, landing] {
            let left = (pool.quarantined_bytes, pool.leaked_bytes, pool.pinned_bytes, pool.waiting);
            if left != (0, 0, 0, 0) {
                world.fail(format_args!(
                    "{host:?} has {left:?} quarantined, leaked, pinned, waiting"
                ));
            }
        }
    }
}

fn check_clean<'a>(world: &World, fabric: &Fabric, places: impl Iterator<Item = &'a Place>) {
    fabric.violations().iter().take(3).for_each(|violation| world.fail(violation));
    let counters = fabric.counters();
    if (counters.rnr, counters.overflows) != (0, 0) {
        world.fail(format_args!("receives missed, queues overflowed: {counters:?}"));
    }
    for Place { host, transport } in places {
        let BufferCounts { total, free, leaked } = transport.buffers();
        if (free, leaked) != (total, 0) {
            world.fail(format_args!(
                "{host:?}: of {total} buffers {free} are free, {leaked} leaked"
            ));
        }
        let PoolCounts { users, staging, landing, granted_bytes, .. } = transport.pools();
        for (name, pool) in [("users", users), ("staging", staging), ("landing", landing)] {
            let left = (pool.in_use_bytes, pool.quarantined_bytes, pool.leaked_bytes);
            if (left, pool.waiting) != ((0, 0, 0), 0) {
                world.fail(format_args!("{host:?}: {name} is not back: {pool:?}"));
            }
        }
        if granted_bytes != 0 {
            world.fail(format_args!("{host:?}: {granted_bytes} bytes are still granted"));
        }
    }
}
