//! Puts a server together.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::authentication::{Authentication, Newcomer};
use super::layers::Layers;
use super::limited::LoadLimits;
use super::open::{Open, OpenService};
use super::placing::{Placer, Placing};
use super::router::Router;
use super::seconds::{Connections, Offering};
use super::serving::{Bound, Listening, Shared};
use super::sessions::Sessions;
use crate::compression::{Compression, Encodings};
use crate::config::{KeepAlive, Random, ServerConfig};
use crate::error::{Error, ErrorKind};
use crate::interceptor::Interceptor;
use crate::proto::hello::Identity;
use crate::service::Service;
use crate::status::Status;
use crate::transport::{Target, Transport};

/// Most calls at a time that a server can allow: a client can make it keep a table of that many slots.
const MAX_CONCURRENT_CALLS: u32 = 1 << 16;

/// Where servers begin. Applications use `verbwire::Server`, which knows transports by their names.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server without services.
    pub fn builder() -> Builder {
        Builder {
            services: Vec::new(),
            layers: Layers::default(),
            fallback: None,
            placer: Placer::default(),
            authentication: None,
            config: ServerConfig::default(),
        }
    }
}

/// Services and settings of a server.
#[must_use]
pub struct Builder {
    services: Vec<Arc<dyn Service>>,
    layers: Layers,
    fallback: Option<Arc<dyn Service>>,
    placer: Placer,
    authentication: Option<Authentication>,
    config: ServerConfig,
}

impl Builder {
    /// Offers a service.
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Puts an interceptor before every service, in front of those that were put there before.
    pub fn intercept(mut self, interceptor: impl Interceptor) -> Self {
        self.layers.intercept(interceptor);
        self
    }

    /// Answers the calls of methods that no service has, by their paths, instead of `Unimplemented`. It stands
    /// behind the server's interceptors, which see the path that was called. For the methods of one service there is
    /// [`OpenService`](super::OpenService).
    pub fn fallback(mut self, fallback: impl Open) -> Self {
        self.fallback = Some(Arc::new(OpenService::fallback(fallback)));
        self
    }

    /// Asks `placing` where the payload of each long request shall land, before memory is taken for it. All land in memory of
    /// the transport unless this is set. So do, in any case, the messages of streams of requests, for which it is not asked: a
    /// handler that keeps those copies them, or spends the transport's budget for what is held.
    pub fn place_payloads(mut self, placing: impl Placing) -> Self {
        self.placer = Placer::new(placing);
        self
    }

    /// Runs calls with slots once, however often they are repeated; see [`Session`](crate::client::Session). Without
    /// sessions, the server refuses such calls.
    pub fn sessions(mut self, sessions: &Sessions) -> Self {
        self.layers.keep(sessions);
        self
    }

    /// Bounds what all services of the server run at a time, over all connections. No bounds. For one service alone
    /// there is [`Limited`](super::Limited).
    pub fn load_limits(mut self, limits: &LoadLimits) -> Self {
        self.layers.limit(limits);
        self
    }

    /// Asks `hook` who a client is, once for each connection: behind its HELLO, and before any of its requests is looked at.
    /// Nobody is asked unless this is set. What it finds, handlers see by [`Request::identity`](crate::Request::identity).
    ///
    /// Fails it with a status, every call of that connection is answered with that, not executed, for at most
    /// `handshake_timeout`; then the connection is closed. It has what is left of `handshake_timeout` itself, in which it counts for
    /// `max_handshakes`. A panic of it lets nobody in.
    pub fn authenticate<F, R, T>(mut self, hook: F) -> Self
    where
        F: Fn(Newcomer) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, Status>> + Send + 'static,
        T: Send + Sync + 'static,
    {
        self.authentication = Some(Authentication::new(hook));
        self
    }

