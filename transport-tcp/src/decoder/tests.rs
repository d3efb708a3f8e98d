use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::borrow::Cow;
use std::time::Duration;
use verbwire_core::compression::EncodingId;
use verbwire_core::config::{Limits, Random};
use verbwire_core::message::{Form, GoAway, Head, MethodId, ReplyForm};
use verbwire_core::proto::hello::Identity;
use verbwire_core::transport::{Announced, Outgoing, Placement, SendHints};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::tlv::{MANDATORY, Tlv};
use verbwire_core::wire::{Hello, WireError};
use verbwire_core::{Code, Executed};

use crate::config::TcpConfig;
use crate::outbound::{Batch, Next, Outbound, OutboundLimits};

/// Takes every body.
struct Everything;

impl PlacementHook for Everything {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

const CALL: CallId = CallId { slot: 1, generation: 2 };

fn hello() -> Hello {
    let mut limits = Limits::default();
    limits.max_message_size = 1 << 20;
    limits.max_frame_body = 16 << 10;
    limits.max_concurrent_calls = 8;
    Identity::new(Random::from_seed(1)).hello(&limits)
}

fn decoder() -> FrameDecoder {
    FrameDecoder::new(InboundLimits::new(&hello(), &hello()), Arc::new(LandingPool::new(1 << 20)))
}

/// What two peers with these HELLOs write for the messages.
fn encode(messages: &[Message]) -> Vec<u8> {
    let limits = OutboundLimits::new(&hello(), &hello(), &TcpConfig::default());
    let mut outbound = Outbound::new(limits);
    for message in messages {
        let outgoing = Outgoing { message: message.clone(), hints: SendHints::default() };
        outbound.push(outgoing).expect("room");
    }
    let mut bytes = Vec::new();
    let mut batch = Batch::default();
    while outbound.next(&mut batch).0 == Next::Write {
        bytes.extend(batch.drain());
    }
    bytes
}

/// Decodes a stream that is cut into reads of these lengths, in turns.
fn decode(bytes: &[u8], reads: &[usize]) -> Result<Vec<Message>, FrameError> {
    let mut decoder = decoder();
    let mut received = Vec::new();
    let mut rest = bytes;
    for len in reads.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (read, behind) = rest.split_at((*len).min(rest.len()));
        decoder.append(read, &Everything, &mut received)?;
        rest = behind;
    }
    assert_eq!(decoder.cut(), Cut::Clean);
    Ok(received.into_iter().map(|incoming| incoming.message).collect())
}

fn plain(message: Message) -> (Head, EncodingId, Bytes, Bytes) {
    (message.head, message.encoding, message.metadata, message.body.into_bytes())
}

