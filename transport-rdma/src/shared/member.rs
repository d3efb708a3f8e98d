//! A connection among those that share receives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;
use verbwire_core::Error;
use verbwire_core::transport::driver::DriverSignal;

use super::SharedReceives;
use crate::nic::Wc;
use crate::outbound::Asked;
use crate::proto::credit::loan::Change;
use crate::proto::loans::MemberId;
use crate::work::Completed;

/// A connection's place. Dropped when its queue pair is destroyed, and not before: until then it may be on the queue.
pub(crate) struct Membership {
    shared: Arc<SharedReceives>,
    id: MemberId,
    signal: Arc<Signal>,
}

/// How a member's driver hears that its share has changed.
#[derive(Default)]
pub(super) struct Signal {
    raised: AtomicBool,
    driver: OnceLock<Arc<DriverSignal>>,
    /// It waits for a loan, and looks now and then whether it is time to ask others for theirs.
    waits: AtomicBool,
}

impl Signal {
    pub(super) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        if let Some(driver) = self.driver.get() {
            driver.wake();
        }
    }
}

impl Membership {
    pub(super) fn new(shared: Arc<SharedReceives>, id: MemberId, signal: Arc<Signal>) -> Self {
        Self { shared, id, signal }
    }

    pub(crate) fn shared(&self) -> &Arc<SharedReceives> {
        &self.shared
    }

    /// Takes a completion of a shared receive; `None` if it is another one.
    pub(crate) fn complete(&self, wc: &Wc) -> Option<Completed> {
        let (buf, result) = self.shared.complete(wc)?;
        Some(match result {
            Ok(len) => Completed::Received(buf, len),
            Err(status) => {
                // Nobody else will: if it fails, the driver hears of it.
                let _told = self.shared.repost([buf], &mut Vec::new());
                Completed::Failed(status)
            }
        })
    }

    /// From now on this driver is woken. It looks at once for what came before.
    pub(crate) fn watch(&self, driver: &Arc<DriverSignal>) {
        let _only_one = self.signal.driver.set(Arc::clone(driver));
    }

    /// HELLO has come: its receive is others'.
    pub(crate) fn greeted(&self) {
        let now = Instant::now();
        self.shared.divide(|loans| loans.lower_floor(self.id, 1, now));
    }

    /// Frames that its peer may send before it is told of receives again.
    pub(crate) fn promised(&self) -> u32 {
        self.shared.members().loans.promised(self.id)
    }

    /// The queue pair is in the error state, where it takes no receives: its floor and its loan are others'. What it took
    /// before and does not complete is missing.
    pub(crate) fn part(&self) {
        self.shared.leave(self.id);
    }

    /// What has changed since the last time.
    ///
    /// # Errors
    ///
    /// The receives are not there any more: the connection is to end.
    pub(crate) fn take_changes(&self) -> Result<Vec<Change>, Error> {
        if !self.signal.raised.swap(false, Ordering::AcqRel) {
            return Ok(Vec::new());
        }
        if let Some(broken) = self.shared.broken() {
            return Err(broken);
        }
        let changes = self.shared.divide(|loans| {
            let changes = std::iter::from_fn(|| loans.take_change(self.id)).collect();
            self.signal.waits.store(loans.waits(self.id), Ordering::Relaxed);
            changes
        });
        Ok(changes)
    }

    /// The peer has said this.
    pub(crate) fn handle(&self, asked: Asked, now: Instant) {
        self.shared.divide(|loans| {
            loans.give_back(self.id, asked.returned, now);
            if asked.wanted > 0 {
                loans.want(self.id, asked.wanted, now);
            }
            self.signal.waits.store(loans.waits(self.id), Ordering::Relaxed);
        });
    }

    /// Time has passed.
    pub(crate) fn look(&self, now: Instant) {
        if self.signal.waits.load(Ordering::Relaxed) {
            self.shared.divide(|loans| loans.serve(now));
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.part();
    }
}
