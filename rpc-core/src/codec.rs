//! Messages to bodies and back: the codec seam.
//!
//! Generated stubs use [`Prost`]. The seam is there for those who carry bytes that somebody else encoded,
//! as a bridge from another RPC system does.

use prost::Message;

use crate::buf::{Body, SegmentWriter};
use crate::status::{Executed, Status};

/// Encodes and decodes values of one type.
pub trait Codec<T>: Send + Sync {
    /// The body of `value`.
    fn encode(&self, value: &T) -> Body;

    /// The value in `body`, which may be compressed.
    ///
    /// # Errors
    ///
    /// `Internal`: the body is not what the peer says it is; and as for [`Body::decompressed`]. The status leaves `executed` to the
    /// caller.
    fn decode(&self, body: Body) -> Result<T, Status>;
}

/// Protobuf by prost. `bytes` fields from 4 KiB on cross without a copy, both ways.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prost;

impl<T: Message + Default> Codec<T> for Prost {
    fn encode(&self, value: &T) -> Body {
        let mut writer = SegmentWriter::for_message(value.encoded_len());
        value.encode_raw(&mut writer);
        writer.finish()
    }

    fn decode(&self, body: Body) -> Result<T, Status> {
        T::decode(body.decompressed()?.reader()).map_err(|error| {
            let message = format!(
                "the peer's message does not decode as {}: {error}; do both sides use the same .proto?",
                std::any::type_name::<T>()
            );
            Status::internal(message).with_executed(Executed::Maybe)
        })
    }
}

/// Bodies that are carried as they are, compressed if they came so.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Codec<Body> for Raw {
    fn encode(&self, value: &Body) -> Body {
        value.clone()
    }

    fn decode(&self, body: Body) -> Result<Body, Status> {
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::BY_REFERENCE;
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Every kind of place where a `bytes` field can be.
    #[derive(Clone, PartialEq, Message)]
    struct Everything {
        #[prost(uint64, tag = "1")]
        number: u64,
        #[prost(bytes = "bytes", tag = "2")]
        plain: Bytes,
        #[prost(message, optional, boxed, tag = "3")]
        nested: Option<Box<Everything>>,
        #[prost(bytes = "bytes", repeated, tag = "4")]
        repeated: Vec<Bytes>,
        #[prost(btree_map = "uint32, bytes", tag = "5")]
        map: BTreeMap<u32, Vec<u8>>,
        #[prost(oneof = "Choice", tags = "6, 7")]
        choice: Option<Choice>,
        #[prost(bytes = "bytes", optional, tag = "8")]
        optional: Option<Bytes>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    enum Choice {
        #[prost(string, tag = "6")]
        Text(String),
        #[prost(bytes = "bytes", tag = "7")]
        Payload(Bytes),
    }

    fn payload() -> impl Strategy<Value = Bytes> {
        prop_oneof![0..64usize, BY_REFERENCE - 2..BY_REFERENCE + 2, 10_000..20_000usize]
            .prop_flat_map(|len| (any::<u8>(), Just(len)))
            .prop_map(|(byte, len)| Bytes::from(vec![byte; len]))
    }

    fn leaf() -> impl Strategy<Value = Everything> {
        (
            any::<u64>(),
            payload(),
            prop::collection::vec(payload(), 0..4),
            prop::collection::btree_map(any::<u32>(), payload().prop_map(Vec::from), 0..3),
            prop::option::of(prop_oneof![
                "[a-z]{0,9}".prop_map(Choice::Text),
                payload().prop_map(Choice::Payload)
            ]),
            prop::option::of(payload()),
        )
            .prop_map(|(number, plain, repeated, map, choice, optional)| Everything {
                number,
                plain,
                nested: None,
                repeated,
                map,
                choice,
                optional,
            })
    }

    fn message() -> impl Strategy<Value = Everything> {
        (leaf(), prop::option::of(leaf()))
            .prop_map(|(outer, inner)| Everything { nested: inner.map(Box::new), ..outer })
    }

    /// Cuts `bytes` into segments whose lengths cycle through `cuts`.
    fn split(bytes: &Bytes, cuts: &[usize]) -> Body {
        let mut rest = bytes.clone();
        let mut segments = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            segments.push(rest.split_to((*cut).min(rest.len())));
        }
        segments.into_iter().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn segments_are_the_bytes_that_prost_writes(message in message()) {
            let body = Prost.encode(&message);
            prop_assert_eq!(body.into_bytes(), message.encode_to_vec());
        }

        #[test]
        fn decoding_does_not_depend_on_how_the_body_is_cut(
            message in message(),
            cuts in prop::collection::vec(1..9000usize, 1..6),
        ) {
            let body = split(&message.encode_to_vec().into(), &cuts);
            prop_assert_eq!(Prost.decode(body).ok(), Some(message));
        }
    }

    #[test]
    fn large_fields_cross_without_a_copy_at_every_depth() {
        let large = || Bytes::from(vec![3; BY_REFERENCE]);
        let inner = Everything { plain: large(), ..Everything::default() };
        let sent = Everything {
            plain: large(),
            nested: Some(Box::new(inner)),
            repeated: vec![large(), large()],
            choice: Some(Choice::Payload(large())),
            optional: Some(large()),
            ..Everything::default()
        };
        let received: Everything = Prost.decode(Prost.encode(&sent)).expect("same message");
        let pointers = |message: &Everything| {
            let nested = message.nested.as_ref().map(|nested| nested.plain.as_ptr());
            let choice = match &message.choice {
                Some(Choice::Payload(payload)) => Some(payload.as_ptr()),
                _ => None,
            };
            let repeated: Vec<_> = message.repeated.iter().map(|bytes| bytes.as_ptr()).collect();
            let optional = message.optional.as_ref().map(|bytes| bytes.as_ptr());
            (message.plain.as_ptr(), nested, repeated, choice, optional)
        };
        assert_eq!(pointers(&sent), pointers(&received));
    }

    #[test]
    fn a_body_that_is_no_message_says_which_type_was_expected() {
        let status = Codec::<Everything>::decode(&Prost, Bytes::from_static(b"\xff").into());
        let status = status.expect_err("not a message");
        assert!(status.message().contains("Everything"), "{status}");
    }
}
