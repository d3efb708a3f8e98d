//! The frame decoder for the fuzz target: bytes in, nothing out, no panic.

use std::sync::Arc;

use verbwire_core::transport::inbound::{InboundLimits, LandingPool};
use verbwire_core::transport::{Announced, Placement, PlacementHook};
use verbwire_core::wire::{Hello, metadata};

use crate::decoder::FrameDecoder;

/// Refuses the bodies of odd slots, so that both ways are reached.
struct Parity;

impl PlacementHook for Parity {
    fn place(&self, announced: Announced<'_>) -> Placement {
        match announced.head.call() {
            Some(call) if call.slot % 2 == 1 => Placement::Refuse,
            _ => Placement::Pool,
        }
    }
}

/// Decodes `data` as what a peer sends behind HELLO.
///
/// The first byte says how the rest is cut into reads and which call is revoked in between.
pub fn decode(data: &[u8]) {
    let Some((&seed, stream)) = data.split_first() else {
        return;
    };
    let hello = Hello {
        max_message_size: 64 << 10,
        max_metadata_size: 1 << 10,
        max_frame_body: 16 << 10,
        max_concurrent_calls: 4,
        ..Hello::default()
    };
    let mut decoder =
        FrameDecoder::new(InboundLimits::new(&hello, &hello), Arc::new(LandingPool::new(0)));
    let mut received = Vec::new();
    for (index, read) in stream.chunks(usize::from(seed) * 16 + 1).enumerate() {
        let before = received.len();
        if decoder.append(read, &Parity, &mut received).is_err() {
            return;
        }
        for incoming in &received[before..] {
            // The core looks at metadata next; most of what the fuzzer makes is none.
            let _is_none = metadata::decode(incoming.message.metadata.clone()).is_err();
        }
        if index == usize::from(seed % 8) {
            let revoked = received.iter().find_map(|incoming| incoming.message.head.call());
            if let Some(call) = revoked {
                decoder.revoke(call);
            }
        }
    }
    decoder.cut();
}
