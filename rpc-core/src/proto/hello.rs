//! What a side offers in its HELLO, and what two HELLOs agree on.
//!
//! Owns nothing; how HELLO travels is the transport's business, its bytes are [`crate::wire::hello`]'s.

use bytes::Bytes;

use crate::config::{Limits, Random};
use crate::error::{Error, ErrorKind};
use crate::proto::keep_alive::KEEP_ALIVE;
use crate::wire::Hello;

/// The protocol versions that this software speaks. 0 was the draft, of which no two builds were sure to be alike, so it is spoken
/// no more.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;

/// Feature bits that this software knows.
pub const FEATURES: u64 = KEEP_ALIVE;

/// Shortest `max_frame_body` that a peer may announce: below it, headers would outweigh bodies.
pub const MIN_FRAME_BODY: u32 = 4096;

/// One process run's part of its HELLOs.
#[derive(Debug, Clone)]
pub struct Identity {
    incarnation: u64,
    random: Random,
}

impl Identity {
    /// An identity with a fresh incarnation number.
    pub fn new(random: Random) -> Self {
        Self { incarnation: random.next_u64(), random }
    }

    /// What all its HELLOs show.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The HELLO of a new connection with these limits.
    pub fn hello(&self, limits: &Limits) -> Hello {
        let cut = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        Hello {
            version_min: *VERSIONS.start(),
            version_max: *VERSIONS.end(),
            features: FEATURES,
            required_features: 0,
            max_message_size: u64::from(cut(limits.max_message_size)),
            max_metadata_size: cut(limits.max_metadata_size),
            max_frame_body: cut(limits.max_frame_body).max(MIN_FRAME_BODY),
            max_concurrent_calls: limits.max_concurrent_calls.max(1),
            max_interned_methods: limits.max_interned_methods,
            stream_window: cut(limits.stream_window).max(1),
            encodings: limits.accept_compressed.bits(),
            incarnation: self.incarnation,
            connection: self.random.next_u64(),
            software: concat!("verbwire ", env!("CARGO_PKG_VERSION")).to_owned(),
            // What only some transports have, they fill in themselves.
            data_window: 0,
            control_window: 0,
            receive_len: 0,
            standing_grants: 0,
            most_data_window: 0,
            credentials: Bytes::new(),
        }
    }
}

/// The protocol version that two sides use: the highest that both speak.
///
/// # Errors
///
/// No version in common, a required feature that the other side does not know, or a limit of the peer's
/// that makes calls impossible.
pub fn agree(local: &Hello, peer: &Hello) -> Result<u32, Error> {
    let version = local.version_max.min(peer.version_max);
    if version < local.version_min || version < peer.version_min {
        return Err(incompatible(format!(
            "no protocol version in common: this side ({}) speaks {} to {}, the peer ({}) {} to {}; \
             upgrade the older of the two",
            local.software,
            local.version_min,
            local.version_max,
            peer.software,
            peer.version_min,
            peer.version_max,
        )));
    }
    let unknown = peer.required_features & !local.features;
    if unknown != 0 {
        return Err(incompatible(format!(
            "the peer ({}) requires features 0x{unknown:x}, which this side ({}) does not have; \
             upgrade it or turn them off at the peer",
            peer.software, local.software,
        )));
    }
    if peer.max_concurrent_calls == 0 || peer.max_frame_body < MIN_FRAME_BODY {
        return Err(Error::new(
            ErrorKind::PeerFault,
            format!(
                "HELLO announces max_concurrent_calls {} and max_frame_body {}, at least 1 and \
                 {MIN_FRAME_BODY} are needed",
                peer.max_concurrent_calls, peer.max_frame_body
            ),
        ));
    }
    Ok(version)
}

