//! What is said about a call besides its message: text and bytes by name.
//!
//! [`MetadataMap`] owns the entries of one request, response or status, in order. Names and values are
//! checked when they are made, so that whatever is in a map can be sent; how it looks in bytes is
//! [`crate::wire::metadata`]'s business, and how much of it a peer takes is announced in its HELLO.

mod encoding;
mod error;
mod key;
mod value;

use std::fmt;

use bytes::Bytes;

pub use encoding::{Ascii, Binary, Encoding};
pub use error::MetadataError;
pub use key::{MAX_KEY, MetadataKey};
pub use value::{AsciiMetadataValue, BinaryMetadataValue, MetadataValue};

pub(crate) use key::is_reserved;

/// Entries of a name and a value, in the order in which they were added; a name may be there more than once.
///
/// Names are lower-case ASCII. One that ends in `-bin` has values of any bytes, any other values of printable
/// ASCII. An empty map has no memory and costs no bytes on the wire.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MetadataMap {
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq)]
enum Entry {
    Ascii(MetadataKey<Ascii>, MetadataValue<Ascii>),
    Binary(MetadataKey<Binary>, MetadataValue<Binary>),
}

/// An entry of a [`MetadataMap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAndValueRef<'a> {
    /// Text.
    Ascii(&'a MetadataKey<Ascii>, &'a MetadataValue<Ascii>),
    /// Bytes.
    Binary(&'a MetadataKey<Binary>, &'a MetadataValue<Binary>),
}

/// What an absent map looks like.
pub(crate) static EMPTY: MetadataMap = MetadataMap::new();

impl MetadataMap {
    /// No entries.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Number of entries; each value of a name counts.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sets the one value of `key`. Returns the first of the values that it replaces.
    ///
    /// # Errors
    ///
    /// `key` is no name for text, or reserved.
    pub fn insert<K>(
        &mut self,
        key: K,
        value: MetadataValue<Ascii>,
    ) -> Result<Option<MetadataValue<Ascii>>, MetadataError>
    where
        K: TryInto<MetadataKey<Ascii>, Error: Into<MetadataError>>,
    {
        let key = key.try_into().map_err(Into::into)?;
        let old = self.remove(key.as_str());
        self.entries.push(Entry::Ascii(key, value));
        Ok(old)
    }

    /// Adds a value to those of `key`.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn append<K>(&mut self, key: K, value: MetadataValue<Ascii>) -> Result<(), MetadataError>
    where
        K: TryInto<MetadataKey<Ascii>, Error: Into<MetadataError>>,
    {
        self.entries.push(Entry::Ascii(key.try_into().map_err(Into::into)?, value));
        Ok(())
    }

    /// Sets the one value of `key`, which ends in `-bin`. Returns the first of the values that it replaces.
    ///
    /// # Errors
    ///
    /// `key` is no name for bytes, or reserved.
    pub fn insert_bin<K>(
        &mut self,
        key: K,
        value: MetadataValue<Binary>,
    ) -> Result<Option<MetadataValue<Binary>>, MetadataError>
    where
        K: TryInto<MetadataKey<Binary>, Error: Into<MetadataError>>,
    {
        let key = key.try_into().map_err(Into::into)?;
        let old = self.remove_bin(key.as_str());
        self.entries.push(Entry::Binary(key, value));
        Ok(old)
    }

    /// Adds a value to those of `key`, which ends in `-bin`.
    ///
    /// # Errors
    ///
    /// As for [`insert_bin`](Self::insert_bin).
    pub fn append_bin<K>(
        &mut self,
        key: K,
        value: MetadataValue<Binary>,
    ) -> Result<(), MetadataError>
    where
        K: TryInto<MetadataKey<Binary>, Error: Into<MetadataError>>,
    {
        self.entries.push(Entry::Binary(key.try_into().map_err(Into::into)?, value));
        Ok(())
    }

    /// The first value of `key`, in whatever case it is written. `None` for names that end in `-bin`.
    pub fn get(&self, key: &str) -> Option<&MetadataValue<Ascii>> {
        self.get_all(key).next()
    }

