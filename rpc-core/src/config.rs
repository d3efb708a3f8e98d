//! Every limit of a connection, its default and its reason.
//!
//! [`Limits`] are what one side announces and enforces on what it receives; [`ClientConfig`] and
//! [`ServerConfig`] hold what is not announced.

use std::time::Duration;

use crate::client::CredentialsProvider;
use crate::compression::{Compression, Encodings};
pub use crate::proto::balance::Balance;
pub use crate::proto::outlier::OutlierLimits;
pub use crate::proto::paths::PathPolicy;
pub use crate::proto::retry::RetryPolicy;

/// What one side accepts from its peer. Announced in HELLO, so that the sender can refuse first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest message body, in bytes. 64 MiB: a storage block many times over, and still a size that
    /// a few callers at once cannot hurt a server with. More than 4 GiB - 1 counts as that.
    pub max_message_size: usize,
    /// Longest metadata block, in bytes. 16 KiB: headers and tokens, not payload. A transport may have room for less, and
    /// announces that: RDMA for 7100 with receives of 8 KiB.
    pub max_metadata_size: usize,
    /// Longest body in one frame, in bytes; longer bodies come in pieces of this length. 256 KiB: long
    /// enough that the cost per piece vanishes, short enough that a small call behind it does not wait.
    pub max_frame_body: usize,
    /// Calls at a time on one connection. 1024: more than the depth of any storage queue.
    pub max_concurrent_calls: u32,
    /// Method numbers remembered per connection. 4096: more methods than any server has.
    pub max_interned_methods: u32,
    /// Memory for bodies that are arriving, per connection, in bytes. 1 GiB; a body beyond it is refused. At a server a long
    /// message of a stream has to fit beside the messages that streams of its connection have not read, too. Whole requests
    /// that have arrived are bounded by the number of calls.
    pub max_landing_bytes: usize,
    /// Bytes of a stream's messages that may be on their way here or wait to be taken, per stream; one message may
    /// go beyond. 256 KiB: a stream of storage blocks keeps a fast link busy, and a thousand streams that nobody
    /// reads hold 256 MiB.
    pub stream_window: usize,
    /// Encodings of compressed messages that are decompressed here. All that this build has: who sends says whether anything
    /// is compressed, and a message is decompressed up to `max_message_size`.
    pub accept_compressed: Encodings,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message_size: 64 << 20,
            max_metadata_size: 16 << 10,
            max_frame_body: 256 << 10,
            max_concurrent_calls: 1024,
            max_interned_methods: 4096,
            max_landing_bytes: 1 << 30,
            stream_window: 256 << 10,
            accept_compressed: Encodings::all(),
        }
    }
}

/// When a silent peer is asked whether it is there, and how long it has to answer; see
/// [`proto::keep_alive`](crate::proto::keep_alive). A peer that is frozen, or behind a network that is cut, is found within
/// the two together, also while no call runs. Both are 1 ms at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Longest silence before the peer is asked. 10 s: an idle connection sends a few bytes as often.
    pub interval: Duration,
    /// Longest time from there to a sign of life. 20 s: longer than a handler that blocks its runtime, which keeps that
    /// side's connections from answering.
    pub timeout: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), timeout: Duration::from_secs(20) }
    }
}

