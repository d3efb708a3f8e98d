//! The fixed header of every frame after HELLO: 40 bytes, little-endian.
//!
//! ```text
//!  offset  size  field
//!       0     1  kind           frame type, see Kind
//!       1     1  flags          see Flags
//!       2     2  tlv_len        bytes of TLVs behind the header
//!       4     4  slot           call id: the caller's slot
//!       8     4  generation     call id: the slot's use
//!      12     4  method         REQUEST: interned method number, 0 = none; frames of streams: count of messages
//!      16     8  time_us        REQUEST: microseconds until the deadline; WINDOW: bytes granted; LEND, BORROW: count
//!      24     4  credits        RDMA: cumulative count of re-posted receives; else 0
//!      28     4  metadata_len   bytes of metadata behind the TLVs
//!      32     4  body_len       bytes of body; with BODY_FOLLOWS they come in DATA frames
//!      36     4  aux            RESPONSE: code; GOAWAY: reason; DATA: offset; LEND, BORROW: receives
//! ```
//!
//! Fields that a kind does not use are zero when sent and ignored when received, so that later versions
//! can give them a meaning behind a feature bit.

use bytes::{Buf, BufMut};

use super::WireError;
use crate::message::CallId;

/// Bytes of a header.
pub const HEADER_LEN: usize = 40;

/// The type of a frame. The numbers are frozen; new ones are added inside the ranges.
///
/// `0x01..=0x3f` are messages of the core, `0x40..=0x7f` frames of transports, `0x80..=0xff` reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A call begins.
    Request = 0x01,
    /// A call ends.
    Response = 0x02,
    /// The caller gave up.
    Cancel = 0x03,
    /// The answer to CANCEL.
    Cancelled = 0x04,
    /// No new calls.
    GoAway = 0x05,
    /// A message of a stream.
    Message = 0x06,
    /// A stream of requests ends.
    End = 0x07,
    /// A stream of replies begins.
    Headers = 0x08,
    /// More of a stream may come.
    Window = 0x09,
    /// Whether the other side is there.
    Ping = 0x0a,
    /// The answer to PING.
    Pong = 0x0b,
    /// A piece of the body of a frame that was sent with [`Flags::BODY_FOLLOWS`].
    Data = 0x40,
    /// Over RDMA: nothing but the count of re-posted receives that every header carries there.
    Credit = 0x41,
    /// Over RDMA: memory to write a body to.
    Cts = 0x42,
    /// Over RDMA: a body is written.
    Fin = 0x43,
    /// Over RDMA: bodies that need not be written any more.
    Abort = 0x44,
    /// Over RDMA: nothing more will be written there.
    AbortAck = 0x45,
    /// Over RDMA: how great the receiver's data window is.
    Lend = 0x46,
    /// Over RDMA: how much of it the sender could use, or gives back.
    Borrow = 0x47,
}

impl TryFrom<u8> for Kind {
    type Error = WireError;

    fn try_from(byte: u8) -> Result<Self, WireError> {
        Ok(match byte {
            0x01 => Self::Request,
            0x02 => Self::Response,
            0x03 => Self::Cancel,
            0x04 => Self::Cancelled,
            0x05 => Self::GoAway,
            0x06 => Self::Message,
            0x07 => Self::End,
            0x08 => Self::Headers,
            0x09 => Self::Window,
            0x0a => Self::Ping,
            0x0b => Self::Pong,
            0x40 => Self::Data,
            0x41 => Self::Credit,
            0x42 => Self::Cts,
            0x43 => Self::Fin,
            0x44 => Self::Abort,
            0x45 => Self::AbortAck,
            0x46 => Self::Lend,
            0x47 => Self::Borrow,
            unknown => return Err(WireError::UnknownKind(unknown)),
        })
    }
}

