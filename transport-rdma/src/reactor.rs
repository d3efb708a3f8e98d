//! Completion queues that connections share: who polls them, and how a connection gets its own completions.
//!
//! ```text
//!   Reactors (of a device)
//!     └► Reactor, one per runtime, and another when the entries of the first are spent
//!          ├ a completion queue, its depth admitted in parts ([`Share`])
//!          └ a task of that runtime, which polls it and waits for its events ([`task`])
//!   Share (of a connection): so many entries of the queue, and a mailbox
//! ```
//!
//! A queue never overflows: a connection is admitted only when all its work requests can complete at once. The
//! queue is polled and its completions are put into mailboxes under one lock, so that nobody's completions change
//! their order, whoever polls. A completion names its connection by slot and generation ([`WorkId`]); one for a
//! connection that has left is counted and dropped.
//!
//! Owns no buffer, and knows no message.

mod mailbox;
mod table;
mod task;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Handle, Id};

use crate::config::RdmaConfig;
use crate::nic::{Cq, Depths, Nic, NicError, Wc};
use crate::work::ConnectionNumber;

use mailbox::Mailbox;
use table::Table;

/// The reactors of a device.
#[derive(Default)]
pub(crate) struct Reactors {
    /// Each lives as long as its task or a share of it.
    list: Mutex<Vec<(Id, Weak<Reactor>)>>,
}

/// A completion queue with those who share it.
struct Reactor {
    cq: Arc<dyn Cq>,
    table: Mutex<Table>,
    /// How to reach the task.
    task: Mutex<Option<Waker>>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    completions: AtomicU64,
    strays: AtomicU64,
    events: AtomicU64,
    lost_events: AtomicU64,
}

/// What the completion queues of a transport did so far, for tests and monitoring. Those of a reactor that is gone
/// do not count any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReactorCounts {
    /// Completion queues.
    pub queues: usize,
    /// Connections on them.
    pub connections: usize,
    /// Completions taken.
    pub completions: u64,
    /// Completions for connections that had left, or for nobody.
    pub strays: u64,
    /// Events of completion channels.
    pub events: u64,
    /// Events that never came although there were completions, which the watchdog found. A healthy machine has
    /// none; each costs its connections up to a second.
    pub lost_events: u64,
}

impl Reactors {
    /// A share of a queue for a queue pair of these depths, in the reactor of the current runtime.
    ///
    /// # Errors
    ///
    /// The device is out of completion queues, or has none that is deep enough.
    pub(crate) fn admit(
        &self,
        nic: &dyn Nic,
        depths: Depths,
        config: &RdmaConfig,
    ) -> Result<Share, NicError> {
        let runtime = Handle::current();
        let capabilities = nic.capabilities();
        let entries = capabilities.completions(depths);
        if let Some(share) = self.admit_to_known(runtime.id(), entries) {
            return Ok(share);
        }
        let depth = config.completion_queue_depth.min(capabilities.max_cqe).max(entries);
        // Two tasks that get here at once make a queue each: the next connections use both.
        let reactor = Arc::new(Reactor::new(nic.create_cq(depth)?, depth));
        let share = reactor.admit(entries).expect("a new queue is deep enough for its first share");
        runtime.spawn(task::Task::new(Arc::clone(&reactor), config.polling));
        self.list().push((runtime.id(), Arc::downgrade(&reactor)));
        Ok(share)
    }

    fn admit_to_known(&self, runtime: Id, entries: u32) -> Option<Share> {
        let mut list = self.list();
        list.retain(|(_, reactor)| reactor.strong_count() > 0);
        let of_runtime = list.iter().filter(|(id, _)| *id == runtime);
        let known: Vec<_> = of_runtime.filter_map(|(_, reactor)| reactor.upgrade()).collect();
        // Not under the lock: the last reference to a reactor destroys its queue.
        drop(list);
        known.iter().find_map(|reactor| reactor.admit(entries))
    }

