//! Connecting.

use std::error::Error as StdError;
use std::future::Future;
use std::slice;
use std::time::Duration;

use prost::bytes::Bytes;
use verbwire_core::client::CredentialsProvider;
use verbwire_core::compression::{Compression, Encodings};
use verbwire_core::config::{
    Balance, ClientConfig, KeepAlive, OutlierLimits, PathPolicy, Random, RetryPolicy,
};
use verbwire_core::{Channel, Error, ErrorKind, Status, Target};

use crate::transports::{self, Tls};

/// Connects to `target`, for example `10.0.0.1:7000` or `tcp://10.0.0.1:7000`, with default settings. Without a scheme it is
/// `auto://`: over TCP first, and over RDMA as soon as both ends have it. See [`Endpoint::connect`].
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
/// Outside of a tokio runtime. The channel lives on that runtime.
pub async fn connect(target: &str) -> Result<Channel, Error> {
    Endpoint::new(target)?.connect().await
}

/// A target to connect to, or several, with settings.
#[derive(Debug, Clone)]
#[must_use]
pub struct Endpoint {
    to: To,
    config: ClientConfig,
    tls: Tls,
}

#[derive(Debug, Clone)]
enum To {
    One(Target),
    /// Over which calls are spread.
    Many(Vec<Target>),
}

impl Endpoint {
    /// An endpoint with default settings.
    ///
    /// # Errors
    ///
    /// `target` is neither `scheme://address` nor `host:port`.
    pub fn new(target: &str) -> Result<Self, Error> {
        Ok(Self::to(To::One(target.parse()?)))
    }

