//! The settings of a byte-stream transport, with their defaults and reasons.
//!
//! The limits on what is received are not here: both sides announce them in HELLO, so they belong to
//! the core's `Limits`.

use std::sync::Arc;
use std::time::Duration;

use verbwire_core::transport::inbound::LandingPool;

/// Settings of a [`TcpTransport`](crate::TcpTransport) or [`UnixTransport`](crate::UnixTransport).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TcpConfig {
    /// Bytes of frames that may wait to be written, per connection; beyond it `try_send` says "full".
    /// 1 MiB: some ten thousand small calls, and a hundredth of a second on a slow network.
    ///
    /// A message is taken when the queue is below this limit, however long the message is. Segments that
    /// are sent from the caller's own memory do not count here.
    pub send_queue_bytes: usize,
    /// Bytes of bodies that may wait to be written from the caller's own memory, per connection; beyond it
    /// `try_send` says "full" to bodies of 4 KiB and more, and still takes shorter messages. 64 MiB: one body of
    /// the longest kind. It bounds what a peer that does not read can make this side hold; a body is taken
    /// when the queue is below this limit, however long it is.
    pub send_queue_body_bytes: usize,
    /// How long a peer may take no byte at all while something is queued; then the connection ends.
    /// 30 s: longer than any pause of a living peer, shorter than the system's own patience.
    pub stall_timeout: Duration,
    /// Memory of long received bodies that is kept for the next ones when they are dropped, for all
    /// connections of the transport together, in bytes. 16 MiB: a few bodies of a storage system in flight,
    /// without the page faults of new memory; 0 gives all back at once.
    pub kept_landing_bytes: usize,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            send_queue_bytes: 1 << 20,
            send_queue_body_bytes: 64 << 20,
            stall_timeout: Duration::from_secs(30),
            kept_landing_bytes: 16 << 20,
        }
    }
}

/// What all connections of a transport share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: TcpConfig,
    pub(crate) landing: Arc<LandingPool>,
}

impl Shared {
    pub(crate) fn new(config: TcpConfig) -> Self {
        let landing = Arc::new(LandingPool::new(config.kept_landing_bytes));
        Self { config, landing }
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new(TcpConfig::default())
    }
}
