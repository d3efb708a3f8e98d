//! `tls://host:port`: the frames of `tcp://` inside TLS 1.3, by rustls.
//!
//! * [`TlsTransport`]: the scheme.
//! * [`ServerTls`] and [`ClientTls`]: who a side says that it is, and whom it trusts; to be replaced while it runs.
//!
//! Inside: `shaking` makes a TLS session over a fresh socket, `halves` encrypts and decrypts what the poster writes and
//! the receiver reads, `words` says what went wrong, and who must act.
//!
//! rustls does no I/O here: the halves of the socket stay apart, as the locks of a connection want it, and only what is
//! neither's, the session, is behind a lock of its own, which is held for no system call.
//!
//! **1.3 only.** Both ends are this software, so an older version would only be one more thing to attack. **No
//! resumption and no early data.** Connections live long, so that a full handshake costs nothing; and whom a side
//! trusts holds from the next handshake on, which a resumed session would go around. Early data can be replayed.

mod counts;
mod halves;
mod materials;
mod settings;
mod shaking;
mod words;

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::{ClientConnection, ServerConnection};
use tokio::net::TcpStream;
use tokio::time::Instant;
use verbwire_core::transport::{
    Accepting, BoxFuture, Established, Listener, LocalSide, Secrecy, Transport,
};
use verbwire_core::{Buffer, Error, ErrorKind, Target};

use crate::config::{Shared, TcpConfig};
use crate::connection::StreamConnection;
use crate::handshake::Side;
use crate::tcp::{Port, dial, prepare};

pub use counts::HandshakeCounts;
pub(crate) use halves::{TlsRead, TlsStream, TlsWrite};
pub use settings::{ClientTls, ServerTls};

/// The scheme of this transport's targets.
const SCHEME: &str = "tls";

/// What this protocol is called inside TLS (ALPN), so that one of another protocol ends here, in words.
const ALPN: &[u8] = b"verbwire/1";

/// Messages over TLS 1.3 over TCP.
#[derive(Debug, Clone, Default)]
pub struct TlsTransport {
    shared: Arc<Shared>,
    client: Option<ClientTls>,
    server: Option<ServerTls>,
}

impl TlsTransport {
    /// A transport with these settings, which can neither connect nor listen yet.
    pub fn new(config: TcpConfig) -> Self {
        Self { shared: Arc::new(Shared::new(config)), client: None, server: None }
    }

    /// Connects with these settings.
    #[must_use]
    pub fn connecting(mut self, tls: ClientTls) -> Self {
        self.client = Some(tls);
        self
    }

    /// Listens with these settings.
    #[must_use]
    pub fn listening(mut self, tls: ServerTls) -> Self {
        self.server = Some(tls);
        self
    }
}

impl Transport for TlsTransport {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        Box::pin(async move {
            local.without_ticket(SCHEME)?;
            let tls = self.client.as_ref().ok_or_else(|| nobody_trusted(target))?;
            let (config, name) = tls.config_for(target)?;
            let socket = dial(target, local.deadline).await?;
            let path = prepare(&socket, SCHEME)?;
            let session = ClientConnection::new(config, name)
                .map_err(|error| words::of(error, Side::Connecting, &path.peer))?;
            let stream = shaking::shake(
                socket,
                session.into(),
                Side::Connecting,
                &path.peer,
                local.deadline,
            )
            .await?;
            StreamConnection::establish(stream, Side::Connecting, path, &self.shared, local).await
        })
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        Box::pin(async move {
            let tls = self.server.clone().ok_or_else(|| no_certificate(target))?;
            let (port, shared) = (Port::bind(SCHEME, target).await?, Arc::clone(&self.shared));
            let listener: Box<dyn Listener> = Box::new(Listening { port, tls, shared });
            Ok(listener)
        })
    }

    fn secrecy(&self) -> Secrecy {
        Secrecy::Encrypted
    }

    fn alloc(&self, len: usize, _deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(std::future::ready(Buffer::zeroed(len)))
    }
}

struct Listening {
    port: Port,
    tls: ServerTls,
    shared: Arc<Shared>,
}

impl Listener for Listening {
    fn local_target(&self) -> &Target {
        self.port.local()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        let (socket, peer) = ready!(self.port.poll_stream(cx))?;
        let (tls, shared) = (self.tls.clone(), Arc::clone(&self.shared));
        Poll::Ready(Ok(Box::new(Accepted { socket, peer, tls, shared })))
    }
}

/// A connection that was accepted.
struct Accepted {
    socket: TcpStream,
    peer: SocketAddr,
    tls: ServerTls,
    shared: Arc<Shared>,
}

impl Accepting for Accepted {
    fn peer(&self) -> String {
        self.peer.to_string()
    }

    fn handshake(
        self: Box<Self>,
        local: LocalSide,
    ) -> BoxFuture<'static, Result<Established, Error>> {
        Box::pin(async move {
            let Self { socket, tls, shared, .. } = *self;
            let path = prepare(&socket, SCHEME)?;
            let peer = path.peer.as_str();
            let session = ServerConnection::new(tls.config())
                .map_err(|error| words::of(error, Side::Accepting, peer))?;
            let shaken =
                shaking::shake(socket, session.into(), Side::Accepting, peer, local.deadline);
            let stream = tls.count(shaken.await)?;
            StreamConnection::establish(stream, Side::Accepting, path, &shared, local).await
        })
    }
}

fn nobody_trusted(target: &Target) -> Error {
    let message = format!(
        "{target} cannot be connected to, nothing says which servers to trust: set ClientTls with the certificate of \
         their authority"
    );
    Error::new(ErrorKind::InvalidInput, message)
}

fn no_certificate(target: &Target) -> Error {
    let message = format!(
        "cannot listen at {target}, there is no certificate to show to clients: set ServerTls with one and its key"
    );
    Error::new(ErrorKind::InvalidInput, message)
}
