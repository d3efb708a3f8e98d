//! Where calls go.

use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use super::connector::Connector;
use super::intercepted::Layer;
use super::link::Link;
use super::managed::Managed;
use super::methods::MethodNumbers;
use super::turn::Turn;
use crate::buf::Buffer;
use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind};
use crate::interceptor::Interceptor;
use crate::paths::Paths;
use crate::proto::reconnect::ConnectivityState;
use crate::service::Service;
use crate::status::{Executed, Status};
use crate::sync::Mutex;
use crate::transport::pressure::PressureWatch;
use crate::transport::{Path, Target, Transport};

/// Connections to a server, or a service in this process; clients send their calls through it.
///
/// Cloning is cheap and shares the connection, which closes when the last clone and the last call are gone.
///
/// When its connection ends, a channel makes another one at once, and when it cannot, again after delays that grow. When its
/// server takes no more calls it does so too: new calls go over the new connection, and those that run end on the old one. A
/// call that its connection's end cut off is made again where that is safe, once (beside once on the other path of the same
/// connection, where it has two), and within its deadline: if it was not
/// executed, or if its method is idempotent or it has a [`Slot`](super::Slot); but not if its request is a stream of which
/// anything was read. Every other call that was cut off fails with `Unavailable` and the cause. A channel of
/// [`connect_once`](Self::connect_once) has one connection and does nothing of that.
///
/// It lives on the runtime on which it was made: tasks there connect, receive replies, keep deadlines and send
/// cancels. Calls can be awaited on any runtime, but that one must be driven.
#[derive(Clone)]
pub struct Channel(pub(super) Way);

#[derive(Clone)]
pub(super) enum Way {
    Link(Arc<Link>),
    Managed(Arc<Managed>),
    InProcess(Arc<dyn Service>),
    Intercepted(Arc<Layer>),
}

/// Deadline of in-process calls that set none; channels over a transport have theirs from their config.
pub(super) const IN_PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