    /// Every value of `key`, in order.
    pub fn get_all<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a MetadataValue<Ascii>> {
        self.named(key).filter_map(|entry| match entry {
            KeyAndValueRef::Ascii(_, value) => Some(value),
            KeyAndValueRef::Binary(..) => None,
        })
    }

    /// The first value of `key`, in whatever case it is written. `None` for names that do not end in `-bin`.
    pub fn get_bin(&self, key: &str) -> Option<&MetadataValue<Binary>> {
        self.get_all_bin(key).next()
    }

    /// Every value of `key`, in order.
    pub fn get_all_bin<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a MetadataValue<Binary>> {
        self.named(key).filter_map(|entry| match entry {
            KeyAndValueRef::Binary(_, value) => Some(value),
            KeyAndValueRef::Ascii(..) => None,
        })
    }

    /// Whether `key` has a value, text or bytes.
    pub fn contains_key(&self, key: &str) -> bool {
        self.named(key).next().is_some()
    }

    /// Takes every value of `key` out; returns the first.
    pub fn remove(&mut self, key: &str) -> Option<MetadataValue<Ascii>> {
        self.take(key).find_map(|entry| match entry {
            Entry::Ascii(_, value) => Some(value),
            Entry::Binary(..) => None,
        })
    }

    /// Takes every value of `key` out; returns the first.
    pub fn remove_bin(&mut self, key: &str) -> Option<MetadataValue<Binary>> {
        self.take(key).find_map(|entry| match entry {
            Entry::Binary(_, value) => Some(value),
            Entry::Ascii(..) => None,
        })
    }

    /// Takes every entry out.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Adds all entries of another map behind those of this one.
    pub fn extend(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = KeyAndValueRef<'_>> {
        self.entries.iter().map(Entry::as_ref)
    }

    /// Adds an entry from the wire; its name says what its value must be.
    ///
    /// # Errors
    ///
    /// The name or value is none.
    pub(crate) fn push_received(&mut self, key: Bytes, value: Bytes) -> Result<(), MetadataError> {
        self.entries.push(if key::is_binary(&key) {
            Entry::Binary(MetadataKey::from_bytes(key)?, value.into())
        } else {
            Entry::Ascii(MetadataKey::from_bytes(key)?, MetadataValue::checked(value)?)
        });
        Ok(())
    }

    /// The values of `key`; names are stored in lower case.
    fn named<'a>(&'a self, key: &str) -> impl Iterator<Item = KeyAndValueRef<'a>> {
        let entries = self.entries.iter().filter(move |entry| entry.is_named(key));
        entries.map(Entry::as_ref)
    }

    fn take(&mut self, key: &str) -> std::vec::IntoIter<Entry> {
        let taken: Vec<_> = self.entries.extract_if(.., |entry| entry.is_named(key)).collect();
        taken.into_iter()
    }
}

impl Entry {
    fn as_ref(&self) -> KeyAndValueRef<'_> {
        match self {
            Self::Ascii(key, value) => KeyAndValueRef::Ascii(key, value),
            Self::Binary(key, value) => KeyAndValueRef::Binary(key, value),
        }
    }

    fn is_named(&self, key: &str) -> bool {
        self.as_ref().key().eq_ignore_ascii_case(key)
    }
}

impl<'a> KeyAndValueRef<'a> {
    /// The entry's name.
    pub fn key(self) -> &'a str {
        match self {
            Self::Ascii(key, _) => key.as_str(),
            Self::Binary(key, _) => key.as_str(),
        }
    }

    /// The bytes of the entry's value.
    pub fn value(self) -> &'a [u8] {
        match self {
            Self::Ascii(_, value) => value.as_bytes(),
            Self::Binary(_, value) => value.as_bytes(),
        }
    }
}

impl fmt::Debug for MetadataMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for entry in self.iter() {
            match entry {
                KeyAndValueRef::Ascii(key, value) => map.entry(&key.as_str(), value),
                KeyAndValueRef::Binary(key, value) => map.entry(&key.as_str(), value),
            };
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests;
