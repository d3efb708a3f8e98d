//! Who came to a server and what became of them: counts, and who has not said HELLO yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::OwnedSemaphorePermit;

use crate::error::ErrorKind;

/// What became of those who came to a server, over first and over second paths. Who brings no good ticket to a second path is not
/// here but in [`TicketCounts`](crate::proto::tickets::TicketCounts).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewcomerCounts {
    /// Are here and not let in yet, or are being told why they are not: each counts for `max_handshakes`.
    pub waiting: u64,
    /// Were let in.
    pub let_in: u64,
    /// Did not say HELLO within `handshake_timeout`.
    pub timed_out: u64,
    /// Went away before they were let in.
    pub lost: u64,
    /// Said something else than HELLO, or could not be trusted or understood.
    pub at_fault: u64,
    /// Were turned away by the server's authentication.
    pub unauthenticated: u64,
    /// Were turned away since there were `max_connections`.
    pub too_many: u64,
}

/// The same while they are counted.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    waiting: AtomicU64,
    let_in: AtomicU64,
    timed_out: AtomicU64,
    lost: AtomicU64,
    at_fault: AtomicU64,
    unauthenticated: AtomicU64,
    too_many: AtomicU64,
}

/// One who has come, until it is let in or gone. Holds its place among those that shake hands.
pub(in crate::server) struct Arrival {
    newcomers: Arc<Newcomers>,
    _place: OwnedSemaphorePermit,
}

/// What became of one.
#[derive(Debug, Clone, Copy)]
pub(in crate::server) enum Fate {
    LetIn,
    Failed(ErrorKind),
    Unauthenticated,
    TooMany,
}

impl Newcomers {
    pub(super) fn counts(&self) -> NewcomerCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NewcomerCounts {
            waiting: read(&self.waiting),
            let_in: read(&self.let_in),
            timed_out: read(&self.timed_out),
            lost: read(&self.lost),
            at_fault: read(&self.at_fault),
            unauthenticated: read(&self.unauthenticated),
            too_many: read(&self.too_many),
        }
    }
}

impl Arrival {
    pub(super) fn new(newcomers: Arc<Newcomers>, place: OwnedSemaphorePermit) -> Self {
        newcomers.waiting.fetch_add(1, Ordering::Relaxed);
        Self { newcomers, _place: place }
    }

    /// Counts it. Once: nothing else becomes of it.
    pub(in crate::server) fn note(&self, fate: Fate) {
        let newcomers = &self.newcomers;
        let counter = match fate {
            Fate::LetIn => &newcomers.let_in,
            Fate::Failed(ErrorKind::TimedOut) => &newcomers.timed_out,
            Fate::Failed(ErrorKind::Lost) => &newcomers.lost,
            Fate::Failed(_) => &newcomers.at_fault,
            Fate::Unauthenticated => &newcomers.unauthenticated,
            Fate::TooMany => &newcomers.too_many,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.newcomers.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
