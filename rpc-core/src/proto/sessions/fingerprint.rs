//! What is kept of a request to know it again.

use crate::buf::Body;

/// So many bytes of either end are looked at: a long body is not read through for this.
const ENDS: usize = 4096;

/// The length of a request and a hash of its first and its last 4 KiB. It tells mistakes, and not who wants to be
/// mistaken for another: the hash (FNV-1a) is not made to withstand that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    len: usize,
    hash: u64,
}

impl Fingerprint {
    /// That of a request. It does not depend on the segments that the body is in.
    pub fn of(body: &Body) -> Self {
        let len = body.len();
        let last = len.saturating_sub(ENDS).max(ENDS);
        let (mut at, mut hash) = (0, 0xcbf2_9ce4_8422_2325);
        for segment in body.segments() {
            let end = at + segment.len();
            for (from, to) in [(0, ENDS), (last, len)] {
                let (from, to) = (from.max(at), to.min(end));
                if from < to {
                    hash = fnv(hash, &segment[from - at..to - at]);
                }
            }
            at = end;
        }
        Self { len, hash }
    }
}

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn of(bytes: &[u8]) -> Fingerprint {
        Fingerprint::of(&Body::from(Bytes::copy_from_slice(bytes)))
    }

    #[test]
    fn it_is_that_of_fnv_for_a_short_body() {
        assert_eq!(of(b"foobar"), Fingerprint { len: 6, hash: 0x8594_4171_f739_67e8 });
    }

    #[test]
    fn it_tells_lengths_and_bytes_of_both_ends_apart_and_no_others() {
        for len in [1, ENDS - 1, ENDS, ENDS + 1, 2 * ENDS - 1, 2 * ENDS, 2 * ENDS + 1, 9 * ENDS] {
            let bytes = vec![7; len];
            let whole = of(&bytes);
            assert_ne!(whole, of(&bytes[1..]), "{len}");
            for at in [0, len / 2, len.min(ENDS) - 1, len.saturating_sub(ENDS), len - 1] {
                let mut other = bytes.clone();
                other[at] = 8;
                let is_looked_at = at < ENDS || at >= len.saturating_sub(ENDS);
                assert_eq!(whole != of(&other), is_looked_at, "byte {at} of {len}");
            }
        }
    }
}
