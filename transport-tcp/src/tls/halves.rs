//! The two halves of a TLS stream: what encrypts for the poster, and what decrypts for the receiver.
//!
//! Each owns its half of the socket and its own encrypted bytes. Both share the session, whose lock is the innermost, is
//! held while bytes are encrypted or decrypted, and for no system call. Nothing that the reading half does has to be
//! sent at once: an answer to a key update goes out before the next data (rustls), an alert when the writing half goes.
//!
//! **Encrypted bytes cannot be taken back.** What the writing half has encrypted and the socket did not take, stays there
//! and goes first. Meanwhile it says that bytes are written as they leave, so that a slow peer is seen to take some, but of
//! the last one only when nothing is left: so its caller, which comes again with what is not written, comes with the same.

use std::io::{self, BufRead, IoSlice, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustls::Connection as Session;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use verbwire_core::transport::PeerCertificates;
use verbwire_core::{Error, ErrorKind};

use super::words;
use crate::handshake::Side;

/// Encrypted bytes that are read at once. 32 KiB: two of the longest records.
const ARRIVAL: usize = 32 << 10;

/// Encrypted bytes that a half keeps memory for. 80 KiB: a batch of a long body, with what encryption adds.
const KEPT: usize = 80 << 10;

/// A session that both halves use.
type Shared = Arc<Mutex<Session>>;

/// A socket with a session over it, whose handshake is done.
pub(crate) struct TlsStream {
    read: TlsRead,
    write: TlsWrite,
    certificates: Option<PeerCertificates>,
}

/// What decrypts.
#[derive(Debug)]
pub(crate) struct TlsRead {
    socket: OwnedReadHalf,
    session: Shared,
    arrived: Arrived,
    /// Why nothing more is decrypted. Found behind data, it is reported after them.
    failed: Option<Error>,
    side: Side,
    peer: String,
}

/// What encrypts.
#[derive(Debug)]
pub(crate) struct TlsWrite {
    socket: OwnedWriteHalf,
    session: Shared,
    /// Encrypted bytes, of which the first `sent` are out.
    sealed: Vec<u8>,
    sent: usize,
    /// Plain bytes in `sealed` that nobody was told are written.
    owed: usize,
}

/// Encrypted bytes that nobody has decrypted.
#[derive(Debug)]
pub(super) struct Arrived {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl TlsStream {
    /// A stream over a session whose handshake is done; `arrived` is what came behind it.
    pub(super) fn new(
        socket: TcpStream,
        session: Session,
        arrived: Arrived,
        side: Side,
        peer: &str,
    ) -> Self {
        let shown = session.peer_certificates().unwrap_or_default();
        let certificates =
            PeerCertificates::new(shown.iter().map(|one| Bytes::copy_from_slice(one)));
        let (read, write) = socket.into_split();
        let session = Arc::new(Mutex::new(session));
        let peer = peer.to_owned();
        Self {
            write: TlsWrite {
                socket: write,
                session: Arc::clone(&session),
                sealed: Vec::new(),
                sent: 0,
                owed: 0,
            },
            read: TlsRead { socket: read, session, arrived, failed: None, side, peer },
            certificates,
        }
    }

    pub(crate) fn peer_certificates(&self) -> Option<PeerCertificates> {
        self.certificates.clone()
    }

    pub(crate) fn into_split(self) -> (TlsRead, TlsWrite) {
        (self.read, self.write)
    }
}

/// For HELLO, which goes over the stream while it is in one piece.
impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.read.poll_read(cx, buffer)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.write.try_write_vectored(&[IoSlice::new(bytes)]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.read.poll_write_ready(cx))?;
                }
                written => return Poll::Ready(written),
            }
        }
    }

    /// Nothing is kept back: what is written is with the socket.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The writing half says the end when it is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsRead {
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_ref().poll_write_ready(cx)
    }

    /// Fills `buffer` with what was decrypted; nothing is the end that the peer has said.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        loop {
            let at_end = self.open(buffer);
            if buffer.filled().len() > before || buffer.remaining() == 0 || at_end {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(io::Error::other(error.clone())));
            }
            if ready!(self.arrived.poll_fill(cx, &mut self.socket))? == 0 {
                self.end();
            }
        }
    }

    /// Decrypts into `buffer` as much as has arrived and it has room for; returns whether the peer has said that nothing
    /// follows.
    fn open(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let mut session = lock(&self.session);
        loop {
            let mut reader = session.reader();
            while buffer.remaining() > 0 {
                match reader.fill_buf() {
                    Ok([]) => return true,
                    Ok(plain) => {
                        let len = plain.len().min(buffer.remaining());
                        buffer.put_slice(&plain[..len]);
                        reader.consume(len);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        self.failed.get_or_insert_with(|| cut(&self.peer, error));
                        return false;
                    }
                }
            }
            if buffer.remaining() == 0 || self.arrived.is_empty() || self.failed.is_some() {
                return false;
            }
            if let Err(error) = self.arrived.feed(&mut session) {
                self.failed = Some(words::of(error, self.side, &self.peer));
            }
        }
    }

    /// The socket has ended: the session knows whether the peer has said so.
    fn end(&mut self) {
        // Reading nothing cannot fail.
        let _nothing = lock(&self.session).read_tls(&mut io::empty());
    }
}

