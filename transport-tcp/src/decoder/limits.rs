//! What this side accepts in frames.

use verbwire_core::proto::hello::MIN_FRAME_BODY;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Hello, Kind, WireError};

/// Bodies at a time beyond the calls at a time: those that one side gave up and the other did not end yet.
pub(super) const BODIES_BEYOND_CALLS: u32 = 64;

/// Calls at a time that a peer's announcement is believed for, when it bounds memory of this side.
const MOST_CALLS: u32 = 1 << 16;

/// The limits of this side on frames; lengths are in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InboundLimits {
    message: usize,
    metadata: usize,
    frame_body: usize,
    /// Bodies that come in pieces, at a time.
    pub(super) bodies: usize,
}

impl InboundLimits {
    /// The limits that two HELLOs give.
    ///
    /// A body of [`MIN_FRAME_BODY`] always passes: the words of a status must, whatever the limit on messages.
    pub(crate) fn new(local: &Hello, peer: &Hello) -> Self {
        let bytes = |len: u64| usize::try_from(len).unwrap_or(usize::MAX);
        let calls = local.max_concurrent_calls.max(peer.max_concurrent_calls.min(MOST_CALLS));
        Self {
            message: bytes(local.max_message_size.max(u64::from(MIN_FRAME_BODY))),
            metadata: bytes(u64::from(local.max_metadata_size)),
            frame_body: bytes(u64::from(local.max_frame_body.max(MIN_FRAME_BODY))),
            bodies: bytes(u64::from(calls.saturating_add(BODIES_BEYOND_CALLS))),
        }
    }

    /// Checks the lengths in a header, before memory is taken for them.
    pub(super) fn check(&self, header: &Header) -> Result<(), WireError> {
        let bound = |what, len: u32, limit_name, limit: usize| {
            if len as usize <= limit {
                return Ok(());
            }
            Err(WireError::TooLong { what, len: u64::from(len), limit_name, limit: limit as u64 })
        };
        let (metadata_len, body_len) = (header.metadata_len, header.body_len);
        if header.kind == Kind::Data {
            if metadata_len != 0 {
                return Err(WireError::Field {
                    field: "metadata_len",
                    value: u64::from(metadata_len),
                    expected: "DATA has none",
                });
            }
            return bound("piece", body_len, "max_frame_body", self.frame_body);
        }
        bound("metadata", metadata_len, "max_metadata_size", self.metadata)?;
        bound("body", body_len, "max_message_size", self.message)?;
        if header.flags.contains(Flags::BODY_FOLLOWS) {
            return Ok(());
        }
        bound("body in one frame", body_len, "max_frame_body", self.frame_body)
    }
}
