//! The parts of a frame in the read buffer.

use verbwire_core::buf::BY_REFERENCE;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{HEADER_LEN, Header, Kind};

/// The parts of a frame, by where they end in the read buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) tlvs: usize,
    pub(super) metadata: usize,
    /// Where the part ends that must be here before the frame is decoded.
    pub(super) end: usize,
    pub(super) body: BodyPlace,
}

/// Where the body of a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyPlace {
    /// Into the read buffer, then out of it by a copy.
    Buffer,
    /// Into memory of its own.
    Landing,
    /// It comes in DATA frames, or is one's piece.
    Pieces,
}

impl Layout {
    /// The layout of a frame whose lengths were checked.
    pub(super) fn of(header: &Header) -> Self {
        let body_len = header.body_len as usize;
        let body = if header.kind == Kind::Data || header.flags.contains(Flags::BODY_FOLLOWS) {
            BodyPlace::Pieces
        } else if body_len < BY_REFERENCE {
            BodyPlace::Buffer
        } else {
            BodyPlace::Landing
        };
        let tlvs = HEADER_LEN + usize::from(header.tlv_len);
        let metadata = tlvs + header.metadata_len as usize;
        let end = match body {
            BodyPlace::Buffer => metadata + body_len,
            BodyPlace::Landing | BodyPlace::Pieces => metadata,
        };
        Self { tlvs, metadata, end, body }
    }
}