/// Messages of different calls, with bodies of every path.
fn messages() -> impl Strategy<Value = Vec<Message>> {
    let len = prop_oneof![0..100_usize, 4000..4200_usize, 16_000..70_000_usize];
    let one = (len, prop::option::of("/[a-z]{1,20}/[A-Z]{1,9}"), 0..300_usize, 0..4_u8);
    prop::collection::vec(one, 1..12).prop_map(|parts| {
        let numbered = (0_u32..).zip(parts);
        numbered
            .map(|(slot, (len, path, metadata, kind))| {
                let call = CallId { slot, generation: 9 };
                let head = match kind {
                    0 => Head::Cancel { call },
                    1 => Head::Response {
                        call,
                        code: Code::Ok,
                        executed: Executed::Yes,
                        messages: None,
                    },
                    _ => Head::Request {
                        call,
                        method: MethodId(slot),
                        path: path.map(Cow::Owned),
                        timeout: Duration::from_micros(7),
                        form: Form::Whole,
                        reply: ReplyForm::Whole,
                        slot: None,
                    },
                };
                let body: Vec<u8> = (0..=250).cycle().skip(slot as usize).take(len).collect();
                Message {
                    head,
                    encoding: EncodingId(kind),
                    metadata: Bytes::from(vec![3; metadata]),
                    body: Body::from(Bytes::from(body)),
                }
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn however_the_stream_is_cut_the_messages_are_the_same(
        sent in messages(),
        reads in prop::collection::vec(
            prop_oneof![1..60_usize, 1000..9000_usize, 60_000..80_000_usize], 1..8),
    ) {
        let received = decode(&encode(&sent), &reads).expect("a good stream");
        let fits = |message: &Message| message.body.len() <= 16 << 10;
        let split = |messages: Vec<Message>| {
            let (short, mut long): (Vec<_>, Vec<_>) = messages.into_iter().partition(fits);
            // Long bodies may be overtaken, also by each other; the others keep their order.
            long.sort_by_key(|message| message.head.call());
            let plain = |messages: Vec<Message>| messages.into_iter().map(plain).collect::<Vec<_>>();
            (plain(short), plain(long))
        };
        prop_assert_eq!(split(received), split(sent));
    }

    #[test]
    fn random_bytes_are_an_error_or_a_wait_but_no_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..4096),
        kind in prop::sample::select(vec![1_u8, 2, 3, 4, 5, 0x40]),
    ) {
        let mut received = Vec::new();
        let _ = decoder().append(&bytes, &Everything, &mut received);
        // With a known type and small lengths, decoding gets further than the header.
        let mut framed = bytes;
        for header in framed.chunks_mut(HEADER_LEN + 16) {
            header[0] = kind;
            for index in [3, 29, 30, 31, 33, 34, 35] {
                if let Some(byte) = header.get_mut(index) {
                    *byte = 0;
                }
            }
        }
        let _ = decoder().append(&framed, &Everything, &mut received);
    }
}

#[test]
fn a_stream_cut_at_any_byte_waits_and_says_where_it_was_cut() {
    let response =
        Head::Response { call: CALL, code: Code::Ok, executed: Executed::Yes, messages: None };
    let long = Body::from(Bytes::from(vec![5; 20_000]));
    let first = encode(&[Message::with_body(response.clone(), Body::from(Bytes::from("abc")))]);
    let stream = [&first[..], &encode(&[Message::with_body(response, long)])].concat();
    for len in 0..stream.len() {
        let mut decoder = decoder();
        let mut received = Vec::new();
        decoder.append(&stream[..len], &Everything, &mut received).expect("nothing wrong so far");
        assert_eq!(received.len(), usize::from(len >= first.len()));
        let head_end = first.len() + HEADER_LEN;
        let expected = match len {
            0 => Cut::Clean,
            len if len == first.len() => Cut::Clean,
            len if len == head_end || len == head_end + HEADER_LEN + (16 << 10) => {
                Cut::BeforeBodies(1)
            }
            _ => Cut::InFrame,
        };
        assert_eq!(decoder.cut(), expected, "cut at {len}");
    }
}

fn error_of(header: Header, behind: &[u8]) -> String {
    let bytes = [&header.encode()[..], behind].concat();
    let mut received = Vec::new();
    decoder().append(&bytes, &Everything, &mut received).expect_err("a violation").to_string()
}

#[test]
fn lengths_beyond_a_limit_are_refused_by_its_name_before_anything_behind_them_is_read() {
    let request = Header::new(Kind::Request, CALL);
    let follows = Flags::BODY_FOLLOWS;
    let cases = [
        (
            Header { metadata_len: 16_385, ..request },
            "metadata of 16385 bytes exceeds max_metadata_size of 16384 bytes",
        ),
        (
            Header { body_len: 16_385, ..request },
            "body in one frame of 16385 bytes exceeds max_frame_body of 16384 bytes",
        ),
        (
            Header { body_len: u32::MAX, flags: follows, ..request },
            "body of 4294967295 bytes exceeds max_message_size of 1048576 bytes",
        ),
        (
            Header { body_len: 16_385, ..Header::new(Kind::Data, CALL) },
            "piece of 16385 bytes exceeds max_frame_body of 16384 bytes",
        ),
        (
            Header { metadata_len: 1, ..Header::new(Kind::Data, CALL) },
            "metadata_len is 1, DATA has none",
        ),
    ];
    for (header, text) in cases {
        assert_eq!(error_of(header, b""), text);
    }
}

#[test]
fn frames_that_make_no_sense_are_refused_in_words() {
    let follows = Flags::BODY_FOLLOWS;
    let request = Header::new(Kind::Request, CALL);
    let mut mandatory = Vec::new();
    Tlv { kind: MANDATORY | 0x2000, value: b"" }.encode(&mut mandatory);
    let cases = [
        (
            Header { flags: follows, ..request },
            &b""[..],
            "body_len is 0, a body that follows has a byte at least",
        ),
        (
            Header { flags: follows, body_len: 1, ..Header::new(Kind::GoAway, CALL) },
            b"",
            "flags is 1, what is about no call has its body behind it",
        ),
        (
            Header { tlv_len: 4, ..Header::new(Kind::Data, CALL) },
            &mandatory,
            "unknown mandatory TLV 0xa000; the peer needs a newer version of this side",
        ),
        (
            Header { body_len: 5, ..Header::new(Kind::Data, CALL) },
            b"",
            "DATA frame for call 1.2, which has no body to come",
        ),
        (Header { tlv_len: 2, ..request }, b"ab", "TLV at byte 0 needs 4 bytes, 2 are left"),
    ];
    for (header, behind, text) in cases {
        assert_eq!(error_of(header, behind), text);
    }
}

#[test]
fn more_bodies_than_calls_are_refused() {
    let mut decoder = decoder();
    let mut received = Vec::new();
    let mut open = |slot| {
        let call = CallId { slot, generation: 0 };
        let header =
            Header { flags: Flags::BODY_FOLLOWS, body_len: 1, ..Header::new(Kind::Request, call) };
        decoder.append(&header.encode(), &Everything, &mut received)
    };
    let most = 72;
    (0..most).for_each(|slot| open(slot).expect("within the limit"));
    let error = open(most).expect_err("one too many");
    assert!(error.to_string().starts_with("more than 72 bodies"), "{error}");
}

#[test]
fn messages_before_a_violation_are_received() {
    let goaway = Head::GoAway { reason: GoAway::Draining };
    let mut bytes = encode(&[Message::bare(goaway.clone())]);
    bytes.extend([0xff; HEADER_LEN]);
    let mut received = Vec::new();
    let error = decoder().append(&bytes, &Everything, &mut received).expect_err("unknown type");
    assert_eq!(error, FrameError::Wire(WireError::UnknownKind(0xff)));
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].message.head, goaway);
}

#[test]
fn a_long_body_is_read_straight_into_its_memory() {
    let mut decoder = decoder();
    let mut received = Vec::new();
    let header = Header { body_len: 10_000, ..Header::new(Kind::Response, CALL) };
    decoder.append(&header.encode(), &Everything, &mut received).expect("a frame");
    let mut space = decoder.space();
    assert_eq!(space.remaining_mut(), 10_000);
    let place = space.get_ref().as_ptr();
    space.put_bytes(1, 10_000);
    decoder.decode(&Everything, &mut received).expect("a body");
    let body = received.remove(0).message.body.into_bytes();
    assert_eq!((body.len(), body.as_ptr()), (10_000, place));
}
