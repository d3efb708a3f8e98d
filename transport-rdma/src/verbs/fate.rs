//! What a device says of itself, told to those whom it concerns.
//!
//! Owns the list of a device's connections and completion queues. The events' thread tells them that they
//! are over; a connection asks with [`Watch::poll`], a completion queue with its [`CqFate`]. No unsafe code.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use verbwire_core::Error;
use verbwire_core::transport::sleeper::Sleeper;

use crate::nic::{NicError, QpNumber};

/// Everybody on a device who must hear of its events.
#[derive(Default)]
pub(super) struct Fates {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// Why the device is of no use any more.
    gone: Option<Error>,
    /// Ports that have gone down and not come up since.
    down: BTreeSet<PortNumber>,
    next: u64,
    watches: BTreeMap<u64, Seat>,
    cqs: BTreeMap<CqKey, Weak<CqFate>>,
}

/// A completion queue among those of its device, by the address that events name it with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CqKey(pub(super) usize);

/// A port of a device, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PortNumber(pub(super) u8);

struct Seat {
    qp: QpNumber,
    /// Of its sends and of its receives.
    cqs: [CqKey; 2],
    port: PortNumber,
    over: Option<Error>,
    waker: Option<Waker>,
}

/// Whether a completion queue is lost.
#[derive(Default)]
pub(super) struct CqFate {
    lost: OnceLock<NicError>,
    /// Who waits for events of the queue.
    waiting: Sleeper,
}

impl CqFate {
    /// Errs for ever once the device has said so.
    pub(super) fn check(&self) -> Result<(), NicError> {
        self.lost.get().map_or(Ok(()), |lost| Err(lost.clone()))
    }

    /// The same; who waits for events is woken when it changes.
    pub(super) fn poll_lost(&self, cx: &mut Context<'_>) -> Result<(), NicError> {
        self.waiting.register(cx.waker());
        self.check()
    }

    fn lose(&self, lost: &NicError) {
        let _first_stays = self.lost.set(lost.clone());
        self.waiting.wake();
    }
}

/// A connection's place in the list; given up when it is dropped.
pub(super) struct Watch {
    fates: Arc<Fates>,
    key: u64,
}

impl Fates {
    /// A place for the connection of this queue pair, which goes by this port.
    pub(super) fn watch(
        self: &Arc<Self>,
        qp: QpNumber,
        cqs: [CqKey; 2],
        port: PortNumber,
    ) -> Watch {
        let mut list = self.list();
        let key = list.next;
        list.next += 1;
        let over = list.gone.clone();
        list.watches.insert(key, Seat { qp, cqs, port, over, waker: None });
        Watch { fates: Arc::clone(self), key }
    }

    /// A completion queue that exists from now on.
    pub(super) fn add_cq(&self, key: CqKey) -> Arc<CqFate> {
        let fate = Arc::new(CqFate::default());
        let mut list = self.list();
        list.cqs.insert(key, Arc::downgrade(&fate));
        if let Some(gone) = &list.gone {
            fate.lose(&NicError { verb: "ibv_create_cq", reason: gone.to_string() });
        }
        drop(list);
        fate
    }

    /// A completion queue that is about to be destroyed: its address may name another one soon.
    pub(super) fn remove_cq(&self, key: CqKey) {
        self.list().cqs.remove(&key);
    }

    /// Why the device is of no use any more, if it is not.
    pub(super) fn gone(&self) -> Option<Error> {
        self.list().gone.clone()
    }

    /// The device is gone: all connections and completion queues end, and new ones at once.
    pub(super) fn end_device(&self, cause: &Error) {
        let fates: Vec<_> = {
            let mut list = self.list();
            list.gone.get_or_insert_with(|| cause.clone());
            list.cqs.values().filter_map(Weak::upgrade).collect()
        };
        // First, so that connections hear the device's words before they hear that their queue is lost.
        self.end(cause, |_| true);
        let lost = NicError { verb: "ibv_poll_cq", reason: cause.to_string() };
        fates.iter().for_each(|fate| fate.lose(&lost));
    }

    /// A port is down: its connections of now end.
    pub(super) fn end_port(&self, port: PortNumber, cause: &Error) {
        self.list().down.insert(port);
        self.end(cause, |seat| seat.port == port);
    }

