//! What a side offers in its HELLO, and what two HELLOs agree on.
//!
//! Owns nothing; how HELLO travels is the transport's business, its bytes are [`crate::wire::hello`]'s.

use bytes::Bytes;

use crate::config::{Limits, Random};
use crate::error::{Error, ErrorKind};
use crate::proto::keep_alive::KEEP_ALIVE;
use crate::wire::Hello;

/// The protocol versions that this software speaks. 0 until the format is final.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 0..=0;

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

    #[test]
    fn connections_of_one_identity_differ_and_share_their_incarnation() {
        let identity = Identity::new(Random::from_seed(7));
        let (one, two) = (identity.hello(&Limits::default()), identity.hello(&Limits::default()));
        assert_eq!(one.incarnation, two.incarnation);
        assert_ne!(one.connection, two.connection);
    }
}
