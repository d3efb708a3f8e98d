//! The body of a RESPONSE whose code is not `Ok`: message and details.
//!
//! A protobuf message with the field numbers of `google.rpc.Status` where they mean the same; the code
//! itself is in the header.

use bytes::Bytes;
use prost::Message as _;

use crate::buf::Body;
use crate::status::{Code, Executed, Origin, Status};

/// Longest body of a status that every side accepts, whatever its `max_message_size`: no limit may keep a
/// caller from learning how its call ended.
pub const ALWAYS_ACCEPTED: usize = 4096;

/// Longest message that is sent, in bytes; a longer one is cut.
const MAX_MESSAGE: usize = 2048;

/// More than the tags and lengths of both fields take.
const FRAMING: usize = 16;

#[derive(Clone, PartialEq, prost::Message)]
struct StatusBody {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(bytes = "bytes", tag = "3")]
    details: Bytes,
}

/// The body that carries `status` to a peer that accepts `max_message_size` bytes.
///
/// Details that do not fit are left out, since half a protobuf message is none.
pub fn encode(status: &Status, max_message_size: usize) -> Body {
    let message = super::cut(status.message(), MAX_MESSAGE).to_owned();
    let room = max_message_size.max(ALWAYS_ACCEPTED) - FRAMING - message.len();
    let details =
        if status.details().len() <= room { status.details().clone() } else { Bytes::new() };
    Bytes::from(StatusBody { message, details }.encode_to_vec()).into()
}

/// The status of a RESPONSE with `code` and `body`.
///
/// A body that does not decode gives a status all the same: the code alone is worth having.
pub fn decode(code: Code, executed: Executed, body: Body) -> Status {
    match StatusBody::decode(body.reader()) {
        Ok(body) => Status::new(code, body.message).with_details(body.details),
        Err(error) => {
            Status::new(code, format!("(the peer's status message does not decode: {error})"))
        }
    }
    .with_executed(executed)
    .with_origin(Origin::Peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_details_survive() {
        let sent = Status::aborted("größer %").with_details(&b"\x08\x0a"[..]);
        let received = decode(Code::Aborted, Executed::Yes, encode(&sent, 4096));
        assert_eq!(received.message(), "größer %");
        assert_eq!(received.details(), &b"\x08\x0a"[..]);
        assert_eq!(received.executed(), Executed::Yes);
        assert_eq!(received.origin(), Origin::Peer);
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let long = "ä".repeat(MAX_MESSAGE);
        let received = decode(Code::Internal, Executed::Yes, encode(&Status::internal(&long), 0));
        assert_eq!(received.message().len(), MAX_MESSAGE);
        let odd = format!("a{long}");
        let received = decode(Code::Internal, Executed::Yes, encode(&Status::internal(odd), 0));
        assert_eq!(received.message().len(), MAX_MESSAGE - 1);
    }

    #[test]
    fn details_that_the_peer_would_not_accept_are_left_out() {
        let sent = Status::aborted("why").with_details(vec![7; 5000]);
        for (max, expected) in [(0, 0), (5000, 0), (5100, 5000), (usize::MAX, 5000)] {
            let body = encode(&sent, max);
            assert!(body.len() <= max.max(ALWAYS_ACCEPTED));
            let received = decode(Code::Aborted, Executed::Yes, body);
            assert_eq!(received.details().len(), expected, "limit {max}");
        }
    }

    #[test]
    fn a_broken_body_still_gives_the_code() {
        let status = decode(Code::NotFound, Executed::Yes, Bytes::from_static(b"\xff\xff").into());
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().contains("does not decode"));
    }
}
