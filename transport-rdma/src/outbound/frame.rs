//! One frame: what stands in it, and its bytes.

use bytes::{Buf, BufMut, Bytes};
use verbwire_core::buf::{BY_REFERENCE, Body, BodyReader};
use verbwire_core::compression::EncodingId;
use verbwire_core::message::{CallId, Head, Message};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::tlv::TLV_HEADER_LEN;
use verbwire_core::wire::{HEADER_LEN, Header, Kind, cut, head};
use verbwire_core::{Error, ErrorKind};

use super::queues::{OutboundLimits, len_before_body};
use crate::memory::Lent;
use crate::nic::Signal;
use crate::proto::credit::loan::Loan;
use crate::proto::rendezvous::wire::{self, GRANT_LEN, Grant, GrantId, HeadExtras};

/// Segments from this length on are sent from where they lie. 4 KiB: what encoding keeps by reference.
const GATHERED: usize = BY_REFERENCE;

/// The call id of frames that are about no call.
const NO_CALL: CallId = CallId { slot: 0, generation: 0 };

/// A frame that is to be posted.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    /// The head of a message, and how its body is compressed.
    head: Option<(Head, EncodingId)>,
    metadata: Bytes,
    /// What stands behind them; for DATA, the piece.
    body: Body,
    /// Boxed, because few frames have some, and all are moved.
    grants: Option<Box<Grants>>,
    /// Whether its work request says that it is done.
    pub(crate) signal: Signal,
}

/// Where the bytes of a frame are.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    /// Bytes in the frame's buffer.
    pub(crate) staged: usize,
    /// What is sent from where it lies, and how many bytes of the buffer go before it.
    pub(crate) gathered: Vec<(usize, Lent)>,
    /// Bytes of long segments that were copied.
    pub(crate) long_copied: usize,
}

/// What a frame says about grants.
#[derive(Debug)]
enum Grants {
    /// Beside a message.
    Beside(HeadExtras),
    /// It says nothing else.
    Only(wire::Frame),
}

impl Frame {
    /// A message with its body.
    pub(super) fn whole(message: Message) -> Self {
        let Message { head, encoding, metadata, body } = message;
        let mut header = head::header(&head, encoding);
        header.metadata_len = length(metadata.len());
        header.body_len = length(body.len());
        let head = Some((head, encoding));
        Self { header, head, metadata, body, grants: None, signal: Signal::No }
    }

    /// A message without its body of `len` bytes, which is written.
    pub(crate) fn head(message: Message, len: u32, extras: HeadExtras) -> Self {
        let mut frame = Self::whole(message);
        frame.header.flags = frame.header.flags.with(Flags::BODY_FOLLOWS);
        frame.header.body_len = len;
        frame.add(extras);
        frame
    }

    /// A frame that is about grants.
    pub(crate) fn of_grants(grants: wire::Frame) -> Self {
        let header = grants.header();
        let grants = Some(Box::new(Grants::Only(grants)));
        Self { grants, ..Self::bare(header) }
    }

    /// Bytes that [`offer`](Self::offer) adds.
    pub(super) const OFFER_LEN: usize = TLV_HEADER_LEN + GRANT_LEN;

    /// Says besides where the reply may be written.
    pub(super) fn offer(&mut self, grant: Grant) {
        self.add(HeadExtras { reply: Some(grant), ..HeadExtras::default() });
    }

    /// Says besides that the grant for this reply is closed.
    pub(super) fn decline(&mut self, unused: GrantId) {
        self.add(HeadExtras { unused: Some(unused), ..HeadExtras::default() });
    }

    fn add(&mut self, extras: HeadExtras) {
        let len = u16::try_from(extras.encoded_len()).expect("a handful of short TLVs");
        self.header.tlv_len += len;
        self.grants = Some(Box::new(Grants::Beside(extras)));
    }

    /// A piece of at most `max` bytes, and whether it is the last.
    pub(super) fn piece(
        call: CallId,
        offset: u32,
        reader: &mut BodyReader,
        max: usize,
    ) -> (Self, bool) {
        let len = reader.remaining().min(max);
        let body = Body::from(reader.copy_to_bytes(len));
        let is_last = !reader.has_remaining();
        let header = Header {
            flags: if is_last { Flags::LAST } else { Flags::default() },
            aux: offset,
            body_len: length(len),
            ..Header::new(Kind::Data, call)
        };
        (Self { body, ..Self::bare(header) }, is_last)
    }

