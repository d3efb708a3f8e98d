//! HELLO: the first bytes of each direction.
//!
//! ```text
//!  offset  size  field
//!       0     8  magic    "VERBWIRE"
//!       8     4  length   of what follows, little-endian, at most MAX_HELLO
//!      12     n  content  a protobuf message, see Hello
//! ```
//!
//! What is frozen: these twelve bytes, and the meaning of the protobuf's field numbers. New fields are
//! added; a peer that does not know them skips them. What both sides agree on from two HELLOs is
//! decided in [`crate::proto::hello`].

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message as _;

use super::WireError;

/// The first bytes of every connection.
pub const MAGIC: [u8; 8] = *b"VERBWIRE";

/// Bytes before the protobuf content.
pub const PREFIX_LEN: usize = 12;

/// Longest protobuf content that is accepted.
pub const MAX_HELLO: u32 = 4096;

/// Longest credentials in it. 3 KiB: a token with room to spare, and the rest of a HELLO beside it.
pub const MAX_CREDENTIALS: usize = 3 << 10;

/// What a side says of itself when it connects. `Debug` shows no credentials.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct Hello {
    /// Lowest protocol version that it speaks.
    #[prost(uint32, tag = "1")]
    pub version_min: u32,
    /// Highest protocol version that it speaks.
    #[prost(uint32, tag = "2")]
    pub version_max: u32,
    /// Bits of optional features that it offers; unknown ones are ignored.
    #[prost(fixed64, tag = "3")]
    pub features: u64,
    /// Bits of features without which it cannot talk; unknown ones end the connection.
    #[prost(fixed64, tag = "4")]
    pub required_features: u64,
    /// Longest message body that it accepts, in bytes.
    #[prost(uint64, tag = "5")]
    pub max_message_size: u64,
    /// Longest metadata block that it accepts, in bytes.
    #[prost(uint32, tag = "6")]
    pub max_metadata_size: u32,
    /// Longest body that it accepts in one frame; longer ones come as DATA frames of at most this length.
    #[prost(uint32, tag = "7")]
    pub max_frame_body: u32,
    /// Calls that it accepts at a time on this connection; slots are below this number.
    #[prost(uint32, tag = "8")]
    pub max_concurrent_calls: u32,
    /// Method numbers that it remembers for this connection; numbers are 1 to this.
    #[prost(uint32, tag = "9")]
    pub max_interned_methods: u32,
    /// One run of the process that speaks: a restarted peer shows another number.
    #[prost(fixed64, tag = "10")]
    pub incarnation: u64,
    /// This connection among all of that run.
    #[prost(fixed64, tag = "11")]
    pub connection: u64,
    /// Name and version of the software, for error messages.
    #[prost(string, tag = "12")]
    pub software: String,
    /// RDMA: data frames that it has receives for at a time; 0 on transports without credits.
    #[prost(uint32, tag = "13")]
    pub data_window: u32,
    /// RDMA: control frames that it has receives for at a time, apart from data; 0 as above.
    #[prost(uint32, tag = "14")]
    pub control_window: u32,
    /// RDMA: length of its receives, which a whole frame must fit into; 0 as above.
    #[prost(uint32, tag = "15")]
    pub receive_len: u32,
    /// RDMA: grants that nobody asked for which it takes at a time, to write requests to; 0 for none.
    #[prost(uint32, tag = "16")]
    pub standing_grants: u32,
    /// Bytes of the messages of a stream that it lets come before it has taken the first; 0 if it takes none.
    #[prost(uint32, tag = "17")]
    pub stream_window: u32,
    /// RDMA: what `data_window` may become by loans; 0, or no more than `data_window`, where nothing is lent.
    #[prost(uint32, tag = "18")]
    pub most_data_window: u32,
    /// Encodings of messages that it decompresses: bit n for number n. Unknown bits are ignored.
    #[prost(uint32, tag = "19")]
    pub encodings: u32,
    /// By which the server is to know this client; empty if it needs none, and from servers.
    #[prost(bytes = "bytes", tag = "20")]
    pub credentials: Bytes,
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("versions", &(self.version_min..=self.version_max))
            .field("features", &(self.features, self.required_features))
            .field("max_message_size", &self.max_message_size)
            .field("max_concurrent_calls", &self.max_concurrent_calls)
            .field("incarnation", &self.incarnation)
            .field("connection", &self.connection)
            .field("software", &self.software)
            .field("credentials", &format_args!("{} bytes", self.credentials.len()))
            .finish_non_exhaustive()
    }
}