impl TlsWrite {
    /// As [`WriteHalf::try_write_vectored`](crate::stream::WriteHalf::try_write_vectored).
    pub(crate) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.sealed.is_empty() {
            self.seal(slices)?;
        }
        loop {
            if let Some(written) = self.send()? {
                return Ok(written);
            }
        }
    }

    /// Encrypts as much of `slices` as rustls takes at once, 64 KiB.
    fn seal(&mut self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let mut session = lock(&self.session);
        self.owed = session.writer().write_vectored(slices)?;
        while session.wants_write() {
            session.write_tls(&mut self.sealed)?;
        }
        Ok(())
    }

    /// Gives the socket what is left; returns of how many bytes it may be said now that they are written.
    fn send(&mut self) -> io::Result<Option<usize>> {
        let taken = self.socket.try_write(&self.sealed[self.sent..])?;
        if taken == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.sent += taken;
        if self.sent == self.sealed.len() {
            self.sealed.clear();
            self.sealed.shrink_to(KEPT);
            self.sent = 0;
            return Ok(Some(std::mem::take(&mut self.owed)));
        }
        let told = taken.min(self.owed.saturating_sub(1));
        self.owed -= told;
        Ok((told > 0).then_some(told))
    }
}

/// Says that nothing follows, as far as the socket takes that without waiting. A peer that does not hear it takes the
/// connection for cut, which is right where something was left unsent.
impl Drop for TlsWrite {
    fn drop(&mut self) {
        {
            let mut session = lock(&self.session);
            session.send_close_notify();
            while session.wants_write() {
                if session.write_tls(&mut self.sealed).is_err() {
                    return;
                }
            }
        }
        while self.sent < self.sealed.len() && self.send().is_ok() {}
    }
}

impl Arrived {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; ARRIVAL].into(), start: 0, end: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Reads more, once all that was there is decrypted; returns how much.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        let mut space = ReadBuf::new(&mut self.bytes);
        ready!(Pin::new(socket).poll_read(cx, &mut space))?;
        (self.start, self.end) = (0, space.filled().len());
        Poll::Ready(Ok(self.end))
    }

    /// Gives the session as many bytes as it takes at once, and has it look at them. Not to be called when it has plain
    /// bytes: it takes no more then.
    pub(super) fn feed(&mut self, session: &mut Session) -> Result<(), rustls::Error> {
        let mut unread = self.unread();
        let taken = session.read_tls(&mut unread);
        self.start = self.end - unread.len();
        match taken {
            Ok(1..) => session.process_new_packets().map(|_state| ()),
            // A record that is longer than any may be.
            Ok(0) => Err(rustls::Error::PeerSentOversizedRecord),
            Err(error) => Err(rustls::Error::General(error.to_string())),
        }
    }
}

fn lock(session: &Shared) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a stream whose peer has not said that it ends.
fn cut(peer: &str, error: io::Error) -> Error {
    if error.kind() != io::ErrorKind::UnexpectedEof {
        return Error::with_source(ErrorKind::Lost, "connection lost while decrypting", error);
    }
    let message = format!(
        "the connection was cut: {peer} closed it without saying so inside TLS (close_notify), so it died, or somebody on \
         the way did it"
    );
    Error::new(ErrorKind::Lost, message)
}

#[cfg(test)]
mod tests;
