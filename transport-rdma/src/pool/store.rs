//! A pool's stock with its lock, its waiting tasks, and the slabs that are made for them.
//!
//! Buffers are handed over, not announced: who is next in line gets the buffer itself, by a one-shot channel, so that
//! no wake-up can be lost and nobody overtakes. If its task is gone by then, the buffer goes on to the next. A task
//! that stops waiting leaves the line when its future drops.
//!
//! Slabs are made where the reaper runs work, since registering takes milliseconds. Nothing is handed over, dropped
//! or registered while the lock is held.
//!
//! A pool that shares a [`Budget`] hands out and grows in its turns only, as long as any pool waits (`shared`).

mod held;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use verbwire_core::{Error, ErrorKind};

use super::PoolSnapshot;
use super::budget::Budget;
use super::classes::{Class, Classes};
use super::counts::Counts;
use super::error::{PoolError, Shortage};
use super::registrar::Registrar;
use super::stock::{Limits, Order, Place, Plan, Refused, Stock, Ticket};
use crate::memory::CpuBuf;
use crate::nic::NicError;
use crate::reaper::Reaper;

use held::Waiting;
pub(super) use held::{Held, Origin};

/// For how long a refusal of the device is believed. 10 s: long enough not to ask at each call, short enough to
/// notice that a limit was raised.
const REFUSAL_HOLDS: Duration = Duration::from_secs(10);

/// What a pool keeps its free buffers as.
pub(super) trait Chunk: Send + 'static {
    /// A buffer of a new slab.
    fn fresh(buf: CpuBuf) -> Self;
}

impl Chunk for CpuBuf {
    fn fresh(buf: CpuBuf) -> Self {
        buf
    }
}

/// See the module.
pub(super) struct Store<B: Chunk> {
    state: Mutex<State<B>>,
    pub(super) registrar: Registrar,
    reaper: Arc<dyn Reaper>,
    pub(super) counts: Counts,
    /// See [`Limits::pinned`].
    pinned_budget: usize,
    /// What bounds its slabs together with those of others.
    shared: Option<Arc<Budget>>,
}

struct State<B: Chunk> {
    stock: Stock<B, Waiter<B>>,
    /// What the device last refused, and when.
    refused: Option<(Instant, NicError)>,
    /// Why nothing is handed out any more.
    closed: Option<Error>,
}

/// How waiting ends.
type Served<B> = Result<Held<B>, PoolError>;

struct Waiter<B: Chunk> {
    len: usize,
    sender: oneshot::Sender<Served<B>>,
}

/// What asking gives.
enum Asked<B: Chunk> {
    Served(Held<B>),
    Waiting(Waiting<B>),
}

impl<B: Chunk> Store<B> {
    pub(super) fn new(
        classes: Classes,
        limits: Limits,
        registrar: Registrar,
        reaper: Arc<dyn Reaper>,
        shared: Option<Arc<Budget>>,
    ) -> Arc<Self> {
        let stock = Stock::new(classes, limits);
        let state = Mutex::new(State { stock, refused: None, closed: None });
        let (counts, pinned_budget) = (Counts::default(), limits.pinned);
        let store = Self { state, registrar, reaper, counts, pinned_budget, shared };
        let store = Arc::new(store);
        store.join();
        store
    }

    /// A buffer that is free now; rather one that is `wanted`.
    ///
    /// # Errors
    ///
    /// There can be none: see [`PoolError`].
    pub(super) fn try_take(
        self: &Arc<Self>,
        len: usize,
        wanted: impl Fn(&B) -> bool,
    ) -> Result<Option<Held<B>>, PoolError> {
        let mut state = self.lock();
        let class = state.class_for(len)?;
        let taken = if self.has_line() { None } else { state.stock.take(class, wanted) };
        drop(state);
        Ok(taken.map(|(place, chunk)| self.hold(place, chunk)))
    }

