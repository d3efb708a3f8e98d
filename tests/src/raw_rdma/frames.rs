//! Frames about grants in bytes, and back.

use bytes::{BufMut, BytesMut};
use verbwire_core::message::CallId;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Kind};
use verbwire_rdma::testing::{Frame, HeadExtras, RtsNumber};

/// A frame about grants in bytes.
pub fn encode(frame: Frame) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    bytes.put_slice(&frame.header().encode());
    frame.encode_tlvs(&mut bytes);
    bytes.to_vec()
}

/// The frame about grants that these bytes are, if they are one.
pub fn frame_of(message: &[u8]) -> Option<Frame> {
    let (header, tlvs) = message.split_first_chunk()?;
    Frame::decode(&Header::decode(header).ok()?, tlvs).ok()
}

/// The head of a REQUEST whose body of `len` bytes travels apart.
pub fn head(call: CallId, len: u32, extras: HeadExtras) -> Vec<u8> {
    let header = Header { method: 1, time_us: 60_000_000, ..Header::new(Kind::Request, call) };
    head_of(header, len, extras)
}

/// The same for any message, with its own header.
pub fn head_of(header: Header, len: u32, extras: HeadExtras) -> Vec<u8> {
    let header = Header {
        flags: header.flags.with(Flags::BODY_FOLLOWS),
        tlv_len: u16::try_from(extras.encoded_len()).expect("short"),
        body_len: len,
        ..header
    };
    let mut bytes = BytesMut::new();
    bytes.put_slice(&header.encode());
    extras.encode(&mut bytes);
    bytes.to_vec()
}

/// The head of a REQUEST with RTS.
pub fn rts(call: CallId, number: u32, len: u32) -> Vec<u8> {
    head(call, len, HeadExtras { rts: Some(RtsNumber(number)), ..HeadExtras::default() })
}
