//! Extensions behind a header: type, length, value.
//!
//! ```text
//!  offset  size  field
//!       0     2  type     bit 15: mandatory
//!       2     2  length   of the value
//!       4     n  value    no padding
//! ```
//!
//! A receiver skips optional types that it does not know and refuses mandatory ones. Numbers, without
//! the mandatory bit: `0x0001..=0x1fff` the core, `0x2000..=0x3fff` transports, `0x4000..=0x7fff` for
//! experiments, never assigned.

use bytes::BufMut;

use super::WireError;

/// Set in the type of a TLV that a receiver must understand.
pub const MANDATORY: u16 = 0x8000;

/// REQUEST: the method's path in UTF-8, which defines the header's method number where that is not 0.
pub const METHOD_PATH: u16 = MANDATORY | 0x0001;

/// REQUEST: the use of a slot that the call has, so that it runs once.
pub const SLOT: u16 = MANDATORY | 0x0002;

/// REQUEST, MESSAGE and RESPONSE: the number of the encoding that the body is compressed by.
pub const ENCODING: u16 = MANDATORY | 0x0003;

/// Over RDMA: the number of an RTS. A head with it asks for memory to write its body to.
pub const RTS: u16 = MANDATORY | 0x2001;

/// Over RDMA, CTS and REQUEST: memory that the receiver may write to.
pub const GRANT: u16 = MANDATORY | 0x2002;

/// Over RDMA, FIN and heads: where in which grant a body was written.
pub const FIN: u16 = MANDATORY | 0x2003;

/// Over RDMA, beside [`FIN`]: the body's CRC32C.
pub const BODY_CRC: u16 = 0x2004;

/// Over RDMA, ABORT, ABORT_ACK and RESPONSE: names a grant.
pub const GRANT_ID: u16 = MANDATORY | 0x2005;

/// Bytes of a TLV before its value.
pub const TLV_HEADER_LEN: usize = 4;

/// One extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Type, with the mandatory bit.
    pub kind: u16,
    /// Value.
    pub value: &'a [u8],
}

impl Tlv<'_> {
    /// Bytes of this TLV on the wire.
    pub fn encoded_len(&self) -> usize {
        TLV_HEADER_LEN + self.value.len()
    }

    /// Appends the TLV.
    ///
    /// # Panics
    ///
    /// If the value is longer than `u16::MAX`: senders check what they put into one.
    pub fn encode(&self, out: &mut impl BufMut) {
        let len = u16::try_from(self.value.len()).expect("TLV values are bounded by their senders");
        out.put_u16_le(self.kind);
        out.put_u16_le(len);
        out.put_slice(self.value);
    }
}

/// Whether a type is in the range of transports.
pub fn is_of_transport(kind: u16) -> bool {
    (0x2000..=0x3fff).contains(&(kind & !MANDATORY))
}

/// Checks the TLVs of a frame that knows none: all must be well-formed, and none mandatory.
///
/// # Errors
///
/// The first one that is not.
pub fn check_optional(block: &[u8]) -> Result<(), WireError> {
    for tlv in Tlvs::new(block) {
        let kind = tlv?.kind;
        if kind & MANDATORY != 0 {
            return Err(WireError::MandatoryTlv(kind));
        }
    }
    Ok(())
}

/// Walks the TLVs of a block; ends after the first error.
#[derive(Debug, Clone)]
pub struct Tlvs<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Tlvs<'a> {
    /// The TLVs in `block`.
    pub fn new(block: &'a [u8]) -> Self {
        Self { block, at: 0 }
    }

    fn parse(&self) -> Result<Tlv<'a>, WireError> {
        let left = &self.block[self.at..];
        let short = |needs| WireError::TlvLength { at: self.at, needs, left: left.len() };
        let Some((head, rest)) = left.split_first_chunk::<TLV_HEADER_LEN>() else {
            return Err(short(TLV_HEADER_LEN));
        };
        let [kind_low, kind_high, len_low, len_high] = *head;
        let len = usize::from(u16::from_le_bytes([len_low, len_high]));
        let value = rest.get(..len).ok_or_else(|| short(TLV_HEADER_LEN + len))?;
        Ok(Tlv { kind: u16::from_le_bytes([kind_low, kind_high]), value })
    }
}

impl<'a> Iterator for Tlvs<'a> {
    type Item = Result<Tlv<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.block.len() {
            return None;
        }
        let parsed = self.parse();
        self.at = match &parsed {
            Ok(tlv) => self.at + tlv.encoded_len(),
            Err(_) => self.block.len(),
        };
        Some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tlvs_come_back_in_order() {
        let sent = [Tlv { kind: 1, value: b"" }, Tlv { kind: METHOD_PATH, value: b"/a/b" }];
        let mut block = Vec::new();
        sent.iter().for_each(|tlv| tlv.encode(&mut block));
        let received: Result<Vec<_>, _> = Tlvs::new(&block).collect();
        assert_eq!(received.as_deref(), Ok(&sent[..]));
    }

    #[test]
    fn a_block_cut_anywhere_is_an_error_and_then_ends() {
        let mut block = Vec::new();
        Tlv { kind: 9, value: b"abc" }.encode(&mut block);
        for cut in 1..block.len() {
            let mut tlvs = Tlvs::new(&block[..cut]);
            assert!(matches!(tlvs.next(), Some(Err(WireError::TlvLength { .. }))), "cut at {cut}");
            assert_eq!(tlvs.next(), None);
        }
    }
}
