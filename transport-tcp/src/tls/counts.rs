//! How the TLS handshakes of a server ended.

use std::sync::atomic::{AtomicU64, Ordering};

use verbwire_core::ErrorKind;

/// How the TLS handshakes of a server ended, since its [`ServerTls`](crate::ServerTls) was made.
///
/// Those of 1.3 end for a client before the server has seen its certificate; so a client that is refused may have counted
/// its own as good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// Both sides trusted each other.
    pub completed: u64,
    /// The client showed no certificate, or one that does not hold; or it refused the server's.
    pub untrusted: u64,
    /// The client spoke something else than TLS 1.3 with this protocol, or broke its rules.
    pub not_understood: u64,
    /// `handshake_timeout` passed.
    pub timed_out: u64,
    /// The client went away.
    pub lost: u64,
}

/// The same while they are counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    completed: AtomicU64,
    untrusted: AtomicU64,
    not_understood: AtomicU64,
    timed_out: AtomicU64,
    lost: AtomicU64,
}

impl Counters {
    /// One ended, by an error of this kind if it failed.
    pub(super) fn count(&self, failure: Option<ErrorKind>) {
        let counter = match failure {
            None => &self.completed,
            Some(ErrorKind::Untrusted) => &self.untrusted,
            Some(ErrorKind::TimedOut) => &self.timed_out,
            Some(ErrorKind::Lost) => &self.lost,
            Some(_) => &self.not_understood,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> HandshakeCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HandshakeCounts {
            completed: read(&self.completed),
            untrusted: read(&self.untrusted),
            not_understood: read(&self.not_understood),
            timed_out: read(&self.timed_out),
            lost: read(&self.lost),
        }
    }
}
