//! HELLO: what both sides say first, the accepting one when it has heard the other begin, and read within a deadline.
//!
//! Reads not one byte beyond the peer's HELLO. What the two HELLOs agree on is the core's business.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use verbwire_core::wire::hello::{MAGIC, PREFIX_LEN};
use verbwire_core::wire::{Hello, WireError};
use verbwire_core::{Error, ErrorKind};

use crate::error;

/// Says HELLO to `peer` and returns its HELLO.
///
/// # Errors
///
/// `TimedOut` at `deadline`, with the step that did not finish; `PeerFault` for bytes that are no HELLO;
/// `Lost` if the peer goes away.
///
/// # Cancel safety
///
/// Not cancel safe: a stream on which this was dropped is of no use.
pub(crate) async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    side: Side,
    local: &Hello,
    peer: &str,
    deadline: Instant,
) -> Result<Hello, Error> {
    let mut received = Vec::new();
    let exchanged = timeout_at(deadline, async {
        if side == Side::Accepting {
            receive_prefix(stream, &mut received).await?;
        }
        // A peer that refuses may have closed already; what it said first tells more than that.
        let said = say(stream, local).await;
        let hello = receive(stream, &mut received).await?;
        said?;
        Ok::<_, Failure>(hello)
    });
    match exchanged.await {
        Ok(Ok(hello)) => Ok(hello),
        Ok(Err(failure)) => Err(failure.into_error(peer, received.len())),
        Err(_) => Err(timed_out(peer, received.len())),
    }
}

/// Which side of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Says HELLO first.
    Connecting,
    /// Answers what begins as a HELLO, and nothing else: soft-iWARP connects to TCP ports, takes what it hears there
    /// for its own protocol, and with a HELLO that takes its machine down.
    Accepting,
}

/// Why there is no HELLO.
#[derive(Debug)]
enum Failure {
    Io(io::Error),
    Wire(WireError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl Failure {
    fn into_error(self, peer: &str, received: usize) -> Error {
        match self {
            Self::Wire(error) => Error::with_source(
                ErrorKind::PeerFault,
                format!("{peer} said no proper HELLO"),
                error,
            ),
            Self::Io(error) if is_end(&error) => Error::new(
                ErrorKind::Lost,
                format!(
                    "{peer} closed the connection after {received} bytes of HELLO; its log may say why"
                ),
            ),
            Self::Io(error) => error::lost("saying HELLO", error),
        }
    }
}

/// Whether this is the end of the stream, found here.
fn is_end(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof && error.get_ref().is_none()
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), local: &Hello) -> io::Result<()> {
    stream.write_all(&local.encode_framed()).await?;
    stream.flush().await
}

/// Receives a HELLO into `received`, which shows how far it got.
async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut Vec<u8>,
) -> Result<Hello, Failure> {
    let len = PREFIX_LEN + receive_prefix(stream, received).await?;
    receive_up_to(stream, received, len).await?;
    Ok(Hello::decode_content(&received[PREFIX_LEN..])?)
}

/// Receives as much as shows that it is a HELLO; returns how long the rest is.
async fn receive_prefix(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut Vec<u8>,
) -> Result<usize, Failure> {
    let whole = receive_up_to(stream, received, PREFIX_LEN).await;
    if whole.is_err() && !MAGIC.starts_with(&received[..received.len().min(MAGIC.len())]) {
        // A peer of another protocol may say less than a prefix before it goes away. What it said tells more than that.
        let mut start = [0; MAGIC.len()];
        start.iter_mut().zip(&*received).for_each(|(to, from)| *to = *from);
        return Err(WireError::Magic(start).into());
    }
    whole?;
    let prefix = received.first_chunk().expect("as many bytes were received");
    Ok(Hello::decode_prefix(prefix)?)
}

