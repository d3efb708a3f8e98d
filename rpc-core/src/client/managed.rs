//! A channel that connects by itself, loses its connections and makes new ones.
//!
//! Owns which of its connections a call goes to, and how a call waits for one. [`subchannel`] owns the connections to an address,
//! [`members`] the set of several.

mod keeper;
mod members;
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
use crate::config::{ClientConfig, Random};
use crate::error::Error;
use crate::message::MethodId;
use crate::paths::Paths;
use crate::proto::deadlines::deadline_after;
use crate::proto::reconnect::ConnectivityState;
use crate::proto::retry::{RetryBudget, RetryPolicy};
use crate::service::ServiceDescriptor;
use crate::status::{Executed, Status};
use crate::sync::{Mutex, lock};
use crate::transport::pressure::PressureWatch;
use crate::transport::{Path, Target, Transport};

pub use members::EndpointInfo;
pub(super) use members::{Member, Members, TransportOf};
use subchannel::Subchannel;

/// What callers hold. Its connections close when the last channel and the last call are gone.
pub(super) struct Managed {
    to: To,
    /// The numbers of methods, on all connections.
    methods: Arc<Mutex<MethodNumbers>>,
    news: Arc<News>,
    default_timeout: Duration,
    wait_for_ready: bool,
    retry: Option<Arc<RetryPolicy>>,
    retries: Mutex<RetryBudget>,
    random: Random,
}

/// Where a channel goes.
enum To {
    /// One address, which does not change.
    One(Arc<Subchannel>),
    Many(Box<Members>),
}

/// Tells whoever waits that a subchannel is not what it was.
pub(super) type News = watch::Sender<()>;

/// Where a call goes.
pub(super) enum Picked {
    /// Over this connection.
    Link(Found),
    /// Nowhere yet: it is being connected. Says how many attempts have failed so far.
    Wait(u64),
    /// Nowhere, for this reason.
    Failed(Reason),
}