    /// Several servers of the same services, over which a channel spreads its calls, as [`balance`](Self::balance) says.
    ///
    /// Each has connections of its own; one that cannot be reached is passed over, and so is, for a while, one at which calls fail
    /// one after the other ([`outliers`](Self::outliers)). [`Channel::endpoints`] adds and removes endpoints while calls go on.
    /// Sessions belong to one server: such a channel refuses calls with slots.
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), verbwire::Error> {
    /// use verbwire::Endpoint;
    /// use verbwire::config::Balance;
    ///
    /// let servers = Endpoint::balanced(["10.0.0.1:7000", "10.0.0.2:7000"])?;
    /// let channel = servers.balance(Balance::LeastLoaded).connect().await?;
    /// let endpoints = channel.endpoints().expect("it is balanced");
    /// endpoints.insert(&"10.0.0.3:7000".parse()?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// One of `targets` is neither `scheme://address` nor `host:port`.
    pub fn balanced<T: AsRef<str>>(targets: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let targets = targets.into_iter().map(|target| target.as_ref().parse());
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        Ok(Self::to(To::Many(targets)))
    }

    fn to(to: To) -> Self {
        Self { to, config: ClientConfig::default(), tls: Tls::default() }
    }

    /// Whom to trust at a `tls://` target, and the certificate to show there; also at an `auto://` one, whose first path is TLS
    /// then. A target without TLS is refused, rather than connected to in the open.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: &crate::tls::ClientTls) -> Self {
        self.tls.client = Some(tls.clone());
        self
    }

    /// Asks `provider` for what servers are to know this client by, for each connection anew, so that tokens may change. It has
    /// what is left of `connect_timeout`; up to 3 KiB go out in HELLO, to the server's `Builder::authenticate`. For what is
    /// said with each call there are interceptors.
    ///
    /// Where others could read it, over `tcp://`, `rdma://` and `fabric://`, it is not asked, and connecting fails; see
    /// [`allow_plaintext_credentials`](Self::allow_plaintext_credentials).
    ///
    /// ```
    /// use verbwire::Endpoint;
    ///
    /// # fn of() -> Result<(), verbwire::Error> {
    /// let store = Endpoint::new("unix:///run/store.sock")?
    ///     .credentials(|| async { std::fs::read("/run/secrets/token") });
    /// # let _: Endpoint = store;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials<F, R, B, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.config.credentials = Some(CredentialsProvider::new(provider));
        self
    }

    /// Whether credentials go out where others can read them and show them as their own. No.
    pub fn allow_plaintext_credentials(mut self, allow: bool) -> Self {
        self.config.allow_plaintext_credentials = allow;
        self
    }

    /// Has calls that fail made again, those that do not say it themselves: see [`RetryPolicy`]. None are;
    /// [`Request::set_retry`](crate::Request::set_retry) says it of one call. All retries of a channel share a budget, so that they stop where
    /// most calls fail.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.config.retry = Some(policy);
        self
    }

    /// How calls are spread over several endpoints. One after the other.
    pub fn balance(mut self, balance: Balance) -> Self {
        self.config.balance = balance;
        self
    }

    /// Which of several endpoints are left alone for a while, because calls fail there: see [`OutlierLimits`].
    pub fn outliers(mut self, limits: OutlierLimits) -> Self {
        self.config.outliers = limits;
        self
    }

    /// Connections to each endpoint, 1 to 16. 1. Several share the work of bulk transfers: each has a task of its own that receives.
    /// With more than one, an endpoint is one of [`balanced`](Self::balanced).
    pub fn connections_per_endpoint(mut self, connections: usize) -> Self {
        self.config.connections_per_endpoint = connections;
        self
    }

    /// Deadline of calls that set none. 60 s.
    pub fn default_timeout(mut self, timeout: Duration) -> Self {
        self.config.default_timeout = timeout;
        self
    }

    /// Longest time to connect, HELLO included. 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// How long to wait before connecting again. The first failure is followed by `first`, each one more by three fifths more,
    /// up to `longest`, and each wait is a fifth shorter or longer by chance. They begin anew when a call has succeeded, or
    /// a connection has lasted for 10 s. 100 ms and 30 s.
    pub fn reconnect_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.config.reconnect_backoff = (first, longest);
        self
    }

    /// Whether calls wait until their deadline where no connection can be made for now, instead of failing at once. No;
    /// [`Request::set_wait_for_ready`](crate::Request::set_wait_for_ready) says it of one call.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.config.wait_for_ready = wait;
        self
    }

    /// Whether and when a silent server is asked whether it is there: see [`KeepAlive`]. After 10 s, with 20 s to answer; `None`
    /// leaves it to the transport to find out.
    pub fn keep_alive(mut self, keep_alive: impl Into<Option<KeepAlive>>) -> Self {
        self.config.keep_alive = keep_alive.into();
        self
    }

    /// Longest reply that is accepted, in bytes. 64 MiB; see [`Limits`](crate::config::Limits).
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.config.limits.max_message_size = bytes;
        self
    }

    /// Longest metadata of a reply or status that is accepted, in bytes. 16 KiB; over RDMA at most what a
    /// receive has room for beside a head: 7100 with those of 8 KiB (`RdmaConfig::eager_len`).
    pub fn max_metadata_size(mut self, bytes: usize) -> Self {
        self.config.limits.max_metadata_size = bytes;
        self
    }

    /// Bytes of the messages of one stream of replies that may be on their way or wait to be taken. 256 KiB; see
    /// [`Limits`](crate::config::Limits).
    pub fn stream_window(mut self, bytes: usize) -> Self {
        self.config.limits.stream_window = bytes;
        self
    }

    /// Which ways calls may go where the target is `auto://`: over RDMA when there is a path, else over TCP. See [`PathPolicy`];
    /// [`Channel::paths`] says which it is, and why. `RequireEncryption` holds for all targets; the others mean nothing where the scheme
    /// names one way.
    pub fn path_policy(mut self, policy: PathPolicy) -> Self {
        self.config.path_policy = policy;
        self
    }

    /// How long to wait before trying for RDMA again where the target is `auto://`: after the first failure, 200 ms, and at most,
    /// 60 s. Calls go over TCP meanwhile.
    pub fn path_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.config.path_backoff = (first, longest);
        self
    }

    /// Compresses requests, by an [`Encoding`](crate::compression::Encoding): see [`Compression`]. None is;
    /// [`Request::set_compression`](crate::Request::set_compression) says it of one call.
    pub fn send_compressed(mut self, compression: impl Into<Compression>) -> Self {
        self.config.send_compressed = compression.into();
        self
    }

    /// Encodings of compressed replies that are accepted. All that this build has; see [`Limits`](crate::config::Limits).
    pub fn accept_compressed(mut self, encodings: impl Into<Encodings>) -> Self {
        self.config.limits.accept_compressed = encodings.into();
        self
    }

    /// Where ids come from; a seeded generator repeats a run exactly.
    pub fn random(mut self, random: Random) -> Self {
        self.config.random = random;
        self
    }

    /// Connects, and from then on again whenever the connection is lost: see [`Channel`].
    ///
    /// # Errors
    ///
    /// As for [`connect`]: those of the first attempt; with several endpoints, of each one's.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the attempt up.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn connect(&self) -> Result<Channel, Error> {
        if let Some(targets) = self.several() {
            let channel = self.balanced_over(targets)?;
            let connected = channel.connect_now().await;
            return connected.map(|()| channel).map_err(not_connected);
        }
        let target = self.only()?;
        Channel::connect(transports::of(target, &self.tls)?, target, &self.config).await
    }

    /// A channel that connects when its first call comes, which waits for that.
    ///
    /// # Errors
    ///
    /// This build has no such transport. What is wrong with the address is what calls fail with.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime. The channel lives on that runtime.
    pub fn connect_lazy(&self) -> Result<Channel, Error> {
        if let Some(targets) = self.several() {
            return self.balanced_over(targets);
        }
        let target = self.only()?;
        Ok(Channel::connect_lazy(transports::of(target, &self.tls)?, target, &self.config))
    }

    /// A channel of one connection, which makes no other: when that has ended, its calls fail with `Unavailable` and the cause.
    /// For those who have to know of each loss.
    ///
    /// # Errors
    ///
    /// As for [`connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the attempt up.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn connect_once(&self) -> Result<Channel, Error> {
        let target = self.only()?;
        Channel::connect_once(transports::of(target, &self.tls)?, target, &self.config).await
    }

    fn balanced_over(&self, targets: &[Target]) -> Result<Channel, Error> {
        let tls = self.tls.clone();
        Channel::balanced(move |target| transports::of(target, &tls), targets, &self.config)
    }

    /// The targets of a channel that has several connections at a time.
    fn several(&self) -> Option<&[Target]> {
        match &self.to {
            To::Many(targets) => Some(targets),
            To::One(target) if self.config.connections_per_endpoint > 1 => {
                Some(slice::from_ref(target))
            }
            To::One(_) => None,
        }
    }

    fn only(&self) -> Result<&Target, Error> {
        match &self.to {
            To::One(target) => Ok(target),
            To::Many(targets) => {
                let message = format!(
                    "one connection cannot be made to {} endpoints: use connect or connect_lazy",
                    targets.len()
                );
                Err(Error::new(ErrorKind::InvalidInput, message))
            }
        }
    }
}

/// No endpoint could be connected to.
fn not_connected(status: Status) -> Error {
    Error::new(ErrorKind::Unreachable, status.message())
}
