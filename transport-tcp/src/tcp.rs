//! `tcp://host:port`: resolving, connecting, listening.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use verbwire_core::transport::{
    Accepting, BoxFuture, Established, Listener, LocalSide, Path, Transport,
};
use verbwire_core::{Buffer, Error, ErrorKind, Target};

use crate::config::{Shared, TcpConfig};
use crate::connection::StreamConnection;
use crate::error;
use crate::handshake::Side;

/// The scheme of this transport's targets.
const SCHEME: &str = "tcp";

/// Connections that the system holds until they are accepted. 1024: a burst of every client of a large
/// cluster; the system caps it.
const BACKLOG: u32 = 1024;

/// Longest time to look up the name of an address to listen at. 5 s: a machine's own name is in its hosts
/// file, or its name server is in trouble.
const OWN_LOOKUP: Duration = Duration::from_secs(5);

/// Messages over TCP.
///
/// Sends without delay (`TCP_NODELAY`), probes idle peers with the system's keep-alive, and listens with
/// `SO_REUSEADDR`, so that a restarted server gets its port back.
#[derive(Debug, Clone, Default)]
pub struct TcpTransport {
    shared: Arc<Shared>,
}

impl TcpTransport {
    /// A transport with these settings.
    pub fn new(config: TcpConfig) -> Self {
        Self { shared: Arc::new(Shared::new(config)) }
    }
}

impl Transport for TcpTransport {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        Box::pin(async move {
            local.without_ticket(SCHEME)?;
            let stream = dial(target, local.deadline).await?;
            let path = prepare(&stream, SCHEME)?;
            StreamConnection::establish(stream, Side::Connecting, path, &self.shared, local).await
        })
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        Box::pin(async move {
            let (port, shared) = (Port::bind(SCHEME, target).await?, Arc::clone(&self.shared));
            let listener: Box<dyn Listener> = Box::new(Listening { port, shared });
            Ok(listener)
        })
    }

    fn alloc(&self, len: usize, _deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(std::future::ready(Buffer::zeroed(len)))
    }
}

/// A bound socket, whatever is spoken over its connections.
pub(crate) struct Port {
    listener: TcpListener,
    local: Target,
}

impl Port {
    /// Listens at `target`, for connections of `scheme`.
    pub(crate) async fn bind(scheme: &'static str, target: &Target) -> Result<Self, Error> {
        let addresses = resolve(target, Instant::now() + OWN_LOOKUP).await?;
        let listener = bind_any(target.address(), &addresses)?;
        let address =
            listener.local_addr().map_err(|error| error::listen(target.address(), error))?;
        Ok(Self { listener, local: Target::new(scheme, address.to_string()) })
    }

    /// The target with the port that the system chose.
    pub(crate) fn local(&self) -> &Target {
        &self.local
    }

    /// The next peer that connects.
    pub(crate) fn poll_stream(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(TcpStream, SocketAddr), Error>> {
        loop {
            match ready!(self.listener.poll_accept(cx)) {
                Ok(accepted) => return Poll::Ready(Ok(accepted)),
                // The peer gave up before it was accepted: that is no trouble of this machine.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    return Poll::Ready(Err(error::accept(self.local.address(), error)));
                }
            }
        }
    }
}

struct Listening {
    port: Port,
    shared: Arc<Shared>,
}

impl Listener for Listening {
    fn local_target(&self) -> &Target {
        self.port.local()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        let (stream, peer) = ready!(self.port.poll_stream(cx))?;
        let shared = Arc::clone(&self.shared);
        Poll::Ready(Ok(Box::new(Accepted { stream, peer, shared })))
    }
}

/// A connection that was accepted.
struct Accepted {
    stream: TcpStream,
    peer: SocketAddr,
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
            let Self { stream, shared, .. } = *self;
            let path = prepare(&stream, SCHEME)?;
            StreamConnection::establish(stream, Side::Accepting, path, &shared, local).await
        })
    }
}

/// Connects to `target`, up to the TCP connection.
pub(crate) async fn dial(target: &Target, deadline: Instant) -> Result<TcpStream, Error> {
    let addresses = resolve(target, deadline).await?;
    connect_any(&addresses, deadline).await
}

