//! A server's settings.

use std::time::Duration;

use crate::config::{Limits, Random};

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
    /// Longest time for running calls to finish after shutdown was asked for. 30 s.
    pub drain_timeout: Duration,
    /// Where ids come from; set a seed to repeat a run exactly.
    pub random: Random,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            handshake_timeout: Duration::from_secs(5),
            max_handshakes: 1024,
            drain_timeout: Duration::from_secs(30),
            random: Random::from_entropy(),
        }
    }
}
