//! Names of metadata.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;

use super::{Encoding, MetadataError};

/// Longest name, in bytes.
pub const MAX_KEY: usize = 256;

/// Bytes of a name that an error shows.
const SHOWN: usize = 64;

/// Beginnings of names that are the framework's.
const RESERVED: [&[u8]; 2] = [b"grpc-", b"verbwire-"];

const BINARY: &[u8] = b"-bin";

/// The name of a metadata value: lower-case ASCII letters, digits, `-`, `_` and `.`.
#[derive(PartialEq, Eq, Hash)]
pub struct MetadataKey<E: Encoding> {
    name: Bytes,
    encoding: PhantomData<fn() -> E>,
}

impl<E: Encoding> MetadataKey<E> {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// It is empty, too long, has other characters (upper case too), is reserved, or ends in `-bin` where
    /// text is named, or does not where bytes are.
    pub fn from_bytes(name: impl Into<Bytes>) -> Result<Self, MetadataError> {
        let name = name.into();
        check(&name)?;
        if is_reserved(&name) {
            return Err(MetadataError::ReservedKey { key: shown(&name) });
        }
        if name.ends_with(BINARY) != E::IS_BINARY {
            let key = shown(&name);
            return Err(match E::IS_BINARY {
                true => MetadataError::KeyOfText { key },
                false => MetadataError::KeyOfBytes { key },
            });
        }
        Ok(Self { name, encoding: PhantomData })
    }

    /// A name that is a constant.
    ///
    /// # Panics
    ///
    /// If it is none.
    pub fn from_static(name: &'static str) -> Self {
        Self::from_bytes(name).expect("a constant that is a metadata key")
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.name).expect("checked to be ASCII when the key was made")
    }
}

/// Whether a name of the right form is the framework's.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    RESERVED.iter().any(|reserved| name.starts_with(reserved))
}

/// Whether a name says that its values are bytes.
pub(super) fn is_binary(name: &[u8]) -> bool {
    name.ends_with(BINARY)
}

/// Checks the form of a name, reserved or not.
pub(super) fn check(name: &[u8]) -> Result<(), MetadataError> {
    if name.is_empty() {
        return Err(MetadataError::EmptyKey);
    }
    if name.len() > MAX_KEY {
        return Err(MetadataError::KeyLength { key: shown(name), len: name.len() });
    }
    let is_allowed = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    match name.iter().find(|byte| !is_allowed(byte)) {
        Some(byte) => Err(MetadataError::KeyByte { key: shown(name), byte: *byte }),
        None => Ok(()),
    }
}

fn shown(name: &[u8]) -> String {
    name[..name.len().min(SHOWN)].escape_ascii().to_string()
}

impl<E: Encoding> TryFrom<&str> for MetadataKey<E> {
    type Error = MetadataError;

    fn try_from(name: &str) -> Result<Self, MetadataError> {
        Self::from_bytes(Bytes::copy_from_slice(name.as_bytes()))
    }
}

impl<E: Encoding> TryFrom<String> for MetadataKey<E> {
    type Error = MetadataError;

    fn try_from(name: String) -> Result<Self, MetadataError> {
        Self::from_bytes(name)
    }
}

impl<E: Encoding> From<&Self> for MetadataKey<E> {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

impl<E: Encoding> Clone for MetadataKey<E> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), encoding: PhantomData }
    }
}

impl<E: Encoding> fmt::Debug for MetadataKey<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl<E: Encoding> fmt::Display for MetadataKey<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
