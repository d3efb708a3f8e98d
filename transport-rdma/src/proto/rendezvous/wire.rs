//! The bytes of rendezvous: four kinds of frames, and what the heads of long messages carry beside the message.
//!
//! Pure: values to TLVs and back. Which of them may come when is the business of [`Owner`](super::Owner) and
//! [`Writer`](super::Writer).

use std::fmt;

use bytes::BufMut;
use verbwire_core::message::CallId;
use verbwire_core::wire::tlv::{BODY_CRC, FIN, GRANT, GRANT_ID, RTS, TLV_HEADER_LEN, Tlv};
use verbwire_core::wire::{Header, Kind};

use crate::memory::Rkey;

mod read;

const NUMBER_LEN: usize = 4;
const ID_LEN: usize = 8;
/// Bytes of a grant's TLV, its header apart.
pub const GRANT_LEN: usize = 28;
const FIN_LEN: usize = 16;

/// Names in one ABORT or ABORT_ACK, at most. 15: the frame still fits the 220 bytes that devices carry in a
/// work request.
pub const MAX_NAMES: usize = 15;

/// Bytes of what a head says besides its message, at most: in a REQUEST, a FIN with a checksum and a grant.
pub const MAX_EXTRAS: usize = 4 * TLV_HEADER_LEN + FIN_LEN + NUMBER_LEN + GRANT_LEN;

/// The number of an RTS: its writer counts them on its connection, from 0. Wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RtsNumber(pub u32);

impl RtsNumber {
    pub(super) fn following(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether it was counted before `next`, by less than half of all numbers.
    pub(super) fn is_before(self, next: Self) -> bool {
        (1..=1 << 31).contains(&next.0.wrapping_sub(self.0))
    }
}

impl fmt::Display for RtsNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a grant on its connection: an entry of its owner's table, and which use of that entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId {
    /// Index in the owner's table.
    pub index: u32,
    /// Counts the entry's uses. Wraps.
    pub generation: u32,
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Where a grant's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its first byte, on a page.
    pub address: u64,
    /// The key that gives the right to write there.
    pub rkey: Rkey,
}

/// Memory that the peer may write to, contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Its name.
    pub id: GrantId,
    /// Where it is.
    pub place: Place,
    /// Its length in bytes.
    pub len: u64,
}

/// The CRC32C of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Crc(pub u32);

impl Crc {
    /// The checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let next = |crc: u32, byte: &u8| {
            CRC_OF_BYTE[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8)
        };
        Self(!bytes.iter().fold(!0, next))
    }
}

/// What each value of a byte does to a CRC32C: the polynomial 0x1edc6f41, its bits reversed.
const CRC_OF_BYTE: [u32; 256] = {
    let mut table = [0; 256];
    let (mut byte, mut value) = (0, 0);
    while byte < 256 {
        let mut crc = value;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        (byte, value) = (byte + 1, value + 1);
    }
    table
};

/// What FIN says: the body is written, and where in the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fin {
    /// The grant, which this closes.
    pub grant: GrantId,
    /// Bytes of the grant before the body.
    pub offset: u32,
    /// Length of the body.
    pub len: u32,
    /// Its checksum, if the writer made one.
    pub crc: Option<Crc>,
}

/// What ABORT and ABORT_ACK name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Name {
    /// An RTS, for which there was no grant yet where the frame was sent.
    Rts(RtsNumber),
    /// A grant.
    Grant(GrantId),
}

/// What one ABORT or ABORT_ACK names; held in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Names {
    list: [Option<Name>; MAX_NAMES],
    count: usize,
}

impl Names {
    const NONE: Self = Self { list: [None; MAX_NAMES], count: 0 };

    /// The first of `names`, as many as fit; `None` if there are none.
    pub fn first_of(names: impl IntoIterator<Item = Name>) -> Option<Self> {
        let mut first = Self::NONE;
        for name in names.into_iter().take(MAX_NAMES) {
            first.push(name);
        }
        (first.count > 0).then_some(first)
    }

    /// The names in order.
    pub fn iter(&self) -> impl Iterator<Item = Name> {
        self.list.iter().copied().flatten()
    }

    /// `false` if the list is full.
    fn push(&mut self, name: Name) -> bool {
        let Some(slot) = self.list.get_mut(self.count) else { return false };
        *slot = Some(name);
        self.count += 1;
        true
    }
}

/// What the head of a message carries beside it. All of it is for bodies that are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeadExtras {
    /// REQUEST, RESPONSE: the body waits for a grant.
    pub rts: Option<RtsNumber>,
    /// REQUEST, RESPONSE: the body is written already.
    pub fin: Option<Fin>,
    /// REQUEST: where the reply may be written.
    pub reply: Option<Grant>,
    /// RESPONSE: a grant for the reply that is closed without having been used.
    pub unused: Option<GrantId>,
}

