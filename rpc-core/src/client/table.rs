//! The call table as tasks share it: the rules under a lock, and the waker of the driver.
//!
//! The lock is held for look-ups only, never while the transport is called and never across an await.
//! Wakers are called after it is released. Whoever gives the driver work takes its waker along, so that
//! many changes between two polls of the driver wake it once.

use std::task::Waker;

use crate::message::Head;
use crate::proto::client::ClientCalls;
use crate::status::Status;
use crate::sync::{Mutex, lock};
use crate::transport::{Announced, Placement, PlacementHook};

/// The call table of one connection.
#[derive(Default)]
pub(super) struct Table(Mutex<Guarded>);

#[derive(Default)]
struct Guarded {
    calls: ClientCalls,
    driver: Option<Waker>,
}

impl Table {
    /// Works on the calls under the lock. Keep it short.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut ClientCalls) -> R) -> R {
        work(&mut lock(&self.0).calls)
    }

    /// The same for a change that the driver must act on.
    pub(super) fn with_driver_work<R>(&self, work: impl FnOnce(&mut ClientCalls) -> R) -> R {
        let (result, driver) = {
            let mut guarded = lock(&self.0);
            (work(&mut guarded.calls), guarded.driver.take())
        };
        driver.into_iter().for_each(Waker::wake);
        result
    }

    /// The driver looks for work from now on, and is woken for what comes later.
    pub(super) fn set_driver(&self, waker: &Waker) {
        let mut guarded = lock(&self.0);
        match &mut guarded.driver {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }
}

impl PlacementHook for Table {
    /// Replies land that somebody waits for.
    fn place(&self, announced: Announced<'_>) -> Placement {
        let call = announced.head.call();
        let waiting = call.is_some_and(|call| self.with(|calls| calls.is_waiting(call)));
        if waiting { Placement::Pool } else { Placement::Refuse }
    }

    /// The call ends when the peer has stopped it.
    fn lost(&self, head: &Head, why: &str) {
        if let Some(call) = head.call() {
            let status = Status::resource_exhausted(why);
            self.with_driver_work(|calls| calls.fail(call, status));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::buf::Body;
    use crate::error::{Error, ErrorKind};
    use crate::message::{CallId, Head, Message, MethodId};
    use crate::proto::client::Slot;
    use crate::status::{Code, Executed};
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;
    use std::task::{Poll, Wake};
    use tokio::time::Instant;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Counter(std::sync::atomic::AtomicUsize);

    impl Wake for Counter {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Counter {
        fn count(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn begin(table: &Table, waker: &Waker) -> CallId {
        let begun = table.with(|calls| calls.begin(MethodId(1), Instant::now(), waker.clone()));
        begun.expect("open").call
    }

    fn respond(table: &Table, call: CallId) {
        let head = Head::Response { call, code: Code::Ok, executed: Executed::Yes, messages: None };
        let message = Message::with_body(head, Body::new());
        let delivered = table.with(|calls| calls.handle_message(message)).expect("no violation");
        delivered.waker.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn loom_a_reply_is_seen_or_its_caller_is_woken() {
        loom::model(|| {
            let table = Arc::new(Table::default());
            let counter = std::sync::Arc::new(Counter::default());
            let call = begin(&table, &std::sync::Arc::clone(&counter).into());
            let driver = {
                let table = Arc::clone(&table);
                thread::spawn(move || respond(&table, call))
            };
            let waker = std::sync::Arc::clone(&counter).into();
            let first = table.with(|calls| calls.poll_outcome(call, &waker));
            driver.join().expect("no panic");
            if first.is_pending() {
                assert_eq!(counter.count(), 1, "the caller must be woken once");
                let second = table.with(|calls| calls.poll_outcome(call, &waker));
                assert!(matches!(second, Poll::Ready(Ok(_))));
            }
        });
    }

    #[test]
    fn loom_a_dropped_call_frees_its_slot_once_whatever_comes_at_the_same_time() {
        loom::model(|| {
            let table = Arc::new(Table::default());
            let call = begin(&table, Waker::noop());
            let freed = Arc::new(AtomicUsize::new(0));
            let count = |freed: &AtomicUsize, slot: Slot| {
                freed.fetch_add(usize::from(slot == Slot::Freed), Ordering::SeqCst);
            };
            let caller = {
                let (table, freed) = (Arc::clone(&table), Arc::clone(&freed));
                thread::spawn(move || {
                    count(&freed, table.with_driver_work(|calls| calls.abandon(call)));
                })
            };
            respond(&table, call);
            if table.with(|calls| calls.poll_cancel()).is_some() {
                count(&freed, table.with(|calls| calls.handle_cancel_sent()));
            }
            caller.join().expect("no panic");
            if table.with(|calls| calls.poll_cancel()).is_some() {
                count(&freed, table.with(|calls| calls.handle_cancel_sent()));
            }
            assert_eq!(freed.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn loom_work_for_the_driver_is_seen_by_it_or_wakes_it() {
        loom::model(|| {
            let table = Arc::new(Table::default());
            let call = begin(&table, Waker::noop());
            let counter = std::sync::Arc::new(Counter::default());
            let caller = {
                let table = Arc::clone(&table);
                thread::spawn(move || table.with_driver_work(|calls| calls.cancel(call)))
            };
            table.set_driver(&std::sync::Arc::clone(&counter).into());
            let seen = table.with(|calls| calls.poll_cancel()).is_some();
            caller.join().expect("no panic");
            assert!(seen || counter.count() == 1);
        });
    }

    #[test]
    fn loom_no_call_begins_unended_on_a_connection_that_ends() {
        loom::model(|| {
            let table = Arc::new(Table::default());
            let driver = {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    let cause = Error::new(ErrorKind::Lost, "gone");
                    let wakers = table.with(|calls| calls.handle_closed(cause));
                    wakers.into_iter().for_each(Waker::wake);
                })
            };
            let begun =
                table.with(|calls| calls.begin(MethodId(1), Instant::now(), Waker::noop().clone()));
            driver.join().expect("no panic");
            if let Ok(begun) = begun {
                let outcome = table.with(|calls| calls.poll_outcome(begun.call, Waker::noop()));
                assert!(matches!(outcome, Poll::Ready(Err(_))));
            }
        });
    }
}