impl Hello {
    /// Prefix and content, ready to be sent.
    pub fn encode_framed(&self) -> Bytes {
        let len = self.encoded_len();
        let mut out = BytesMut::with_capacity(PREFIX_LEN + len);
        out.put_slice(&MAGIC);
        out.put_u32_le(u32::try_from(len).expect("a HELLO is a few dozen bytes and a short name"));
        self.encode(&mut out).expect("BytesMut grows");
        out.freeze()
    }

    /// Checks the prefix; returns how many bytes of content follow.
    ///
    /// # Errors
    ///
    /// Another magic, or a length beyond [`MAX_HELLO`].
    pub fn decode_prefix(prefix: &[u8; PREFIX_LEN]) -> Result<usize, WireError> {
        let mut input = &prefix[..];
        let mut magic = [0; MAGIC.len()];
        input.copy_to_slice(&mut magic);
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        let len = input.get_u32_le();
        if len > MAX_HELLO {
            return Err(WireError::HelloLength { len, max: MAX_HELLO });
        }
        Ok(len as usize)
    }

    /// Reads the content.
    ///
    /// # Errors
    ///
    /// Bytes that are no such protobuf message.
    pub fn decode_content(content: &[u8]) -> Result<Self, WireError> {
        Self::decode(content).map_err(|error| WireError::HelloContent(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_survives_the_wire() {
        let sent = Hello {
            version_max: 3,
            max_message_size: 1 << 40,
            connection: u64::MAX,
            software: "verbwire 0.1.0".into(),
            ..Hello::default()
        };
        let bytes = sent.encode_framed();
        let (prefix, content) = bytes.split_first_chunk().expect("prefix");
        assert_eq!(Hello::decode_prefix(prefix), Ok(content.len()));
        assert_eq!(Hello::decode_content(content), Ok(sent));
    }

    #[test]
    fn the_longest_credentials_fit_and_are_not_shown() {
        let credentials = Bytes::from(vec![b'S'; MAX_CREDENTIALS]);
        let software = "a name of an ordinary length, with a version".to_owned();
        let full = u64::MAX;
        let hello = Hello {
            credentials,
            software,
            incarnation: full,
            connection: full,
            ..Hello::default()
        };
        assert!(hello.encode_framed().len() < MAX_HELLO as usize);
        let shown = format!("{hello:?}");
        assert!(shown.contains("credentials: 3072 bytes") && !shown.contains("SS"), "{shown}");
        assert!(!shown.contains("83"), "nor its bytes as numbers: {shown}");
    }

    #[test]
    fn another_protocol_is_named_by_its_bytes() {
        let error = Hello::decode_prefix(b"GET / HTTP/1").expect_err("not a HELLO");
        assert_eq!(
            error.to_string(),
            "expected the magic bytes \"VERBWIRE\", got \"GET / HT\"; is the peer a verbwire endpoint?"
        );
    }

    #[test]
    fn http2_and_tls_are_recognised() {
        let says = |bytes| Hello::decode_prefix(bytes).expect_err("not a HELLO").to_string();
        assert!(says(b"\0\0\x06\x04\0\0\0\0\0\0\0\0").contains("HTTP/2"));
        assert!(says(b"PRI * HTTP/2").contains("HTTP/2"));
        assert!(says(b"\x15\x03\x03\0\x02\x02\x46\0\0\0\0\0").contains("TLS"));
    }

    #[test]
    fn a_long_hello_is_refused_before_it_is_read() {
        let mut prefix = *b"VERBWIRE\0\0\0\0";
        prefix[8..].copy_from_slice(&(MAX_HELLO + 1).to_le_bytes());
        let error = WireError::HelloLength { len: MAX_HELLO + 1, max: MAX_HELLO };
        assert_eq!(Hello::decode_prefix(&prefix), Err(error));
    }
}