    /// A port works again. What has ended stays so.
    pub(super) fn port_is_up(&self, port: PortNumber) {
        self.list().down.remove(&port);
    }

    /// Whether the device has said that a port is down.
    pub(super) fn is_down(&self, port: PortNumber) -> bool {
        self.list().down.contains(&port)
    }

    /// The connection of this queue pair ends.
    pub(super) fn end_qp(&self, qp: QpNumber, cause: &Error) {
        self.end(cause, |seat| seat.qp == qp);
    }

    /// A completion queue is lost, and all connections that use it end.
    pub(super) fn end_cq(&self, key: CqKey, lost: &NicError, cause: &Error) {
        let fate = self.list().cqs.get(&key).and_then(Weak::upgrade);
        if let Some(fate) = fate {
            fate.lose(lost);
        }
        self.end(cause, |seat| seat.cqs.contains(&key));
    }

    fn end(&self, cause: &Error, concerned: impl Fn(&Seat) -> bool) {
        let mut wakers = Vec::new();
        for seat in self.list().watches.values_mut().filter(|seat| concerned(seat)) {
            seat.over.get_or_insert_with(|| cause.clone());
            wakers.extend(seat.waker.take());
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Ready when the device has ended the connection, and from then on.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Error> {
        let mut list = self.fates.list();
        let Some(seat) = list.watches.get_mut(&self.key) else { return Poll::Pending };
        if let Some(over) = &seat.over {
            return Poll::Ready(over.clone());
        }
        match &mut seat.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => seat.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let seat = self.fates.list().watches.remove(&self.key);
        // A waker's own drop may run anything: not under the lock.
        drop(seat);
    }
}

#[cfg(test)]
mod tests {
    use verbwire_core::ErrorKind;

    use super::*;

    const PORT: PortNumber = PortNumber(1);

    fn cause(words: &str) -> Error {
        Error::new(ErrorKind::Lost, words)
    }

    fn poll(watch: &Watch) -> Poll<String> {
        watch.poll(&mut Context::from_waker(Waker::noop())).map(|error| error.to_string())
    }

    fn over(words: &str) -> Poll<String> {
        Poll::Ready(words.to_owned())
    }

    #[test]
    fn an_event_reaches_those_whom_it_concerns_and_the_first_cause_stays() {
        let fates = Arc::new(Fates::default());
        let one = fates.watch(QpNumber(1), [CqKey(8); 2], PORT);
        let two = fates.watch(QpNumber(2), [CqKey(8), CqKey(9)], PORT);
        let fate = fates.add_cq(CqKey(9));
        fates.end_qp(QpNumber(1), &cause("fatal"));
        assert_eq!((poll(&one), poll(&two)), (over("fatal"), Poll::Pending));
        let lost = NicError { verb: "ibv_poll_cq", reason: "overflow".into() };
        fates.end_cq(CqKey(9), &lost, &cause("queue"));
        assert_eq!(fate.check(), Err(lost));
        fates.end_port(PORT, &cause("port"));
        assert_eq!((poll(&one), poll(&two)), (over("fatal"), over("queue")));
        assert_eq!(poll(&fates.watch(QpNumber(3), [CqKey(8); 2], PORT)), Poll::Pending);
    }

    #[test]
    fn a_port_that_goes_down_ends_its_own_connections_only() {
        let fates = Arc::new(Fates::default());
        let here = fates.watch(QpNumber(1), [CqKey(1); 2], PORT);
        let there = fates.watch(QpNumber(2), [CqKey(1); 2], PortNumber(2));
        fates.end_port(PORT, &cause("port 1"));
        assert_eq!((poll(&here), poll(&there)), (over("port 1"), Poll::Pending));
        assert!(fates.is_down(PORT) && !fates.is_down(PortNumber(2)));
        fates.port_is_up(PORT);
        assert!(!fates.is_down(PORT));
        assert_eq!(poll(&here), over("port 1"), "what has ended stays so");
    }

    #[test]
    fn a_device_that_is_gone_ends_also_what_comes_later() {
        let fates = Arc::new(Fates::default());
        fates.end_device(&cause("gone"));
        assert_eq!(poll(&fates.watch(QpNumber(1), [CqKey(1); 2], PORT)), over("gone"));
        assert!(fates.gone().is_some());
    }
}