/// The header's flag bits. Bits that a kind does not use are zero when sent and ignored when received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The body is not behind this frame: DATA frames carry it, or Writes.
    pub const BODY_FOLLOWS: Self = Self(0x01);
    /// DATA: the last piece of its body.
    pub const LAST: Self = Self(0x02);
    /// DATA: the sender gave up; what came of the body is void. Implies the end of the body.
    pub const ABORTED: Self = Self(0x04);
    /// REQUEST: MESSAGEs bring the request. RESPONSE: the end of a stream, with the count of its messages.
    pub const STREAM: Self = Self(0x08);
    /// REQUEST: the caller expects a stream of replies.
    pub const REPLIES: Self = Self(0x10);
    /// REQUEST: the caller does not know the method's form, and takes the reply in either.
    pub const ANY_FORM: Self = Self(0x20);
    /// RESPONSE, CANCELLED: bits 6 and 7 hold `executed` (0 no, 1 maybe, 2 yes).
    pub const EXECUTED_SHIFT: u8 = 6;

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A header, field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Frame type.
    pub kind: Kind,
    /// Flag bits.
    pub flags: Flags,
    /// Bytes of TLVs.
    pub tlv_len: u16,
    /// The call.
    pub call: CallId,
    /// Interned method number, or a count of messages.
    pub method: u32,
    /// Microseconds until the deadline, bytes granted, or receives so far.
    pub time_us: u64,
    /// Cumulative credits.
    pub credits: u32,
    /// Bytes of metadata.
    pub metadata_len: u32,
    /// Bytes of body.
    pub body_len: u32,
    /// Code, reason, offset or receives.
    pub aux: u32,
}

impl Header {
    /// A header with every optional field zero.
    #[inline]
    pub fn new(kind: Kind, call: CallId) -> Self {
        Self {
            kind,
            flags: Flags::default(),
            tlv_len: 0,
            call,
            method: 0,
            time_us: 0,
            credits: 0,
            metadata_len: 0,
            body_len: 0,
            aux: 0,
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut out = &mut bytes[..];
        out.put_u8(self.kind as u8);
        out.put_u8(self.flags.0);
        out.put_u16_le(self.tlv_len);
        out.put_u32_le(self.call.slot);
        out.put_u32_le(self.call.generation);
        out.put_u32_le(self.method);
        out.put_u64_le(self.time_us);
        out.put_u32_le(self.credits);
        out.put_u32_le(self.metadata_len);
        out.put_u32_le(self.body_len);
        out.put_u32_le(self.aux);
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    ///
    /// An unknown frame type. All other fields take every value; who uses one checks it.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let mut input = &bytes[..];
        Ok(Self {
            kind: Kind::try_from(input.get_u8())?,
            flags: Flags(input.get_u8()),
            tlv_len: input.get_u16_le(),
            call: CallId { slot: input.get_u32_le(), generation: input.get_u32_le() },
            method: input.get_u32_le(),
            time_us: input.get_u64_le(),
            credits: input.get_u32_le(),
            metadata_len: input.get_u32_le(),
            body_len: input.get_u32_le(),
            aux: input.get_u32_le(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_documented_offset() {
        let header = Header {
            kind: Kind::Data,
            flags: Flags(0x11),
            tlv_len: 0x2221,
            call: CallId { slot: 0x3433_3231, generation: 0x4443_4241 },
            method: 0x5453_5251,
            time_us: 0x6867_6665_6463_6261,
            credits: 0x7473_7271,
            metadata_len: 0x8483_8281,
            body_len: 0x9493_9291,
            aux: 0xa4a3_a2a1,
        };
        let bytes = header.encode();
        let expected: [&[u8]; 10] = [
            &[0x40],
            &[0x11],
            &[0x21, 0x22],
            &[0x31, 0x32, 0x33, 0x34],
            &[0x41, 0x42, 0x43, 0x44],
            &[0x51, 0x52, 0x53, 0x54],
            &[0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68],
            &[0x71, 0x72, 0x73, 0x74],
            &[0x81, 0x82, 0x83, 0x84],
            &[0x91, 0x92, 0x93, 0x94],
        ];
        assert_eq!(bytes[..36], expected.concat());
        assert_eq!(bytes[36..], [0xa1, 0xa2, 0xa3, 0xa4]);
        assert_eq!(Header::decode(&bytes), Ok(header));
    }

    #[test]
    fn unknown_kinds_are_refused_by_number() {
        for byte in (0..=u8::MAX).filter(|byte| !matches!(byte, 0x01..=0x0b | 0x40..=0x47)) {
            let mut bytes = [0; HEADER_LEN];
            bytes[0] = byte;
            assert_eq!(Header::decode(&bytes), Err(WireError::UnknownKind(byte)));
        }
    }
}