async fn receive_up_to(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut Vec<u8>,
    len: usize,
) -> io::Result<()> {
    while received.len() < len {
        let missing = len - received.len();
        let mut rest = stream.take(missing as u64);
        if rest.read_buf(received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn timed_out(peer: &str, received: usize) -> Error {
    let what = match received {
        0 => "said nothing in time: is it a verbwire endpoint, and not overloaded?".to_owned(),
        count => format!("said only {count} bytes of HELLO in time: is it overloaded?"),
    };
    Error::new(ErrorKind::TimedOut, format!("{peer} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::duplex;

    fn hello(software: &str) -> Hello {
        Hello { software: software.to_owned(), max_concurrent_calls: 1, ..Hello::default() }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    /// What a side says whose peer says `bytes` and then, if `closes`, goes away.
    async fn answer_to(bytes: &[u8], then: Then) -> Error {
        let (mut near, mut far) = duplex(8192);
        far.write_all(bytes).await.expect("room");
        let far = match then {
            Then::Closes => {
                drop(far);
                None
            }
            Then::Stays => Some(far),
        };
        let answer =
            exchange(&mut near, Side::Connecting, &hello("near"), "10.0.0.1:7", soon()).await;
        drop(far);
        answer.expect_err("no HELLO")
    }

    enum Then {
        Closes,
        Stays,
    }

    #[tokio::test(start_paused = true)]
    async fn the_accepting_side_says_nothing_to_who_says_no_hello() {
        for said in [&b""[..], b"MPA ID Req Frame", b"GET / HTTP/1.1\r\n\r\n"] {
            let (mut near, mut far) = duplex(1024);
            let soon = Instant::now() + Duration::from_secs(1);
            far.write_all(said).await.expect("room");
            let answered = exchange(&mut near, Side::Accepting, &hello("near"), "far", soon).await;
            assert!(answered.is_err(), "{said:?} is no HELLO");
            drop(near);
            let mut heard = Vec::new();
            far.read_to_end(&mut heard).await.expect("it is closed");
            assert_eq!(heard, b"");
        }
    }

    #[tokio::test]
    async fn both_sides_learn_the_others_hello_and_no_byte_more_is_read() {
        let (mut near, mut far) = duplex(8192);
        let (near_hello, far_hello) = (hello("near"), hello("far"));
        let (seen_near, seen_far) = tokio::join!(
            exchange(&mut near, Side::Connecting, &near_hello, "far", soon()),
            async {
                let seen = exchange(&mut far, Side::Accepting, &far_hello, "near", soon()).await;
                far.write_all(b"next").await.expect("room");
                seen
            }
        );
        assert_eq!(seen_near.expect("far's"), far_hello);
        assert_eq!(seen_far.expect("near's"), near_hello);
        let mut next = [0; 4];
        near.read_exact(&mut next).await.expect("next");
        assert_eq!(&next, b"next");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_times_out_with_the_step_that_is_missing() {
        let silent = answer_to(b"", Then::Stays).await;
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        assert!(silent.to_string().contains("10.0.0.1:7 said nothing"), "{silent}");
        let bytes = hello("far").encode_framed();
        let partial = answer_to(&bytes[..15], Then::Stays).await;
        assert_eq!(partial.kind(), ErrorKind::TimedOut);
        assert!(partial.to_string().contains("only 15 bytes of HELLO"), "{partial}");
    }

    #[tokio::test]
    async fn another_protocol_is_the_peers_fault() {
        let error = answer_to(b"HTTP/1.1 400 Bad Request\r\n\r\n", Then::Closes).await;
        assert!(error.is_peer_fault());
        assert!(error.to_string().contains("got \"HTTP/1.1\""), "{error}");
    }

    #[tokio::test]
    async fn a_few_bytes_of_another_protocol_are_named_too() {
        let error = answer_to(b"\x15\x03\x03\0\x02\x02\x46", Then::Closes).await;
        assert!(error.is_peer_fault());
        assert!(error.to_string().contains("TLS"), "{error}");
    }

    #[tokio::test]
    async fn a_peer_that_goes_away_is_lost() {
        let error = answer_to(b"VERBWIRE", Then::Closes).await;
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("after 8 bytes of HELLO"), "{error}");
    }

    #[tokio::test]
    async fn a_hello_that_is_too_long_is_refused_before_it_is_read() {
        let mut bytes = *b"VERBWIRE\0\0\0\0";
        bytes[8..].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = answer_to(&bytes, Then::Stays).await;
        assert!(error.is_peer_fault());
        assert!(error.to_string().contains("at most 4096"), "{error}");
    }
}
