//! Large `bytes` fields that go beside the messages of tonic's stubs, whose codec would copy them.
//!
//! On the wire such a field is where it always is: in the message. The bridge puts it in behind what tonic encoded, and cuts it out
//! before tonic decodes, by reference both times; what the other side is makes no difference.

use bytes::{Buf, Bytes};
use verbwire::{Body, Status};

/// The highest number of a field.
const MAX_FIELD: u32 = (1 << 29) - 1;

/// The wire type of `bytes`, strings and messages.
const DELIMITED: u64 = 2;

/// A `bytes` field of a message that goes beside it, without a copy.
///
/// * A client sends one with the message of a call by putting it in the extensions of its request, and leaves the field of the
///   message empty. It is told of the field of a reply by putting [`Detach`] there, and finds it in the extensions of
///   the response.
/// * A service replies with one by putting it in the extensions of its response. It finds the one of a request in the extensions
///   of that, where [`Bridge::detach`](crate::Bridge::detach) says of which method and field.
///
/// Streams have none: what goes beside a call goes beside its one message. A message with one is not sent compressed, and a bridge
/// that has to know whether a message is the only one waits for the end of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    field: u32,
    bytes: Bytes,
}

impl Attachment {
    /// The field with this number in the message. A call with a number that fields do not have fails.
    pub fn new(field: u32, bytes: impl Into<Bytes>) -> Self {
        Self { field, bytes: bytes.into() }
    }

    /// The number of the field.
    pub fn field(&self) -> u32 {
        self.field
    }

