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

/// A sum over `bytes` that depends on their order and length (FNV-1a over words of eight bytes).
pub fn checksum(bytes: &[u8]) -> u64 {
    let seed = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    bytes.chunks(8).fold(seed, |sum, word| {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        (sum ^ u64::from_le_bytes(padded)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_doubled_and_swapped_bytes_show() {
        let whole = payload(100, 1);
        let mut swapped = whole.to_vec();
        swapped.swap(8, 16);
        let changed = [whole.slice(..99), payload(100, 2), swapped.into()];
        for other in changed {
            assert_ne!(checksum(&whole), checksum(&other));
        }
        assert_eq!(checksum(&whole), checksum(&payload(100, 1)));
    }
}
