//! The two kinds of metadata values, as types.

use std::fmt;

use super::MetadataError;

/// [`Ascii`] or [`Binary`].
pub trait Encoding: sealed::Sealed {}

/// Values of printable ASCII, under names that do not end in `-bin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ascii {}

/// Values of any bytes, under names that end in `-bin`. They are not encoded again on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binary {}

impl Encoding for Ascii {}
impl Encoding for Binary {}

pub(super) mod sealed {
    use super::{Ascii, Binary, MetadataError, fmt, value_byte};

    pub trait Sealed: Sized + Eq + std::hash::Hash + 'static {
        /// Whether names end in `-bin`.
        const IS_BINARY: bool;

        fn check_value(bytes: &[u8]) -> Result<(), MetadataError>;

        fn show(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result;
    }

    impl Sealed for Ascii {
        const IS_BINARY: bool = false;

        fn check_value(bytes: &[u8]) -> Result<(), MetadataError> {
            match bytes.iter().position(|byte| !(0x20..=0x7e).contains(byte)) {
                Some(at) => Err(value_byte(bytes, at)),
                None => Ok(()),
            }
        }

        fn show(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "\"{}\"", bytes.escape_ascii())
        }
    }

    impl Sealed for Binary {
        const IS_BINARY: bool = true;

        fn check_value(_: &[u8]) -> Result<(), MetadataError> {
            Ok(())
        }

        fn show(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "b\"{}\"", bytes.escape_ascii())
        }
    }
}

fn value_byte(bytes: &[u8], at: usize) -> MetadataError {
    MetadataError::ValueByte { byte: bytes[at], at }
}
