//! Completion queues that connections share: who polls them, and how a connection gets its own completions.
//!
//! ```text
//!   Reactors (of a device)
//!     └► Reactor, one per runtime, and another when the entries of the first are spent
//!          ├ two completion queues, their depths admitted in parts ([`Share`])
//!          └ a task of that runtime, which polls them and waits for their events ([`task`])
//!   Share (of a connection): so many entries of both queues, and a mailbox
//! ```
//!
//! Receives complete on one queue, sends on the other. Nobody needs to know at once that a send is done, unless it is
//! the slot or the buffer that the next one waits for. So the queue of sends is polled along with the other one, and
//! makes events only while somebody asks for them ([`Share::await_sends`]); on one queue each send that is signalled
//! would wake a task for nothing, and on iWARP each longer one is. Memory that is sent from where it lies comes back by
//! the same rule: with the next receive, when somebody waits for such memory ([`Reactors::await_sends`]), or when the
//! watchdog looks, half a second later at most.
//!
//! A queue never overflows: a connection is admitted only when all its work requests can complete at once. The
//! queues are polled and their completions are put into mailboxes under one lock, so that nobody's completions change
//! their order, whoever polls. A completion names its connection by slot and generation (`WorkId`); one for a
//! connection that has left is counted and dropped.
//!
//! A completion of a receive that connections share names its queue pair only, by a number that the device uses again.
//! So a queue pair is made known under its number ([`Share::bind`]), and that is refused as long as a completion of the one
//! that had it before with the same receives may still come. Those for nobody are posted again at once. The queue of receives has an entry for each of
//! the shared ones from when the first of their connections is admitted.
//!
//! Owns no buffer, and knows no message.

mod mailbox;
mod numbers;
mod table;
mod task;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::{Handle, Id};
use verbwire_core::transport::sleeper::Sleeper;

use crate::config::RdmaConfig;
use crate::nic::{Cqs, Depths, Nic, NicError, Qp, QpNumber, Wc};
use crate::shared::SharedReceives;
use crate::work::ConnectionNumber;

use mailbox::Mailbox;
use numbers::Bound;
use table::{Look, Table, Unshared};

/// The reactors of a device.
#[derive(Default)]
pub(crate) struct Reactors {
    /// Each lives as long as its task or a share of it.
    list: Mutex<Vec<(Id, Weak<Reactor>)>>,
}

/// Completion queues with those who share them.
struct Reactor {
    cqs: Cqs,
    table: Mutex<Table>,
    /// How to reach the task.
    task: Sleeper,
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
    /// Reactors, with a completion queue for sends and one for receives each.
    pub reactors: usize,
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
    /// A share of completion queues for a queue pair of these depths, in a reactor of the current runtime. Its receives may
    /// be shared ones.
    ///
    /// # Errors
    ///
    /// The device is out of completion queues, or has none that is deep enough.
    pub(crate) fn admit(
        &self,
        nic: &dyn Nic,
        (depths, shared): (Depths, Option<&Arc<SharedReceives>>),
        config: &RdmaConfig,
    ) -> Result<Share, NicError> {
        let runtime = Handle::current();
        let capabilities = nic.capabilities();
        let send = depths.send.saturating_add(capabilities.own_sends);
        let entries = Depths { send, ..depths };
        if let Some(share) = self.admit_to_known(runtime.id(), entries, shared) {
            return Ok(share);
        }
        let depth = config.completion_queue_depth.min(capabilities.max_cqe);
        let recv = entries.recv.saturating_add(shared.map_or(0, |shared| shared.len()));
        let depths = Depths { send: depth.max(entries.send), recv: depth.max(recv) };
        let cqs = Cqs { send: nic.create_cq(depths.send)?, recv: nic.create_cq(depths.recv)? };
        // Two tasks that get here at once make a reactor each: the next connections use both.
        let unshared = if self.has_one(runtime.id()) { Unshared::Closes } else { Unshared::Stays };
        let reactor = Arc::new(Reactor::new(cqs, depths, unshared));
        let share = reactor.admit(entries, shared);
        let share = share.expect("new queues are deep enough for a first share");
        self.list().push((runtime.id(), Arc::downgrade(&reactor)));
        runtime.spawn(task::Task::new(reactor, config.polling));
        Ok(share)
    }

