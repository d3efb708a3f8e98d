//! Memory of a transport, whatever devices it has.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use tokio::sync::watch;
use tokio::time::Instant;
use verbwire_core::{Buffer, Error};

use crate::config::RdmaConfig;
use crate::memory::Domain;
use crate::nic::Nic;
use crate::pool::{Sources, Staging};
use crate::reactor::Reactors;
use crate::reaper::Reaper;

/// What all devices of a transport send from.
pub(crate) struct Memory {
    /// Registered memory, by address.
    pub(super) sources: Arc<Sources>,
    /// What users allocate. A pool apart from the transport's own, so that users who hold all of it cannot keep replies
    /// from going out.
    pub(super) users: Staging,
    /// Of the devices that may be sending from it.
    reactors: Mutex<Vec<Weak<Reactors>>>,
}

impl Memory {
    /// Memory that grows where `reaper` runs work.
    pub(crate) fn new(config: &RdmaConfig, reaper: &Arc<dyn Reaper>) -> Arc<Self> {
        let sources = Sources::new();
        let users = Staging::new(config.staging, Arc::clone(&sources), Arc::clone(reaper));
        Arc::new(Self { sources, users, reactors: Mutex::default() })
    }

    /// A buffer of `len` zeroed bytes for a user, waited for until `deadline`. While it waits, memory that was sent comes
    /// back as soon as it can.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the line.
    pub(crate) async fn alloc(&self, len: usize, deadline: Instant) -> Result<Buffer, Error> {
        let mut alloc = pin!(self.users.alloc(len, deadline));
        let polled = poll_fn(|cx| Poll::Ready(alloc.as_mut().poll(cx))).await;
        if let Poll::Ready(done) = polled {
            return done;
        }
        let reactors: Vec<_> = self.reactors().iter().filter_map(Weak::upgrade).collect();
        let _awaiting: Vec<_> = reactors.iter().map(|reactors| reactors.await_sends()).collect();
        drop(reactors);
        alloc.await
    }

    pub(super) fn reactors(&self) -> MutexGuard<'_, Vec<Weak<Reactors>>> {
        self.reactors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The users' pool.
    pub(crate) fn users(&self) -> &Staging {
        &self.users
    }
}

/// Registers the users' memory with a device, which takes a millisecond for each slab that is there.
fn attach(
    memory: &Arc<Memory>,
    (domain, nic): (Domain, Arc<dyn Nic>),
    reaper: &dyn Reaper,
) -> watch::Receiver<()> {
    let (attaching, attached) = watch::channel(());
    let memory = Arc::clone(memory);
    reaper.run(Box::new(move || {
        if let Err(error) = memory.users.attach(domain, nic) {
            tracing::warn!(%error, "a device refuses allocated memory: it is copied before it is sent");
        }
        drop(attaching);
    }));
    attached
}

/// The same if it is wanted; else nothing is waited for.
pub(super) fn attach_if(
    wanted: bool,
    memory: &Arc<Memory>,
    in_domain: (Domain, Arc<dyn Nic>),
    reaper: &dyn Reaper,
) -> watch::Receiver<()> {
    match wanted {
        true => attach(memory, in_domain, reaper),
        false => watch::channel(()).1,
    }
}