    /// Takes a buffer, or a place in the line.
    fn ask(
        self: &Arc<Self>,
        len: usize,
        wanted: impl Fn(&B) -> bool,
    ) -> Result<Asked<B>, PoolError> {
        let mut state = self.lock();
        let class = state.class_for(len)?;
        if !self.has_line()
            && let Some((place, chunk)) = state.stock.take(class, wanted)
        {
            drop(state);
            return Ok(Asked::Served(self.hold(place, chunk)));
        }
        state.check_possible(class, len)?;
        let (sender, receiver) = oneshot::channel();
        let ticket = state.stock.wait(class, Waiter { len, sender });
        drop(state);
        self.counts.waits.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting::new(receiver, (class, ticket), Arc::clone(self));
        self.settle();
        Ok(Asked::Waiting(waiting))
    }

    /// A buffer, waited for in line until `deadline`.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves the line; a buffer that had come already goes to the next one.
    pub(super) async fn take(
        self: Arc<Self>,
        len: usize,
        wanted: impl Fn(&B) -> bool,
        deadline: Instant,
    ) -> Result<Held<B>, PoolError> {
        let mut waiting = match self.ask(len, wanted)? {
            Asked::Served(held) => return Ok(held),
            Asked::Waiting(waiting) => waiting,
        };
        let Ok(served) = timeout_at(deadline, &mut waiting).await else {
            self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
            let waited = waiting.waited();
            return Err(PoolError::TimedOut { len, waited, why: self.shortage() });
        };
        served
    }

    fn shortage(self: &Arc<Self>) -> Shortage {
        let shared = self.shared_shortage();
        let state = self.lock();
        let refused = state.refused.as_ref().map(|(_, reason)| reason.clone());
        shared.unwrap_or_else(|| Shortage::of(state.stock.amounts(), self.pinned_budget, refused))
    }

    fn hold(self: &Arc<Self>, place: Place, chunk: B) -> Held<B> {
        Held::new(chunk, Origin::new(place, Arc::clone(self)))
    }

    fn put(self: &Arc<Self>, place: Place, chunk: B) {
        let returned = self.lock().put(place, chunk);
        match returned {
            Ok(()) => self.settle(),
            // The pool is closed: the slab goes with its last buffer, and not under the lock.
            Err(chunk) => {
                drop(chunk);
                self.give_turns();
            }
        }
    }

    fn leave(self: &Arc<Self>, (class, ticket): (Class, Ticket)) {
        self.lock().stock.leave(class, ticket);
        // It may have been the one for whom all others waited.
        self.settle();
    }

    fn unpin(&self, bytes: usize) {
        self.lock().stock.unpin(bytes);
    }

    fn pin(&self, bytes: usize) {
        self.lock().stock.pin(bytes);
    }

    /// Serves those who wait, as far as there are buffers, and has a slab made for the next; in its turn, where the pool
    /// shares a budget.
    fn settle(self: &Arc<Self>) {
        if self.shared.is_some() {
            self.settle_in_turn();
        } else {
            self.serve();
            self.grow(usize::MAX);
        }
    }

    /// Serves those who wait, as far as there are buffers; how many.
    fn serve(self: &Arc<Self>) -> usize {
        let mut count = 0;
        loop {
            let served = self.lock().stock.serve();
            let Some((waiter, place, chunk)) = served else { return count };
            self.hand_over(waiter, place, chunk);
            count += 1;
        }
    }

    fn hand_over(self: &Arc<Self>, waiter: Waiter<B>, place: Place, chunk: B) {
        let Err(Ok(unheard)) = waiter.sender.send(Ok(self.hold(place, chunk))) else { return };
        // Its task is gone since it was chosen. Put back here, not by its drop, which would settle again.
        let returned = self.lock().put(place, unheard.split().0);
        drop(returned);
    }

    /// Has a slab of at most `room` bytes made, if one is needed. Says what was planned, without its buffers.
    fn grow(self: &Arc<Self>, room: usize) -> Plan<()> {
        let mut state = self.lock();
        let planned = if state.closed.is_some() { Plan::Nothing } else { state.stock.plan(room) };
        drop(state);
        let (order, given_up) = match planned {
            Plan::Make(order, given_up) => (order, given_up),
            Plan::Making => return Plan::Making,
            Plan::NoRoom => return Plan::NoRoom,
            Plan::Nothing => return Plan::Nothing,
        };
        let store = Arc::clone(self);
        self.reaper.run(Box::new(move || {
            // Deregistered and freed first: the new slab needs its room.
            drop(given_up);
            store.carry_out(order);
        }));
        Plan::Making
    }

