//! What can be wrong with metadata.

use std::convert::Infallible;

use super::key::MAX_KEY;
use crate::status::Status;

/// A name or value that cannot be sent as metadata.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// A name of no characters.
    #[error("a metadata key has no characters")]
    EmptyKey,
    /// A name that is too long.
    #[error("metadata key \"{key}\" has {len} bytes, at most {MAX_KEY} are allowed")]
    KeyLength {
        /// Its beginning.
        key: String,
        /// Its length.
        len: usize,
    },
    /// A name with a character that names do not have.
    #[error(
        "metadata key \"{key}\" has the byte 0x{byte:02x}: keys are made of a to z, 0 to 9, '-', '_' and '.'"
    )]
    KeyByte {
        /// The name.
        key: String,
        /// The first such byte.
        byte: u8,
    },
    /// A name that is the framework's.
    #[error(
        "metadata key \"{key}\" is reserved: keys that begin with \"grpc-\" or \"verbwire-\" are the \
         framework's; choose another"
    )]
    ReservedKey {
        /// The name.
        key: String,
    },
    /// A name for bytes where one for text is expected.
    #[error("metadata key \"{key}\" ends in \"-bin\" and has bytes: use insert_bin or append_bin")]
    KeyOfBytes {
        /// The name.
        key: String,
    },
    /// A name for text where one for bytes is expected.
    #[error(
        "metadata key \"{key}\" does not end in \"-bin\" and has text: use insert or append, or rename it"
    )]
    KeyOfText {
        /// The name.
        key: String,
    },
    /// A text with a byte that is not printable ASCII.
    #[error(
        "metadata value has the byte 0x{byte:02x} at {at}, text is made of 0x20 to 0x7e; any bytes may be \
         under a key that ends in \"-bin\""
    )]
    ValueByte {
        /// The first such byte.
        byte: u8,
        /// Where it is.
        at: usize,
    },
}

impl From<Infallible> for MetadataError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// `InvalidArgument`, so that `?` works in handlers and interceptors.
impl From<MetadataError> for Status {
    fn from(error: MetadataError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}
