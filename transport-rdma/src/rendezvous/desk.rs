//! The desk of a device: which connection may grant landing memory next.
//!
//! Owns the [`GrantScheduler`] and knows how to reach the connections that wait. Its lock is taken alone: whoever is
//! admitted is told after it is released.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbwire_core::transport::driver::DriverSignal;

use crate::pool::Tenant;
use crate::proto::grants::{Admission, GrantLimits, GrantScheduler, Unasked};
use crate::proto::rendezvous::BodyLen;
use crate::proto::rendezvous::wire::RtsNumber;

/// See the module.
#[derive(Debug)]
pub(crate) struct Desk {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    scheduler: GrantScheduler<Tenant, RtsNumber>,
    seats: Vec<Arc<Seat>>,
    /// Bodies that wait for memory, in whatever pool.
    wanting: usize,
}

/// A body that waits for memory.
#[derive(Debug)]
pub(crate) struct Wanting(Arc<Desk>);

/// A connection's place at the desk.
#[derive(Debug)]
struct Seat {
    tenant: Tenant,
    driver: Arc<DriverSignal>,
    /// Whether it gives standing grants.
    stands: AtomicBool,
    /// Whether their memory is wanted back.
    recalled: AtomicBool,
    admitted: Mutex<Vec<(RtsNumber, Admitted)>>,
}

/// The right to grant, once. Dropped, somebody else has it.
#[derive(Debug)]
pub(crate) struct Admitted {
    desk: Arc<Desk>,
    /// `None` only when `self` is about to drop.
    admission: Option<Admission>,
}

/// A connection's hold on its seat.
#[derive(Debug)]
pub(crate) struct Client {
    desk: Arc<Desk>,
    seat: Arc<Seat>,
}

