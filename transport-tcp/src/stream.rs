//! The socket under a connection, split into the half that reads and the half that writes.
//!
//! One type per half serves every kind of byte stream; a new kind is a variant in each. The halves are
//! owned apart because different locks guard them: the driver reads while any task writes. The socket
//! closes when both are dropped; dropping the writing half alone tells the peer that nothing follows.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::tcp;
#[cfg(unix)]
use tokio::net::unix;
use tokio::sync::watch;
use verbwire_core::transport::PeerCertificates;

#[cfg(feature = "tls")]
use crate::tls::{TlsRead, TlsStream, TlsWrite};

/// A connected socket on which HELLO is exchanged.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// The two halves, and a receiver that errs once both are dropped.
    fn into_halves(self) -> (ReadHalf, WriteHalf, watch::Receiver<()>);

    /// What the peer has proved of itself.
    fn certificates(&self) -> Option<PeerCertificates> {
        None
    }
}

/// The half that the driver reads from.
#[derive(Debug)]
pub(crate) struct ReadHalf {
    kind: ReadKind,
    /// Dropped after the socket, see [`Stream::into_halves`].
    _open: watch::Sender<()>,
}

/// The half that posters write to.
#[derive(Debug)]
pub(crate) struct WriteHalf {
    kind: WriteKind,
    /// Dropped after the socket, see [`Stream::into_halves`].
    _open: watch::Sender<()>,
}

#[derive(Debug)]
enum ReadKind {
    Tcp(tcp::OwnedReadHalf),
    #[cfg(unix)]
    Unix(unix::OwnedReadHalf),
    #[cfg(feature = "tls")]
    Tls(TlsRead),
}

#[derive(Debug)]
enum WriteKind {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
    #[cfg(feature = "tls")]
    Tls(TlsWrite),
}

impl ReadHalf {
    /// Waits until a write may succeed. The driver waits here, not at the writing half, which is behind
    /// a lock that it must not hold while it waits.
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.kind {
            ReadKind::Tcp(half) => half.as_ref().poll_write_ready(cx),
            #[cfg(unix)]
            ReadKind::Unix(half) => half.as_ref().poll_write_ready(cx),
            #[cfg(feature = "tls")]
            ReadKind::Tls(half) => half.poll_write_ready(cx),
        }
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.kind {
            ReadKind::Tcp(half) => Pin::new(half).poll_read(cx, buffer),
            #[cfg(unix)]
            ReadKind::Unix(half) => Pin::new(half).poll_read(cx, buffer),
            #[cfg(feature = "tls")]
            ReadKind::Tls(half) => half.poll_read(cx, buffer),
        }
    }
}

impl WriteHalf {
    /// Writes what the socket takes at once. After `WouldBlock` the same bytes have to come first again: TLS may have
    /// encrypted them already.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when it takes nothing now.
    pub(crate) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.kind {
            WriteKind::Tcp(half) => half.try_write_vectored(slices),
            #[cfg(unix)]
            WriteKind::Unix(half) => half.try_write_vectored(slices),
            #[cfg(feature = "tls")]
            WriteKind::Tls(half) => half.try_write_vectored(slices),
        }
    }
}

impl Stream for TcpStream {
    fn into_halves(self) -> (ReadHalf, WriteHalf, watch::Receiver<()>) {
        let (read, write) = self.into_split();
        guarded(ReadKind::Tcp(read), WriteKind::Tcp(write))
    }
}

#[cfg(unix)]
impl Stream for UnixStream {
    fn into_halves(self) -> (ReadHalf, WriteHalf, watch::Receiver<()>) {
        let (read, write) = self.into_split();
        guarded(ReadKind::Unix(read), WriteKind::Unix(write))
    }
}

#[cfg(feature = "tls")]
impl Stream for TlsStream {
    fn into_halves(self) -> (ReadHalf, WriteHalf, watch::Receiver<()>) {
        let (read, write) = self.into_split();
        guarded(ReadKind::Tls(read), WriteKind::Tls(write))
    }

    fn certificates(&self) -> Option<PeerCertificates> {
        self.peer_certificates()
    }
}

fn guarded(read: ReadKind, write: WriteKind) -> (ReadHalf, WriteHalf, watch::Receiver<()>) {
    let (open, closed) = watch::channel(());
    let read = ReadHalf { kind: read, _open: open.clone() };
    let write = WriteHalf { kind: write, _open: open };
    (read, write, closed)
}
