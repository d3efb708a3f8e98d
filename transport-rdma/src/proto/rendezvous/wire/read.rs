//! TLVs to values, for what a peer sent.

use bytes::Buf;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::tlv::{
    BODY_CRC, FIN, GRANT, GRANT_ID, MANDATORY, RTS, Tlv, Tlvs, is_of_transport,
};
use verbwire_core::wire::{Header, Kind, WireError};

use super::{
    Crc, FIN_LEN, Fin, Frame, GRANT_LEN, Grant, GrantId, HeadExtras, ID_LEN, NUMBER_LEN, Name,
    Names, Place, RtsNumber,
};
use crate::memory::Rkey;

impl HeadExtras {
    /// Reads the transport's TLVs of a head; the others are the core's.
    ///
    /// # Errors
    ///
    /// A malformed, repeated or misplaced one, or one of the transport's that is mandatory and unknown.
    pub fn decode(header: &Header, tlvs: &[u8]) -> Result<Self, WireError> {
        let extras = Self::read(tlvs, |kind| !is_of_transport(kind))?;
        extras.check(header.kind)?;
        let is_written = extras.rts.is_some() || extras.fin.is_some();
        if is_written && !header.flags.contains(Flags::BODY_FOLLOWS) {
            let (field, expected) = ("flags", "a body that is written has BODY_FOLLOWS");
            return Err(WireError::Field { field, value: u64::from(header.flags.0), expected });
        }
        Ok(extras)
    }

    /// Reads the known TLVs; mandatory ones that are not known are `left` to others, or errors.
    fn read(tlvs: &[u8], left: impl Fn(u16) -> bool) -> Result<Self, WireError> {
        let (mut found, mut crc) = (Self::default(), None);
        for tlv in Tlvs::new(tlvs) {
            let tlv = tlv?;
            match tlv.kind {
                RTS => once(&mut found.rts, tlv, number)?,
                GRANT => once(&mut found.reply, tlv, grant)?,
                FIN => once(&mut found.fin, tlv, fin)?,
                BODY_CRC => once(&mut crc, tlv, body_crc)?,
                GRANT_ID => once(&mut found.unused, tlv, id)?,
                kind if kind & MANDATORY == 0 || left(kind) => {}
                unknown => return Err(WireError::MandatoryTlv(unknown)),
            }
        }
        if let Some(fin) = &mut found.fin {
            fin.crc = crc;
        }
        Ok(found)
    }

    /// Checks that what is there belongs into a frame of this kind.
    fn check(&self, kind: Kind) -> Result<(), WireError> {
        let allowed: &[u16] = match kind {
            // The body of one head is not both written and waiting to be.
            Kind::Request if self.rts.is_some() => &[RTS, GRANT],
            Kind::Request => &[FIN, GRANT],
            Kind::Response if self.rts.is_some() => &[RTS, GRANT_ID],
            Kind::Response => &[FIN, GRANT_ID],
            Kind::Message => &[RTS],
            Kind::Cts => &[RTS, GRANT],
            Kind::Fin => &[FIN],
            _ => &[],
        };
        let there = [
            self.rts.map(|_| RTS),
            self.fin.map(|_| FIN),
            self.reply.map(|_| GRANT),
            self.unused.map(|_| GRANT_ID),
        ];
        match there.into_iter().flatten().find(|tlv| !allowed.contains(tlv)) {
            Some(tlv) => Err(WireError::MisplacedTlv { kind, tlv }),
            None => Ok(()),
        }
    }
}

impl Frame {
    /// Reads a frame of one of the four kinds.
    ///
    /// # Errors
    ///
    /// Another kind, metadata or a body, a TLV that is malformed, missing, repeated or misplaced.
    pub fn decode(header: &Header, tlvs: &[u8]) -> Result<Self, WireError> {
        let kind = header.kind;
        for (field, len) in [("metadata_len", header.metadata_len), ("body_len", header.body_len)] {
            if len != 0 {
                let expected = "frames about grants have none";
                return Err(WireError::Field { field, value: u64::from(len), expected });
            }
        }
        match kind {
            Kind::Abort => return Ok(Self::Abort(Names::decode(kind, tlvs)?)),
            Kind::AbortAck => return Ok(Self::AbortAck(Names::decode(kind, tlvs)?)),
            _ => {}
        }
        let HeadExtras { rts, fin, reply: grant, .. } = {
            let found = HeadExtras::read(tlvs, |_| false)?;
            found.check(kind)?;
            found
        };
        let missing = |tlv| WireError::MissingTlv { kind, tlv };
        match kind {
            Kind::Cts => Ok(Self::Cts { rts, grant: grant.ok_or(missing(GRANT))? }),
            Kind::Fin => Ok(Self::Fin(fin.ok_or(missing(FIN))?)),
            _ => Err(WireError::UnexpectedKind { kind, reason: "it is not about grants" }),
        }
    }
}

impl Names {
    fn decode(kind: Kind, tlvs: &[u8]) -> Result<Self, WireError> {
        let mut names = Self::NONE;
        for tlv in Tlvs::new(tlvs) {
            let tlv = tlv?;
            let name = match tlv.kind {
                RTS => Name::Rts(number(value(tlv)?)),
                GRANT_ID => Name::Grant(id(value(tlv)?)),
                GRANT | FIN => return Err(WireError::MisplacedTlv { kind, tlv: tlv.kind }),
                unknown if unknown & MANDATORY != 0 => {
                    return Err(WireError::MandatoryTlv(unknown));
                }
                _ => continue,
            };
            if !names.push(name) {
                let (field, expected) = ("tlv_len", "at most 15 names are accepted");
                return Err(WireError::Field { field, value: tlvs.len() as u64, expected });
            }
        }
        if names.count == 0 {
            return Err(WireError::MissingTlv { kind, tlv: GRANT_ID });
        }
        Ok(names)
    }
}

/// Takes a TLV that may be there once.
fn once<T, const LEN: usize>(
    place: &mut Option<T>,
    tlv: Tlv<'_>,
    read: impl Fn([u8; LEN]) -> T,
) -> Result<(), WireError> {
    match place.replace(read(value(tlv)?)) {
        None => Ok(()),
        Some(_) => Err(WireError::RepeatedTlv(tlv.kind)),
    }
}

/// A TLV's value, which has this length exactly.
fn value<const LEN: usize>(tlv: Tlv<'_>) -> Result<[u8; LEN], WireError> {
    tlv.value.try_into().map_err(|_| WireError::TlvValue(tlv.kind))
}

fn number(value: [u8; NUMBER_LEN]) -> RtsNumber {
    RtsNumber(u32::from_le_bytes(value))
}

fn body_crc(value: [u8; NUMBER_LEN]) -> Crc {
    Crc(u32::from_le_bytes(value))
}

fn id(value: [u8; ID_LEN]) -> GrantId {
    next_id(&mut &value[..])
}

fn grant(value: [u8; GRANT_LEN]) -> Grant {
    let mut value = &value[..];
    let id = next_id(&mut value);
    let (address, len) = (value.get_u64_le(), value.get_u64_le());
    Grant { id, place: Place { address, rkey: Rkey(value.get_u32_le()) }, len }
}

fn fin(value: [u8; FIN_LEN]) -> Fin {
    let mut value = &value[..];
    let grant = next_id(&mut value);
    Fin { grant, offset: value.get_u32_le(), len: value.get_u32_le(), crc: None }
}

fn next_id(value: &mut &[u8]) -> GrantId {
    GrantId { index: value.get_u32_le(), generation: value.get_u32_le() }
}
