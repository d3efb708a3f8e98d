//! How to reach the one task that waits for something.

use std::task::Waker;

use parking_lot::Mutex;

/// The task that polled last.
#[derive(Debug, Default)]
pub struct Sleeper {
    waker: Mutex<Option<Waker>>,
}

impl Sleeper {
    /// Remembers the task. Look for what is waited for after this: what came before is seen, what comes later wakes.
    pub fn register(&self, waker: &Waker) {
        let mut known = self.waker.lock();
        let stale = match &*known {
            Some(known) if known.will_wake(waker) => None,
            _ => known.replace(waker.clone()),
        };
        drop(known);
        // A waker's own drop may run anything: not under the lock.
        drop(stale);
    }

    /// Wakes the task and forgets it: its next poll registers it anew.
    pub fn wake(&self) {
        let waker = self.waker.lock().take();
        waker.into_iter().for_each(Waker::wake);
    }
}