/// Sets a connected socket up; returns its path under the name of `scheme`.
pub(crate) fn prepare(stream: &TcpStream, scheme: &'static str) -> Result<Path, Error> {
    let prepared =
        stream.set_nodelay(true).and_then(|()| Ok((stream.local_addr()?, stream.peer_addr()?)));
    let (own, peer) = prepared.map_err(|error| error::lost("preparing the socket", error))?;
    Ok(Path { transport: scheme, local: own.to_string(), peer: peer.to_string() })
}

/// The addresses of `host:port`; names are looked up on tokio's blocking threads.
async fn resolve(target: &Target, deadline: Instant) -> Result<Vec<SocketAddr>, Error> {
    let (scheme, address) = (target.scheme(), target.address());
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port {
        let message = format!(
            "target \"{target}\" is not host:port, write for example {scheme}://10.0.0.1:7000"
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    let unknown = |why: String| {
        let message = format!("{address} has no known address ({why}): check the name");
        Error::new(ErrorKind::Unreachable, message)
    };
    match timeout_at(deadline, lookup_host(address)).await {
        Ok(Ok(found)) => {
            let addresses: Vec<_> = found.collect();
            if addresses.is_empty() {
                return Err(unknown("an empty answer".to_owned()));
            }
            Ok(addresses)
        }
        Ok(Err(error)) => Err(unknown(error.to_string())),
        Err(_) => Err(Error::new(
            ErrorKind::TimedOut,
            format!("looking up {address} took too long: check the name server"),
        )),
    }
}

/// Connects to the first address that answers; a silent one has its share of the time and no more.
async fn connect_any(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, Error> {
    let mut failure = None;
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let shares = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let share = Instant::now() + left / shares;
        match timeout_at(share, connect_one(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                failure = Some(error::connect(&address.to_string(), "port", error));
            }
            Err(_) => failure = Some(error::connect_timeout(&address.to_string())),
        }
    }
    let failure = failure.expect("there is an address, see resolve");
    if addresses.len() == 1 {
        return Err(failure);
    }
    Err(Error::new(
        failure.kind(),
        format!("tried {} addresses, the last: {failure}", addresses.len()),
    ))
}

async fn connect_one(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket_for(address)?;
    socket.connect(address).await
}

/// Listens at the first address that this machine can listen at.
fn bind_any(place: &str, addresses: &[SocketAddr]) -> Result<TcpListener, Error> {
    let mut failure = None;
    for address in addresses {
        match bind_one(*address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = Some(error),
        }
    }
    let failure = failure.expect("there is an address, see resolve");
    Err(error::listen(place, failure))
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket_for(address)?;
    // Windows gives the option another meaning: a second server could take the port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A socket of the address's family; accepted sockets inherit its keep-alive.
fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_keepalive(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_without_a_port_is_refused_before_it_is_looked_up() {
        for address in ["host", "host:", ":80", "host:http", "host:70000"] {
            let target = Target::new(SCHEME, address);
            let error = resolve(&target, Instant::now()).await.expect_err(address);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("is not host:port"), "{error}");
        }
    }

    #[tokio::test]
    async fn the_next_address_is_tried_when_one_refuses() {
        // Nobody else is given a port of this address meanwhile.
        let refusing = bind_one(([127, 0, 0, 2], 0).into()).expect("free port");
        let refused = refusing.local_addr().expect("bound");
        drop(refusing);
        let listener = bind_one(([127, 0, 0, 1], 0).into()).expect("free port");
        let answering = listener.local_addr().expect("bound");
        let deadline = Instant::now() + Duration::from_secs(30);
        let stream = connect_any(&[refused, answering], deadline).await;
        assert_eq!(stream.expect("the second").peer_addr().expect("connected"), answering);
        let error = connect_any(&[refused, refused], deadline).await;
        let text = error.expect_err("nobody there").to_string();
        assert!(text.starts_with("tried 2 addresses, the last: nothing listens"), "{text}");
    }
}
