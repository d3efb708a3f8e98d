//! What is known of a call behind an interceptor: whether its handler ran, and which messages went by.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::status::{Executed, Status};
use crate::streaming::Messages;

/// What is known over all runs of the rest of a call.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    runs: Mutex<Runs>,
    pub(super) requests: Counter,
    pub(super) replies: Counter,
}

#[derive(Debug)]
struct Runs {
    /// Those that have not ended.
    running: usize,
    /// The most of all that have ended.
    executed: Executed,
    /// The call was said not to have run, so that none may begin any more.
    over: bool,
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
    /// What they have together, encoded: those that this side sends before they are compressed, those that it receives as they came.
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

    fn poll_len(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        self.messages.poll_len(cx)
    }

    fn take_trailers(&mut self) -> MetadataMap {
        self.messages.take_trailers()
    }
}

impl Progress {
    /// Whether a run of the rest goes on.
    pub(crate) fn is_running(&self) -> bool {
        self.runs().running > 0
    }

    /// The status with which an intercepted call ends. An interceptor may have left a run to a task of its own: one that
    /// goes on has perhaps reached the handler, and where nothing has run, nothing will.
    pub(crate) fn status(&self, status: Status) -> Status {
        let mut runs = self.runs();
        let executed = match (runs.executed, runs.running) {
            (Executed::No, 0) => {
                runs.over = true;
                Executed::No
            }
            (Executed::No, _) => Executed::Maybe,
            (known, _) => known,
        };
        status.not_ok().with_executed(executed)
    }

    /// Begins a run of the rest.
    ///
    /// # Errors
    ///
    /// The call's caller has been told that it has not run.
    pub(super) fn begin(&self) -> Result<Run<'_>, Status> {
        let mut runs = self.runs();
        if runs.over {
            let message =
                "this call has ended, not executed: an interceptor cannot run it any more";
            return Err(Status::cancelled(message).with_executed(Executed::No));
        }
        runs.running += 1;
        Ok(Run { progress: self, executed: Executed::Maybe })
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Runs {
    fn default() -> Self {
        Self { running: 0, executed: Executed::No, over: false }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut runs = self.progress.runs();
        runs.executed = match (runs.executed, self.executed) {
            (Executed::Yes, _) | (_, Executed::Yes) => Executed::Yes,
            (Executed::No, Executed::No) => Executed::No,
            _ => Executed::Maybe,
        };
        runs.running -= 1;
    }
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, replies) = (self.requests(), self.replies());
        f.debug_struct("Traffic").field("requests", &requests).field("replies", &replies).finish()
    }
}