    /// Whether the runtime has a reactor. One is kept for the next connection; those beside it go with their last.
    fn has_one(&self, runtime: Id) -> bool {
        self.list().iter().any(|(id, known)| *id == runtime && known.strong_count() > 0)
    }

    fn admit_to_known(
        &self,
        runtime: Id,
        entries: Depths,
        shared: Option<&Arc<SharedReceives>>,
    ) -> Option<Share> {
        let mut list = self.list();
        list.retain(|(_, reactor)| reactor.strong_count() > 0);
        let of_runtime = list.iter().filter(|(id, _)| *id == runtime);
        let known: Vec<_> = of_runtime.filter_map(|(_, reactor)| reactor.upgrade()).collect();
        // Not under the lock: the last reference to a reactor destroys its queue.
        drop(list);
        known.iter().find_map(|reactor| reactor.admit(entries, shared))
    }

    /// Completions of all sends are needed as soon as they come, until what is returned drops.
    pub(crate) fn await_sends(&self) -> AwaitingAll {
        let known = self.list().iter().map(|(_, known)| Weak::clone(known)).collect();
        let awaiting = AwaitingAll(known);
        awaiting.reactors().for_each(|reactor| {
            if reactor.table().begin_awaiting() {
                reactor.task.wake();
            }
        });
        awaiting
    }

    /// Adds what these reactors did to `counts`.
    pub(crate) fn count(&self, counts: &mut ReactorCounts) {
        let known: Vec<_> = self.list().iter().filter_map(|(_, known)| known.upgrade()).collect();
        for reactor in known {
            let Counters { completions, strays, events, lost_events } = &reactor.counters;
            counts.reactors += 1;
            counts.connections += reactor.table().shares();
            counts.completions += completions.load(Ordering::Relaxed);
            counts.strays += strays.load(Ordering::Relaxed);
            counts.events += events.load(Ordering::Relaxed);
            counts.lost_events += lost_events.load(Ordering::Relaxed);
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<(Id, Weak<Reactor>)>> {
        self.list.lock()
    }
}

impl Drop for Reactors {
    /// Nobody is admitted any more: each task ends when the last share of its queue is given back.
    fn drop(&mut self) {
        let list = std::mem::take(&mut *self.list());
        for reactor in list.into_iter().filter_map(|(_, reactor)| reactor.upgrade()) {
            reactor.table().close();
            reactor.task.wake();
        }
    }
}

impl Reactor {
    fn new(cqs: Cqs, depths: Depths, unshared: Unshared) -> Self {
        let (task, counters) = (Sleeper::default(), Counters::default());
        Self { cqs, table: Mutex::new(Table::new(depths, unshared)), task, counters }
    }

    /// A share of so many entries, if there are so many.
    fn admit(
        self: &Arc<Self>,
        entries: Depths,
        shared: Option<&Arc<SharedReceives>>,
    ) -> Option<Share> {
        let mailbox = Arc::new(Mailbox::default());
        let number = self.table().admit(entries, &mailbox, shared)?;
        // It begins to watch.
        self.task.wake();
        let shared = shared.map(Arc::clone);
        Some(Share { reactor: Arc::clone(self), number, entries, mailbox, shared, bound: None })
    }

    /// Takes a batch of completions from the queues and puts them into their mailboxes; returns how many.
    ///
    /// # Errors
    ///
    /// A queue is lost.
    fn turn(&self, look: Look) -> Result<usize, NicError> {
        let mut table = self.table();
        let polled = table.poll(&self.cqs, look);
        let turned = table.dispatch();
        drop(table);
        let Counters { completions, strays, .. } = &self.counters;
        completions.fetch_add(turned.taken as u64, Ordering::Relaxed);
        if turned.strays > 0 {
            strays.fetch_add(turned.strays, Ordering::Relaxed);
            tracing::debug!(strays = turned.strays, "completions for connections that have left");
        }
        for (shared, completion) in turned.unowned {
            shared.recycle([completion]);
        }
        turned.overrun.into_iter().for_each(|qp| qp.fail());
        turned.woken.wake();
        polled.map(|()| turned.taken)
    }

    /// Nobody polls the queues any more: all who share them hear why.
    fn lose(&self, cause: &NicError) {
        let woken = self.table().lose(cause);
        woken.into_iter().for_each(Waker::wake);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

/// Whether somebody waits for sends to complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    Yes,
    No,
}

/// Whether completions are left when some were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// There are, or the queue is lost: to be polled again.
    Some,
    /// There are none. The next one wakes who polled.
    Nothing,
}

/// Somebody waits for the sends of all connections. Keeps no queue from being destroyed.
pub(crate) struct AwaitingAll(Vec<Weak<Reactor>>);

impl AwaitingAll {
    fn reactors(&self) -> impl Iterator<Item = Arc<Reactor>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}

impl Drop for AwaitingAll {
    fn drop(&mut self) {
        self.reactors().for_each(|reactor| reactor.table().end_awaiting());
    }
}

/// A connection's share of completion queues. Dropped when its queue pair is destroyed, and not before: that
/// gives its entries to the next one.
pub(crate) struct Share {
    reactor: Arc<Reactor>,
    number: ConnectionNumber,
    entries: Depths,
    mailbox: Arc<Mailbox>,
    /// Where its receives come from, if they are not its own.
    shared: Option<Arc<SharedReceives>>,
    /// The number that it is known by, from when its queue pair is made.
    bound: Option<QpNumber>,
}

/// Whether a queue pair is known by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binding {
    Known,
    /// Completions of one that had the number before may still come: another one is to be made.
    InUse,
}

impl Share {
    /// The queues, for queue pairs to be made on.
    pub(crate) fn cqs(&self) -> &Cqs {
        &self.reactor.cqs
    }