    /// Makes the slab of an order, or a smaller one.
    fn carry_out(self: &Arc<Self>, mut order: Order) {
        loop {
            match self.registrar.make(order.chunk_len, order.chunks) {
                Ok(pool) => {
                    self.shared.iter().for_each(|shared| shared.count(pool.slab()));
                    let free = std::iter::from_fn(|| pool.take()).map(B::fresh).collect();
                    let unwanted = self.lock().grown(order, free);
                    drop(unwanted);
                    break;
                }
                Err(reason) => match self.refused(order, &reason) {
                    Some(smaller) => order = smaller,
                    None => break,
                },
            }
        }
        self.made();
    }

    fn refused(&self, order: Order, reason: &NicError) -> Option<Order> {
        self.counts.refusals.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let hopeless = match state.stock.refused(order) {
            Refused::Again(smaller) => return Some(smaller),
            Refused::Final(hopeless) => hopeless,
        };
        state.refused = Some((Instant::now(), reason.clone()));
        let limit = state.stock.amounts().limit;
        drop(state);
        tracing::warn!(%reason, limit, "the device registers no more memory: the pool stays small");
        for Waiter { len, sender } in hopeless {
            // Whoever does not listen any more needs not be told.
            let _unheard = sender.send(Err(PoolError::Refused { len, reason: reason.clone() }));
        }
        None
    }

    /// Gives idle slabs up: deregisters and frees them.
    pub(super) fn trim(&self) {
        let given_up = self.lock().stock.trim();
        drop(given_up);
        self.give_turns();
    }

    /// Ends the pool: who waits is told `cause`, registrations end, memory stays as long as somebody holds it.
    /// The first cause is kept.
    pub(super) fn close(&self, cause: &Error) {
        let (free, waiting) = {
            let mut state = self.lock();
            if state.closed.is_some() {
                return;
            }
            state.closed = Some(cause.clone());
            state.stock.clear()
        };
        for waiter in waiting {
            let _unheard = waiter.sender.send(Err(PoolError::Closed(cause.clone())));
        }
        drop(free);
        self.registrar.close();
        self.give_turns();
    }

    pub(super) fn snapshot(&self) -> PoolSnapshot {
        let amounts = self.lock().stock.amounts();
        self.counts.snapshot(amounts, self.registrar.registrations())
    }

    /// Why the pool is closed.
    pub(super) fn cause(&self) -> Error {
        self.lock().closed.clone().unwrap_or_else(closed)
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Chunk> State<B> {
    fn class_for(&self, len: usize) -> Result<Class, PoolError> {
        if let Some(cause) = &self.closed {
            return Err(PoolError::Closed(cause.clone()));
        }
        let classes = self.stock.classes();
        classes.holding(len).ok_or(PoolError::TooLong { len, longest: classes.longest() })
    }

    fn check_possible(&mut self, class: Class, len: usize) -> Result<(), PoolError> {
        let Some((at, reason)) = &self.refused else { return Ok(()) };
        if at.elapsed() >= REFUSAL_HOLDS {
            self.refused = None;
            self.stock.forget_refusals();
        } else if !self.stock.is_possible(class) {
            return Err(PoolError::Refused { len, reason: reason.clone() });
        }
        Ok(())
    }

    /// Puts a buffer back, or gives it to be dropped.
    fn put(&mut self, place: Place, chunk: B) -> Result<(), B> {
        if self.closed.is_some() {
            return Err(chunk);
        }
        self.stock.put(place, chunk);
        Ok(())
    }

    /// Takes a new slab's buffers, or gives them to be dropped.
    fn grown(&mut self, order: Order, free: Vec<B>) -> Vec<B> {
        if self.closed.is_some() {
            return free;
        }
        self.stock.grown(order, free);
        Vec::new()
    }
}

/// The end of a pool that was dropped.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the transport of this memory pool is closed")
}
