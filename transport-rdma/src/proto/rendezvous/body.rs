//! What both sides must know of a body: its length, and where in a grant it goes.

use std::num::NonZeroU32;

use super::wire::Crc;

/// Grants begin on a boundary of this many bytes.
pub const PAGE: u64 = 4096;

/// Bytes of a grant beyond the body that it is for, so that the writer can choose where the body begins.
pub const SLACK: u64 = PAGE;

/// The length of a body in bytes: one at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyLen(NonZeroU32);

impl BodyLen {
    /// A length; `None` for 0, since nobody writes nothing.
    pub fn new(len: u32) -> Option<Self> {
        NonZeroU32::new(len).map(Self)
    }

    /// Bytes.
    pub fn bytes(self) -> u32 {
        self.0.get()
    }

    /// Bytes of a grant for it.
    pub fn grant_len(self) -> u64 {
        u64::from(self.bytes()) + SLACK
    }
}

/// What a writer knows of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Body {
    /// Its length.
    pub len: BodyLen,
    /// Bytes of it before its longest segment, which shall land on a page: storage can hand that one to a
    /// device as it is.
    pub before_longest: u32,
    /// Its checksum, if the receiver shall check it.
    pub crc: Option<Crc>,
}

impl Body {
    /// Bytes of a grant to leave free, so that the longest segment begins on a page.
    pub(super) fn offset(&self) -> u32 {
        const PAGE_LEN: u32 = 4096;
        (PAGE_LEN - self.before_longest % PAGE_LEN) % PAGE_LEN
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_longest_segment_lands_on_a_page_within_the_grant(
            len in 1..=u32::MAX,
            before in 0..=u32::MAX,
            page in 0..1_u64 << 40,
        ) {
            let len = BodyLen::new(len).expect("not 0");
            let before_longest = before % len.bytes();
            let body = Body { len, before_longest, crc: None };
            let (start, offset) = (page * PAGE, u64::from(body.offset()));
            prop_assert_eq!((start + offset + u64::from(before_longest)) % PAGE, 0);
            prop_assert!(offset + u64::from(len.bytes()) <= len.grant_len());
        }
    }
}
