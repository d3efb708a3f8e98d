//! The metadata block of a REQUEST, HEADERS or RESPONSE.
//!
//! ```text
//!  offset  size  field
//!       0     2  key_len     bit 15: a trailer
//!       2     4  value_len
//!       6     n  key, value  no padding
//! ```
//!
//! Entries one behind the other, in order, together exactly the header's `metadata_len`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::WireError;
use crate::metadata::{MetadataMap, is_reserved};

/// Set in `key_len` of an entry that is said at the end of a call.
const TRAILER: u16 = 0x8000;

/// Bytes of an entry before its key.
const ENTRY_LEN: usize = 6;

/// What a block says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Block {
    /// Said when the call begins, or when its reply does.
    pub headers: MetadataMap,
    /// Said at the end of the call.
    pub trailers: MetadataMap,
}

impl Block {
    /// The block's bytes; none if nothing is said.
    pub fn encode(&self) -> Bytes {
        encode(&self.headers, &self.trailers)
    }
}

/// Bytes that the entries of `map` take in a block.
pub fn encoded_len(map: &MetadataMap) -> usize {
    map.iter().map(|entry| ENTRY_LEN + entry.key().len() + entry.value().len()).sum()
}

/// The block that says both; empty if neither has entries.
pub fn encode(headers: &MetadataMap, trailers: &MetadataMap) -> Bytes {
    let len = encoded_len(headers) + encoded_len(trailers);
    if len == 0 {
        return Bytes::new();
    }
    let mut out = BytesMut::with_capacity(len);
    for (map, mark) in [(headers, 0), (trailers, TRAILER)] {
        for entry in map.iter() {
            let (key, value) = (entry.key().as_bytes(), entry.value());
            let key_len = u16::try_from(key.len()).expect("at most MAX_KEY");
            out.put_u16_le(key_len | mark);
            // A block beyond 4 GiB is beyond every peer's limit, which is checked before it is sent.
            out.put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
            out.put_slice(key);
            out.put_slice(value);
        }
    }
    out.freeze()
}

/// What `block` says. Reserved keys, which a later version may send, are left out.
///
/// # Errors
///
/// Lengths that do not add up, or a key or value that cannot be metadata.
pub fn decode(mut block: Bytes) -> Result<Block, WireError> {
    let whole = block.len();
    let mut found = Block::default();
    while !block.is_empty() {
        let at = whole - block.len();
        let short = |needs: usize, left: usize| WireError::MetadataLength { at, needs, left };
        if block.len() < ENTRY_LEN {
            return Err(short(ENTRY_LEN, block.len()));
        }
        let (key_len, value_len) = (block.get_u16_le(), block.get_u32_le() as usize);
        let map = match key_len & TRAILER {
            0 => &mut found.headers,
            _ => &mut found.trailers,
        };
        let key_len = usize::from(key_len & !TRAILER);
        let needs = key_len.saturating_add(value_len);
        if block.len() < needs {
            return Err(short(ENTRY_LEN.saturating_add(needs), ENTRY_LEN + block.len()));
        }
        let (key, value) = (block.split_to(key_len), block.split_to(value_len));
        if !is_reserved(&key) {
            map.push_received(key, value).map_err(|error| WireError::Metadata { at, error })?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::MAX_KEY;
    use proptest::prelude::*;

    fn maps() -> impl Strategy<Value = MetadataMap> {
        let entry = prop_oneof![
            ("[a-z0-9_.]{1,12}", "[ -~]{0,30}").prop_map(|(key, value)| (key, value.into_bytes())),
            ("[a-z0-9_.]{0,12}-bin", prop::collection::vec(any::<u8>(), 0..30)),
        ];
        prop::collection::vec(entry, 0..8).prop_map(|entries| {
            let mut map = MetadataMap::new();
            for (key, value) in entries {
                map.push_received(key.into(), value.into()).expect("of the right form");
            }
            map
        })
    }

    fn entry(key_len: u16, value_len: u32, behind: &[u8]) -> Vec<u8> {
        [&key_len.to_le_bytes()[..], &value_len.to_le_bytes()[..], behind].concat()
    }

    proptest! {
        #[test]
        fn every_block_survives_the_wire(headers in maps(), trailers in maps()) {
            let block = encode(&headers, &trailers);
            prop_assert_eq!(block.len(), encoded_len(&headers) + encoded_len(&trailers));
            prop_assert_eq!(decode(block), Ok(Block { headers, trailers }));
        }

        #[test]
        fn no_block_can_panic_the_decoder(
            headers in maps(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            random in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = decode(random.into());
            let mut block = encode(&headers, &MetadataMap::new()).to_vec();
            if !block.is_empty() {
                let at = at.index(block.len());
                block[at] = byte;
                let _ = decode(block.into());
            }
        }

        #[test]
        fn a_block_cut_anywhere_but_between_entries_is_refused(headers in maps(), at in any::<prop::sample::Index>()) {
            let block = encode(&headers, &MetadataMap::new());
            prop_assume!(!block.is_empty());
            let cut = block.slice(..at.index(block.len()));
            if let Ok(found) = decode(cut.clone()) {
                prop_assert_eq!(encode(&found.headers, &found.trailers), cut);
            }
        }
    }

    #[test]
    fn blocks_that_do_not_add_up_are_refused_with_their_numbers() {
        let cases = [
            (vec![1, 0, 0], "metadata at byte 0 needs 6 bytes, 3 are left"),
            (entry(9, 0, b"short"), "metadata at byte 0 needs 15 bytes, 11 are left"),
            (entry(1, u32::MAX, b"a"), "metadata at byte 0 needs 4294967302 bytes, 7 are left"),
            (entry(0x7fff, 0, b""), "metadata at byte 0 needs 32773 bytes, 6 are left"),
            (
                [entry(1, 1, b"ab"), vec![7]].concat(),
                "metadata at byte 8 needs 6 bytes, 1 are left",
            ),
            (entry(0, 0, b""), "metadata at byte 0: a metadata key has no characters"),
            (entry(1, 0, b"A"), "metadata at byte 0: metadata key \"A\" has the byte 0x41"),
            (entry(1, 1, b"a\n"), "metadata at byte 0: metadata value has the byte 0x0a at 0"),
            (entry(2, 0, b"\xc3\xbc"), "metadata key \"\\xc3\\xbc\" has the byte 0xc3"),
            (entry(257, 0, &[b'a'; MAX_KEY + 1]), "has 257 bytes, at most 256"),
        ];
        for (block, words) in cases {
            let error = decode(block.into()).expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn reserved_keys_of_a_later_version_are_left_out() {
        let block = [entry(12, 1, b"verbwire-newx"), entry(1, 1, b"ab")].concat();
        let found = decode(block.into()).expect("well-formed");
        assert_eq!(found.headers.len(), 1);
        assert_eq!(found.headers.get("a").expect("there"), "b");
    }
}
