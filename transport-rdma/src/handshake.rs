//! HELLO over a queue pair: the connecting side says it first, the accepting side answers.
//!
//! Never the other way round: iWARP ends a connection on which the accepting side sends first. HELLO uses
//! receives that no window counts, and they are not posted again.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Instant, timeout_at};
use verbwire_core::wire::head::MAX_HEAD;
use verbwire_core::wire::hello::PREFIX_LEN;
use verbwire_core::wire::{Hello, WireError};
use verbwire_core::{Error, ErrorKind};

use crate::config::{EAGER, RdmaConfig, STANDING};
use crate::endpoint::Endpoint;
use crate::error;
use crate::proto::credit::Windows;
use crate::work::Completed;

/// Which side says HELLO first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Connecting,
    Accepting,
}

/// What this side says: `hello` with what it has receives for.
///
/// Metadata must fit a frame together with the longest path, so that the core never makes a head that cannot
/// be sent.
///
/// Where receives are shared that is little, and what the peer may borrow besides.
pub(crate) fn announce(
    mut hello: Hello,
    side: Side,
    (windows, config): (Windows, &RdmaConfig),
) -> Hello {
    let cut = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    hello.max_metadata_size = hello.max_metadata_size.min(metadata_beside(cut(config.eager_len)));
    hello.data_window = windows.data;
    hello.control_window = windows.control;
    hello.most_data_window = if windows == config.windows() { 0 } else { config.data_window };
    hello.receive_len = cut(config.eager_len);
    // Only clients send requests.
    hello.standing_grants = if side == Side::Connecting { STANDING } else { 0 };
    hello
}

/// Metadata that a frame of `len` bytes has room for beside a header and the longest path.
fn metadata_beside(len: u32) -> u32 {
    len.saturating_sub(u32::try_from(MAX_HEAD).expect("a few hundred bytes"))
}

/// Exchanges HELLO on a connection that stands; returns the peer's, with no more metadata than this side's own
/// buffers can send.
///
/// # Errors
///
/// `TimedOut` at `deadline`; `PeerFault` for bytes that are no HELLO, or one without receives; `Lost` if the
/// peer goes away.
///
/// # Cancel safety
///
/// Not cancel safe: an endpoint on which this was dropped is of no use.
pub(crate) async fn exchange(
    endpoint: &Arc<Endpoint>,
    side: Side,
    local: &Hello,
    peer: &str,
    deadline: Instant,
) -> Result<Hello, Error> {
    let exchanged = timeout_at(deadline, async {
        if side == Side::Connecting {
            endpoint.send_hello(&local.encode_framed())?;
        }
        let mut hello = poll_fn(|cx| poll_hello(endpoint, peer, cx)).await?;
        check(&hello)?;
        let sendable = metadata_beside(local.receive_len);
        hello.max_metadata_size = hello.max_metadata_size.min(sendable);
        if side == Side::Accepting {
            endpoint.send_hello(&local.encode_framed())?;
        }
        Ok(hello)
    });
    exchanged.await.unwrap_or_else(|_elapsed| {
        let message =
            format!("{peer} said nothing in time: is it a verbwire endpoint, and not overloaded?");
        Err(Error::new(ErrorKind::TimedOut, message))
    })
}

/// Waits for the first message, and takes no completion behind it.
fn poll_hello(endpoint: &Endpoint, peer: &str, cx: &mut Context<'_>) -> Poll<Result<Hello, Error>> {
    let mut completions = Vec::with_capacity(1);
    while let Poll::Ready(taken) = endpoint.poll_completions(cx, &mut completions, 1) {
        taken.map_err(|error| error::lost("saying HELLO", error))?;
        for wc in completions.drain(..) {
            match endpoint.complete(&wc) {
                Completed::Received(buf, len) => {
                    let hello = decode(&buf[..len], peer);
                    endpoint.greeted(buf);
                    return Poll::Ready(hello);
                }
                Completed::Failed(status) => {
                    return Poll::Ready(Err(endpoint.explain(error::failed(status))));
                }
                Completed::HelloSent | Completed::Sent(_) | Completed::Stray => {}
            }
        }
    }
    endpoint.poll_disconnected(cx).map(|cause| {
        let message =
            format!("{peer} ended the connection before it said HELLO; its log may say why");
        Err(Error::with_source(ErrorKind::Lost, message, cause))
    })
}

fn decode(message: &[u8], peer: &str) -> Result<Hello, Error> {
    let broken = |error: WireError| {
        let message = format!("{peer} said no proper HELLO");
        Error::with_source(ErrorKind::PeerFault, message, error)
    };
    let Some((prefix, content)) = message.split_first_chunk::<PREFIX_LEN>() else {
        let text = format!("{} bytes, the prefix alone has {PREFIX_LEN}", message.len());
        return Err(broken(WireError::HelloContent(text)));
    };
    let len = Hello::decode_prefix(prefix).map_err(broken)?;
    if len != content.len() {
        let text = format!("{} bytes, the prefix announces {len}", content.len());
        return Err(broken(WireError::HelloContent(text)));
    }
    Hello::decode_content(content).map_err(broken)
}

/// Without receives no frame can be sent.
fn check(hello: &Hello) -> Result<(), Error> {
    let is_enough = hello.data_window > 0
        && hello.control_window > 0
        && hello.receive_len as usize >= *EAGER.start();
    if is_enough {
        return Ok(());
    }
    let message = format!(
        "HELLO announces data_window {}, control_window {} and receive_len {}, at least 1, 1 and {} are \
         needed",
        hello.data_window,
        hello.control_window,
        hello.receive_len,
        EAGER.start()
    );
    Err(Error::new(ErrorKind::PeerFault, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_no_hello_is_the_peers_fault() {
        let whole = Hello { software: "far".into(), ..Hello::default() }.encode_framed();
        for message in [&whole[..5], &whole[..whole.len() - 1], b"HTTP/1.1 400 Bad Request"] {
            let error = decode(message, "10.0.0.1:7").expect_err("no HELLO");
            assert!(error.is_peer_fault());
            assert!(error.to_string().starts_with("10.0.0.1:7 said no proper HELLO: "), "{error}");
        }
        assert_eq!(decode(&whole, "10.0.0.1:7").expect("HELLO").software, "far");
    }

    fn announce_all(hello: Hello) -> Hello {
        let config = RdmaConfig::default();
        announce(hello, Side::Accepting, (config.windows(), &config))
    }

    #[test]
    fn a_side_without_receives_is_refused_with_its_numbers() {
        let hello = announce_all(Hello::default());
        assert!(check(&hello).is_ok());
        for poor in [
            Hello { data_window: 0, ..hello.clone() },
            Hello { control_window: 0, ..hello.clone() },
            Hello { receive_len: 4095, ..hello.clone() },
        ] {
            assert!(check(&poor).expect_err("too little").is_peer_fault());
        }
    }

    #[test]
    fn the_longest_head_fits_a_frame() {
        let limits = Hello { max_metadata_size: u32::MAX, ..Hello::default() };
        let hello = announce_all(limits);
        let head = MAX_HEAD + hello.max_metadata_size as usize;
        assert_eq!(head, hello.receive_len as usize);
    }
}
