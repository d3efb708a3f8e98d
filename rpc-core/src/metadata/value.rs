//! Values of metadata.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use bytes::Bytes;

use super::{Ascii, Binary, Encoding, MetadataError};

/// A value of metadata: text or bytes.
#[derive(PartialEq, Eq, Hash)]
pub struct MetadataValue<E: Encoding> {
    bytes: Bytes,
    encoding: PhantomData<fn() -> E>,
}

/// Text.
pub type AsciiMetadataValue = MetadataValue<Ascii>;

/// Bytes.
pub type BinaryMetadataValue = MetadataValue<Binary>;

impl<E: Encoding> MetadataValue<E> {
    /// The value's bytes, as they were put in.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The value's bytes, shared.
    pub fn to_bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Checks a value.
    pub(crate) fn checked(bytes: Bytes) -> Result<Self, MetadataError> {
        E::check_value(&bytes)?;
        Ok(Self { bytes, encoding: PhantomData })
    }
}

impl MetadataValue<Ascii> {
    /// A text that is a constant.
    ///
    /// # Panics
    ///
    /// If it has a character that is not printable ASCII.
    pub fn from_static(text: &'static str) -> Self {
        Self::checked(Bytes::from_static(text.as_bytes())).expect("a constant of printable ASCII")
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes).expect("checked to be ASCII when the value was made")
    }
}

impl MetadataValue<Binary> {
    /// A copy of `bytes`; `From<Bytes>` shares instead.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Bytes::copy_from_slice(bytes).into()
    }
}

impl From<Bytes> for MetadataValue<Binary> {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, encoding: PhantomData }
    }
}

impl From<Vec<u8>> for MetadataValue<Binary> {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl TryFrom<&str> for MetadataValue<Ascii> {
    type Error = MetadataError;

    fn try_from(text: &str) -> Result<Self, MetadataError> {
        Self::checked(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl TryFrom<String> for MetadataValue<Ascii> {
    type Error = MetadataError;

    fn try_from(text: String) -> Result<Self, MetadataError> {
        Self::checked(text.into())
    }
}

impl FromStr for MetadataValue<Ascii> {
    type Err = MetadataError;

    fn from_str(text: &str) -> Result<Self, MetadataError> {
        text.try_into()
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(
            impl From<$number> for MetadataValue<Ascii> {
                fn from(number: $number) -> Self {
                    Self { bytes: number.to_string().into(), encoding: PhantomData }
                }
            }
        )*
    };
}

numbers! { u16 u32 u64 usize i16 i32 i64 isize }

impl<E: Encoding> Clone for MetadataValue<E> {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), encoding: PhantomData }
    }
}

impl<E: Encoding> PartialEq<&Self> for MetadataValue<E> {
    fn eq(&self, other: &&Self) -> bool {
        self == *other
    }
}

impl<E: Encoding> PartialEq<[u8]> for MetadataValue<E> {
    fn eq(&self, other: &[u8]) -> bool {
        self.bytes == other
    }
}

impl PartialEq<str> for MetadataValue<Ascii> {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for MetadataValue<Ascii> {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl<E: Encoding> fmt::Debug for MetadataValue<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        E::show(&self.bytes, f)
    }
}
