//! Who waits on a machine, and what waits for its user.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};

use super::{LONGEST, WINDOW};
use crate::proto::stream::COST;

/// A task that may wait.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) waits: bool,
    pub(super) woken: Arc<Woken>,
}

#[derive(Debug, Default)]
pub(super) struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Task {
    /// Polls, and sees to it that nobody is ready who waits and was not woken.
    pub(super) fn poll<T>(&mut self, poll: impl FnOnce(&Waker) -> Poll<T>) -> Poll<T> {
        let is_due = self.woken.0.swap(false, Ordering::Relaxed);
        let polled = poll(&Waker::from(Arc::clone(&self.woken)));
        assert!(polled.is_pending() || is_due || !self.waits, "ready, and not woken");
        self.waits = polled.is_pending();
        polled
    }
}

/// What a receiver has and has not given to its user.
#[derive(Debug, Default)]
pub(super) struct Waiting(u64);

impl Waiting {
    pub(super) fn arrives(&mut self, len: usize) {
        self.0 += COST + len as u64;
        assert!(self.0 < u64::from(WINDOW) + COST + LONGEST as u64, "{} bytes wait", self.0);
    }

    pub(super) fn taken(&mut self, len: usize) {
        self.0 -= COST + len as u64;
    }
}
