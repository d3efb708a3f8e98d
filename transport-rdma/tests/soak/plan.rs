//! A scenario: everything that happens in a run, drawn from one seed before it begins.

use std::time::Duration;

use fastrand::Rng;
use verbwire_rdma::fabric::{Death, FabricConfig, Latency, Malice, Profile};
use verbwire_rdma::{Peers, RdmaConfig};

use crate::parcel::Shape;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What may go wrong in a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Nothing that ends a connection: whatever calls their callers do not end must succeed.
    Fair,
    /// Connections end by faults of devices.
    Foul,
    /// Hosts die, too.
    Deadly,
    /// Devices claim what they cannot do.
    Lying,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) weather: Weather,
    pub(crate) fabric: FabricConfig,
    pub(crate) max_message: usize,
    pub(crate) concurrent: u32,
    pub(crate) clients: Vec<RdmaConfig>,
    pub(crate) servers: Vec<RdmaConfig>,
    /// By number; 0 is the one without bytes.
    pub(crate) calls: Vec<CallPlan>,
    /// Client hosts first.
    pub(crate) deaths: Vec<(usize, Moment, Death)>,
}

/// When a host dies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Moment {
    After(Duration),
    AtWorkRequest(u64),
}

#[derive(Debug, Clone)]
pub(crate) struct CallPlan {
    pub(crate) number: u32,
    pub(crate) client: usize,
    pub(crate) server: usize,
    pub(crate) start: Duration,
    pub(crate) timeout: Duration,
    pub(crate) request: MessagePlan,
    pub(crate) reply: MessagePlan,
    pub(crate) hint: Option<u64>,
    pub(crate) ending: Ending,
    pub(crate) handler: Duration,
    pub(crate) answer: Answer,
}

#[derive(Debug, Clone)]
pub(crate) struct MessagePlan {
    pub(crate) shape: Shape,
    /// Whether its longest part is allocated from the transport.
    pub(crate) memory: Memory,
    /// How long who receives it keeps it.
    pub(crate) kept: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Pool,
    Heap,
}

/// How the caller ends a call, after so many steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Await,
    Drop(usize),
    Cancel(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Reply,
    Fail,
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn micros(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(rng.u64(0..=most))
}

/// Up to one of these numbers of microseconds.
fn span(rng: &mut Rng, most: &[u64]) -> Duration {
    let most = pick(rng, most);
    micros(rng, most)
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let weather = match rng.u32(0..100) {
            0..40 => Weather::Fair,
            40..70 => Weather::Foul,
            70..97 => Weather::Deadly,
            _ => Weather::Lying,
        };
        let max_message = pick(rng, &[300 * KIB, MIB, MIB + 1, 2 * MIB]);
        let (clients, servers) = (rng.usize(1..=3), rng.usize(1..=2));
        let fabric = fabric(rng, seed, weather);
        let mut client_configs: Vec<_> = (0..clients).map(|_| config(rng, max_message)).collect();
        let mut server_configs: Vec<_> = (0..servers).map(|_| config(rng, max_message)).collect();
        let calls = rng.u32(4..=16);
        let calls = (0..calls).map(|number| call(rng, number, (clients, servers), max_message));
        let mut calls: Vec<_> = calls.collect();
        if weather == Weather::Fair {
            if rng.bool() {
                nobody_gives_up(&mut calls);
            } else {
                client_configs.iter_mut().chain(&mut server_configs).for_each(make_room);
            }
        }
        let deaths = match weather {
            Weather::Deadly => {
                (0..rng.usize(1..=2)).map(|_| death(rng, clients + servers)).collect()
            }
            _ => Vec::new(),
        };
        Self {
            seed,
            weather,
            fabric,
            max_message,
            concurrent: pick(rng, &[1, 3, 64]),
            clients: client_configs,
            servers: server_configs,
            calls,
            deaths,
        }
    }
}

/// Where callers give up, one limit fails calls by nobody's fault: a connection ends where more than a quarter of its pool, or
/// the cap of all, is in quarantine.
fn make_room(config: &mut RdmaConfig) {
    config.landing.size.cap = 256 * MIB;
    config.landing.quarantine_cap = 64 * MIB;
}

fn nobody_gives_up(calls: &mut [CallPlan]) {
    for call in calls {
        call.ending = Ending::Await;
        call.timeout = Duration::from_secs(90);
    }
}

fn fabric(rng: &mut Rng, seed: u64, weather: Weather) -> FabricConfig {
    let profile = pick(rng, &[Profile::Rxe, Profile::Siw, Profile::Mlx5Like]);
    let latency = Latency {
        base: span(rng, &[3, 400, 3000]),
        per_kib: span(rng, &[100, 20_000]) / 1000,
        jitter: span(rng, &[0, 30, 1500]),
    };
    let mut malice = Malice {
        late_write: pick(rng, &[0, 100, 500]),
        torn_write: pick(rng, &[0, 100, 400]),
        late_completion: pick(rng, &[0, 20, 100]),
        flushed_yet_sent: pick(rng, &[0, 600]),
        lost_flush: pick(rng, &[0, 100]),
        flush_after_destroy: pick(rng, &[0, 100]),
        partial_post: 0,
        delay: span(rng, &[100, 5000, 50_000]),
    };
    if matches!(weather, Weather::Foul | Weather::Deadly) {
        malice.partial_post = pick(rng, &[1, 2]);
    }
    let really = (weather == Weather::Lying).then(|| {
        let mut real = profile.capabilities("");
        match rng.u8(0..3) {
            0 => real.max_inline = 0,
            1 => real.max_sge = 1,
            _ => real.max_wr = 64,
        }
        real
    });
    FabricConfig { profile, latency, malice, really, ..FabricConfig::new(seed) }
}