    /// Adds what these reactors did to `counts`.
    pub(crate) fn count(&self, counts: &mut ReactorCounts) {
        let known: Vec<_> = self.list().iter().filter_map(|(_, known)| known.upgrade()).collect();
        for reactor in known {
            let Counters { completions, strays, events, lost_events } = &reactor.counters;
            counts.queues += 1;
            counts.connections += reactor.table().shares();
            counts.completions += completions.load(Ordering::Relaxed);
            counts.strays += strays.load(Ordering::Relaxed);
            counts.events += events.load(Ordering::Relaxed);
            counts.lost_events += lost_events.load(Ordering::Relaxed);
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<(Id, Weak<Reactor>)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reactors {
    /// Nobody is admitted any more: each task ends when the last share of its queue is given back.
    fn drop(&mut self) {
        let list = std::mem::take(&mut *self.list());
        for reactor in list.into_iter().filter_map(|(_, reactor)| reactor.upgrade()) {
            reactor.table().close();
            reactor.wake_task();
        }
    }
}

impl Reactor {
    fn new(cq: Arc<dyn Cq>, depth: u32) -> Self {
        let (task, counters) = (Mutex::default(), Counters::default());
        Self { cq, table: Mutex::new(Table::new(depth)), task, counters }
    }

    /// A share of so many entries, if there are so many.
    fn admit(self: &Arc<Self>, entries: u32) -> Option<Share> {
        let mailbox = Arc::new(Mailbox::default());
        let number = self.table().admit(entries, &mailbox)?;
        // It begins to watch.
        self.wake_task();
        Some(Share { reactor: Arc::clone(self), number, entries, mailbox })
    }

    /// Takes a batch of completions from the queue and puts them into their mailboxes; returns how many.
    ///
    /// # Errors
    ///
    /// The queue is lost.
    fn turn(&self) -> Result<usize, NicError> {
        let mut table = self.table();
        let polled = table.poll(&*self.cq);
        let turned = table.dispatch();
        drop(table);
        let Counters { completions, strays, .. } = &self.counters;
        completions.fetch_add(turned.taken as u64, Ordering::Relaxed);
        if turned.strays > 0 {
            strays.fetch_add(turned.strays, Ordering::Relaxed);
            tracing::debug!(strays = turned.strays, "completions for connections that have left");
        }
        turned.woken.into_iter().for_each(Waker::wake);
        polled.map(|()| turned.taken)
    }

    /// Nobody polls the queue any more: all who share it hear why.
    fn lose(&self, cause: &NicError) {
        let woken = self.table().lose(cause);
        woken.into_iter().for_each(Waker::wake);
    }

    fn wake_task(&self) {
        let waker = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Remembers how to reach the task.
    fn set_task(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let known = task.replace(waker.clone());
        drop(task);
        // A waker's own drop may run anything: not under the lock.
        drop(known);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's share of a completion queue. Dropped when its queue pair is destroyed, and not before: that
/// gives its entries to the next one.
pub(crate) struct Share {
    reactor: Arc<Reactor>,
    number: ConnectionNumber,
    entries: u32,
    mailbox: Arc<Mailbox>,
}

impl Share {
    /// The queue, for queue pairs to be made on.
    pub(crate) fn cq(&self) -> &Arc<dyn Cq> {
        &self.reactor.cq
    }

    /// What ids of this connection's work requests carry.
    pub(crate) fn number(&self) -> ConnectionNumber {
        self.number
    }

    /// Appends up to `max` completions of this connection to `out`, in order. Ready when there are some. One
    /// task waits at a time: the last one that polled.
    ///
    /// # Errors
    ///
    /// The queue is lost, or the runtime that polls it has shut down. What came before is taken first.
    pub(crate) fn poll(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<Wc>,
        max: usize,
    ) -> Poll<Result<(), NicError>> {
        self.mailbox.poll(cx, out, max)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Completions of a destroyed queue pair still count against the depth until they are taken.
        while self.reactor.turn().is_ok_and(|taken| taken > 0) {}
        let is_last = self.reactor.table().leave(self.number, self.entries);
        if is_last {
            self.reactor.wake_task();
        }
    }
}
