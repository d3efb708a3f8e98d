//! The receives that connections of a device share, if they do.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use verbwire_core::{Error, ErrorKind};

use super::Device;
use crate::config::RdmaConfig;
use crate::error;
use crate::nic::NicError;
use crate::proto::loans::Shares;
use crate::reaper::Reaper;
use crate::shared::{Membership, SharedReceives};

/// Queues of shared receives that a device has at most. 8: each holds its memory until its last connection has ended, and
/// another one is needed only when much went wrong on those before.
const QUEUES: usize = 8;

/// A device's shared receives.
#[derive(Default)]
pub(super) struct Sharing {
    /// Those that the next connection joins, and those before them, as long as they have members.
    list: Mutex<Vec<Weak<SharedReceives>>>,
    /// Held while some are made, so that all who find none wait for the same ones.
    making: Mutex<()>,
    /// How many there have been. Counted here and not for the process, so that runs repeat exactly.
    made: AtomicU32,
    /// It was said that there are none.
    told: AtomicBool,
}

impl Sharing {
    fn known(&self) -> Vec<Arc<SharedReceives>> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|shared| shared.strong_count() > 0);
        list.iter().filter_map(Weak::upgrade).collect()
    }

    /// A place at the first that has one; `None` if there are none to join.
    fn join(&self) -> Option<Result<Membership, Error>> {
        let mut refused = None;
        for shared in self.known().iter().filter(|shared| !shared.is_spent()) {
            match shared.join() {
                Ok(membership) => return Some(Ok(membership)),
                Err(error) => refused = refused.or(Some(Err(error))),
            }
        }
        refused
    }

    fn add(&self, shared: &Arc<SharedReceives>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(Arc::downgrade(shared));
    }

    fn tell(&self, device: &str, why: &str) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(device, "shared_receives has no effect: {why}");
        }
    }
}

impl Device {
    /// A place among those that share receives; `None` if connections here have their own.
    ///
    /// # Errors
    ///
    /// There is none left, or the device refuses what is needed.
    pub(crate) fn share_receives(
        &self,
        config: &RdmaConfig,
        reaper: &Arc<dyn Reaper>,
    ) -> Result<Option<Membership>, Error> {
        if config.shared_receives == 0 {
            return Ok(None);
        }
        let capabilities = self.nic().capabilities();
        if self.is_apart() {
            let why = "each peer has a protection domain of its own, since peers are not trusted";
            if let Some(parent) = self.parent.upgrade() {
                parent.sharing.tell(&capabilities.device, why);
            }
            return Ok(None);
        }
        if capabilities.max_srq_wr == 0 {
            self.sharing.tell(&capabilities.device, "the device has no shared receive queues");
            return Ok(None);
        }
        if let Some(joined) = self.sharing.join() {
            return joined.map(Some);
        }
        let _making = self.sharing.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody may have made them meanwhile.
        if let Some(joined) = self.sharing.join() {
            return joined.map(Some);
        }
        let spent = self.sharing.known().len();
        if spent >= QUEUES {
            return Err(all_spent(spent, &capabilities.device));
        }
        let made = self.make_shared(config, reaper);
        let shared = made.map_err(|error| {
            let count = config.shared_receives;
            error::local(
                &format!("making {count} receives that connections share (shared_receives)"),
                error,
            )
        })?;
        let membership = shared.join()?;
        self.sharing.add(&shared);
        Ok(Some(membership))
    }

    /// How the receives are divided, over all that connections share.
    pub(crate) fn count_shared(&self, sum: &mut Shares) {
        self.sharing.known().iter().for_each(|shared| sum.add(&shared.shares()));
    }

    fn make_shared(
        &self,
        config: &RdmaConfig,
        reaper: &Arc<dyn Reaper>,
    ) -> Result<Arc<SharedReceives>, NicError> {
        let capabilities = self.nic().capabilities();
        let most = capabilities.max_srq_wr.min(capabilities.max_cqe);
        let len = config.shared_receives.min(most);
        let pool = self.register(len as usize, config)?;
        let srq = self.nic().create_srq(len)?;
        let number = self.sharing.made.fetch_add(1, Ordering::Relaxed);
        SharedReceives::new(number, (srq, pool), config, reaper)
    }
}

fn all_spent(queues: usize, device: &str) -> Error {
    let message = format!(
        "connections on {device} share {queues} queues of receives, which is the most, and none takes another one: receives \
         were lost to connections that have ended, or have not gone round since; close connections, or raise shared_receives"
    );
    Error::new(ErrorKind::LocalResource, message)
}

#[cfg(all(test, feature = "fabric"))]
mod tests;
