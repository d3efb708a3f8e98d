//! What a body knows that is compressed, and how it becomes one that is not.

use super::decompress::{DecompressError, decompress, len_of};
use super::{Encoding, EncodingId, Encodings};
use crate::buf::Body;
use crate::config::Limits;
use crate::server::Size;
use crate::status::Status;

/// What a body knows that is compressed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coded {
    id: EncodingId,
    /// Bytes of the message at most.
    limit: usize,
    /// Whose peer compressed it; `None` of a body that was made in this process.
    receiver: Option<Receiver>,
    /// Whose limit it is.
    limited_by: Option<Receiver>,
    /// Whether its receiver said that it takes this.
    accepted: bool,
}

/// Which side a message came to, or of what is sent, which side that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiver {
    Client,
    Server,
}

/// What a side holds its peer's messages to that are compressed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inbound {
    accepts: Encodings,
    limit: usize,
    receiver: Receiver,
}

impl Inbound {
    /// As this side's HELLO says it.
    pub(crate) fn new(limits: &Limits, receiver: Receiver) -> Self {
        Self { accepts: limits.accept_compressed, limit: limits.max_message_size, receiver }
    }

    /// A body that came, as its message says that it is.
    pub(crate) fn receive(&self, id: EncodingId, body: Body) -> Body {
        if id == EncodingId::NONE {
            return body;
        }
        let accepted = self.accepts.has(id);
        let side = Some(self.receiver);
        body.coded_as(Coded { id, limit: self.limit, receiver: side, limited_by: side, accepted })
    }
}

impl Coded {
    /// Of a body that was made in this process. What it may become is bounded as by default, unless a connection says otherwise.
    pub(crate) fn made(encoding: Encoding) -> Self {
        let limit = Limits::default().max_message_size;
        Self { id: encoding.id(), limit, receiver: None, limited_by: None, accepted: true }
    }

    /// The same at the side of a connection that decompresses it to send it. What came keeps the limit of who received it.
    pub(super) fn sent_by(self, side: Receiver, limit: usize) -> Self {
        match self.receiver {
            Some(_) => self,
            None => Self { limit, limited_by: Some(side), ..self },
        }
    }

    pub(crate) fn id(&self) -> EncodingId {
        self.id
    }

    /// The encoding.
    ///
    /// # Errors
    ///
    /// The receiver did not say that it takes this one, or has not got it. As gRPC has it: `Unimplemented` from a server,
    /// `Internal` at a client.
    pub(crate) fn encoding(&self) -> Result<Encoding, Status> {
        match Encoding::of(self.id) {
            Some(encoding) if self.accepted => Ok(encoding),
            known => Err(self.not_accepted(known)),
        }
    }

    fn not_accepted(&self, known: Option<Encoding>) -> Status {
        let name = known.map_or_else(|| format!("number {}", self.id.0), |one| one.to_string());
        match self.receiver {
            Some(Receiver::Server) => Status::unimplemented(format!(
                "the request message is compressed by {name}, which this server did not announce that it takes: see its \
                 accept_compressed(..)"
            )),
            Some(Receiver::Client) | None => Status::internal(format!(
                "the reply message is compressed by {name}, which this client did not announce that it takes: see its \
                 accept_compressed(..)"
            )),
        }
    }

    /// The message.
    ///
    /// # Errors
    ///
    /// As for [`encoding`](Self::encoding); `ResourceExhausted` if it has more bytes than the limit, of which no more than
    /// one is looked at; `Internal` if the bytes are none of the encoding.
    pub(crate) fn decompress(&self, compressed: Body) -> Result<Body, Status> {
        let encoding = self.encoding()?;
        let len = compressed.len();
        decompress(encoding, compressed, self.limit).map_err(|error| match error {
            DecompressError::TooLong => self.too_long(len),
            DecompressError::Malformed(why) => Status::internal(format!(
                "the {} message of {len} bytes does not decompress as {encoding}: {why}",
                self.what()
            )),
        })
    }