    /// The end of a body that is given up at `offset`.
    pub(super) fn aborted(call: CallId, offset: u32) -> Self {
        let header = Header { flags: Flags::ABORTED, aux: offset, ..Header::new(Kind::Data, call) };
        Self::bare(header)
    }

    /// A count of receives, alone.
    pub(super) fn credit() -> Self {
        Self::bare(Header::new(Kind::Credit, NO_CALL))
    }

    /// What is said of a loan.
    pub(super) fn of_loan(loan: Loan) -> Self {
        Self::bare(loan.header())
    }

    fn bare(header: Header) -> Self {
        let (metadata, body) = (Bytes::new(), Body::new());
        Self { header, head: None, metadata, body, grants: None, signal: Signal::No }
    }

    pub(super) fn call(&self) -> Option<CallId> {
        self.head.as_ref().and_then(|(head, _)| head.call())
    }

    /// Bytes of body that go out with the frame.
    pub(super) fn body_len(&self) -> usize {
        self.body.len()
    }

    /// Takes the body out, which will come in pieces.
    pub(super) fn leave_body(&mut self) -> Body {
        self.header.flags = self.header.flags.with(Flags::BODY_FOLLOWS);
        std::mem::take(&mut self.body)
    }

    /// Bytes of the frame.
    pub(crate) fn len(&self) -> usize {
        let tlvs = usize::from(self.header.tlv_len);
        HEADER_LEN + tlvs + self.metadata.len() + self.body.len()
    }

    /// Whether a segment of the body is long enough to be sent from where it lies, if it lies in memory for that.
    pub(super) fn has_long_segment(&self, is_registered: impl Fn(&Bytes) -> bool) -> bool {
        self.body.len() >= GATHERED
            && self
                .body
                .segments()
                .any(|segment| segment.len() >= GATHERED && is_registered(segment))
    }

    /// Writes the frame to the front of `buffer`, which it fits. Long segments that `lend` lends are left out, `gather` of
    /// them at most, and none if the frame is not signalled: a loan ends by its own completion.
    pub(crate) fn encode(
        &self,
        buffer: &mut [u8],
        gather: usize,
        lend: impl Fn(&Bytes) -> Option<Lent>,
    ) -> Encoded {
        let room = buffer.len();
        let mut out = buffer;
        out.put_slice(&self.header.encode());
        if let Some((head, encoding)) = &self.head {
            head::encode_tlvs(head, *encoding, &mut out);
        }
        match self.grants.as_deref() {
            Some(Grants::Beside(extras)) => extras.encode(&mut out),
            Some(Grants::Only(frame)) => frame.encode_tlvs(&mut out),
            None => {}
        }
        out.put_slice(&self.metadata);
        let gather = if self.signal == Signal::Yes { gather } else { 0 };
        let mut encoded = Encoded::default();
        for segment in self.body.segments() {
            let is_long = segment.len() >= GATHERED;
            if is_long
                && encoded.gathered.len() < gather
                && let Some(lent) = lend(segment)
            {
                encoded.gathered.push((room - out.len(), lent));
                continue;
            }
            encoded.long_copied += if is_long { segment.len() } else { 0 };
            out.put_slice(segment);
        }
        encoded.staged = room - out.len();
        encoded
    }
}

/// Makes sure that the message can be sent; the words of a GOAWAY are cut for that.
///
/// # Errors
///
/// Head and metadata do not fit one frame, or the body is longer than a header can say.
pub(super) fn make_sendable(message: &mut Message, limits: &OutboundLimits) -> Result<(), Error> {
    let (metadata, body) = (message.metadata.len(), message.body.len());
    let before = len_before_body(message);
    let room = limits.frame.checked_sub(before).filter(|_| u32::try_from(body).is_ok());
    let Some(room) = room else {
        let text = format!(
            "a message of {body} bytes with {metadata} bytes of metadata cannot be sent over RDMA: a body \
             may have 4 GiB - 1, metadata what fits {} bytes together with the method's path; send less \
             at a time",
            limits.frame
        );
        return Err(Error::new(ErrorKind::InvalidInput, text));
    };
    let room = room.min(limits.frame_body);
    if let (Head::GoAway { .. }, true) = (&message.head, body > room) {
        let words = std::mem::take(&mut message.body).into_bytes();
        let words = String::from_utf8_lossy(&words).into_owned();
        let end = cut(&words, room).len();
        message.body = Body::from(Bytes::from(words).slice(..end));
    }
    Ok(())
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("checked when the message was staged")
}
