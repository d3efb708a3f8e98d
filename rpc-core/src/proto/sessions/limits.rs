//! The bounds of sessions, with their defaults and reasons.

use std::time::Duration;

/// What is kept for calls that are repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionLimits {
    /// Sessions at a time. 1024: one per client process and some for those that have gone without a word.
    pub max_sessions: usize,
    /// Sessions that were opened over one connection, at a time. 16: one per client process is the rule, and no client takes all.
    pub max_sessions_per_connection: usize,
    /// Slots of each session: its calls at a time. 64: a client that writes to storage has seldom more under way.
    pub slots: u32,
    /// How long a session without a call is kept. 10 min: longer than any outage after which a client still repeats.
    pub lease: Duration,
    /// Longest answer that is kept, message and metadata, in bytes. 64 KiB: what a call that changes something answers
    /// is short.
    pub max_kept_answer: usize,
    /// All answers that are kept, in bytes. 64 MiB.
    pub max_kept_bytes: usize,
    /// Calls that run, of all sessions: they go on without their connections, which else bound them. 4096: four
    /// connections as busy as they may be, or 64 sessions with all their slots.
    pub max_running_calls: usize,
    /// Their requests, in bytes; one of more is let in when no other runs. 1 GiB: as much as may arrive over one connection.
    pub max_running_bytes: usize,
    /// How long a call runs on when nobody waits for it any more. 60 s: within it a client whose connection was lost has
    /// another one.
    pub max_unattended: Duration,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            max_sessions: 1024,
            max_sessions_per_connection: 16,
            slots: 64,
            lease: Duration::from_secs(600),
            max_kept_answer: 64 << 10,
            max_kept_bytes: 64 << 20,
            max_running_calls: 4096,
            max_running_bytes: 1 << 30,
            max_unattended: Duration::from_secs(60),
        }
    }
}
