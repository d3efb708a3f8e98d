//! The body of a RESPONSE whose code is not `Ok`: message and details.
//!
//! A protobuf message with the field numbers of `google.rpc.Status` where they mean the same; the code
//! itself is in the header.

use bytes::Bytes;
use prost::Message as _;

use crate::buf::Body;
use crate::status::{Code, Executed, Status};

/// Longest message that is sent, in bytes; a longer one is cut, since no limit of the peer may stop a status.
const MAX_MESSAGE: usize = 4096;
/// Longest details that are sent; longer ones are left out, since half a protobuf message is none.
const MAX_DETAILS: usize = 16 * 1024;

#[derive(Clone, PartialEq, prost::Message)]
struct StatusBody {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(bytes = "bytes", tag = "3")]
    details: Bytes,
}

/// The body that carries `status`.
pub fn encode(status: &Status) -> Body {
    let details =
        if status.details().len() > MAX_DETAILS { Bytes::new() } else { status.details().clone() };
    let body = StatusBody { message: cut(status.message()).to_owned(), details };
    Bytes::from(body.encode_to_vec()).into()
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
}

fn cut(message: &str) -> &str {
    let end = (0..=MAX_MESSAGE.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
    &message[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_details_survive() {
        let sent = Status::aborted("größer %").with_details(&b"\x08\x0a"[..]);
        let received = decode(Code::Aborted, Executed::Yes, encode(&sent));
        assert_eq!(received.message(), "größer %");
        assert_eq!(received.details(), &b"\x08\x0a"[..]);
        assert_eq!(received.executed(), Executed::Yes);
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let long = "ä".repeat(MAX_MESSAGE);
        let received = decode(Code::Internal, Executed::Yes, encode(&Status::internal(&long)));
        assert_eq!(received.message().len(), MAX_MESSAGE);
        let odd = format!("a{long}");
        let received = decode(Code::Internal, Executed::Yes, encode(&Status::internal(odd)));
        assert_eq!(received.message().len(), MAX_MESSAGE - 1);
    }

    #[test]
    fn a_broken_body_still_gives_the_code() {
        let status = decode(Code::NotFound, Executed::Yes, Bytes::from_static(b"\xff\xff").into());
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().contains("does not decode"));
    }
}
