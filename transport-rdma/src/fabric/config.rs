//! What a fabric is made with.

use std::time::Duration;

use super::fate::Malice;
use super::profile::Profile;
use crate::nic::Capabilities;

/// What a fabric is made with. Two fabrics with the same configuration and the same use behave alike.
#[derive(Debug, Clone)]
pub struct FabricConfig {
    /// Where every random choice comes from: keys, jitter, the order of what happens at the same time.
    pub seed: u64,
    /// The kind of device that every host has.
    pub profile: Profile,
    /// Other limits than the profile's, for example to fill a queue quickly. `device` becomes a prefix of
    /// the devices' names.
    pub capabilities: Option<Capabilities>,
    /// What the devices really do with work requests, where that is less than they say: their limits on entries, inline
    /// bytes and queue depths. They do what they say by default.
    pub really: Option<Capabilities>,
    /// Faults that no script wrote. None by default.
    pub malice: Malice,
    /// How long things take.
    pub latency: Latency,
    /// How often a message is tried again that found no receive; 7 means for ever. Default 0, because
    /// with credits it never happens, and a retry would hide that it did. iWARP ignores it.
    pub rnr_retry: u8,
    /// Time between two such tries. Default 10 us, which `min_rnr_timer` 1 asks for; never less.
    pub rnr_delay: Duration,
    /// After what time a request that nobody answers fails; the profile's where this is `None`.
    pub retry_timeout: Option<Duration>,
    /// After what time the connection manager gives up on a host that is dead. Default 4 s: what a lost
    /// message costs a real one.
    pub cm_timeout: Duration,
    /// What becomes of windows that are bound.
    pub binding: Binding,
    /// Bytes that a host can register in all: its limit on locked memory. Unlimited by default.
    pub lockable_bytes: u64,
}

impl FabricConfig {
    /// The defaults, with a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            profile: Profile::Rxe,
            capabilities: None,
            really: None,
            malice: Malice::default(),
            latency: Latency::default(),
            rnr_retry: 0,
            rnr_delay: Duration::from_micros(10),
            retry_timeout: None,
            cm_timeout: Duration::from_secs(4),
            binding: Binding::Works,
            lockable_bytes: u64::MAX,
        }
    }
}

impl Default for FabricConfig {
    /// Seed 0.
    fn default() -> Self {
        Self::new(0)
    }
}

/// What becomes of windows that are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// What the profile's devices do.
    Works,
    /// Each bind fails, on devices that say they can.
    Refused,
}

/// How long things take on a fabric.
///
/// Tokio's timers tick in milliseconds. Within one tick everything happens in the order of its own, finer
/// time, so that latencies below a millisecond decide the order, not the duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// One way over the wire, however short the message.
    pub base: Duration,
    /// More for each 1024 bytes.
    pub per_kib: Duration,
    /// At most this much more, at random: over the wire, and until a completion shows.
    pub jitter: Duration,
}

impl Latency {
    /// Everything happens at once, in random order: the quickest for tests on a running clock.
    pub const NONE: Self =
        Self { base: Duration::ZERO, per_kib: Duration::ZERO, jitter: Duration::ZERO };
}

impl Default for Latency {
    /// 2 us, 100 ns for each KiB (80 Gbit/s), and up to 10 us of jitter: more than the base, so that messages
    /// of different queue pairs overtake each other.
    fn default() -> Self {
        Self {
            base: Duration::from_micros(2),
            per_kib: Duration::from_nanos(100),
            jitter: Duration::from_micros(10),
        }
    }
}
