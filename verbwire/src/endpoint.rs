//! Connecting.

use std::error::Error as StdError;
use std::future::Future;
use std::time::Duration;

use prost::bytes::Bytes;
use verbwire_core::client::CredentialsProvider;
use verbwire_core::compression::{Compression, Encodings};
use verbwire_core::config::{ClientConfig, KeepAlive, PathPolicy, Random};
use verbwire_core::{Channel, Error, Target};

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

/// A target to connect to, with settings.
#[derive(Debug, Clone)]
#[must_use]
pub struct Endpoint {
    target: Target,
    config: ClientConfig,
    tls: Tls,
}

impl Endpoint {
    /// An endpoint with default settings.
    ///
    /// # Errors
    ///
    /// `target` is neither `scheme://address` nor `host:port`.
    pub fn new(target: &str) -> Result<Self, Error> {
        Ok(Self { target: target.parse()?, config: ClientConfig::default(), tls: Tls::default() })
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
    /// [`Channel::paths`] says which it is, and why. `RequireEncryption` holds for all targets.
    pub fn path_policy(mut self, policy: PathPolicy) -> Self {
        self.config.path_policy = policy;
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
    /// As for [`connect`]: those of the first attempt.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the attempt up.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn connect(&self) -> Result<Channel, Error> {
        let transport = transports::of(&self.target, &self.tls)?;
        Channel::connect(transport, &self.target, &self.config).await
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
        let transport = transports::of(&self.target, &self.tls)?;
        Ok(Channel::connect_lazy(transport, &self.target, &self.config))
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
        let transport = transports::of(&self.target, &self.tls)?;
        Channel::connect_once(transport, &self.target, &self.config).await
    }
}
