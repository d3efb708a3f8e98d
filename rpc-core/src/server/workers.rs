//! Tasks that run unary calls, one call after the other.
//!
//! A task for each call costs its memory and its place in the runtime each time, which is more than all else that a short call
//! asks of this side. So a task that has run a call waits for the next one.
//!
//! **Who stops a task.** Whoever takes a call's handle out of the call table stops its task, whatever that does then. So a
//! task takes the handle out itself before it waits for another call. If it is gone, the task is about to be stopped, and
//! ends.
//!
//! Owns the tasks that wait. Does not: know how a call runs, or limit how many do.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::connection::{Job, Peer};
use crate::transport::sleeper::Sleeper;

/// Tasks that wait, at most. 64: a few hundred bytes each, kept as long as the connection. Calls beyond them pay for a task.
const IDLE: usize = 64;

/// The tasks of a connection that wait for calls.
pub(super) struct Workers {
    /// `None` once the connection has ended.
    idle: Mutex<Option<Vec<Worker>>>,
}

/// A task that waits for a call.
struct Worker {
    seat: Arc<Seat>,
    task: AbortHandle,
}

/// Where a task finds its next call.
#[derive(Default)]
struct Seat {
    next: Mutex<Option<(Arc<Peer>, Job)>>,
    task: Sleeper,
}

impl Default for Workers {
    fn default() -> Self {
        Self { idle: Mutex::new(Some(Vec::new())) }
    }
}

impl Workers {
    /// Runs a call of `peer` in a task that waits, or in a new one.
    pub(super) fn start(peer: Arc<Peer>, job: Job) {
        let Worker { seat, task } = peer.workers.take().unwrap_or_else(Worker::spawn);
        // Before it begins, so that it finds the handle when it has ended.
        match peer.intake.with_calls(|calls| calls.attach(job.call, task)) {
            None => seat.give(peer, job),
            Some(task) => task.abort(),
        }
    }

    /// Stops the tasks that wait, and those to come. The handles of the others are in the call table.
    pub(super) fn close(&self) {
        let idle = self.idle.lock().take();
        idle.into_iter().flatten().for_each(|worker| worker.task.abort());
    }

    fn take(&self) -> Option<Worker> {
        self.idle.lock().as_mut()?.pop()
    }

    /// Keeps a worker for later calls. `None` if there are enough.
    fn keep(&self, worker: Worker) -> Option<()> {
        let mut idle = self.idle.lock();
        let idle = idle.as_mut().filter(|idle| idle.len() < IDLE)?;
        idle.push(worker);
        Some(())
    }
}

impl Worker {
    fn spawn() -> Self {
        let seat = Arc::<Seat>::default();
        let task = tokio::spawn(work(Arc::clone(&seat))).abort_handle();
        Self { seat, task }
    }
}

impl Seat {
    fn give(&self, peer: Arc<Peer>, job: Job) {
        *self.next.lock() = Some((peer, job));
        self.task.wake();
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<(Arc<Peer>, Job)> {
        self.task.register(cx.waker());
        let next = self.next.lock().take();
        next.map_or(Poll::Pending, Poll::Ready)
    }
}

/// Runs calls until there is no more use for this task.
async fn work(seat: Arc<Seat>) {
    loop {
        let (peer, job) = poll_fn(|cx| seat.poll_next(cx)).await;
        let call = job.call;
        peer.run(job).await;
        let Some(task) = peer.intake.with_calls(|calls| calls.detach(call)) else { return };
        let worker = Worker { seat: Arc::clone(&seat), task };
        if peer.workers.keep(worker).is_none() {
            return;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
