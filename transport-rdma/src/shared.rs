//! Receives that connections share: one queue of the device with its memory, and who may have how many of it.
//!
//! A connection's own receives are promised by its windows and so must be posted, used or not. Here the promise of an
//! idle connection is small ([`FLOOR`]), and [`Loans`] divides what is left among those who can use it. One queue per device
//! and protection domain, for all runtimes: what one leaves free, the others can borrow. It lives as long as it has
//! members.
//!
//! Receives are posted again by whoever has copied them out, on behalf of all. Whoever finds a completion of a queue pair
//! that nobody knows any more does the same. What a queue pair took when it died may never complete: it is missing, as
//! soon as a later one completes, and is the NIC's until the queue is destroyed. When more is missing than the reserve
//! makes up for, connections to come get another queue; also when all numbers that the device has for queue pairs are those of
//! connections that have just ended.
//!
//! Owns the queue, the memory of its receives, and the division. Knows neither frames nor completion queues.

mod member;
mod order;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::time::Instant;
use verbwire_core::{Error, ErrorKind};

use crate::config::RdmaConfig;
use crate::error;
use crate::memory::{CpuBuf, Pool};
use crate::nic::{NicError, RecvWr, Srq, Wc, WcStatus};
use crate::proto::credit::Windows;
use crate::proto::loans::{Kept, Loans, MemberId, NoFloor, Shares};
use crate::reaper::Reaper;
use crate::work::{ConnectionNumber, Kind, Receives, WorkId};

pub(crate) use member::Membership;
use member::Signal;
use order::Order;
pub(crate) use order::Place;

/// What each connection is promised, whatever others do. Two of data: a call and the next, so that one after the other
/// needs no loan; two of control.
pub(crate) const FLOOR: Windows = Windows { data: 2, control: 2 };

/// Receives that are lent to nobody. A sixteenth is never promised, and 8 at least; an eighth waits for newcomers.
fn kept(posted: u32) -> Kept {
    Kept { for_missing: (posted / 16).max(8), for_newcomers: posted / 8 }
}

/// See the module.
pub(crate) struct SharedReceives {
    /// What ids of its work requests carry.
    number: ConnectionNumber,
    srq: Arc<dyn Srq>,
    len: u32,
    /// Longest loan of a connection.
    most: u32,
    pool: Arc<Pool>,
    posted: Mutex<Posted>,
    members: Mutex<Members>,
    /// Why receives could not be posted: fewer are there than were promised.
    broken: OnceLock<NicError>,
    reaper: Arc<dyn Reaper>,
}

/// The receives that are posted.
struct Posted {
    receives: Receives,
    order: Order,
    /// Of each entry, where it was posted last; `None` once it has completed.
    places: Vec<Option<Place>>,
    /// As long as not all before this place have completed, queue pairs have no numbers.
    numberless: Place,
}

struct Members {
    loans: Loans,
    signals: BTreeMap<MemberId, Arc<Signal>>,
}

impl SharedReceives {
    /// Receives into all of `pool`, which is registered, on a queue of that length. `number` is no other's of the device.
    ///
    /// # Errors
    ///
    /// The device takes none of them, or not all.
    pub(crate) fn new(
        number: u32,
        (srq, pool): (Arc<dyn Srq>, Arc<Pool>),
        config: &RdmaConfig,
        reaper: &Arc<dyn Reaper>,
    ) -> Result<Arc<Self>, NicError> {
        let number = ConnectionNumber::of_shared(number);
        let len = u32::try_from(pool.slab().chunks()).unwrap_or(u32::MAX);
        let receives = Receives::new(Kind::Shared, number);
        let (order, places, numberless) = (Order::default(), Vec::new(), Place::default());
        let posted = Posted { receives, order, places, numberless };
        let loans = Loans::new(len, kept(len));
        let shared = Arc::new(Self {
            number,
            srq,
            len,
            most: config.data_window.saturating_sub(FLOOR.data),
            pool,
            posted: Mutex::new(posted),
            members: Mutex::new(Members { loans, signals: BTreeMap::new() }),
            broken: OnceLock::new(),
            reaper: Arc::clone(reaper),
        });
        let buffers = std::iter::from_fn(|| shared.pool.take());
        shared.repost(buffers, &mut Vec::new())?;
        Ok(shared)
    }

    /// A place for a connection.
    ///
    /// # Errors
    ///
    /// There is no floor for it.
    pub(crate) fn join(self: &Arc<Self>) -> Result<Membership, Error> {
        let mut members = self.members();
        // HELLO takes one besides.
        let joined = members.loans.admit(FLOOR.receives() + 1, self.most);
        let id = joined.map_err(refused)?;
        let signal = Arc::<Signal>::default();
        members.signals.insert(id, Arc::clone(&signal));
        drop(members);
        Ok(Membership::new(Arc::clone(self), id, signal))
    }

    /// Whether connections to come should share other receives.
    pub(crate) fn is_spent(&self) -> bool {
        let is_numberless = |posted: &Posted| posted.order.settled() < posted.numberless;
        self.broken.get().is_some()
            || is_numberless(&self.posted())
            || !self.members().loans.is_whole()
    }