impl Desk {
    pub(crate) fn new(limits: GrantLimits) -> Arc<Self> {
        let inner = Inner { scheduler: GrantScheduler::new(limits), seats: Vec::new(), wanting: 0 };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    /// A seat for a connection whose driver is woken when it is admitted.
    pub(crate) fn sit_down(self: &Arc<Self>, tenant: Tenant, driver: Arc<DriverSignal>) -> Client {
        let (stands, recalled) = (AtomicBool::new(false), AtomicBool::new(false));
        let seat = Seat { tenant, driver, stands, recalled, admitted: Mutex::default() };
        let seat = Arc::new(seat);
        self.lock().seats.push(Arc::clone(&seat));
        Client { desk: Arc::clone(self), seat }
    }

    /// The right to grant memory for a reply of `len` bytes that nobody has asked for, if there is room and nobody waits.
    pub(crate) fn admit_reply(self: &Arc<Self>, len: BodyLen) -> Option<Admitted> {
        let admission = self.lock().scheduler.admit_unasked(len.grant_len(), Unasked::Reply);
        admission.map(|admission| Admitted { desk: Arc::clone(self), admission: Some(admission) })
    }

    /// The right to grant memory for any request of up to `len` bytes, as for a reply, and if nobody wants memory.
    pub(crate) fn admit_standing(self: &Arc<Self>, len: BodyLen) -> Option<Admitted> {
        let admission = {
            let mut inner = self.lock();
            if inner.wanting > 0 {
                return None;
            }
            inner.scheduler.admit_unasked(len.grant_len(), Unasked::Standing)
        };
        admission.map(|admission| Admitted { desk: Arc::clone(self), admission: Some(admission) })
    }

    /// A body waits for memory: whoever has some in standing grants is to take it back, and none is given for
    /// as long as it waits.
    pub(crate) fn want(self: &Arc<Self>) -> Wanting {
        let seats = {
            let mut inner = self.lock();
            inner.wanting += 1;
            inner.seats.clone()
        };
        for seat in seats.iter().filter(|seat| seat.stands.load(Ordering::Acquire)) {
            seat.recalled.store(true, Ordering::Release);
            seat.driver.wake();
        }
        Wanting(Arc::clone(self))
    }

    /// Bytes that are granted, as they count.
    pub(crate) fn granted(&self) -> u64 {
        self.lock().scheduler.granted()
    }

    /// Changes the queue, and tells whoever may grant by that.
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Inner)) {
        let mut admitted = Vec::new();
        {
            let mut inner = self.lock();
            change(&mut inner);
            while let Some((tenant, rts, admission)) = inner.scheduler.poll_admitted() {
                let seat = inner.seats.iter().find(|seat| seat.tenant == tenant).cloned();
                admitted.push((seat, rts, admission));
            }
        }
        for (seat, rts, admission) in admitted {
            let admission = Admitted { desk: Arc::clone(self), admission: Some(admission) };
            // Who has left its seat is not in the queue; should it be, the drop makes room again.
            if let Some(seat) = seat {
                seat.admitted().push((rts, admission));
                seat.driver.wake();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Takes a place in the queue.
    pub(crate) fn ask(&self, rts: RtsNumber, len: BodyLen) {
        let tenant = self.seat.tenant;
        self.desk.change(|inner| inner.scheduler.request(tenant, rts, len.grant_len()));
    }

    /// Leaves the queue. Nothing happens if it was admitted.
    pub(crate) fn withdraw(&self, rts: RtsNumber) {
        let tenant = self.seat.tenant;
        self.desk.change(|inner| inner.scheduler.withdraw(tenant, &rts));
    }

    /// It gives standing grants from now on, and is told when their memory is wanted back.
    pub(crate) fn stand(&self) {
        self.seat.stands.store(true, Ordering::Release);
    }

    /// Whether the memory of standing grants was wanted back since the last time.
    pub(crate) fn take_recalled(&self) -> bool {
        self.seat.recalled.swap(false, Ordering::AcqRel)
    }

    /// What was admitted since the last time.
    pub(crate) fn take_admitted(&self) -> Vec<(RtsNumber, Admitted)> {
        mem::take(&mut self.seat.admitted())
    }
}

impl Drop for Wanting {
    /// Standing grants are given again when their connections have something to do.
    fn drop(&mut self) {
        self.0.lock().wanting -= 1;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let tenant = self.seat.tenant;
        self.desk.change(|inner| {
            inner.scheduler.remove(tenant);
            inner.seats.retain(|seat| seat.tenant != tenant);
        });
        // Not under any lock: each makes room for others.
        drop(self.take_admitted());
    }
}

impl Seat {
    fn admitted(&self) -> MutexGuard<'_, Vec<(RtsNumber, Admitted)>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            self.desk.change(|inner| inner.scheduler.release(admission));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(bytes: u32) -> BodyLen {
        BodyLen::new(bytes).expect("not 0")
    }

    fn numbers(client: &Client) -> Vec<u32> {
        client.take_admitted().iter().map(|(rts, _)| rts.0).collect()
    }

    #[test]
    fn who_closes_a_grant_or_leaves_makes_room_for_others() {
        let desk = Desk::new(GrantLimits { granted: 1 << 20, window: 1 << 20, standing: 1 << 18 });
        let [one, two] = [(); 2].map(|()| desk.sit_down(Tenant::unique(), Arc::default()));
        one.ask(RtsNumber(0), len(1 << 20));
        let first = one.take_admitted();
        assert_eq!(first.len(), 1);
        two.ask(RtsNumber(7), len(1 << 20));
        assert_eq!(numbers(&two), [], "all is granted");
        drop(first);
        // Admitted, and gone by the drop of what it was told.
        assert_eq!(numbers(&two), [7]);
        one.ask(RtsNumber(1), len(1 << 20));
        two.ask(RtsNumber(8), len(1 << 20));
        drop(one);
        assert_eq!(numbers(&two), [8], "an admission that nobody has taken is given on");
        assert_eq!(desk.granted(), 0);
    }

    #[test]
    fn who_wants_memory_has_it_asked_back_and_nothing_stands_meanwhile() {
        let desk = Desk::new(GrantLimits { granted: 1 << 20, window: 1 << 20, standing: 1 << 18 });
        let [stands, other] = [(); 2].map(|()| desk.sit_down(Tenant::unique(), Arc::default()));
        stands.stand();
        let held = desk.admit_standing(len(1 << 16)).expect("nobody wants memory");
        let wanting = [desk.want(), desk.want()];
        assert!(stands.take_recalled(), "it is wanted back");
        assert!(!stands.take_recalled() && !other.take_recalled(), "once, by those who have any");
        drop(held);
        for one in wanting {
            assert!(desk.admit_standing(len(1 << 16)).is_none(), "it would be taken at once again");
            drop(one);
        }
        assert!(desk.admit_standing(len(1 << 16)).is_some());
    }
}
