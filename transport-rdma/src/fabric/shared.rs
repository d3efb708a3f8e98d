//! What all handles of a fabric share: the network behind its one lock, and the task that moves time on.
//!
//! Wakers are called, and slabs let go, after the lock is released: both may come back to the fabric.
//!
//! The task runs on the runtime of whoever touches the fabric first. When that runtime goes, those who
//! wait are woken, and the next who touches the fabric from another runtime starts a new one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::config::FabricConfig;
use super::network::Network;
use crate::memory::Slab;

/// A fabric's state.
pub(super) struct Shared {
    network: Mutex<Network>,
    /// Tells the driving task to look at the schedule again.
    kick: Arc<Notify>,
    start: Instant,
    me: Weak<Self>,
}

/// The task that moves time on, as the network knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    /// There is none.
    Absent,
    /// It sleeps until then, or until it is kicked.
    Asleep { until: Option<Duration> },
}

/// What has to wait until the lock is released.
#[derive(Default)]
pub(super) struct After {
    wake: Vec<Waker>,
    /// Dropping a waker can run code of an executor.
    stale: Vec<Waker>,
    /// The last reference to a slab deregisters it.
    slabs: Vec<Arc<Slab>>,
}

impl After {
    pub(super) fn wake(&mut self, waker: &mut Option<Waker>) {
        self.wake.extend(waker.take());
    }

    pub(super) fn wait(&mut self, waker: &mut Option<Waker>, cx: &Context<'_>) {
        if !waker.as_ref().is_some_and(|old| old.will_wake(cx.waker())) {
            self.stale.extend(waker.replace(cx.waker().clone()));
        }
    }

    pub(super) fn discard(&mut self, waker: Option<Waker>) {
        self.stale.extend(waker);
    }

    pub(super) fn let_go(&mut self, slab: Arc<Slab>) {
        self.slabs.push(slab);
    }

    fn run(self) {
        self.wake.into_iter().for_each(Waker::wake);
    }
}

impl Shared {
    pub(super) fn new(config: FabricConfig) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            network: Mutex::new(Network::new(config)),
            kick: Arc::new(Notify::new()),
            start: Instant::now(),
            me: Weak::clone(me),
        })
    }

    /// Does something to the network, as of now.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Network) -> R) -> R {
        let runtime = Handle::try_current().ok();
        let mut network = self.lock();
        if runtime.is_some() {
            // Outside of a runtime tokio's clock is not the one that may be paused.
            network.now = network.now.max(self.start.elapsed());
        }
        let result = act(&mut network);
        let after = std::mem::take(&mut network.after);
        let next = network.schedule.next_at();
        let driver = network.driver;
        if driver == Driver::Absent && runtime.is_some() {
            network.driver = Driver::Asleep { until: None };
        }
        drop(network);
        after.run();
        match (driver, runtime) {
            (Driver::Absent, Some(runtime)) => self.start_driver(&runtime),
            (Driver::Absent, None) => {}
            (Driver::Asleep { until }, _) => {
                if next.is_some_and(|next| until.is_none_or(|until| next < until)) {
                    self.kick.notify_one();
                }
            }
        }
        result
    }

    fn start_driver(&self, runtime: &Handle) {
        let driving = Driving { shared: Weak::clone(&self.me), kick: Arc::clone(&self.kick) };
        runtime.spawn(driving.run());
    }

    /// Lets happen what is due; returns when the next event is.
    fn run_due(&self) -> Option<Instant> {
        let mut network = self.lock();
        let until = network.now.max(self.start.elapsed());
        network.run_until(until);
        let next = network.schedule.next_at();
        network.driver = Driver::Asleep { until: next };
        let after = std::mem::take(&mut network.after);
        drop(network);
        after.run();
        next.map(|next| self.start + next)
    }

    fn driver_ended(&self) {
        let mut network = self.lock();
        network.driver = Driver::Absent;
        network.wake_all();
        let after = std::mem::take(&mut network.after);
        drop(network);
        after.run();
    }

    fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.kick.notify_one();
    }
}

/// The task that moves time on. Ends with the last handle of its fabric.
struct Driving {
    shared: Weak<Shared>,
    kick: Arc<Notify>,
}

impl Driving {
    async fn run(self) {
        loop {
            let next = match self.shared.upgrade() {
                Some(shared) => shared.run_due(),
                None => return,
            };
            match next {
                Some(next) => {
                    // Either way the schedule is looked at again.
                    let _kicked = timeout_at(next, self.kick.notified()).await;
                }
                None => self.kick.notified().await,
            }
        }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.driver_ended();
        }
    }
}
