//! The wire format that byte transports share; `docs/wire.md` is its specification.
//!
//! One file per part: [`hello`] (the first bytes of a connection), [`header`] (the fixed 40 bytes before
//! everything else), [`tlv`] (extensions), [`head`] (message heads to and from both), [`metadata`] (what is
//! said besides), [`status`] (the body of a failed RESPONSE). All of it is pure: bytes in, values out. Every length is checked before it is
//! believed, and no input can panic.

pub mod head;
pub mod header;
pub mod hello;
pub mod metadata;
pub mod paths;
pub mod session;
pub mod status;
pub mod tlv;

pub use header::{HEADER_LEN, Header, Kind};
pub use hello::Hello;

use crate::metadata::MetadataError;

/// Bytes from a peer that do not follow the wire format, or are beyond a limit of this side.
///
/// Each of these ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first bytes of the connection are no HELLO.
    #[error("expected the magic bytes \"VERBWIRE\", got \"{}\"; {}", .0.escape_ascii(), guess(.0))]
    Magic([u8; 8]),
    /// A HELLO longer than this side accepts.
    #[error("HELLO of {len} bytes, at most {max} are accepted")]
    HelloLength {
        /// Announced length.
        len: u32,
        /// The limit.
        max: u32,
    },
    /// A HELLO that is no protobuf message, or lacks a field.
    #[error("HELLO does not decode: {0}")]
    HelloContent(String),
    /// A frame type that this version does not know.
    #[error("unknown frame type 0x{0:02x}")]
    UnknownKind(u8),
    /// A frame type that the peer may not send here.
    #[error("unexpected {kind:?} frame: {reason}")]
    UnexpectedKind {
        /// The frame's type.
        kind: Kind,
        /// Why it is not expected.
        reason: &'static str,
    },
    /// A TLV block whose lengths do not add up.
    #[error("TLV at byte {at} needs {needs} bytes, {left} are left")]
    TlvLength {
        /// Offset in the TLV block.
        at: usize,
        /// Bytes that the TLV announces, its own header included.
        needs: usize,
        /// Bytes left in the block.
        left: usize,
    },
    /// A mandatory TLV that this version does not know.
    #[error("unknown mandatory TLV 0x{0:04x}; the peer needs a newer version of this side")]
    MandatoryTlv(u16),
    /// A TLV that may be there once.
    #[error("TLV 0x{0:04x} is there twice")]
    RepeatedTlv(u16),
    /// A frame without a TLV that it must have.
    #[error("{kind:?} frame without the TLV 0x{tlv:04x}")]
    MissingTlv {
        /// The frame's type.
        kind: Kind,
        /// The TLV's type.
        tlv: u16,
    },
    /// A TLV that does not belong into this frame.
    #[error("TLV 0x{tlv:04x} does not belong into this {kind:?} frame")]
    MisplacedTlv {
        /// The frame's type.
        kind: Kind,
        /// The TLV's type.
        tlv: u16,
    },
    /// A TLV whose value is not what its type asks for.
    #[error("TLV 0x{0:04x} has a malformed value")]
    TlvValue(u16),
    /// A metadata block whose lengths do not add up.
    #[error("metadata at byte {at} needs {needs} bytes, {left} are left")]
    MetadataLength {
        /// Offset of the entry in the block.
        at: usize,
        /// Bytes that the entry announces, its lengths included.
        needs: usize,
        /// Bytes left in the block.
        left: usize,
    },
    /// An entry that cannot be metadata.
    #[error("metadata at byte {at}: {error}")]
    Metadata {
        /// Offset of the entry in the block.
        at: usize,
        /// What is wrong with it.
        error: MetadataError,
    },
    /// A field with a value outside its range.
    #[error("{field} is {value}, {expected}")]
    Field {
        /// The field's name.
        field: &'static str,
        /// What the peer sent.
        value: u64,
        /// What is allowed.
        expected: &'static str,
    },
    /// A length beyond one of this side's limits.
    #[error("{what} of {len} bytes exceeds {limit_name} of {limit} bytes")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length.
        len: u64,
        /// The limit's name, which is also its setter's.
        limit_name: &'static str,
        /// The limit.
        limit: u64,
    },
}

/// The longest beginning of `text` of at most `max` bytes that ends at a character.
pub fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// What speaks like this.
fn guess(magic: &[u8; 8]) -> &'static str {
    // A client's preface, and the SETTINGS frame with which a server begins.
    if magic.starts_with(b"PRI * HT") || matches!(magic, [0, 0, _, 4, 0, 0, 0, 0]) {
        "this looks like HTTP/2, is the peer a gRPC endpoint?"
    } else if matches!(magic, [0x15 | 0x16, 3, ..]) {
        "this looks like TLS, which this side does not speak here: is the other end tls://, or auto:// with TLS? it takes settings at both ends"
    } else {
        "is the peer a verbwire endpoint?"
    }
}
