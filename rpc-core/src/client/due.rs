//! The deadline of a call that has no driver to keep it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// When a call ends. Its timer is made only for calls that wait.
#[derive(Debug)]
pub(super) struct Due {
    at: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Due {
    pub(super) fn new(at: Instant) -> Self {
        Self { at, timer: None }
    }

    pub(super) fn at(&self) -> Instant {
        self.at
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Waits for it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let at = self.at;
        self.timer.get_or_insert_with(|| Box::pin(sleep_until(at))).as_mut().poll(cx)
    }
}
