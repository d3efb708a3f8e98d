//! `unix:///path`: connecting and listening at a socket in the file system.
//!
//! Who may connect is decided by the rights of the file and its directory; this transport leaves both to
//! the process's umask.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};
use verbwire_core::transport::{
    Accepting, BoxFuture, Established, Listener, LocalSide, Path, Secrecy, Transport,
};
use verbwire_core::{Buffer, Error, ErrorKind, Target};

use crate::config::{Shared, TcpConfig};
use crate::connection::StreamConnection;
use crate::error;
use crate::handshake::Side;

/// The scheme of this transport's targets.
const SCHEME: &str = "unix";

/// Pause before the next attempt when a server has as many waiting connections as it may. 5 ms: there is
/// no event to wait for.
const RETRY: Duration = Duration::from_millis(5);

/// Messages over Unix sockets.
///
/// A server replaces the socket file of a dead one and removes its own when it ends. Two servers that
/// find the same dead file at the same moment may both replace it, and the later one has the address.
#[derive(Debug, Clone, Default)]
pub struct UnixTransport {
    shared: Arc<Shared>,
}

impl UnixTransport {
    /// A transport with these settings.
    pub fn new(config: TcpConfig) -> Self {
        Self { shared: Arc::new(Shared::new(config)) }
    }
}

impl Transport for UnixTransport {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        Box::pin(async move {
            local.without_ticket(SCHEME)?;
            let path = absolute(target)?;
            let stream = match timeout_at(local.deadline, connect(path)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return Err(error::connect(target.address(), "path", error)),
                Err(_) => return Err(error::connect_timeout(target.address())),
            };
            let path = Path {
                transport: SCHEME,
                local: "an unnamed socket".to_owned(),
                peer: target.address().to_owned(),
            };
            StreamConnection::establish(stream, Side::Connecting, path, &self.shared, local).await
        })
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        Box::pin(async move {
            let path = absolute(target)?;
            let listener =
                bind(path).await.map_err(|error| error::listen(target.address(), error))?;
            let file =
                SocketFile::of(path).map_err(|error| error::listen(target.address(), error))?;
            let listener: Box<dyn Listener> = Box::new(Listening {
                listener,
                _file: file,
                local: target.clone(),
                shared: Arc::clone(&self.shared),
            });
            Ok(listener)
        })
    }

    fn secrecy(&self) -> Secrecy {
        Secrecy::Local
    }

    fn alloc(&self, len: usize, _deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(std::future::ready(Buffer::zeroed(len)))
    }
}

/// A bound socket and its file.
struct Listening {
    listener: UnixListener,
    /// Dropped after the listener: a file without a listener is one that the next server replaces.
    _file: SocketFile,
    local: Target,
    shared: Arc<Shared>,
}

impl Listener for Listening {
    fn local_target(&self) -> &Target {
        &self.local
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        match ready!(self.listener.poll_accept(cx)) {
            Ok((stream, _)) => Poll::Ready(Ok(Box::new(Accepted {
                peer: describe_peer(&stream),
                stream,
                local: self.local.address().to_owned(),
                shared: Arc::clone(&self.shared),
            }))),
            Err(error) => Poll::Ready(Err(error::accept(self.local.address(), error))),
        }
    }
}

/// A connection that was accepted.
struct Accepted {
    stream: UnixStream,
    peer: String,
    local: String,
    shared: Arc<Shared>,
}

impl Accepting for Accepted {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn handshake(
        self: Box<Self>,
        local: LocalSide,
    ) -> BoxFuture<'static, Result<Established, Error>> {
        let this = *self;
        let path = Path { transport: SCHEME, local: this.local, peer: this.peer };
        Box::pin(async move {
            let (stream, side) = (this.stream, Side::Accepting);
            StreamConnection::establish(stream, side, path, &this.shared, local).await
        })
    }
}

/// The file of a bound socket; removed when dropped, unless another file has taken its place.
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &FilePath) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).ok() != Some(self.identity) {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket file");
        }
    }
}

fn identity(path: &FilePath) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn absolute(target: &Target) -> Result<&FilePath, Error> {
    let path = FilePath::new(target.address());
    if path.is_absolute() {
        return Ok(path);
    }
    let message =
        format!("target \"{target}\" is no absolute path, write for example unix:///run/x.sock");
    Err(Error::new(ErrorKind::InvalidInput, message))
}

async fn connect(path: &FilePath) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            // What Linux says when the listener's backlog is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY).await,
            connected => return connected,
        }
    }
}

/// Listens at `path`; a socket file at which nobody listens is replaced.
async fn bind(path: &FilePath) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !is_abandoned(path).await {
                return Err(error);
            }
            tracing::info!(path = %path.display(), "replacing the socket file of a dead server");
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Whether `path` is a socket at which nobody listens.
async fn is_abandoned(path: &FilePath) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket
        && UnixStream::connect(path)
            .await
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The process at the other end: its socket has no name.
fn describe_peer(stream: &UnixStream) -> String {
    match stream.peer_cred() {
        Ok(credentials) => match credentials.pid() {
            Some(pid) => format!("process {pid} of user {}", credentials.uid()),
            None => format!("a process of user {}", credentials.uid()),
        },
        Err(_) => "an unknown process".to_owned(),
    }
}
