//! Serving.

use std::future::Future;
use std::time::Duration;

use verbwire_core::compression::{Compression, Encodings};
use verbwire_core::config::{KeepAlive, Random};
use verbwire_core::interceptor::Interceptor;
use verbwire_core::server::{Bound, LoadLimits, Newcomer, Open, Placing, Sessions};
use verbwire_core::service::Service;
use verbwire_core::{Error, Status, Target};

use crate::transports::{self, Tls};

/// Where servers begin.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server without services.
    pub fn builder() -> Builder {
        Builder { core: verbwire_core::Server::builder(), tls: Tls::default() }
    }
}

/// Services and settings of a server.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    core: verbwire_core::server::Builder,
    tls: Tls,
}

impl Builder {
    fn with(
        self,
        change: impl FnOnce(verbwire_core::server::Builder) -> verbwire_core::server::Builder,
    ) -> Self {
        Self { core: change(self.core), ..self }
    }

    /// Who this server proves to be at `tls://` targets, and which clients it lets in there; also at `auto://` ones, whose
    /// first path is TLS then. Says nothing of its other targets, which stay without.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: &crate::tls::ServerTls) -> Self {
        self.tls.server = Some(tls.clone());
        self
    }

    /// Offers a service, for example a generated `GreeterServer::new(..)`.
    pub fn add_service(self, service: impl Service) -> Self {
        self.with(|core| core.add_service(service))
    }

    /// Puts an interceptor before every service, in front of those that were put there before.
    pub fn intercept(self, interceptor: impl Interceptor) -> Self {
        self.with(|core| core.intercept(interceptor))
    }

    /// Answers the calls of methods that no service has, by their paths, instead of `Unimplemented`. It stands
    /// behind the server's interceptors, which see the path. For the methods of one service there is
    /// [`OpenService`](crate::open::OpenService).
    pub fn fallback(self, fallback: impl Open) -> Self {
        self.with(|core| core.fallback(fallback))
    }

    /// Asks `placing`, a function of a [`LongRequest`](crate::LongRequest), where the payload of each long request shall
    /// land, before memory is taken for it; it may refuse. All land in memory of the transport unless this is set.
    /// [`Placing`](crate::Placing) says which requests are long, and what is sent of those that are refused.
    ///
    /// It is not asked about messages of streams, which land in memory of the transport in any case: a handler that keeps
    /// those copies them, or spends `landing.pinned_budget` of `RdmaConfig`.
    pub fn place_payloads(self, placing: impl Placing) -> Self {
        self.with(|core| core.place_payloads(placing))
    }

    /// Runs calls with slots once, however often they are repeated; see [`Session`](crate::Session). Without sessions,
    /// the server refuses such calls.
    pub fn sessions(self, sessions: &Sessions) -> Self {
        self.with(|core| core.sessions(sessions))
    }

    /// Bounds what all services of the server run at a time, over all connections. No bounds. For one service alone
    /// there is [`Limited`](crate::Limited).
    pub fn load_limits(self, limits: &LoadLimits) -> Self {
        self.with(|core| core.load_limits(limits))
    }

    /// Asks `hook`, a function of a [`Newcomer`], who a client is: once for each connection, behind its HELLO and before any
    /// of its requests is looked at. Nobody is asked unless this is set. What it finds, of whatever type, handlers and
    /// interceptors see by [`Request::identity`](crate::Request::identity).
    ///
    /// Fails it with a status, every call of that connection is answered with that, not executed, for at most
    /// `handshake_timeout`; then the connection is closed. It has what is left of `handshake_timeout` itself, in which it counts for
    /// `max_handshakes`. A panic of it lets nobody in.
    ///
    /// ```
    /// use verbwire::{Server, Status};
    ///
    /// struct Tenant(String);
    ///
    /// let server = Server::builder().authenticate(|newcomer| async move {
    ///     match newcomer.credentials() {
    ///         Some(b"open sesame") => Ok(Tenant("forty".to_owned())),
    ///         Some(_) => Err(Status::unauthenticated("the token is not known")),
    ///         None => Err(Status::unauthenticated("show a token: set Endpoint::credentials")),
    ///     }
    /// });
    /// ```
    pub fn authenticate<F, R, T>(self, hook: F) -> Self
    where
        F: Fn(Newcomer) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, Status>> + Send + 'static,
        T: Send + Sync + 'static,
    {
        self.with(|core| core.authenticate(hook))
    }

    /// Connections at a time, over all targets. No bound; a client beyond it is told so and closed, and its calls
    /// fail with `Unavailable`, not executed.
    pub fn max_connections(self, connections: usize) -> Self {
        self.with(|core| core.max_connections(connections))
    }

    /// Longest request that is accepted, in bytes. 64 MiB; see [`Limits`](crate::config::Limits).
    pub fn max_message_size(self, bytes: usize) -> Self {
        self.with(|core| core.max_message_size(bytes))
    }

    /// Longest metadata of a request that is accepted, in bytes. 16 KiB; over RDMA at most what a receive has
    /// room for beside a request's head: 7100 with those of 8 KiB (`RdmaConfig::eager_len`).
    pub fn max_metadata_size(self, bytes: usize) -> Self {
        self.with(|core| core.max_metadata_size(bytes))
    }

    /// Compresses replies, by an [`Encoding`](crate::compression::Encoding): see [`Compression`]. None is.
    pub fn send_compressed(self, compression: impl Into<Compression>) -> Self {
        self.with(|core| core.send_compressed(compression))
    }

    /// Encodings of compressed requests that are accepted. All that this build has; see [`Limits`](crate::config::Limits).
    pub fn accept_compressed(self, encodings: impl Into<Encodings>) -> Self {
        self.with(|core| core.accept_compressed(encodings))
    }

    /// Calls at a time on one connection, 1 to 65,536. 1024; a client's further calls wait there.
    pub fn max_concurrent_calls(self, calls: u32) -> Self {
        self.with(|core| core.max_concurrent_calls(calls))
    }

    /// Bytes of the messages of one stream of requests that may be on their way or wait for their handler. 256 KiB;
    /// see [`Limits`](crate::config::Limits).
    pub fn stream_window(self, bytes: usize) -> Self {
        self.with(|core| core.stream_window(bytes))
    }

    /// Memory for requests that are being received, per connection, in bytes; long messages of streams have to fit beside those
    /// that its streams have not read, too. 1 GiB; see [`Limits`](crate::config::Limits).
    pub fn max_landing_bytes(self, bytes: usize) -> Self {
        self.with(|core| core.max_landing_bytes(bytes))
    }

    /// Longest time from a connection to its HELLO. 5 s.
    pub fn handshake_timeout(self, timeout: Duration) -> Self {
        self.with(|core| core.handshake_timeout(timeout))
    }

    /// Connections that have not said HELLO yet, per target; more wait unaccepted. 1024.
    pub fn max_handshakes(self, handshakes: usize) -> Self {
        self.with(|core| core.max_handshakes(handshakes))
    }

    /// Longest time for running calls to finish after shutdown was asked for. 30 s.
    pub fn drain_timeout(self, timeout: Duration) -> Self {
        self.with(|core| core.drain_timeout(timeout))
    }

    /// Whether and when a silent client is asked whether it is there: see [`KeepAlive`]. After 10 s, with 20 s to answer; `None`
    /// leaves it to the transport to find out.
    pub fn keep_alive(self, keep_alive: impl Into<Option<KeepAlive>>) -> Self {
        self.with(|core| core.keep_alive(keep_alive))
    }

    /// Where ids come from; a seeded generator repeats a run exactly.
    pub fn random(self, random: Random) -> Self {
        self.with(|core| core.random(random))
    }

    /// Listens at every target, for example `["0.0.0.0:7000", "unix:///run/greeter.sock"]`. Without a scheme it is `auto://`:
    /// TCP at this port, and RDMA beside it at one of its own, which clients are told. Without an RDMA device the server serves
    /// over TCP, and looks for one again when a client asks.
    ///
    /// # Errors
    ///
    /// A target that is not well-formed, has no transport in this build, or cannot be listened at; no target,
    /// no service, or two services of one name. Then nothing listens.
    pub async fn bind<T: AsRef<str>>(self, targets: &[T]) -> Result<Bound, Error> {
        let targets = targets.iter().map(|target| {
            let target: Target = target.as_ref().parse()?;
            Ok((transports::of(&target, &self.tls)?, target))
        });
        self.core.bind(targets.collect::<Result<Vec<_>, Error>>()?).await
    }
}