fn incompatible(message: String) -> Error {
    Error::new(ErrorKind::Incompatible, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version_min: u32, version_max: u32) -> Hello {
        let identity = Identity::new(Random::from_seed(1));
        Hello { version_min, version_max, ..identity.hello(&Limits::default()) }
    }

    #[test]
    fn the_highest_common_version_is_used() {
        assert_eq!(agree(&hello(0, 2), &hello(1, 5)).ok(), Some(2));
        assert_eq!(agree(&hello(1, 5), &hello(0, 2)).ok(), Some(2));
    }

    #[test]
    fn versions_without_overlap_are_refused_in_words() {
        for (local, peer) in [((0, 1), (2, 3)), ((2, 3), (0, 1)), ((3, 2), (0, 9))] {
            let error = agree(&hello(local.0, local.1), &hello(peer.0, peer.1)).expect_err("gap");
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.to_string().contains("upgrade"), "{error}");
        }
    }

    #[test]
    fn unknown_features_are_ignored_unless_required() {
        let offered = Hello { features: u64::MAX, ..hello(0, 0) };
        assert_eq!(agree(&hello(0, 0), &offered).ok(), Some(0));
        let required = Hello { required_features: 8, ..hello(0, 0) };
        let error = agree(&hello(0, 0), &required).expect_err("required");
        assert!(error.to_string().contains("0x8"), "{error}");
    }

    #[test]
    fn limits_that_allow_no_call_are_a_fault_of_the_peer() {
        for peer in [
            Hello { max_concurrent_calls: 0, ..hello(0, 0) },
            Hello { max_frame_body: MIN_FRAME_BODY - 1, ..hello(0, 0) },
        ] {
            assert!(agree(&hello(0, 0), &peer).expect_err("useless").is_peer_fault());
        }
    }

    /// The content of a HELLO that a build of version 0 sent.
    const RECORDED_0: &[u8] = b"\
        \x28\x80\x80\x80\x20\x30\x80\x80\x01\x38\x80\x80\x10\x40\x80\x08\x48\x80\x20\
        \x51\x01\x02\x03\x04\x05\x06\x07\x08\x59\x11\x12\x13\x14\x15\x16\x17\x18\
        \x62\x0everbwire 0.1.0\x88\x01\x80\x80\x10\x98\x01\x02";

    /// The same of version 1, as it was frozen.
    const RECORDED_1: &[u8] = b"\
        \x08\x01\x10\x01\x19\x01\0\0\0\0\0\0\0\
        \x28\x80\x80\x80\x20\x30\x80\x80\x01\x38\x80\x80\x10\x40\x80\x08\x48\x80\x20\
        \x51\x01\x02\x03\x04\x05\x06\x07\x08\x59\x11\x12\x13\x14\x15\x16\x17\x18\
        \x62\x0everbwire 0.1.0\x88\x01\x80\x80\x10\x98\x01\x02";

    /// Versions `min` to 7 of a build to come: all bits of features, and two fields that nobody knows yet.
    fn future(min: u8) -> Vec<u8> {
        let versions = [0x08, min, 0x10, 0x07];
        let features = [&[0x19][..], &[0xff; 8]].concat();
        let unknown = b"\x80\x3f\x2a\x8a\x3f\x03abc";
        [&versions[..], &features, &RECORDED_1[13..], unknown].concat()
    }

    fn decoded(content: &[u8]) -> Hello {
        Hello::decode_content(content).expect("well-formed")
    }

    #[test]
    fn a_recorded_hello_of_version_1_is_understood_for_ever() {
        let recorded = decoded(RECORDED_1);
        let ours = Hello {
            incarnation: 0x0807_0605_0403_0201,
            connection: 0x1817_1615_1413_1211,
            encodings: 2,
            ..hello(1, 1)
        };
        assert_eq!(recorded, ours);
        assert_eq!(agree(&hello(1, 1), &recorded).ok(), Some(1));
    }

    #[test]
    fn the_draft_and_versions_that_left_this_one_behind_are_refused_in_words() {
        let ours = Identity::new(Random::from_seed(1)).hello(&Limits::default());
        let says = |content: &[u8]| {
            agree(&ours, &decoded(content)).expect_err("no common version").to_string()
        };
        assert_eq!(
            says(RECORDED_0),
            "no protocol version in common: this side (verbwire 0.1.0) speaks 1 to 1, the peer (verbwire 0.1.0) 0 to 0; \
             upgrade the older of the two"
        );
        assert!(says(&future(2)).contains("2 to 7"), "{}", says(&future(2)));
    }

    #[test]
    fn a_version_to_come_that_still_speaks_this_one_is_understood() {
        let peer = decoded(&future(1));
        assert_eq!(agree(&hello(1, 1), &peer).ok(), Some(1));
        assert_eq!(peer.max_message_size, 64 << 20);
    }

    #[test]
    fn connections_of_one_identity_differ_and_share_their_incarnation() {
        let identity = Identity::new(Random::from_seed(7));
        let (one, two) = (identity.hello(&Limits::default()), identity.hello(&Limits::default()));
        assert_eq!(one.incarnation, two.incarnation);
        assert_ne!(one.connection, two.connection);
    }
}
