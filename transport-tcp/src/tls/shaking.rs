//! The TLS handshake over a fresh socket, within a deadline.
//!
//! What a peer can make this side hold is one handshake message of at most 64 KiB (rustls) and one read of the socket.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use rustls::Connection as Session;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use verbwire_core::Error;
use verbwire_core::wire::hello::MAGIC;

use super::halves::{Arrived, TlsStream};
use super::{ALPN, words};
use crate::handshake::Side;

/// How long a peer that is refused may take to hear why. 500 ms: a socket that is closed with bytes unread is reset, and then an
/// alert that was lost on the way is not sent again; so this side reads on until the peer has closed.
const PARTING: Duration = Duration::from_millis(500);

/// Bytes that it may say meanwhile. 64 KiB.
const PARTING_BYTES: usize = 64 << 10;

/// The alert `protocol_version`, for a peer of this protocol that speaks it without TLS: it knows these bytes for TLS.
const SPEAK_TLS: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];

/// The first bytes of a record with a handshake message, or with an alert.
const RECORDS: std::ops::RangeInclusive<u8> = 0x15..=0x16;

/// Shakes hands with `peer`.
///
/// # Errors
///
/// In words: who does not trust whom and what to do; `TimedOut` at `deadline`; `Lost` if the peer goes away.
///
/// # Cancel safety
///
/// Dropping the future closes the socket.
pub(super) async fn shake(
    socket: TcpStream,
    session: Session,
    side: Side,
    peer: &str,
    deadline: Instant,
) -> Result<TlsStream, Error> {
    let mut shaking = Shaking { socket, session, side, peer, arrived: Arrived::new(), received: 0 };
    match timeout_at(deadline, shaking.run()).await {
        Ok(Ok(())) => {
            let Shaking { socket, session, arrived, .. } = shaking;
            Ok(TlsStream::new(socket, session, arrived, side, peer))
        }
        Ok(Err(error)) => {
            shaking.part(deadline).await;
            Err(error)
        }
        Err(_) => Err(words::timed_out(side, peer, shaking.received)),
    }
}

struct Shaking<'a> {
    socket: TcpStream,
    session: Session,
    side: Side,
    peer: &'a str,
    arrived: Arrived,
    /// Bytes that the peer has said.
    received: usize,
}

impl Shaking<'_> {
    async fn run(&mut self) -> Result<(), Error> {
        loop {
            self.say().await?;
            if !self.session.is_handshaking() {
                return self.check_protocol();
            }
            self.hear().await?;
            if let Err(error) = self.handle() {
                // The alert that says why. Whether it arrives is up to the peer.
                let _said = self.say().await;
                return Err(words::of(error, self.side, self.peer));
            }
        }
    }

    async fn say(&mut self) -> Result<(), Error> {
        let mut said = Vec::new();
        while self.session.wants_write() {
            said.clear();
            // Writing to memory cannot fail.
            let written = match self.session.write_tls(&mut said) {
                Ok(_) => self.socket.write_all(&said).await,
                Err(error) => Err(error),
            };
            written.map_err(|error| self.gone(Some(error)))?;
        }
        Ok(())
    }

    async fn hear(&mut self) -> Result<(), Error> {
        let heard = poll_fn(|cx| self.arrived.poll_fill(cx, &mut self.socket)).await;
        let count = heard.map_err(|error| self.gone(Some(error)))?;
        if count == 0 {
            return Err(self.gone(None));
        }
        let is_first = self.received == 0;
        self.received += count;
        if is_first && !RECORDS.contains(&self.arrived.unread()[0]) {
            return Err(self.answer_plaintext().await);
        }
        Ok(())
    }

    /// Looks at what was heard, and no further than the end of the handshake.
    fn handle(&mut self) -> Result<(), rustls::Error> {
        while self.session.is_handshaking() && !self.arrived.is_empty() {
            self.arrived.feed(&mut self.session)?;
        }
        Ok(())
    }

    /// Tells a peer of this protocol what it should speak. Anybody else is told nothing: soft-iWARP connects to TCP
    /// ports, and takes what it hears for its own protocol.
    async fn answer_plaintext(&mut self) -> Error {
        let said = self.arrived.unread();
        let start = said.len().min(MAGIC.len());
        let is_ours = said[..start] == MAGIC[..start];
        let error = words::plaintext(self.side, self.peer, &said[..start], is_ours);
        if is_ours {
            let _said = self.socket.write_all(&SPEAK_TLS).await;
        }
        error
    }

    fn check_protocol(&self) -> Result<(), Error> {
        if self.session.alpn_protocol() == Some(ALPN) {
            return Ok(());
        }
        Err(words::of(rustls::Error::NoApplicationProtocol, self.side, self.peer))
    }

    fn gone(&self, error: Option<io::Error>) -> Error {
        words::gone(self.side, self.peer, self.received, error)
    }

    /// Lets the peer hear what it was told; see [`PARTING`].
    async fn part(&mut self, deadline: Instant) {
        let until = deadline.min(Instant::now() + PARTING);
        let heard_out = async {
            self.socket.shutdown().await?;
            let mut left = PARTING_BYTES;
            let mut bytes = [0; 1024];
            while left > 0 {
                match self.socket.read(&mut bytes).await? {
                    0 => break,
                    count => left = left.saturating_sub(count),
                }
            }
            Ok::<_, io::Error>(())
        };
        // The connection is over in any case.
        let _ended = timeout_at(until, heard_out).await;
    }
}
