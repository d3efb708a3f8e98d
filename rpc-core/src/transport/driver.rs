//! What other tasks tell the driver: the one task that polls a connection.
//!
//! Owns the driver's waker, the note that there is something to write, and the calls that were revoked. The
//! note is also what keeps a burst of messages from waking the driver once per message: only who sets it
//! wakes.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

use crate::message::CallId;

/// How other tasks reach the driver.
#[derive(Debug, Default)]
pub struct DriverSignal {
    /// Whether the driver will write in its next poll.
    due: AtomicBool,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    waker: Option<Waker>,
    /// Calls whose bodies the driver shall throw away. At most as many as were revoked since its last poll,
    /// and the first of them woke it.
    revoked: Vec<CallId>,
}

impl DriverSignal {
    /// Called first in every poll of the driver; returns the calls revoked since the last one.
    pub fn begin_poll(&self, waker: &Waker) -> Vec<CallId> {
        let mut told = self.told();
        match &mut told.waker {
            Some(known) => known.clone_from(waker),
            None => told.waker = Some(waker.clone()),
        }
        mem::take(&mut told.revoked)
    }

    /// Wakes the driver.
    pub fn wake(&self) {
        let waker = self.told().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Has the driver throw away what arrives for the call.
    pub fn revoke(&self, call: CallId) {
        let is_first = {
            let mut told = self.told();
            told.revoked.push(call);
            told.revoked.len() == 1
        };
        if is_first {
            self.wake();
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock()
    }

    /// Leaves writing to the driver; call it after the message is staged.
    pub fn write_soon(&self) {
        if !self.due.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Whether the driver will write soon, so that no one else needs to.
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// The driver writes now: what is staged before this call is seen, what is staged later sets the
    /// note anew.
    pub fn begin_write(&self) {
        self.due.swap(false, Ordering::AcqRel);
    }

    /// The driver waits until the device takes more, so that no one needs to wake it.
    pub fn stay_due(&self) {
        self.due.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_burst_wakes_the_driver_once() {
        let count = Arc::new(Count::default());
        let signal = DriverSignal::default();
        for round in 1..3 {
            signal.begin_poll(&Arc::clone(&count).into());
            (0..10).for_each(|_| signal.write_soon());
            assert_eq!(count.0.load(Ordering::Relaxed), round);
            assert!(signal.is_due());
            signal.begin_write();
        }
    }

    #[test]
    fn revoked_calls_wake_the_driver_once_and_are_told_once() {
        let count = Arc::new(Count::default());
        let signal = DriverSignal::default();
        let waker = Arc::clone(&count).into();
        let call = |slot| CallId { slot, generation: 0 };
        assert!(signal.begin_poll(&waker).is_empty());
        (0..3).for_each(|slot| signal.revoke(call(slot)));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(signal.begin_poll(&waker), [call(0), call(1), call(2)]);
        assert!(signal.begin_poll(&waker).is_empty());
    }
}