    /// Bytes that the message takes once it is decompressed, at most one more than the limit and than `most`. Keeps nothing of it,
    /// and costs the same work.
    pub(crate) fn decompressed_len(&self, compressed: Body, most: usize) -> usize {
        match self.encoding() {
            Ok(encoding) => len_of(encoding, compressed, self.limit.min(most)),
            Err(_) => 0,
        }
    }

    fn too_long(&self, len: usize) -> Status {
        let setter = match self.limited_by {
            Some(Receiver::Server) => ", set by the server's max_message_size(..)",
            Some(Receiver::Client) => ", set by the client's max_message_size(..)",
            None => ", the bound on what is handed over within this process",
        };
        Status::resource_exhausted(format!(
            "{} message of {} exceeds max_message_size of {} when it is decompressed{setter}",
            self.what(),
            Size(len),
            Size(self.limit),
        ))
    }

    fn what(&self) -> &'static str {
        match self.receiver {
            Some(Receiver::Server) => "request",
            Some(Receiver::Client) => "reply",
            None => "compressed",
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::status::Code;

    fn inbound(accepts: Encodings, receiver: Receiver) -> Inbound {
        Inbound { accepts, limit: 1 << 20, receiver }
    }

    fn body() -> Body {
        Body::from(Bytes::from_static(b"no gzip"))
    }

    #[test]
    fn what_was_not_announced_has_the_code_of_its_side_and_is_not_looked_at() {
        for (receiver, code) in
            [(Receiver::Server, Code::Unimplemented), (Receiver::Client, Code::Internal)]
        {
            for (id, name) in [(Encoding::Gzip.id(), "gzip"), (EncodingId(200), "number 200")] {
                let came = inbound(Encodings::NONE, receiver).receive(id, body());
                for status in [came.encoding().err(), came.decompressed().err()] {
                    let status = status.expect("not announced");
                    assert_eq!(status.code(), code);
                    assert!(status.message().contains(name), "{status}");
                    assert!(status.message().contains("accept_compressed(..)"), "{status}");
                }
            }
            // Announced by a set that has all bits, and still not there.
            let all = inbound(Encodings::from_bits(u32::MAX), receiver);
            let status = all.receive(EncodingId(9), body()).decompressed().expect_err("unknown");
            assert_eq!(status.code(), code);
        }
    }

    #[test]
    fn a_bomb_says_both_lengths_and_the_setter() {
        let zeros = Body::from(Bytes::from(vec![0; 10 << 20]));
        let peer = crate::wire::Hello { encodings: 2, ..Default::default() };
        let takes = super::super::Outbound::to(&peer, &Limits::default(), Receiver::Client);
        let all = super::super::Compression::new(Encoding::Gzip).compress_payloads(true);
        let bomb = takes.prepare(zeros, all, |_| Ok(())).expect("no limit");
        let len = bomb.len();
        assert!(len < 64 << 10, "{len}");
        let came = inbound(Encodings::all(), Receiver::Server).receive(Encoding::Gzip.id(), bomb);
        assert_eq!(came.decompressed_len(), (1 << 20) + 1);
        assert_eq!(came.decompressed_len_within(100), 101);
        let status = came.decompressed().expect_err("10 MiB are more than 1");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let expected = format!(
            "request message of {} exceeds max_message_size of 1 MiB when it is decompressed, set by the server's \
             max_message_size(..)",
            Size(len)
        );
        assert_eq!(status.message(), expected);
    }

    #[test]
    fn bytes_that_are_none_of_the_encoding_are_internal() {
        let came = inbound(Encodings::all(), Receiver::Client).receive(Encoding::Gzip.id(), body());
        assert_eq!(came.encoding().ok(), Some(Some(Encoding::Gzip)));
        assert_eq!(came.decompressed_len(), 0);
        let status = came.decompressed().expect_err("no gzip");
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("reply message of 7 bytes"), "{status}");
    }
}