/// A frame that belongs to no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Owner to writer: the grant for an RTS, or a standing one.
    Cts {
        /// The RTS, unless the grant is a standing one.
        rts: Option<RtsNumber>,
        /// The grant.
        grant: Grant,
    },
    /// Writer to owner: the body of an RTS is written.
    Fin(Fin),
    /// Owner to writer: these bodies are not wanted.
    Abort(Names),
    /// Writer to owner: nothing more is written for these.
    AbortAck(Names),
}

impl HeadExtras {
    /// Bytes of the TLVs.
    pub fn encoded_len(&self) -> usize {
        let part = |is_there, len| if is_there { TLV_HEADER_LEN + len } else { 0 };
        part(self.rts.is_some(), NUMBER_LEN)
            + part(self.fin.is_some(), FIN_LEN)
            + part(self.fin.is_some_and(|fin| fin.crc.is_some()), NUMBER_LEN)
            + part(self.reply.is_some(), GRANT_LEN)
            + part(self.unused.is_some(), ID_LEN)
    }

    /// Appends the TLVs.
    pub fn encode(&self, out: &mut impl BufMut) {
        self.rts.inspect(|rts| put_rts(*rts, out));
        self.reply.inspect(|grant| put_grant(grant, out));
        self.fin.inspect(|fin| put_fin(fin, out));
        self.unused.inspect(|id| put_id(*id, out));
    }
}

impl Frame {
    /// The frame's header.
    pub fn header(&self) -> Header {
        const NO_CALL: CallId = CallId { slot: 0, generation: 0 };
        let (kind, len) = match self {
            Self::Cts { rts, grant } => (Kind::Cts, cts(*rts, *grant).encoded_len()),
            Self::Fin(fin) => (Kind::Fin, only(*fin).encoded_len()),
            Self::Abort(names) => (Kind::Abort, names.encoded_len()),
            Self::AbortAck(names) => (Kind::AbortAck, names.encoded_len()),
        };
        let tlv_len = u16::try_from(len).expect("a handful of short TLVs");
        Header { tlv_len, ..Header::new(kind, NO_CALL) }
    }

    /// Appends the TLVs that [`header`](Self::header) counted.
    pub fn encode_tlvs(&self, out: &mut impl BufMut) {
        match self {
            Self::Cts { rts, grant } => cts(*rts, *grant).encode(out),
            Self::Fin(fin) => only(*fin).encode(out),
            Self::Abort(names) | Self::AbortAck(names) => names.encode(out),
        }
    }
}

fn cts(rts: Option<RtsNumber>, grant: Grant) -> HeadExtras {
    HeadExtras { rts, reply: Some(grant), ..HeadExtras::default() }
}

fn only(fin: Fin) -> HeadExtras {
    HeadExtras { fin: Some(fin), ..HeadExtras::default() }
}

impl Names {
    fn encoded_len(&self) -> usize {
        let len = |name| match name {
            Name::Rts(_) => NUMBER_LEN,
            Name::Grant(_) => ID_LEN,
        };
        self.iter().map(|name| TLV_HEADER_LEN + len(name)).sum()
    }

    fn encode(&self, out: &mut impl BufMut) {
        for name in self.iter() {
            match name {
                Name::Rts(number) => put_rts(number, out),
                Name::Grant(id) => put_id(id, out),
            }
        }
    }
}

fn put_rts(number: RtsNumber, out: &mut impl BufMut) {
    Tlv { kind: RTS, value: &number.0.to_le_bytes() }.encode(out);
}

fn put_id(id: GrantId, out: &mut impl BufMut) {
    let mut value = [0; ID_LEN];
    let mut to = &mut value[..];
    to.put_u32_le(id.index);
    to.put_u32_le(id.generation);
    Tlv { kind: GRANT_ID, value: &value }.encode(out);
}

fn put_grant(grant: &Grant, out: &mut impl BufMut) {
    let mut value = [0; GRANT_LEN];
    let mut to = &mut value[..];
    to.put_u32_le(grant.id.index);
    to.put_u32_le(grant.id.generation);
    to.put_u64_le(grant.place.address);
    to.put_u64_le(grant.len);
    to.put_u32_le(grant.place.rkey.0);
    Tlv { kind: GRANT, value: &value }.encode(out);
}

fn put_fin(fin: &Fin, out: &mut impl BufMut) {
    let mut value = [0; FIN_LEN];
    let mut to = &mut value[..];
    to.put_u32_le(fin.grant.index);
    to.put_u32_le(fin.grant.generation);
    to.put_u32_le(fin.offset);
    to.put_u32_le(fin.len);
    Tlv { kind: FIN, value: &value }.encode(out);
    fin.crc.inspect(|crc| Tlv { kind: BODY_CRC, value: &crc.0.to_le_bytes() }.encode(out));
}

#[cfg(test)]
mod tests;