    /// What it holds: over RDMA, and from 4 KiB on, the memory in which it has landed.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The same.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

/// In the extensions of a client's request: the field with this number goes beside the reply, as an [`Attachment`]. A reply
/// without the field has none. A call whose reply is not one message fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detach(pub u32);

/// Adds a field behind those of a message.
pub(crate) fn attach(message: &mut Body, attachment: Attachment) -> Result<(), Status> {
    let Attachment { field, bytes } = attachment;
    if !(1..=MAX_FIELD).contains(&field) {
        let message =
            format!("an attachment has the field number {field}, and those are 1 to {MAX_FIELD}");
        return Err(Status::invalid_argument(message));
    }
    *message = std::mem::take(message).decompressed()?;
    let mut head = Vec::with_capacity(15);
    put_varint(u64::from(field) << 3 | DELIMITED, &mut head);
    put_varint(bytes.len() as u64, &mut head);
    message.push(head.into());
    message.push(bytes);
    Ok(())
}

/// Why there is no attachment where the message of a request is not there at once: it is the call that waits for a stream.
pub(crate) fn not_in_a_stream() -> Status {
    let message = "an attachment goes beside the one message of a call, and this call has a stream of them, or a layer of tower \
                   that keeps its message back";
    Status::invalid_argument(message)
}

/// The message without this field, and the field, if it has it. Of several the last one counts, as everywhere in protobuf.
///
/// # Errors
///
/// It is no message.
pub(crate) fn detach(message: Body, field: u32) -> Result<(Body, Option<Attachment>), Status> {
    let message = message.decompressed()?;
    let spans = find(message.clone(), field).ok_or_else(|| status_of_bad(message.len(), field))?;
    if spans.is_empty() {
        return Ok((message, None));
    }
    let mut reader = message.reader();
    let (mut rest, mut found, mut at) = (Body::new(), Bytes::new(), 0);
    for Span { start, head, len } in spans {
        rest.push(reader.copy_to_bytes(start - at));
        reader.advance(head);
        found = reader.copy_to_bytes(len);
        at = start + head + len;
    }
    rest.push(reader.copy_to_bytes(reader.remaining()));
    Ok((rest, Some(Attachment { field, bytes: found })))
}

fn status_of_bad(len: usize, field: u32) -> Status {
    Status::internal(format!(
        "a message of {len} bytes, of which field {field} goes beside it, does not decode; do both sides use the same .proto?"
    ))
}

/// Where a field is in a message: its key and length, then its bytes.
struct Span {
    start: usize,
    head: usize,
    len: usize,
}

/// Every place of a field; `None` if it is no message.
fn find(message: Body, field: u32) -> Option<Vec<Span>> {
    let (all, mut reader, mut spans) = (message.len(), message.reader(), Vec::new());
    while reader.has_remaining() {
        let start = all - reader.remaining();
        let key = take_varint(&mut reader)?;
        let len = match key & 7 {
            0 => {
                take_varint(&mut reader)?;
                0
            }
            1 => 8,
            DELIMITED => usize::try_from(take_varint(&mut reader)?).ok()?,
            5 => 4,
            // Groups, which nothing has any more, and what is nothing.
            _ => return None,
        };
        let head = all - reader.remaining() - start;
        if len > reader.remaining() {
            return None;
        }
        reader.advance(len);
        if key == u64::from(field) << 3 | DELIMITED {
            spans.push(Span { start, head, len });
        }
    }
    Some(spans)
}

fn take_varint(reader: &mut impl Buf) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = reader.try_get_u8().ok()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put_varint(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    into.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use verbwire::Code;

    fn body(pieces: &[&[u8]]) -> Body {
        pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect()
    }

    #[test]
    fn what_is_attached_is_detached_without_a_copy() {
        let long = Bytes::from(vec![7; 100_000]);
        for field in [1, 15, 16, 2047, 2048, MAX_FIELD] {
            let mut message = body(&[b"\x08\x96\x01", b"\x12\x02", b"hi"]);
            if field == 1 {
                // A field of another type is another field.
                message = body(&[b"\x12\x02hi"]);
            }
            let plain = message.clone().into_bytes();
            attach(&mut message, Attachment::new(field, long.clone())).expect("a number");
            let (rest, found) = detach(message, field).expect("a message");
            assert_eq!(rest.into_bytes(), plain);
            let found = found.expect("attached").into_bytes();
            assert_eq!((found.as_ptr(), found.len()), (long.as_ptr(), long.len()));
        }
    }

    #[test]
    fn the_last_of_several_counts_and_other_fields_stay() {
        let message = body(&[b"\x0a\x01a\x12\x01", b"b\x0a\x01c\x15\0\0\0\0\x19\0\0\0\0\0\0\0\0"]);
        let (rest, found) = detach(message, 1).expect("a message");
        assert_eq!(rest.into_bytes(), &b"\x12\x01b\x15\0\0\0\0\x19\0\0\0\0\0\0\0\0"[..]);
        assert_eq!(found.expect("there").bytes(), "c");
        let (rest, found) = detach(body(&[b"\x12\x01b"]), 1).expect("a message");
        assert_eq!((rest.into_bytes(), found), (Bytes::from_static(b"\x12\x01b"), None));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bad in [
            &b"\x0a"[..],
            b"\x0a\x05abc",
            b"\x08\xff",
            b"\x0b",
            b"\x0f",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x15\0\0",
        ] {
            assert!(detach(body(&[bad]), 1).is_err(), "{bad:?}");
        }
        for field in [0, MAX_FIELD + 1] {
            let attached = attach(&mut Body::new(), Attachment::new(field, "x"));
            assert_eq!(attached.expect_err("no number").code(), Code::InvalidArgument);
        }
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_nothing_panics_and_no_byte_is_made_up(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cut in 0..200usize,
            field in 1..40u32,
        ) {
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            if let Ok((rest, found)) = detach(body(&[first, second]), field) {
                let cut_out = found.map_or(0, |found| found.bytes().len());
                prop_assert!(rest.len() + cut_out <= bytes.len());
                // What is left has the field no more.
                let (_, again) = detach(rest, field).expect("it is still a message");
                prop_assert_eq!(again, None);
            }
        }
    }
}
