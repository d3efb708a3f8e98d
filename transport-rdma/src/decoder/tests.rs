use std::sync::Arc;

use proptest::prelude::*;
use verbwire_core::transport::{Announced, Placement};
use verbwire_core::wire::Hello;

use super::*;

struct Parity;

impl PlacementHook for Parity {
    fn place(&self, announced: Announced<'_>) -> Placement {
        match announced.head.call() {
            Some(call) if call.slot % 2 == 1 => Placement::Refuse,
            _ => Placement::Pool,
        }
    }
}

fn decoder() -> FrameDecoder {
    let hello = Hello {
        max_message_size: 64 << 10,
        max_metadata_size: 1 << 10,
        max_frame_body: 16 << 10,
        max_concurrent_calls: 4,
        ..Hello::default()
    };
    FrameDecoder::new(InboundLimits::new(&hello, &hello), Arc::new(LandingPool::new(0)))
}

fn frame(header: Header, behind: &[u8]) -> Vec<u8> {
    [&header.encode()[..], behind].concat()
}

fn header(kind: Kind, slot: u32) -> Header {
    Header::new(kind, CallId { slot, generation: 0 })
}

#[test]
fn frames_say_their_window_and_count() {
    let cases = [
        (Kind::Request, Class::Data),
        (Kind::Response, Class::Data),
        (Kind::Cancel, Class::Control),
        (Kind::Cancelled, Class::Control),
        (Kind::GoAway, Class::Control),
        (Kind::Ping, Class::Control),
        (Kind::Pong, Class::Control),
        (Kind::Credit, Class::Credit(Window::Data)),
    ];
    let mut received = Vec::new();
    for ((kind, class), count) in cases.into_iter().zip(7..) {
        let bytes = frame(Header { credits: count, ..header(kind, 0) }, b"");
        let account = decoder().decode(&bytes, &Parity, &mut received).expect("allowed");
        assert_eq!(account, Account { class, count, loan: None });
    }
    assert_eq!(received.len(), 7, "all but CREDIT are messages");
}

#[test]
fn pieces_become_one_message() {
    let (mut decoder, mut received) = (decoder(), Vec::new());
    for slot in 0..2 {
        let head =
            Header { flags: Flags::BODY_FOLLOWS, body_len: 5, ..header(Kind::Request, slot) };
        let first = Header { body_len: 3, ..header(Kind::Data, slot) };
        let last = Header { body_len: 2, aux: 3, flags: Flags::LAST, ..first };
        for bytes in [frame(head, b""), frame(first, b"abc"), frame(last, b"de")] {
            decoder.decode(&bytes, &Parity, &mut received).expect("allowed");
        }
    }
    assert_eq!(decoder.open_bodies(), 0);
    let [Incoming { message }] = &received[..] else { panic!("slot 1 is refused") };
    assert_eq!(message.body.clone().into_bytes(), "abcde");
}

#[test]
fn a_frame_cut_or_stretched_anywhere_is_an_error() {
    let whole = frame(Header { body_len: 9, ..header(Kind::Request, 0) }, b"123456789");
    for len in 0..whole.len() {
        let error = decoder().decode(&whole[..len], &Parity, &mut Vec::new()).expect_err("cut");
        let is_short = matches!(error, ReceiveError::Short { .. });
        assert_eq!(is_short, len < HEADER_LEN);
    }
    let longer = [&whole[..], b"0"].concat();
    let error = decoder().decode(&longer, &Parity, &mut Vec::new()).expect_err("stretched");
    assert_eq!(error, ReceiveError::Length { len: 50, announced: 49 });
}

proptest! {
    #[test]
    fn no_frames_can_panic_the_decoder(
        frames in prop::collection::vec(
            (0..8_usize, any::<u8>(), 0..3_u32, 0..40_u32, 0..4_u32, 0..60_usize),
            0..40,
        ),
    ) {
        let kinds = [0x01, 0x02, 0x03, 0x04, 0x05, 0x40, 0x41, 0x99];
        let (mut decoder, mut received) = (decoder(), Vec::new());
        for (kind, flags, slot, body_len, aux, behind) in frames {
            let fields = Header { flags: Flags(flags), body_len, aux, ..header(Kind::Data, slot) };
            let mut bytes = frame(fields, &vec![0; behind]);
            bytes[0] = kinds[kind];
            let _outcome = decoder.decode(&bytes, &Parity, &mut received);
        }
    }
}
