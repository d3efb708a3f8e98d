//! Message heads to and from header and TLVs.

use std::borrow::Cow;
use std::time::Duration;

use bytes::BufMut;

use super::WireError;
use super::header::HEADER_LEN;
use super::header::{Flags, Header, Kind};
use super::tlv::{
    ENCODING, MANDATORY, METHOD_PATH, SLOT, TLV_HEADER_LEN, Tlv, Tlvs, is_of_transport,
};
use crate::compression::EncodingId;
use crate::message::{CallId, Form, GoAway, Head, MethodId, ReplyForm, SessionId, SlotUse};
use crate::status::{Code, Executed};

/// The call id of frames that are about no call.
const NO_CALL: CallId = CallId { slot: 0, generation: 0 };

/// Longest method path that is sent or accepted, in bytes.
pub const MAX_PATH: usize = 1024;

/// Bytes of a use of a slot.
const SLOT_LEN: usize = 20;

/// Bytes of its TLV.
const SLOT_TLV_LEN: u16 = 24;

/// Bytes of the TLV of an encoding.
const ENCODING_TLV_LEN: u16 = 5;

const _: () = assert!(SLOT_TLV_LEN as usize == TLV_HEADER_LEN + SLOT_LEN);

/// Longest header with the TLVs of the core, in bytes.
pub const MAX_HEAD: usize =
    HEADER_LEN + TLV_HEADER_LEN + MAX_PATH + (SLOT_TLV_LEN + ENCODING_TLV_LEN) as usize;

/// The header of a message with this head, whose body is compressed so; lengths of metadata and body are left zero.
pub fn header(head: &Head, encoding: EncodingId) -> Header {
    Header { tlv_len: tlv_len(head, encoding), ..plain_header(head) }
}

fn plain_header(head: &Head) -> Header {
    match head {
        Head::Request { call, method, timeout, form, reply, path: _, slot: _ } => Header {
            flags: form_flags(*form).with(reply_flags(*reply)),
            method: method.0,
            time_us: u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX),
            ..Header::new(Kind::Request, *call)
        },
        Head::Response { call, code, executed, messages } => Header {
            flags: executed_flags(*executed).with(form_flags(form_of(*messages))),
            method: messages.unwrap_or(0),
            aux: u32::from(*code as u8),
            ..Header::new(Kind::Response, *call)
        },
        Head::Cancel { call } => Header::new(Kind::Cancel, *call),
        Head::Cancelled { call, executed } => {
            Header { flags: executed_flags(*executed), ..Header::new(Kind::Cancelled, *call) }
        }
        Head::Message { call, number } => {
            Header { method: *number, ..Header::new(Kind::Message, *call) }
        }
        Head::End { call, messages } => {
            Header { method: *messages, ..Header::new(Kind::End, *call) }
        }
        Head::Headers { call } => Header::new(Kind::Headers, *call),
        Head::Window { call, granted } => {
            Header { time_us: *granted, ..Header::new(Kind::Window, *call) }
        }
        Head::Ping => Header::new(Kind::Ping, NO_CALL),
        Head::Pong => Header::new(Kind::Pong, NO_CALL),
        Head::GoAway { reason } => {
            Header { aux: reason_number(*reason), ..Header::new(Kind::GoAway, NO_CALL) }
        }
    }
}

/// Bytes of the TLVs that [`header`] counts.
pub fn tlv_len(head: &Head, encoding: EncodingId) -> u16 {
    let encoding = if encoding == EncodingId::NONE { 0 } else { ENCODING_TLV_LEN };
    match head {
        Head::Request { path, slot, .. } => {
            let slot = slot.as_ref().map_or(0, |_| SLOT_TLV_LEN);
            path.as_deref().map_or(0, path_tlv_len) + slot + encoding
        }
        _ => encoding,
    }
}

