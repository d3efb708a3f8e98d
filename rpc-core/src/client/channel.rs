//! Where calls go.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::driver::Driver;
use super::intercepted::Layer;
use super::link::{Link, Shared};
use super::table::Table;
use super::turn::Turn;
use crate::buf::Buffer;
use crate::config::ClientConfig;
use crate::error::Error;
use crate::interceptor::Interceptor;
use crate::proto::deadlines::deadline_after;
use crate::proto::hello::{Identity, agree};
use crate::service::Service;
use crate::status::{Executed, Status};
use crate::transport::pressure::PressureWatch;
use crate::transport::{LocalSide, Path, Target, Transport};

/// A connection to a server, or a service in this process; clients send their calls through it.
///
/// Cloning is cheap and shares the connection, which closes when the last clone and the last call are gone.
/// A channel does not reconnect: when its connection ends, calls fail with `Unavailable` and the cause.
///
/// It lives on the runtime on which it was connected: a task there receives replies, keeps deadlines and sends
/// cancels. Calls can be awaited on any runtime, but that one must be driven.
#[derive(Clone)]
pub struct Channel(pub(super) Way);

#[derive(Clone)]
pub(super) enum Way {
    Link(Arc<Link>),
    InProcess(Arc<dyn Service>),
    Intercepted(Arc<Layer>),
}

/// Deadline of in-process calls that set none; channels over a transport have theirs from their config.
pub(super) const IN_PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

impl Channel {
    /// Connects to `target` over `transport`. Applications use `verbwire::connect`.
    ///
    /// # Errors
    ///
    /// One sentence that says which step failed and what to do.
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
        let hello = Identity::new(config.random.clone()).hello(&config.limits);
        let table = Arc::new(Table::default());
        let local = LocalSide {
            hello: hello.clone(),
            placement: Arc::clone(&table) as _,
            deadline: deadline_after(Instant::now(), config.connect_timeout),
            ticket: None,
        };
        let established = transport.connect(target, local).await?;
        if let Err(error) = agree(&hello, &established.peer) {
            established.connection.close(error.clone());
            return Err(error);
        }
        let link = Link::new(transport, table, established, config, hello.stream_window);
        tokio::spawn(Driver::new(Arc::clone(link.shared())));
        Ok(Self(Way::Link(Arc::new(link))))
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
            Way::Intercepted(layer) => Box::pin(layer.channel.alloc(len)).await,
            Way::InProcess(_) => Buffer::zeroed(len).map_err(|error| error.to_status(Executed::No)),
        }
    }

    /// How much memory replies that this process still holds pin of what the channel's transport receives into, and when
    /// that changes. Channels over one device share it. A transport that has no budget for that, like TCP, and a service in
    /// this process, are never under pressure.
    pub fn memory_pressure(&self) -> PressureWatch {
        match &self.0 {
            Way::Link(link) => link.memory_pressure(),
            Way::Intercepted(layer) => layer.channel.memory_pressure(),
            Way::InProcess(_) => PressureWatch::none(),
        }
    }

    /// Waits until a call would not have to wait for its place on the connection, and keeps that place: until it is
    /// given to a request, or dropped. In process there is nothing to wait for.
    ///
    /// Where the connection has ended nobody waits; the call says why it cannot begin.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue.
    pub fn turn(&self) -> impl Future<Output = Turn> + Send + use<> {
        let shared = self.shared().map(Arc::clone);
        async move {
            match shared {
                Some(shared) => Turn::on(shared).await,
                None => Turn::free(),
            }
        }
    }

    fn shared(&self) -> Option<&Arc<Shared>> {
        match &self.0 {
            Way::Link(link) => Some(link.shared()),
            Way::Intercepted(layer) => layer.channel.shared(),
            Way::InProcess(_) => None,
        }
    }

    /// The way that calls go; `None` in process.
    pub fn path(&self) -> Option<Path> {
        match &self.0 {
            Way::Link(link) => Some(link.path()),
            Way::Intercepted(layer) => layer.channel.path(),
            Way::InProcess(_) => None,
        }
    }

    /// The same channel behind an interceptor, which every call through what is returned goes through first. Those
    /// that were there before come after it.
    pub fn intercepted(&self, interceptor: impl Interceptor) -> Self {
        Self(Way::Intercepted(Arc::new(Layer::new(self.clone(), Arc::new(interceptor)))))
    }

    /// Deadline of calls that set none.
    pub(super) fn default_timeout(&self) -> Duration {
        match &self.0 {
            Way::Link(link) => link.default_timeout(),
            Way::Intercepted(layer) => layer.channel.default_timeout(),
            Way::InProcess(_) => IN_PROCESS_TIMEOUT,
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(f, "Channel({path})"),
            None => f.write_str("Channel(in process)"),
        }
    }
}
