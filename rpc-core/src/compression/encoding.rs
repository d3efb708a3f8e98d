//! Which encodings there are, and sets of them.

use std::fmt;

/// How a message is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// gzip (RFC 1952), by what gRPC calls `gzip`.
    Gzip,
    /// Zstandard (RFC 8878), by what gRPC calls `zstd`. With feature `zstd`.
    #[cfg(feature = "zstd")]
    Zstd,
}

impl Encoding {
    /// All that this build has.
    pub const ALL: &[Self] = &[
        Self::Gzip,
        #[cfg(feature = "zstd")]
        Self::Zstd,
    ];

    /// The name that gRPC has for it in `grpc-encoding`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            #[cfg(feature = "zstd")]
            Self::Zstd => "zstd",
        }
    }

    /// The encoding that gRPC calls so; `None` for one that this build does not have, and for `identity`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == name)
    }

    /// Its number on the wire.
    pub const fn id(self) -> EncodingId {
        match self {
            Self::Gzip => EncodingId(1),
            #[cfg(feature = "zstd")]
            Self::Zstd => EncodingId(2),
        }
    }

    pub(crate) fn of(id: EncodingId) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.id() == id)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The number of an encoding on the wire, of any that a peer may name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct EncodingId(pub u8);

impl EncodingId {
    /// Stands for "not compressed".
    pub const NONE: Self = Self(0);
}

/// A set of encodings: those that a side takes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Encodings(u32);

impl Encodings {
    /// None: all messages come as they are.
    pub const NONE: Self = Self(0);

    /// All that this build has.
    pub fn all() -> Self {
        Encoding::ALL.iter().copied().collect()
    }

    /// The same and this one.
    #[must_use]
    pub fn with(self, encoding: Encoding) -> Self {
        Self(self.0 | bit(encoding.id()))
    }

    /// Whether this one is among them.
    pub fn contains(self, encoding: Encoding) -> bool {
        self.has(encoding.id())
    }

    pub(crate) fn has(self, id: EncodingId) -> bool {
        self.0 & bit(id) != 0
    }

    /// As HELLO has them: a bit for each number. Those that are not known stay.
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

/// The bit of a number; none of 0, which is no encoding, and of one beyond the set.
fn bit(id: EncodingId) -> u32 {
    if id == EncodingId::NONE { 0 } else { 1u32.checked_shl(u32::from(id.0)).unwrap_or(0) }
}

impl From<Encoding> for Encodings {
    fn from(encoding: Encoding) -> Self {
        Self::NONE.with(encoding)
    }
}

impl FromIterator<Encoding> for Encodings {
    fn from_iter<I: IntoIterator<Item = Encoding>>(encodings: I) -> Self {
        encodings.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Encodings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Encoding::ALL.iter().filter(|one| self.contains(**one));
        f.debug_set().entries(known).finish()
    }
}

impl fmt::Display for Encodings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut known = Encoding::ALL.iter().filter(|one| self.contains(**one));
        let Some(first) = known.next() else { return f.write_str("none") };
        f.write_str(first.name())?;
        known.try_for_each(|one| write!(f, ", {one}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_those_of_the_wire() {
        assert_eq!((Encoding::Gzip.name(), Encoding::Gzip.id()), ("gzip", EncodingId(1)));
        for encoding in Encoding::ALL.iter().copied() {
            assert_eq!(Encoding::from_name(encoding.name()), Some(encoding));
            assert_eq!(Encoding::of(encoding.id()), Some(encoding));
        }
        assert_eq!(Encoding::from_name("identity"), None);
        assert_eq!(Encoding::of(EncodingId::NONE), None);
    }

    #[test]
    fn a_set_keeps_bits_that_are_not_known_and_has_no_others() {
        let set = Encodings::from_bits(u32::MAX);
        assert_eq!(set.bits(), u32::MAX);
        assert!(set.has(EncodingId(31)) && set.contains(Encoding::Gzip));
        for id in [EncodingId::NONE, EncodingId(32), EncodingId(255)] {
            assert!(!set.has(id), "{id:?}");
        }
        assert_eq!(Encodings::from(Encoding::Gzip).bits(), 2);
        assert_eq!(Encodings::NONE.to_string(), "none");
        assert!(Encodings::all().to_string().starts_with("gzip"));
    }
}
