//! The endpoints of a channel that has several, for those who change them.

use std::fmt;
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use super::channel::{Channel, Way};
use super::managed::{EndpointInfo, Managed, Members};
use crate::error::Error;
use crate::transport::Target;

/// The endpoints of a balanced channel: to be changed while calls go on, and looked at. Cheap to clone; it keeps the channel, as a
/// clone of that does.
///
/// An endpoint that is removed gets no more calls. Those that run there go on, and its connection closes when the last has ended.
#[derive(Clone)]
pub struct Endpoints(Arc<Managed>);

impl Channel {
    /// Its endpoints, if it is one of several: of `Endpoint::balanced`.
    pub fn endpoints(&self) -> Option<Endpoints> {
        match self.innermost() {
            Way::Managed(managed) if managed.members().is_some() => {
                Some(Endpoints(Arc::clone(managed)))
            }
            _ => None,
        }
    }
}

impl Endpoints {
    fn members(&self) -> &Members {
        self.0.members().expect("such a channel has several endpoints")
    }

    /// What there is, in no order that means anything.
    pub fn list(&self) -> Vec<EndpointInfo> {
        self.members().infos()
    }

    /// Where they are.
    pub fn targets(&self) -> Vec<Target> {
        self.members().targets()
    }

    /// Adds an endpoint; nothing if it is there.
    ///
    /// # Errors
    ///
    /// This build has no such transport.
    pub fn insert(&self, target: &Target) -> Result<(), Error> {
        self.members().insert(target)
    }

    /// Removes an endpoint; nothing if it is not there.
    pub fn remove(&self, target: &Target) {
        self.members().remove(target);
    }

    /// Makes `targets` all endpoints that there are. Those that were there before keep their connections.
    ///
    /// # Errors
    ///
    /// This build has no transport of one of them; then nothing is changed.
    pub fn replace(&self, targets: &[Target]) -> Result<(), Error> {
        self.members().replace(targets)
    }

    /// Says whether the server at an endpoint serves: calls go to none that does not. Who is told of that by its servers says it here;
    /// one of whom nothing is said serves.
    pub fn set_serving(&self, target: &Target, serves: bool) {
        self.members().set_serving(target, serves);
    }

    /// What tells of changes: of the set, of connections, of what was said of servers. It does not keep the channel.
    pub fn changes(&self) -> EndpointChanges {
        EndpointChanges { endpoints: Arc::downgrade(&self.0), news: self.0.news() }
    }
}

/// Tells when something about endpoints has changed.
pub struct EndpointChanges {
    endpoints: Weak<Managed>,
    news: watch::Receiver<()>,
}

impl EndpointChanges {
    /// The endpoints; `None` once the channel is gone.
    pub fn endpoints(&self) -> Option<Endpoints> {
        self.endpoints.upgrade().map(Endpoints)
    }

    /// Waits for the next change since this was made, or last returned; `false` once the channel is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> bool {
        self.news.changed().await.is_ok()
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl fmt::Debug for EndpointChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndpointChanges")
    }
}