    /// What ids of this connection's work requests carry.
    pub(crate) fn number(&self) -> ConnectionNumber {
        self.number
    }

    /// Makes the queue pair known, for completions of receives that are shared. One that takes more than `allowed` of them
    /// before its connection has looked at any is failed.
    pub(crate) fn bind(&mut self, qp: &Arc<dyn Qp>, allowed: usize) -> Binding {
        let Some(shared) = &self.shared else { return Binding::Known };
        let number = qp.number();
        let before = self.reactor.table().numbers().before(number, shared.number());
        if before.is_some_and(|mark| shared.settled() < mark) {
            return Binding::InUse;
        }
        let bound = Bound::new(self.number, shared, qp, allowed);
        if !self.reactor.table().numbers().bind(number, bound, before) {
            return Binding::InUse;
        }
        self.bound = Some(number);
        Binding::Known
    }

    /// Takes all completions from the queues that are there. To be called before the queue pair is destroyed: some devices
    /// take completions of shared receives along, and nobody would know of these receives any more. Also before a dead queue
    /// pair is given up, of which something may have come unseen.
    pub(crate) fn take_all(&self) {
        while self.reactor.turn(Look::Both).is_ok_and(|taken| taken > 0) {}
    }

    /// Says whether completions of sends are needed as soon as they come. Else they come with the next receive.
    pub(crate) fn await_sends(&self, awaited: Awaited) {
        if self.reactor.table().await_sends(self.number, awaited) {
            // It looks once more, and arms the queue.
            self.reactor.task.wake();
        }
    }

    /// Appends up to `max` completions of this connection to `out`, in order. Ready when there are some, with whether
    /// more are left. One task waits at a time: the last one that polled.
    ///
    /// # Errors
    ///
    /// A queue is lost, or the runtime that polls it has shut down. What came before is taken first.
    pub(crate) fn poll(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<Wc>,
        max: usize,
    ) -> Poll<Result<Left, NicError>> {
        self.mailbox.poll(cx, out, max)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Completions of a destroyed queue pair still count against the depth until they are taken.
        self.take_all();
        if let (Some(number), Some(shared)) = (self.bound, &self.shared) {
            let (mark, settled) = (shared.mark(), shared.settled());
            self.reactor.table().numbers().leave(number, shared, (mark, settled));
        }
        let is_last = self.reactor.table().leave(self.number, self.entries, self.shared.as_ref());
        if let Some(shared) = &self.shared {
            shared.recycle(self.mailbox.take());
        }
        if is_last {
            self.reactor.task.wake();
        }
    }
}