impl Channel {
    /// Connects to `target` over `transport`, and again whenever the connection is lost. Applications use
    /// `verbwire::connect`.
    ///
    /// # Errors
    ///
    /// Of the first attempt: one sentence that says which step failed and what to do.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the attempt up.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn connect(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
    ) -> Result<Self, Error> {
        let managed = Managed::connect(transport, target, config).await?;
        Ok(Self(Way::Managed(Arc::new(managed))))
    }

    /// The same, but connects when the first call comes.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn connect_lazy(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
    ) -> Self {
        Self(Way::Managed(Arc::new(Managed::lazy(transport, target, config))))
    }

    /// A channel to several servers of the same services, over which it spreads its calls: see `Endpoint::balanced` of the facade.
    /// `transports` gives the transport of a target. Each is connected to when the first call comes.
    ///
    /// # Errors
    ///
    /// `transports` has none for one of `targets`.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn balanced(
        transports: impl Fn(&Target) -> Result<Arc<dyn Transport>, Error> + Send + Sync + 'static,
        targets: &[Target],
        config: &ClientConfig,
    ) -> Result<Self, Error> {
        let managed = Managed::balanced(Arc::new(transports), targets, config)?;
        Ok(Self(Way::Managed(Arc::new(managed))))
    }

    /// Connects now instead of with the first call, and waits until a call could go out. On a channel that does not connect by itself there
    /// is nothing to do.
    ///
    /// # Errors
    ///
    /// `Unavailable`: nowhere could it connect for now. It goes on trying.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait, not the attempt.
    pub async fn connect_now(&self) -> Result<(), Status> {
        match self.innermost() {
            Way::Managed(managed) => managed.connect_now().await,
            Way::Link(_) | Way::InProcess(_) | Way::Intercepted(_) => Ok(()),
        }
    }

    /// A channel of one connection: when that has ended, calls fail with `Unavailable` and the cause. No second path is made beside it.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect); `Unsupported` where the policy requires a second path.
    ///
    /// # Cancel safety
    ///
    /// As for [`connect`](Self::connect).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn connect_once(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
    ) -> Result<Self, Error> {
        let refused = |why| Error::new(ErrorKind::Unsupported, why);
        config.path_policy.check_alone(transport.beside()).map_err(refused)?;
        let methods = MethodNumbers::new(config.limits.max_interned_methods);
        let methods = Arc::new(Mutex::new(methods));
        let link = Connector::new(transport, target, config, methods).connect().await?;
        Ok(Self(Way::Link(link)))
    }

    /// A channel to a service in this process: no transport, and the handler runs in the caller's task.
    pub fn in_process(service: impl Service) -> Self {
        Self(Way::InProcess(Arc::new(service)))
    }

    /// `len` zeroed bytes that this channel can send without a copy, to fill a large request field in place.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if no request can be that long, or if the transport's pool has no room within the
    /// channel's default timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing.
    pub async fn alloc(&self, len: usize) -> Result<Buffer, Status> {
        match &self.0 {
            Way::Link(link) => link.alloc(len).await,
            Way::Managed(managed) => managed.alloc(len).await,
            Way::Intercepted(layer) => Box::pin(layer.channel.alloc(len)).await,
            Way::InProcess(_) => Buffer::zeroed(len).map_err(|error| error.to_status(Executed::No)),
        }
    }

    /// How much memory replies that this process still holds pin of what the channel's transport receives into, and when
    /// that changes. Channels over one device share it. A transport that has no budget for that, like TCP, and a service in
    /// this process, are never under pressure; nor is a channel while there is no connection.
    pub fn memory_pressure(&self) -> PressureWatch {
        match &self.0 {
            Way::Link(link) => link.memory_pressure(),
            Way::Managed(managed) => managed.memory_pressure(),
            Way::Intercepted(layer) => layer.channel.memory_pressure(),
            Way::InProcess(_) => PressureWatch::none(),
        }
    }

    /// Waits until a call would not have to wait for its place on the connection, and keeps that place: until it is
    /// given to a request, or dropped. In process there is nothing to wait for.
    ///
    /// Where there is no connection and none is being made, nobody waits; the call says why it cannot begin.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue.
    pub fn turn(&self) -> impl Future<Output = Turn> + Send + use<> {
        let way = self.innermost().clone();
        async move {
            match way {
                Way::Link(link) => {
                    let shared = Arc::clone(link.shared());
                    drop(link);
                    Turn::on(shared).await
                }
                Way::Managed(managed) => managed.turn().await,
                Way::InProcess(_) | Way::Intercepted(_) => Turn::free(),
            }
        }
    }

    /// What is behind all interceptors.
    pub(super) fn innermost(&self) -> &Way {
        match &self.0 {
            Way::Intercepted(layer) => layer.channel.innermost(),
            way => way,
        }
    }

    /// Whether calls can go out. In process they always can; a channel of one connection is `Ready`, and `Shutdown` when
    /// that takes no more calls.
    pub fn state(&self) -> ConnectivityState {
        match self.innermost() {
            Way::Link(link) => link.shared().state(),
            Way::Managed(managed) => managed.state(),
            Way::InProcess(_) | Way::Intercepted(_) => ConnectivityState::Ready,
        }
    }

    /// Waits until the channel is something else than `last`, and says what. What it was only for a moment may be missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn state_changed(&self, last: ConnectivityState) -> ConnectivityState {
        match self.innermost() {
            Way::Link(link) => link.shared().state_changed(last).await,
            Way::Managed(managed) => managed.state_changed(last).await,
            Way::InProcess(_) | Way::Intercepted(_) if last != ConnectivityState::Ready => {
                ConnectivityState::Ready
            }
            Way::InProcess(_) | Way::Intercepted(_) => pending().await,
        }
    }

    /// The way that calls go; `None` in process, and while there is no connection.
    pub fn path(&self) -> Option<Path> {
        match &self.0 {
            Way::Link(link) => Some(link.path()),
            Way::Managed(managed) => managed.path(),
            Way::Intercepted(layer) => layer.channel.path(),
            Way::InProcess(_) => None,
        }
    }

    /// All ways to the server, with what went over them, and why there is no second one where there is none. `None` in
    /// process, and while there is no connection.
    pub fn paths(&self) -> Option<Paths> {
        match self.innermost() {
            Way::Link(link) => Some(Paths {
                first: link.info(),
                second: None,
                why_not: "the channel is one of one connection, which has one path".to_owned(),
                switches: 0,
            }),
            Way::Managed(managed) => managed.paths(),
            Way::InProcess(_) | Way::Intercepted(_) => None,
        }
    }

    /// The same channel behind an interceptor, which every call through what is returned goes through first. Those
    /// that were there before come after it.
    pub fn intercepted(&self, interceptor: impl Interceptor) -> Self {
        Self(Way::Intercepted(Arc::new(Layer::new(self.clone(), Arc::new(interceptor)))))
    }

    /// The address that calls go to, as statuses name it.
    pub(super) fn peer(&self) -> String {
        match self.innermost() {
            Way::Link(link) => link.path().peer,
            Way::Managed(managed) => managed.peer(),
            Way::InProcess(_) | Way::Intercepted(_) => "in process".to_owned(),
        }
    }

    /// Deadline of calls that set none.
    pub(super) fn default_timeout(&self) -> Duration {
        match &self.0 {
            Way::Link(link) => link.default_timeout(),
            Way::Managed(managed) => managed.default_timeout(),
            Way::Intercepted(layer) => layer.channel.default_timeout(),
            Way::InProcess(_) => IN_PROCESS_TIMEOUT,
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(f, "Channel({path})"),
            None => write!(f, "Channel({}, {})", self.peer(), self.state()),
        }
    }
}