/// Appends the TLVs that [`header`] counted.
pub fn encode_tlvs(head: &Head, encoding: EncodingId, out: &mut impl BufMut) {
    if let Head::Request { path, slot, .. } = head {
        if let Some(path) = path {
            Tlv { kind: METHOD_PATH, value: path.as_bytes() }.encode(out);
        }
        if let Some(slot) = slot {
            Tlv { kind: SLOT, value: &slot_value(slot) }.encode(out);
        }
    }
    if encoding != EncodingId::NONE {
        Tlv { kind: ENCODING, value: &[encoding.0] }.encode(out);
    }
}

/// The message head in a header of the core and its TLV block, and how the body is compressed.
///
/// # Errors
///
/// A frame of the transport, a malformed or unknown mandatory TLV, a field out of range.
pub fn decode(header: &Header, tlvs: &[u8]) -> Result<(Head, EncodingId), WireError> {
    decode_with(header, known_tlvs(tlvs, |_| false)?)
}

/// The same for a transport that has TLVs of its own and looks at them itself.
///
/// # Errors
///
/// As for [`decode`].
pub fn decode_beside_transport(
    header: &Header,
    tlvs: &[u8],
) -> Result<(Head, EncodingId), WireError> {
    decode_with(header, known_tlvs(tlvs, is_of_transport)?)
}

fn decode_with(header: &Header, known: Known<'_>) -> Result<(Head, EncodingId), WireError> {
    let encoding = known.encoding.unwrap_or_default();
    Ok((decode_head(header, known)?, encoding))
}

fn decode_head(header: &Header, known: Known<'_>) -> Result<Head, WireError> {
    let call = header.call;
    Ok(match header.kind {
        Kind::Request => Head::Request {
            call,
            method: MethodId(header.method),
            path: known.path.map(|path| Cow::Owned(path.to_owned())),
            timeout: Duration::from_micros(header.time_us),
            form: form(header.flags),
            reply: reply_form(header.flags),
            slot: known.slot.map(Box::new),
        },
        Kind::Response => Head::Response {
            call,
            code: code(header.aux)?,
            executed: executed(header.flags)?,
            messages: (form(header.flags) == Form::Stream).then_some(header.method),
        },
        Kind::Cancel => Head::Cancel { call },
        Kind::Cancelled => Head::Cancelled { call, executed: executed(header.flags)? },
        Kind::GoAway => Head::GoAway { reason: reason(header.aux) },
        Kind::Ping => Head::Ping,
        Kind::Pong => Head::Pong,
        Kind::Message => Head::Message { call, number: header.method },
        Kind::End => Head::End { call, messages: header.method },
        Kind::Headers => Head::Headers { call },
        Kind::Window => Head::Window { call, granted: header.time_us },
        Kind::Data
        | Kind::Credit
        | Kind::Cts
        | Kind::Fin
        | Kind::Abort
        | Kind::AbortAck
        | Kind::Lend
        | Kind::Borrow => {
            let reason = "it belongs to the transport";
            return Err(WireError::UnexpectedKind { kind: header.kind, reason });
        }
    })
}

/// What the TLVs say that this version knows.
#[derive(Default)]
struct Known<'a> {
    path: Option<&'a str>,
    slot: Option<SlotUse>,
    encoding: Option<EncodingId>,
}

/// Walks the TLVs once: all must be well-formed.
fn known_tlvs(tlvs: &[u8], is_known: impl Fn(u16) -> bool) -> Result<Known<'_>, WireError> {
    let mut known = Known::default();
    for tlv in Tlvs::new(tlvs) {
        let tlv = tlv?;
        match tlv.kind {
            METHOD_PATH => {
                let text = std::str::from_utf8(tlv.value).ok();
                let text = text.filter(|text| text.len() <= MAX_PATH);
                let path = text.ok_or(WireError::TlvValue(METHOD_PATH))?;
                once(&mut known.path, path, METHOD_PATH)?;
            }
            SLOT => {
                let this = slot_use(tlv.value).ok_or(WireError::TlvValue(SLOT))?;
                once(&mut known.slot, this, SLOT)?;
            }
            ENCODING => {
                let [number] = *tlv.value else { return Err(WireError::TlvValue(ENCODING)) };
                once(&mut known.encoding, EncodingId(number), ENCODING)?;
            }
            other if other & MANDATORY != 0 && !is_known(other) => {
                return Err(WireError::MandatoryTlv(other));
            }
            _ => {}
        }
    }
    Ok(known)
}