fn config(rng: &mut Rng, max_message: usize) -> RdmaConfig {
    let mut config = RdmaConfig::default();
    config.peers = pick(rng, &[Peers::Trusted, Peers::Untrusted]);
    // Exact queues for each connection, or shared ones.
    config.completion_queue_depth = pick(rng, &[0, 8192]);
    config.data_window = pick(rng, &[2, 8, 64]);
    config.control_window = pick(rng, &[1, 16]);
    config.staging_buffers = pick(rng, &[3, 40]);
    config.send_depth = pick(rng, &[8, 256]);
    config.rendezvous_threshold = pick(rng, &[16 * KIB, 32 * KIB]);
    config.write_chunk = u32::try_from(pick(rng, &[16 * KIB, 64 * KIB, 256 * KIB])).expect("short");
    config.write_window = pick(rng, &[1, 2, 4]);
    config.granted_bytes = pick(rng, &[1, MIB as u64, 64 << 20]);
    let slab = pick(rng, &[64 * KIB, MIB]);
    for size in [&mut config.landing.size, &mut config.staging] {
        size.longest = max_message;
        size.slab_len = slab;
        size.cap = pick(rng, &[max_message + 16 * KIB, 4 * max_message, 64 << 20]);
    }
    config.staging.cap = config.staging.cap.max(2 * MIB);
    config.landing.pinned_budget = config.landing.size.cap / 2;
    config.landing.quarantine_cap = config.landing.size.cap / 4;
    // Without a step of the generator, so that seeds from before mean what they did. Rooms for all connections of a run.
    config.shared_receives = pick(&mut rng.clone(), &[0, 0, 512]);
    config
}

/// Lengths of encoded bodies around every boundary.
fn length(rng: &mut Rng, max: usize) -> usize {
    let near = |rng: &mut Rng, len: usize| len + rng.usize(0..=2) - 1;
    match rng.u32(0..20) {
        0 => rng.usize(0..=40),
        1 | 2 => near(rng, 220 - 60) + rng.usize(0..=60),
        3 | 4 => near(rng, 8192 - 100) + rng.usize(0..=110),
        5 | 6 => near(rng, 16 * KIB),
        7 | 8 => near(rng, 32 * KIB),
        9 => near(rng, 256 * KIB),
        10 => near(rng, (MIB).min(max)),
        11 => max,
        12 => max + 1,
        13 | 14 => rng.usize(40..=8192),
        15 | 16 => rng.usize(8192..=64 * KIB),
        _ => rng.usize(64 * KIB..=max),
    }
}

fn message(rng: &mut Rng, number: u32, len: usize) -> MessagePlan {
    let parts = pick(rng, &[1, 1, 1, 2, 5, 12]);
    MessagePlan {
        shape: Shape::of(number, len, parts),
        memory: pick(rng, &[Memory::Pool, Memory::Heap]),
        kept: pick(rng, &[Duration::ZERO, Duration::ZERO, Duration::from_millis(20)]),
    }
}

fn call(rng: &mut Rng, number: u32, (clients, servers): (usize, usize), max: usize) -> CallPlan {
    let [asked, answered] = match number {
        0 => [0, 0],
        _ => [length(rng, max), length(rng, max)],
    };
    let (request, reply) = (message(rng, number, asked), message(rng, number, answered));
    let expected = reply.shape.encoded_len(number) as u64;
    let ending = match rng.u32(0..10) {
        0..6 => Ending::Await,
        6..8 => Ending::Drop(rng.usize(0..60)),
        _ => Ending::Cancel(rng.usize(0..60)),
    };
    let timeout = match rng.u32(0..8) {
        0 => micros(rng, 4000),
        1 => micros(rng, 60_000),
        _ => Duration::from_secs(90),
    };
    CallPlan {
        number,
        client: rng.usize(..clients),
        server: rng.usize(..servers),
        start: span(rng, &[0, 0, 5000, 30_000]),
        timeout,
        request,
        reply,
        hint: pick(rng, &[None, None, Some(expected), Some(expected + 5000), Some(expected / 2)]),
        ending,
        handler: span(rng, &[0, 0, 3000, 200_000]),
        answer: if rng.u8(0..12) == 0 { Answer::Fail } else { Answer::Reply },
    }
}

fn death(rng: &mut Rng, hosts: usize) -> (usize, Moment, Death) {
    let moment = match rng.bool() {
        true => Moment::After(micros(rng, 60_000)),
        false => Moment::AtWorkRequest(rng.u64(1..=400)),
    };
    (rng.usize(..hosts), moment, pick(rng, &[Death::Host, Death::Process]))
}