    /// The device had only numbers for queue pairs that others had: it is spent until all that is posted now has completed.
    pub(crate) fn lack_numbers(&self) {
        let mut posted = self.posted();
        posted.numberless = posted.order.next();
    }

    pub(crate) fn number(&self) -> ConnectionNumber {
        self.number
    }

    pub(crate) fn srq(&self) -> &Arc<dyn Srq> {
        &self.srq
    }

    /// Receives in all, which is how many completions there can be at a time.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// How they are divided.
    pub(crate) fn shares(&self) -> Shares {
        self.members().loans.shares()
    }

    /// The receive of this sequence number has completed. To be said of all, in the order of the completion queue.
    pub(crate) fn arrived(&self, sequence: u64) {
        let mut posted = self.posted();
        let Posted { receives, order, places, .. } = &mut *posted;
        if !receives.is_posted(sequence) {
            return;
        }
        let Some(place) = places.get_mut(Receives::entry(sequence)).and_then(Option::take) else {
            return;
        };
        let before = order.missing();
        order.completed(place);
        let missing = order.missing();
        drop(posted);
        if missing != before {
            let mut members = self.members();
            // Others may have come in between: what is missing by now.
            let missing = self.posted().order.missing();
            members.loans.set_missing(missing);
        }
    }

    /// Takes a completion of a receive; `None` if it is of none that is posted here. The buffer is to be
    /// [posted again](Self::repost).
    pub(crate) fn complete(&self, wc: &Wc) -> Option<(CpuBuf, Result<usize, WcStatus>)> {
        let id = WorkId::decode(wc.id)?;
        if id.kind != Kind::Shared || id.connection != self.number {
            return None;
        }
        let buf = self.posted().receives.complete(id.sequence)?;
        let result = wc.result.map(|len| (len as usize).min(buf.len()));
        Some((buf, result))
    }

    /// Posts receives into these buffers, in order. `batch` is memory for it.
    ///
    /// # Errors
    ///
    /// The device takes no more: all members are to end, and hear of it.
    pub(crate) fn repost(
        &self,
        buffers: impl IntoIterator<Item = CpuBuf>,
        batch: &mut Vec<RecvWr>,
    ) -> Result<(), NicError> {
        batch.clear();
        {
            let mut posted = self.posted();
            let Posted { receives, order, places, .. } = &mut *posted;
            for buf in buffers {
                let (entry, wr) = receives.push_at(buf);
                if places.len() <= entry {
                    places.resize(entry + 1, None);
                }
                places[entry] = Some(order.posted());
                batch.push(wr);
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.srq.post_recv(batch).inspect_err(|error| {
            if self.broken.set(error.clone()).is_ok() {
                tracing::warn!(%error, "receives that connections share could not be posted");
            }
            let signals: Vec<_> = self.members().signals.values().map(Arc::clone).collect();
            signals.iter().for_each(|signal| signal.raise());
        })
    }

    /// Posts the receives of completions again whose connections have left.
    pub(crate) fn recycle(&self, completions: impl IntoIterator<Item = Wc>) {
        let completed = completions.into_iter().filter_map(|wc| self.complete(&wc));
        let buffers: Vec<_> = completed.map(|(buf, _)| buf).collect();
        // All members have heard of it.
        let _told = self.repost(buffers, &mut Vec::new());
    }

    /// Where the next receive will be posted: all before it may have been taken by now.
    pub(crate) fn mark(&self) -> Place {
        self.posted().order.next()
    }

    /// All receives that were posted before have completed, so that no completion of who took one of them is to come.
    pub(crate) fn settled(&self) -> Place {
        self.posted().order.settled()
    }

    /// Why members are to end.
    fn broken(&self) -> Option<Error> {
        let error = self.broken.get()?.clone();
        Some(error::lost("posting the receives that connections share", error))
    }

    /// Changes the division, and tells who has to know.
    fn divide<T>(&self, change: impl FnOnce(&mut Loans) -> T) -> T {
        let mut members = self.members();
        let Members { loans, signals } = &mut *members;
        let result = change(loans);
        let changed = std::iter::from_fn(|| loans.poll_changed());
        let changed: Vec<_> = changed.filter_map(|id| signals.get(&id).map(Arc::clone)).collect();
        drop(members);
        changed.iter().for_each(|signal| signal.raise());
        result
    }

    /// A member takes no more receives. Does nothing for one that has left.
    fn leave(&self, id: MemberId) {
        self.members().signals.remove(&id);
        self.divide(|loans| loans.leave(id, Instant::now()));
    }

    /// Taken last where both are.
    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedReceives {
    /// Its last member has left: no queue pair is on it.
    fn drop(&mut self) {
        let empty = Receives::new(Kind::Shared, self.number);
        let mut receives = std::mem::replace(&mut self.posted().receives, empty);
        let (srq, pool) = (Arc::clone(&self.srq), Arc::clone(&self.pool));
        self.reaper.run(Box::new(move || {
            srq.destroy();
            receives.release();
            drop(pool);
        }));
    }
}

fn refused(full: NoFloor) -> Error {
    let message = format!("{full}: raise shared_receives, or close connections");
    Error::new(ErrorKind::LocalResource, message)
}
