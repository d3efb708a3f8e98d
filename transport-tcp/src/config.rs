//! The settings of a byte-stream transport, with their defaults and reasons.
//!
//! The limits on what is received are not here: both sides announce them in HELLO, so they belong to
//! the core's `Limits`.

use std::time::Duration;

/// Settings of a [`TcpTransport`](crate::TcpTransport) or [`UnixTransport`](crate::UnixTransport).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TcpConfig {
    /// Bytes of frames that may wait to be written, per connection; beyond it `try_send` says "full".
    /// 1 MiB: some ten thousand small calls, and a hundredth of a second on a slow network.
    ///
    /// A message is taken when the queue is below this limit, however long the message is. Segments that
    /// are sent from the caller's own memory do not count: a queue does not make them take any more.
    pub send_queue_bytes: usize,
    /// How long a peer may take no byte at all while something is queued; then the connection ends.
    /// 30 s: longer than any pause of a living peer, shorter than the system's own patience.
    pub stall_timeout: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            send_queue_bytes: 1 << 20,
            stall_timeout: Duration::from_secs(30),
        }
    }
}
