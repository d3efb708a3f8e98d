//! What calls carry: parcels whose every byte depends on the call, the direction, the part and its place.

use bytes::Bytes;
use prost::Message;

/// The message of both directions. Without parts and with number 0 it has no bytes at all.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Parcel {
    #[prost(uint32, tag = "1")]
    pub(crate) call: u32,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) parts: Vec<Bytes>,
}

/// Which of a call's two messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Reply,
}

/// The lengths of the parts of a parcel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) Vec<usize>);

impl Shape {
    /// About `parts` parts that encode to `len` bytes, or a byte or two fewer where no shape does.
    pub(crate) fn of(call: u32, len: usize, parts: usize) -> Self {
        if len == 0 {
            return Self(Vec::new());
        }
        let mut payload = len;
        loop {
            let shape = Self::cut(payload, parts);
            let encoded = shape.encoded_len(call);
            match encoded.checked_sub(len) {
                None | Some(0) => return shape,
                Some(over) => match payload.checked_sub(over) {
                    Some(less) => payload = less,
                    None => return Self(Vec::new()),
                },
            }
        }
    }

    /// The first part is the longest, the others get shorter.
    fn cut(payload: usize, parts: usize) -> Self {
        let mut left = payload;
        let mut lens = Vec::new();
        for number in 1..=parts {
            let len = if number == parts { left } else { left - left / 3 };
            lens.push(len);
            left -= len;
        }
        Self(lens)
    }

    pub(crate) fn encoded_len(&self, call: u32) -> usize {
        let varint = |value: usize| prost::length_delimiter_len(value);
        let head = if call == 0 { 0 } else { 1 + varint(call as usize) };
        head + self.0.iter().map(|len| 1 + varint(*len) + len).sum::<usize>()
    }
}

fn key(call: u32, direction: Direction, part: usize) -> u64 {
    let direction = u64::from(direction == Direction::Reply);
    ((u64::from(call) << 24) | (direction << 16) | (part as u64 + 1))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn word(key: u64, at: usize) -> [u8; 8] {
    let mixed = (key ^ at as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ mixed >> 32).to_le_bytes()
}

/// Fills a part.
pub(crate) fn fill(bytes: &mut [u8], (call, direction, part): (u32, Direction, usize)) {
    let key = key(call, direction, part);
    for (at, place) in bytes.chunks_mut(8).enumerate() {
        place.copy_from_slice(&word(key, at)[..place.len()]);
    }
}

/// What is wrong with a parcel that should be of this call and shape.
pub(crate) fn fault_of(
    parcel: &Parcel,
    call: u32,
    direction: Direction,
    shape: &Shape,
) -> Option<String> {
    let lens: Vec<usize> = parcel.parts.iter().map(Bytes::len).collect();
    if parcel.call != call || lens != shape.0 {
        let found = parcel.call;
        return Some(format!(
            "call {found} with parts of {lens:?}, expected {call} with {shape:?}"
        ));
    }
    for (part, bytes) in parcel.parts.iter().enumerate() {
        let key = key(call, direction, part);
        let wrong = |(at, found): (usize, &[u8])| *found != word(key, at)[..found.len()];
        if let Some(at) = bytes.chunks(8).enumerate().position(wrong) {
            let found = &bytes[8 * at..bytes.len().min(8 * at + 8)];
            return Some(format!(
                "byte {} of part {part} ({} bytes): {found:x?}",
                8 * at,
                bytes.len()
            ));
        }
    }
    None
}
