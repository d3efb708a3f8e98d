//! What is known of a call behind an interceptor: whether its handler ran, and which messages went by.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::status::{Executed, Status};
use crate::streaming::Messages;

/// What is known over all runs of the rest of a call.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Runs that have not ended.
    running: AtomicUsize,
    /// The most of all runs that have ended, as a number.
    executed: AtomicU8,
    pub(super) requests: Counter,
    pub(super) replies: Counter,
}

/// One run of the rest. Dropped before its end, it may have reached the handler.
pub(super) struct Run<'a> {
    progress: &'a Progress,
    pub(super) executed: Executed,
}

/// The messages of a call that an interceptor stands around, as they go by. Cheap to clone.
#[derive(Clone)]
pub struct Traffic(Arc<Progress>);

/// Messages that went by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// How many.
    pub messages: u64,
    /// What they have together, encoded.
    pub bytes: u64,
}

impl Traffic {
    pub(super) fn new(progress: Arc<Progress>) -> Self {
        Self(progress)
    }

    /// Requests so far: on a client those that were handed on to be sent, on a server those that the handler has
    /// taken. Of a call that runs again, over all runs.
    pub fn requests(&self) -> Count {
        self.0.requests.count()
    }

    /// Replies so far: on a client those that the caller has taken, on a server those that were handed on to be
    /// sent.
    pub fn replies(&self) -> Count {
        self.0.replies.count()
    }
}

#[derive(Debug, Default)]
pub(super) struct Counter {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    pub(super) fn add(&self, len: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> Count {
        let (messages, bytes) = (&self.messages, &self.bytes);
        Count { messages: messages.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }
}

/// Requests that are counted as they are taken.
pub(super) struct CountedRequests {
    pub(super) messages: Box<dyn Messages>,
    pub(super) progress: Arc<Progress>,
}

impl Messages for CountedRequests {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let polled = self.messages.poll_message(cx);
        if let Poll::Ready(Some(Ok(body))) = &polled {
            self.progress.requests.add(body.len());
        }
        polled
    }

    fn take_trailers(&mut self) -> MetadataMap {
        self.messages.take_trailers()
    }
}

impl Progress {
    /// Whether a run of the rest goes on.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// The status with which an intercepted call ends, when no run of its rest goes on.
    pub(crate) fn status(&self, status: Status) -> Status {
        status.with_executed(match self.executed.load(Ordering::Relaxed) {
            0 => Executed::No,
            1 => Executed::Maybe,
            _ => Executed::Yes,
        })
    }

    pub(super) fn begin(&self) -> Run<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Run { progress: self, executed: Executed::Maybe }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let number = match self.executed {
            Executed::No => 0,
            Executed::Maybe => 1,
            Executed::Yes => 2,
        };
        self.progress.executed.fetch_max(number, Ordering::Relaxed);
        self.progress.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, replies) = (self.requests(), self.replies());
        f.debug_struct("Traffic").field("requests", &requests).field("replies", &replies).finish()
    }
}