    /// Connections at a time, over all targets. No bound; a client beyond it is told so and closed, and its calls
    /// fail with `Unavailable`, not executed.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.config.max_connections = connections;
        self
    }

    /// Method numbers that are remembered per connection; calls beyond them carry their paths. 4096; see
    /// [`Limits`](crate::config::Limits).
    pub fn max_interned_methods(mut self, methods: u32) -> Self {
        self.config.limits.max_interned_methods = methods;
        self
    }

    /// Longest request that is accepted, in bytes. 64 MiB; see [`Limits`](crate::config::Limits).
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.config.limits.max_message_size = bytes;
        self
    }

    /// Longest metadata of a request that is accepted, in bytes. 16 KiB; see [`Limits`](crate::config::Limits).
    pub fn max_metadata_size(mut self, bytes: usize) -> Self {
        self.config.limits.max_metadata_size = bytes;
        self
    }

    /// Compresses replies, by an [`Encoding`](crate::compression::Encoding): see [`Compression`]. None is.
    pub fn send_compressed(mut self, compression: impl Into<Compression>) -> Self {
        self.config.send_compressed = compression.into();
        self
    }

    /// Encodings of compressed requests that are accepted. All that this build has; see [`Limits`](crate::config::Limits).
    pub fn accept_compressed(mut self, encodings: impl Into<Encodings>) -> Self {
        self.config.limits.accept_compressed = encodings.into();
        self
    }

    /// Calls at a time on one connection, 1 to 65,536. 1024; a client's further calls wait there.
    pub fn max_concurrent_calls(mut self, calls: u32) -> Self {
        self.config.limits.max_concurrent_calls = calls.clamp(1, MAX_CONCURRENT_CALLS);
        self
    }

    /// Bytes of the messages of one stream of requests that may be on their way or wait for their handler. 256 KiB;
    /// see [`Limits`](crate::config::Limits).
    pub fn stream_window(mut self, bytes: usize) -> Self {
        self.config.limits.stream_window = bytes;
        self
    }

    /// Memory for requests that are being received, per connection, in bytes; long messages of streams have to fit beside those
    /// that its streams have not read, too. 1 GiB; see [`Limits`](crate::config::Limits).
    pub fn max_landing_bytes(mut self, bytes: usize) -> Self {
        self.config.limits.max_landing_bytes = bytes;
        self
    }

    /// Longest time from a connection to its HELLO. 5 s.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.config.handshake_timeout = timeout;
        self
    }

    /// Connections that have not said HELLO yet, per target; more wait unaccepted. 1024.
    pub fn max_handshakes(mut self, handshakes: usize) -> Self {
        self.config.max_handshakes = handshakes.max(1);
        self
    }

    /// Longest time for running calls to finish after shutdown was asked for. 30 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.config.drain_timeout = timeout;
        self
    }

    /// Whether and when a silent client is asked whether it is there: see [`KeepAlive`]. After 10 s, with 20 s to answer; `None`
    /// leaves it to the transport to find out.
    pub fn keep_alive(mut self, keep_alive: impl Into<Option<KeepAlive>>) -> Self {
        self.config.keep_alive = keep_alive.into();
        self
    }

    /// Where ids come from; a seeded generator repeats a run exactly.
    pub fn random(mut self, random: Random) -> Self {
        self.config.random = random;
        self
    }

    /// Listens at every target, each with its transport.
    ///
    /// # Errors
    ///
    /// There is no service or no target, two services share a name, or a target cannot be listened at; then
    /// none is. That second paths cannot be listened for is no error: that is tried again when a client asks for one.
    pub async fn bind(
        self,
        targets: impl IntoIterator<Item = (Arc<dyn Transport>, Target)>,
    ) -> Result<Bound, Error> {
        let connections = Connections::new();
        let mut router = Router::new(self.services, self.layers, self.fallback)?;
        router.add_internal(Offering(connections.clone()))?;
        let router = Arc::new(router);
        let mut listeners = Vec::new();
        for (transport, target) in targets {
            listeners.push(Listening::at(transport, &target).await?);
        }
        if listeners.is_empty() {
            let message = "no target to listen at: name one, for example tcp://0.0.0.0:7000";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let identity = Identity::new(self.config.random.clone());
        let shared = Shared::new(router, self.placer, self.config, identity, connections)
            .authenticating(self.authentication);
        Ok(Bound::new(shared, listeners))
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.services.iter().map(|one| one.descriptor().name).collect();
        f.debug_struct("Builder").field("services", &names).field("config", &self.config).finish()
    }
}
