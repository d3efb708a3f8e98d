//! Payloads whose every byte depends on its place, so that lost, doubled and swapped pieces show.

use bytes::Bytes;

/// A payload of `len` bytes; another seed gives other bytes.
pub fn payload(len: usize, seed: u64) -> Bytes {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes.into()
}

/// Fills `bytes` with the payload of their length.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for word in bytes.chunks_mut(8) {
        let next = random.u64(..).to_le_bytes();
        word.copy_from_slice(&next[..word.len()]);
    }
}

/// A hash of `bytes` that depends on their order and length.
///
/// It takes eight bytes at a time: emulated devices have no time for more. Each step is one-to-one in what came before and in
/// its word, and carries every bit down as well as up, so a single fault always shows and several do not cancel
/// but by chance. FNV, which it was, loses pairs of top bits.
pub fn checksum(bytes: &[u8]) -> u64 {
    let seed = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    let step = |sum: u64, word: u64| {
        let product = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    };
    let (words, rest) = bytes.as_chunks();
    let sum = words.iter().fold(seed, |sum, word| step(sum, u64::from_le_bytes(*word)));
    let mut padded = [0; 8];
    padded[..rest.len()].copy_from_slice(rest);
    step(sum, u64::from_le_bytes(padded))
}

/// Where `found` is not what was `expected`, in words; `None` if it is the same.
pub fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let differs = |at: &usize| found[*at] != expected[*at];
    let first = (0..found.len()).find(differs)?;
    let last = (0..found.len()).rfind(differs)?;
    let count = (first..=last).filter(differs).count();
    let zeroes = found[first..=last].iter().filter(|byte| **byte == 0).count();
    let shown = |bytes: &[u8]| bytes[first..].iter().take(16).copied().collect::<Vec<_>>();
    Some(format!(
        "{count} bytes of {} changed, from {first} to {last}, {zeroes} there are 0; {:02x?} instead of {:02x?}",
        found.len(),
        shown(found),
        shown(expected)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swapped_words() -> Vec<u8> {
        let mut swapped = payload(100, 1).to_vec();
        swapped.swap(8, 16);
        swapped
    }

    #[test]
    fn lost_doubled_and_swapped_bytes_show() {
        let whole = payload(100, 1);
        let swapped = swapped_words();
        // The top bits of two words.
        let mut flipped = whole.to_vec();
        for at in [7, 23] {
            flipped[at] ^= 0x80;
        }
        let mut flipped_once = whole.to_vec();
        flipped_once[99] ^= 1;
        let changed = [
            whole.slice(..99),
            payload(100, 2),
            swapped.into(),
            flipped.into(),
            flipped_once.into(),
            [&whole[..], &[0]].concat().into(),
        ];
        for other in changed {
            assert_ne!(checksum(&whole), checksum(&other));
        }
        assert_eq!(checksum(&whole), checksum(&payload(100, 1)));
        assert_eq!(difference(&whole, &payload(100, 1)), None);
        assert!(
            difference(&swapped_words(), &whole).is_some_and(|words| words.contains("from 8 to "))
        );
    }
}
