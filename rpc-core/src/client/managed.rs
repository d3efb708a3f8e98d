//! A channel that connects by itself, loses its connections and makes new ones.
//!
//! Owns which of its connections a call goes to, and how a call waits for one. [`subchannel`] owns the connections to an address.

mod keeper;
mod second;
mod subchannel;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::connector::Connector;
use super::link::Link;
use super::methods::{MethodNumbers, ServiceNumbers};
use super::turn::Turn;
use crate::buf::Buffer;
use crate::config::ClientConfig;
use crate::error::Error;
use crate::message::MethodId;
use crate::paths::Paths;
use crate::proto::deadlines::deadline_after;
use crate::proto::reconnect::ConnectivityState;
use crate::service::ServiceDescriptor;
use crate::status::{Executed, Status};
use crate::sync::{Mutex, lock};
use crate::transport::pressure::PressureWatch;
use crate::transport::{Path, Target, Transport};

use subchannel::Subchannel;

/// What callers hold. Its connections close when the last channel and the last call are gone.
pub(super) struct Managed {
    subchannel: Arc<Subchannel>,
    /// The numbers of methods, on all connections.
    methods: Arc<Mutex<MethodNumbers>>,
    news: Arc<News>,
    default_timeout: Duration,
    wait_for_ready: bool,
}

/// Tells whoever waits that a subchannel is not what it was.
pub(super) type News = watch::Sender<()>;

/// Where a call goes.
pub(super) enum Picked {
    /// Over this connection.
    Link(Arc<Link>),
    /// Nowhere yet: it is being connected. Says how many attempts have failed so far.
    Wait(u64),
    /// Nowhere, for this reason.
    Failed(Reason),
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Reason {
    /// None could be made; another attempt follows.
    Failing(Status),
    /// None will be made.
    Shutdown(Status),
}

impl Managed {
    /// Connects, and again whenever the connection is lost.
    pub(super) async fn connect(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
    ) -> Result<Self, Error> {
        let managed = Self::lazy(transport, target, config);
        managed.subchannel.connect_first().await?;
        Ok(managed)
    }

    /// Connects when it is needed.
    pub(super) fn lazy(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
    ) -> Self {
        let methods = MethodNumbers::new(config.limits.max_interned_methods);
        let methods = Arc::new(Mutex::new(methods));
        let news = Arc::new(News::new(()));
        let connector = Connector::new(transport, target, config, Arc::clone(&methods));
        Self {
            subchannel: Subchannel::new(connector, Arc::clone(&news)),
            methods,
            news,
            default_timeout: config.default_timeout,
            wait_for_ready: config.wait_for_ready,
        }
    }

    pub(super) fn default_timeout(&self) -> Duration {
        self.default_timeout
    }

    pub(super) fn register(&self, service: &'static ServiceDescriptor) -> ServiceNumbers {
        lock(&self.methods).register(service)
    }

    pub(super) fn number(&self, path: &Arc<str>) -> MethodId {
        lock(&self.methods).number(path)
    }

    /// The address that calls go to, as statuses name it.
    pub(super) fn peer(&self) -> String {
        self.subchannel.peer()
    }

    pub(super) fn path(&self) -> Option<Path> {
        self.subchannel.link().map(|link| link.path())
    }

    pub(super) fn paths(&self) -> Option<Paths> {
        self.subchannel.paths()
    }

    pub(super) fn memory_pressure(&self) -> PressureWatch {
        let link = self.subchannel.link();
        link.map_or_else(PressureWatch::none, |link| link.memory_pressure())
    }

    pub(super) fn state(&self) -> ConnectivityState {
        self.subchannel.state()
    }

    pub(super) async fn state_changed(&self, last: ConnectivityState) -> ConnectivityState {
        let mut news = self.news.subscribe();
        loop {
            let state = self.state();
            if state != last {
                return state;
            }
            changed(&mut news).await;
        }
    }

    pub(super) async fn alloc(&self, len: usize) -> Result<Buffer, Status> {
        if let Some(link) = self.subchannel.link() {
            return link.alloc(len).await;
        }
        let deadline = deadline_after(Instant::now(), self.default_timeout);
        let buffer = self.subchannel.transport().alloc(len, deadline).await;
        buffer.map_err(|error| error.to_status(Executed::No))
    }

    /// A connection for a call: that of `turn`, if it still takes calls.
    pub(super) fn pick(&self, turn: Option<&Turn>) -> Picked {
        self.subchannel.pick(turn)
    }

    /// A call found that `link` takes no more calls.
    pub(super) fn leave(&self, link: &Arc<Link>) {
        self.subchannel.leave(link);
    }

    /// Waits for a connection, at most until `deadline`. Fails with the first attempt that does, unless the call says that it
    /// waits for a better one, or the channel does.
    pub(super) async fn wait(
        self: Arc<Self>,
        deadline: Instant,
        wait_for_ready: Option<bool>,
    ) -> Result<Arc<Link>, Status> {
        let wait_for_ready = wait_for_ready.unwrap_or(self.wait_for_ready);
        match timeout_at(deadline, self.connected(wait_for_ready)).await {
            Ok(connected) => connected,
            Err(_elapsed) => Err(self.subchannel.waited_too_long()),
        }
    }

    async fn connected(&self, wait_for_ready: bool) -> Result<Arc<Link>, Status> {
        let mut news = self.news.subscribe();
        let mut failed_before = None;
        loop {
            match self.pick(None) {
                Picked::Link(link) => return Ok(link),
                Picked::Failed(Reason::Shutdown(status)) => return Err(status),
                Picked::Failed(Reason::Failing(status)) if !wait_for_ready => return Err(status),
                Picked::Failed(Reason::Failing(_)) => {}
                // The next attempt may have begun before this task saw that the last one failed.
                Picked::Wait(failed)
                    if !wait_for_ready && failed > *failed_before.get_or_insert(failed) =>
                {
                    return Err(self.subchannel.failing());
                }
                Picked::Wait(_) => {}
            }
            changed(&mut news).await;
        }
    }

    /// See [`Channel::turn`](super::Channel::turn).
    pub(super) async fn turn(self: Arc<Self>) -> Turn {
        let mut news = self.news.subscribe();
        loop {
            match self.pick(None) {
                Picked::Link(link) => {
                    let turn = Turn::on(Arc::clone(link.shared())).await;
                    if !turn.is_free() {
                        return turn;
                    }
                    // It takes no more calls.
                    self.leave(&link);
                }
                Picked::Failed(_) => return Turn::free(),
                Picked::Wait(_) => changed(&mut news).await,
            }
        }
    }

    /// Whether a call that says nothing of it waits.
    pub(super) fn waits_for_ready(&self, said: Option<bool>) -> bool {
        said.unwrap_or(self.wait_for_ready)
    }
}

async fn changed(news: &mut watch::Receiver<()>) {
    news.changed().await.expect("a channel outlives those who wait for it");
}

#[cfg(all(test, not(loom)))]
mod tests;