/// Two parsers that take the first and the last of a repeated TLV would see two different requests.
fn once<T>(known: &mut Option<T>, value: T, kind: u16) -> Result<(), WireError> {
    match known.replace(value) {
        None => Ok(()),
        Some(_) => Err(WireError::RepeatedTlv(kind)),
    }
}

fn slot_value(this: &SlotUse) -> [u8; SLOT_LEN] {
    let mut value = [0; SLOT_LEN];
    value[..8].copy_from_slice(&this.session.0.to_le_bytes());
    value[8..16].copy_from_slice(&this.sequence.to_le_bytes());
    value[16..].copy_from_slice(&this.slot.to_le_bytes());
    value
}

fn slot_use(value: &[u8]) -> Option<SlotUse> {
    let (session, rest) = value.split_first_chunk()?;
    let (sequence, rest) = rest.split_first_chunk()?;
    let session = SessionId(u64::from_le_bytes(*session));
    let sequence = u64::from_le_bytes(*sequence);
    let slot = u32::from_le_bytes(rest.try_into().ok()?);
    Some(SlotUse { session, slot, sequence })
}

fn path_tlv_len(path: &str) -> u16 {
    let len = Tlv { kind: METHOD_PATH, value: path.as_bytes() }.encoded_len();
    u16::try_from(len).expect("paths are at most MAX_PATH bytes, checked when a call is made")
}

fn form_of(messages: Option<u32>) -> Form {
    if messages.is_some() { Form::Stream } else { Form::Whole }
}

fn form_flags(form: Form) -> Flags {
    match form {
        Form::Whole => Flags::default(),
        Form::Stream => Flags::STREAM,
    }
}

fn form(flags: Flags) -> Form {
    if flags.contains(Flags::STREAM) { Form::Stream } else { Form::Whole }
}

fn reply_flags(reply: ReplyForm) -> Flags {
    match reply {
        ReplyForm::Whole => Flags::default(),
        ReplyForm::Stream => Flags::REPLIES,
        ReplyForm::Either => Flags::ANY_FORM,
    }
}

/// Who does not know the form expects none, whatever else is said.
fn reply_form(flags: Flags) -> ReplyForm {
    if flags.contains(Flags::ANY_FORM) {
        ReplyForm::Either
    } else if flags.contains(Flags::REPLIES) {
        ReplyForm::Stream
    } else {
        ReplyForm::Whole
    }
}

fn executed_flags(executed: Executed) -> Flags {
    let number = match executed {
        Executed::No => 0,
        Executed::Maybe => 1,
        Executed::Yes => 2,
    };
    Flags(number << Flags::EXECUTED_SHIFT)
}

fn executed(flags: Flags) -> Result<Executed, WireError> {
    match flags.0 >> Flags::EXECUTED_SHIFT {
        0 => Ok(Executed::No),
        1 => Ok(Executed::Maybe),
        2 => Ok(Executed::Yes),
        other => Err(WireError::Field {
            field: "executed",
            value: u64::from(other),
            expected: "expected 0, 1 or 2",
        }),
    }
}

fn code(number: u32) -> Result<Code, WireError> {
    usize::try_from(number).ok().and_then(|index| Code::ALL.get(index).copied()).ok_or(
        WireError::Field {
            field: "status code",
            value: u64::from(number),
            expected: "gRPC's are 0 to 16",
        },
    )
}

fn reason_number(reason: GoAway) -> u32 {
    match reason {
        GoAway::Draining => 0,
        GoAway::ProtocolViolation => 1,
        GoAway::Overloaded => 2,
        GoAway::Unknown(number) => number,
    }
}

fn reason(number: u32) -> GoAway {
    match number {
        0 => GoAway::Draining,
        1 => GoAway::ProtocolViolation,
        2 => GoAway::Overloaded,
        other => GoAway::Unknown(other),
    }
}

#[cfg(test)]
mod tests;