/// A client's settings.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientConfig {
    /// What this side accepts.
    pub limits: Limits,
    /// Deadline of calls that set none. 60 s: always finite, since a call without an end leaks what it holds.
    pub default_timeout: Duration,
    /// Longest time to connect, HELLO included. 5 s.
    pub connect_timeout: Duration,
    /// How long to wait before connecting again: after the first failure, and at most. 100 ms: a server that is started anew
    /// is soon there. 30 s: a thousand clients of one that is gone ask for it 30 times a second.
    pub reconnect_backoff: (Duration, Duration),
    /// Whether calls that do not say it themselves wait for a connection where none can be made, instead of failing at once.
    /// No: who calls learns what is wrong.
    pub wait_for_ready: bool,
    /// Which ways calls may go where a target has several.
    pub path_policy: PathPolicy,
    /// Gives what servers are to know this client by. None.
    pub credentials: Option<CredentialsProvider>,
    /// Whether it is asked where others can read what it gives. No: who listens could show it as his own.
    pub allow_plaintext_credentials: bool,
    /// Whether and when a silent server is asked whether it is there.
    pub keep_alive: Option<KeepAlive>,
    /// Which failed calls are made again that do not say it themselves. None.
    pub retry: Option<RetryPolicy>,
    /// How a channel with several endpoints spreads its calls over them. One after the other.
    pub balance: Balance,
    /// Which of its endpoints it leaves alone.
    pub outliers: OutlierLimits,
    /// Connections to each endpoint, 1 to 16. 1; several share the work of bulk transfers, and have a driver each.
    pub connections_per_endpoint: usize,
    /// How long to wait before trying for a second path again: after the first failure, and at most, which is also after a refusal
    /// that will not change soon. 200 ms: what breaks a path for a moment is over by then, and nobody waits for it, since calls go
    /// over the first. 60 s: a server that gets its device back has its clients back within a minute.
    pub path_backoff: (Duration, Duration),
    /// Whether requests are compressed that do not say it themselves. No.
    pub send_compressed: Compression,
    /// Where ids come from; set a seed to repeat a run exactly.
    pub random: Random,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            default_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            reconnect_backoff: (Duration::from_millis(100), Duration::from_secs(30)),
            wait_for_ready: false,
            path_policy: PathPolicy::Auto,
            credentials: None,
            allow_plaintext_credentials: false,
            keep_alive: Some(KeepAlive::default()),
            retry: None,
            balance: Balance::default(),
            outliers: OutlierLimits::default(),
            connections_per_endpoint: 1,
            path_backoff: (Duration::from_millis(200), Duration::from_secs(60)),
            send_compressed: Compression::NONE,
            random: Random::from_entropy(),
        }
    }
}

/// What a server does not announce, and what it does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// What this side accepts.
    pub limits: Limits,
    /// Longest time from a connection to its HELLO. 5 s: a peer that says nothing holds a descriptor.
    pub handshake_timeout: Duration,
    /// Connections that have not said HELLO yet, per target; more wait unaccepted. 1024.
    pub max_handshakes: usize,
    /// Connections at a time, over all targets. `usize::MAX`: no bound but the system's.
    pub max_connections: usize,
    /// Longest time for running calls to finish after shutdown was asked for. 30 s.
    pub drain_timeout: Duration,
    /// Whether and when a silent client is asked whether it is there.
    pub keep_alive: Option<KeepAlive>,
    /// Whether replies are compressed. No.
    pub send_compressed: Compression,
    /// Where ids come from; set a seed to repeat a run exactly.
    pub random: Random,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            handshake_timeout: Duration::from_secs(5),
            max_handshakes: 1024,
            max_connections: usize::MAX,
            drain_timeout: Duration::from_secs(30),
            keep_alive: Some(KeepAlive::default()),
            send_compressed: Compression::NONE,
            random: Random::from_entropy(),
        }
    }
}

/// The one source of random numbers of a client or server. Not for secrets: its outputs tell the next ones.
#[derive(Debug, Clone)]
pub struct Random(std::sync::Arc<std::sync::Mutex<fastrand::Rng>>);

impl Random {
    /// A generator that differs from run to run.
    pub fn from_entropy() -> Self {
        Self::from_rng(fastrand::Rng::new())
    }

    /// A generator that repeats.
    pub fn from_seed(seed: u64) -> Self {
        Self::from_rng(fastrand::Rng::with_seed(seed))
    }

    fn from_rng(rng: fastrand::Rng) -> Self {
        Self(std::sync::Arc::new(std::sync::Mutex::new(rng)))
    }

    /// The next 64 bits.
    pub fn next_u64(&self) -> u64 {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).u64(..)
    }
}