/// A connection for a call.
pub(super) struct Found {
    pub(super) link: Arc<Link>,
    /// Whose it is, where the channel has several endpoints.
    pub(super) member: Option<Arc<Member>>,
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
        let (managed, subchannel) = Self::with_one(transport, target, config);
        subchannel.connect_first().await?;
        Ok(managed)
    }

    /// Connects when it is needed.
    pub(super) fn lazy(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
    ) -> Self {
        Self::with_one(transport, target, config).0
    }

    fn with_one(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
    ) -> (Self, Arc<Subchannel>) {
        let (methods, news) = shared(config);
        let connector = Connector::new(transport, target, config, Arc::clone(&methods));
        let subchannel = Subchannel::new(connector, Arc::clone(&news));
        (Self::new(To::One(Arc::clone(&subchannel)), methods, news, config), subchannel)
    }

    /// Connects to each of `targets` when a call needs it, and spreads calls over them.
    pub(super) fn balanced(
        transports: TransportOf,
        targets: &[Target],
        config: &ClientConfig,
    ) -> Result<Self, Error> {
        let (methods, news) = shared(config);
        let (numbers, told) = (Arc::clone(&methods), Arc::clone(&news));
        let members = Members::new(transports, targets, config, numbers, told)?;
        Ok(Self::new(To::Many(Box::new(members)), methods, news, config))
    }

    fn new(
        to: To,
        methods: Arc<Mutex<MethodNumbers>>,
        news: Arc<News>,
        config: &ClientConfig,
    ) -> Self {
        Self {
            to,
            methods,
            news,
            default_timeout: config.default_timeout,
            wait_for_ready: config.wait_for_ready,
            retry: config.retry.clone().map(Arc::new),
            retries: Mutex::new(RetryBudget::default()),
            random: config.random.clone(),
        }
    }

    /// Which calls are made again that do not say it themselves.
    pub(super) fn retry(&self) -> Option<&Arc<RetryPolicy>> {
        self.retry.as_ref()
    }

    /// How many more may be.
    pub(super) fn with_retries<R>(&self, work: impl FnOnce(&mut RetryBudget) -> R) -> R {
        work(&mut lock(&self.retries))
    }

    pub(super) fn random(&self) -> &Random {
        &self.random
    }

    /// The endpoints of a channel that has several.
    pub(super) fn members(&self) -> Option<&Members> {
        match &self.to {
            To::One(_) => None,
            To::Many(members) => Some(members),
        }
    }

    /// Whether all calls go to one server, which knows the slots of its sessions.
    pub(super) fn is_to_one_server(&self) -> bool {
        self.members().is_none_or(Members::are_at_one_server)
    }

    /// Connects now, and waits until a call could go out.
    pub(super) async fn connect_now(self: &Arc<Self>) -> Result<(), Status> {
        if let To::Many(members) = &self.to {
            members.demand();
        }
        self.connected(false, None).await.map(drop)
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
        match &self.to {
            To::One(subchannel) => subchannel.peer(),
            To::Many(members) => members.name(),
        }
    }

    /// A connection that is there.
    fn link(&self) -> Option<Arc<Link>> {
        match &self.to {
            To::One(subchannel) => subchannel.link(),
            To::Many(members) => members.link(),
        }
    }

    pub(super) fn path(&self) -> Option<Path> {
        self.link().map(|link| link.path())
    }

    pub(super) fn paths(&self) -> Option<Paths> {
        match &self.to {
            To::One(subchannel) => subchannel.paths(),
            To::Many(members) => members.paths(),
        }
    }

    pub(super) fn memory_pressure(&self) -> PressureWatch {
        let link = self.link();
        link.map_or_else(PressureWatch::none, |link| link.memory_pressure())
    }

    pub(super) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    pub(super) fn state(&self) -> ConnectivityState {
        match &self.to {
            To::One(subchannel) => subchannel.state(),
            To::Many(members) => members.state(),
        }
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
        if let Some(link) = self.link() {
            return link.alloc(len).await;
        }
        let transport = match &self.to {
            To::One(subchannel) => Some(Arc::clone(subchannel.transport())),
            To::Many(members) => members.transport(),
        };
        let deadline = deadline_after(Instant::now(), self.default_timeout);
        let buffer = match transport {
            Some(transport) => transport.alloc(len, deadline).await,
            None => Buffer::zeroed(len),
        };
        buffer.map_err(|error| error.to_status(Executed::No))
    }

    /// A connection for a call: that of `turn`, if it still takes calls, and none but one of `only`.
    pub(super) fn pick(&self, turn: Option<&Turn>, only: Option<&Arc<Member>>) -> Picked {
        match (&self.to, only) {
            (To::One(subchannel), _) => subchannel.pick(turn),
            (To::Many(members), None) => members.pick(turn),
            (To::Many(_), Some(member)) => match member.subchannel.pick(turn) {
                Picked::Link(found) => {
                    Picked::Link(Found { member: Some(Arc::clone(member)), ..found })
                }
                none => none,
            },
        }
    }

    /// A call found that `link` takes no more calls.
    pub(super) fn leave(&self, link: &Arc<Link>, member: Option<&Member>) {
        match (&self.to, member) {
            (To::One(subchannel), _) => subchannel.leave(link),
            (To::Many(_), Some(member)) => member.subchannel.leave(link),
            (To::Many(_), None) => {}
        }
    }

    /// A call that went to `member` has ended.
    pub(super) fn handle_end(&self, member: &Member, failure: Option<&Status>) {
        if let To::Many(members) = &self.to {
            members.handle_end(member, failure);
        }
    }

    /// Waits for a connection, at most until `deadline`. Fails with the first attempt that does, unless the call says that it
    /// waits for a better one, or the channel does.
    pub(super) async fn wait(
        self: Arc<Self>,
        deadline: Instant,
        wait_for_ready: Option<bool>,
        only: Option<Arc<Member>>,
    ) -> Result<Found, Status> {
        let wait_for_ready = wait_for_ready.unwrap_or(self.wait_for_ready);
        match timeout_at(deadline, self.connected(wait_for_ready, only.as_ref())).await {
            Ok(connected) => connected,
            Err(_elapsed) => Err(match (&self.to, only) {
                (To::One(subchannel), _) => subchannel.waited_too_long(),
                (To::Many(_), Some(member)) => member.subchannel.waited_too_long(),
                (To::Many(members), None) => members.waited_too_long(),
            }),
        }
    }

    async fn connected(
        &self,
        wait_for_ready: bool,
        only: Option<&Arc<Member>>,
    ) -> Result<Found, Status> {
        let mut news = self.news.subscribe();
        let mut failed_before = None;
        loop {
            match self.pick(None, only) {
                Picked::Link(found) => return Ok(found),
                Picked::Failed(Reason::Shutdown(status)) => return Err(status),
                Picked::Failed(Reason::Failing(status)) if !wait_for_ready => return Err(status),
                Picked::Failed(Reason::Failing(_)) => {}
                // The next attempt may have begun before this task saw that the last one failed.
                Picked::Wait(failed)
                    if !wait_for_ready && failed > *failed_before.get_or_insert(failed) =>
                {
                    return Err(self.failing(only));
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
            match self.pick(None, None) {
                Picked::Link(Found { link, member }) => {
                    let turn = Turn::on(Arc::clone(link.shared())).await;
                    if !turn.is_free() {
                        return turn;
                    }
                    // It takes no more calls.
                    self.leave(&link, member.as_deref());
                }
                Picked::Failed(_) => return Turn::free(),
                Picked::Wait(_) => changed(&mut news).await,
            }
        }
    }

    /// Why a call that waited for a connection fails.
    fn failing(&self, only: Option<&Arc<Member>>) -> Status {
        match (&self.to, only) {
            (To::One(subchannel), _) => subchannel.failing(),
            (To::Many(_), Some(member)) => member.subchannel.failing(),
            (To::Many(members), None) => members.failing(),
        }
    }

    /// Whether a call that says nothing of it waits.
    pub(super) fn waits_for_ready(&self, said: Option<bool>) -> bool {
        said.unwrap_or(self.wait_for_ready)
    }
}

/// What the connections of a channel share.
fn shared(config: &ClientConfig) -> (Arc<Mutex<MethodNumbers>>, Arc<News>) {
    let methods = MethodNumbers::new(config.limits.max_interned_methods);
    (Arc::new(Mutex::new(methods)), Arc::new(News::new(())))
}

async fn changed(news: &mut watch::Receiver<()>) {
    news.changed().await.expect("a channel outlives those who wait for it");
}

#[cfg(all(test, not(loom)))]
mod tests;
