//! Frames that are cut, too long, or do not fit together.

use verbwire_core::message::{CallId, Head};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::tlv::METHOD_PATH;
use verbwire_core::wire::{Header, Kind};
use verbwire_tests::fixture::Fixture;
use verbwire_tests::raw::{self, call};
use verbwire_tests::spy;

use crate::bad::{ECHO, MAX_CALLS, MAX_MESSAGE, PLENTY, Victim};
use crate::over_sockets;

over_sockets!(
    a_frame_cut_anywhere_ends_the_connection,
    unknown_frame_types_end_the_connection,
    lengths_beyond_a_limit_end_the_connection,
    extensions_that_do_not_add_up_end_the_connection,
    unknown_optional_extensions_are_skipped,
    metadata_that_breaks_the_rules_ends_the_connection,
    reserved_and_misplaced_metadata_is_ignored,
    pieces_that_do_not_fit_end_the_connection,
    too_many_unfinished_bodies_end_the_connection,
);

async fn a_frame_cut_anywhere_ends_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let frame = raw::request(call(0), ECHO, PLENTY, b"\x0a\x03abc");
    for len in 1..frame.len() {
        let mut peer = victim.raw_client().await;
        let mark = peer.mark.clone();
        let words = ["within a frame", &mark];
        let before = spy::count(&words);
        peer.send(&frame[..len]).await;
        peer.finish().await;
        assert_eq!(peer.rest().await.len(), 0);
        spy::until(before + 1, &words).await;
    }
    victim.assert_serves().await;
}

async fn unknown_frame_types_end_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    for kind in [0x00, 0x3f, 0x7f, 0x80, 0xff] {
        let mut bytes = Header::new(Kind::Request, call(0)).encode();
        bytes[0] = kind;
        victim.assert_ends(&bytes, &format!("unknown frame type 0x{kind:02x}")).await;
    }
}

async fn lengths_beyond_a_limit_end_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let header = Header::new(Kind::Request, call(0));
    let follows = Header { flags: Flags::BODY_FOLLOWS, ..header };
    for metadata_len in [16 * 1024 + 1, u32::MAX] {
        let words = format!("of {metadata_len} bytes exceeds max_metadata_size of 16384");
        victim.assert_ends(&Header { metadata_len, ..header }.encode(), &words).await;
    }
    for body_len in [MAX_MESSAGE + 1, u32::MAX - 1, u32::MAX] {
        let words = format!("of {body_len} bytes exceeds max_message_size of 1048576");
        victim.assert_ends(&Header { body_len, ..header }.encode(), &words).await;
        victim.assert_ends(&Header { body_len, ..follows }.encode(), &words).await;
    }
    // Within the limit on messages, but not in one frame.
    let body_len = 256 * 1024 + 1;
    let words = "of 262145 bytes exceeds max_frame_body of 262144";
    victim.assert_ends(&Header { body_len, ..header }.encode(), words).await;
    // All at once, so that any sum of them wraps.
    let all = Header {
        tlv_len: u16::MAX,
        metadata_len: u32::MAX,
        body_len: u32::MAX,
        aux: u32::MAX,
        ..header
    };
    victim.assert_ends(&all.encode(), "exceeds max_").await;
}

fn tlv(kind: u16, len: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &len.to_le_bytes()[..], value].concat()
}

async fn extensions_that_do_not_add_up_end_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let header = Header::new(Kind::Request, call(0));
    let long = [b'a'; 1025];
    let cases: [(Vec<u8>, &str); 7] = [
        (vec![1], "TLV at byte 0 needs 4 bytes, 1 are left"),
        (tlv(1, 9, b"short"), "TLV at byte 0 needs 13 bytes, 9 are left"),
        (tlv(1, u16::MAX, b""), "TLV at byte 0 needs 65539 bytes, 4 are left"),
        ([tlv(1, 1, b"x"), vec![0, 0]].concat(), "TLV at byte 5 needs 4 bytes, 2 are left"),
        (tlv(0x8abc, 0, b""), "unknown mandatory TLV 0x8abc"),
        (tlv(METHOD_PATH, 2, b"/\xff"), "TLV 0x8001 has a malformed value"),
        (tlv(METHOD_PATH, 1025, &long), "TLV 0x8001 has a malformed value"),
    ];
    for (tlvs, words) in cases {
        victim.assert_ends(&raw::with_tlvs(header, &tlvs), words).await;
    }
}

async fn unknown_optional_extensions_are_skipped(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let len = u16::try_from(ECHO.len()).expect("a short path");
    let tlvs = [tlv(0x0abc, 5, b"later"), tlv(METHOD_PATH, len, ECHO.as_bytes())].concat();
    let header = Header { time_us: 1_000_000, ..Header::new(Kind::Request, call(0)) };
    peer.send(&raw::with_tlvs(header, &tlvs)).await;
    let frame = peer.frame().await.expect("a RESPONSE");
    assert!(matches!(frame.head(), Head::Response { code: verbwire::Code::Ok, .. }));
}

async fn metadata_that_breaks_the_rules_ends_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let entry = raw::metadata_entry;
    let long = [entry(257, 0, b""), vec![b'a'; 257]].concat();
    let cases: [(Vec<u8>, &str); 10] = [
        (vec![0; 3], "metadata at byte 0 needs 6 bytes, 3 are left"),
        (entry(9, 0, b"short"), "metadata at byte 0 needs 15 bytes, 11 are left"),
        (entry(1, u32::MAX, b"a"), "metadata at byte 0 needs 4294967302 bytes, 7 are left"),
        (entry(0, 0, b""), "a metadata key has no characters"),
        (entry(5, 0, b"Upper"), "metadata key \"Upper\" has the byte 0x55"),
        (entry(5, 0, b":path"), "metadata key \":path\" has the byte 0x3a"),
        (entry(1, 1, b"a\x07"), "metadata value has the byte 0x07 at 0"),
        (long, "has 257 bytes, at most 256 are allowed"),
        ([entry(1, 0, b"a"), entry(9, 9, b"")].concat(), "metadata at byte 7 needs 24 bytes"),
        (entry(0x8001, 1, b"ab"), "the client sent trailers"),
    ];
    let frame = raw::request(call(0), ECHO, PLENTY, b"");
    for (block, words) in cases {
        victim.assert_goes_away(&raw::with_metadata(&frame, &block), words).await;
    }
    // A MiB of it is refused by its length.
    let words = "metadata of 1048576 bytes exceeds max_metadata_size of 16384";
    victim.assert_ends(&raw::with_metadata(&frame, &vec![0; 1 << 20])[..100_000], words).await;
    assert_eq!(victim.witness.log().entries, 0);
}

async fn reserved_and_misplaced_metadata_is_ignored(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let cancel = raw::message(&Head::Cancel { call: call(1) }, b"");
    peer.send(&raw::with_metadata(&cancel, b"no block at all")).await;
    let frame = peer.frame().await.expect("a CANCELLED");
    assert!(matches!(frame.head(), Head::Cancelled { .. }));
    let request = raw::request(call(0), ECHO, PLENTY, b"");
    let reserved = raw::metadata_entry(14, 1, b"verbwire-later\x07");
    peer.send(&raw::with_metadata(&request, &reserved)).await;
    let frame = peer.frame().await.expect("a RESPONSE");
    assert!(matches!(frame.head(), Head::Response { code: verbwire::Code::Ok, .. }));
}

/// A REQUEST whose body of `len` bytes comes in pieces.
fn announced(call: CallId, len: u32) -> Vec<u8> {
    let mut bytes = raw::request(call, ECHO, PLENTY, b"");
    bytes[1] = Flags::BODY_FOLLOWS.0;
    bytes[32..36].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn data(offset: u32, len: u32, flags: Flags) -> Vec<u8> {
    let header = Header { flags, aux: offset, body_len: len, ..Header::new(Kind::Data, call(0)) };
    // The fault is in the header; what it announces need not come.
    let sent = usize::try_from(len.min(1000)).expect("short");
    [&header.encode()[..], &vec![0; sent]].concat()
}

async fn pieces_that_do_not_fit_end_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let none = Flags::default();
    let cases: [(&[Vec<u8>], &str); 12] = [
        (&[data(0, 10, none)], "for call 0.0, which has no body to come"),
        (&[announced(call(0), 9000), data(1, 10, none)], "offset 1, expected offset 0"),
        (&[announced(call(0), 9000), data(u32::MAX, 10, none)], "offset 4294967295, expected"),
        (
            &[announced(call(0), 9000), data(0, 1000, none), data(0, 10, none)],
            "offset 0, expected offset 1000",
        ),
        (
            &[announced(call(0), 900), data(0, 901, Flags::LAST)],
            "ends at byte 901 of a body of 900",
        ),
        (
            &[announced(call(0), 900), data(0, 1 << 18, none)],
            "ends at byte 262144 of a body of 900",
        ),
        (
            &[announced(call(0), 900), data(0, u32::MAX, none)],
            "of 4294967295 bytes exceeds max_frame",
        ),
        (&[announced(call(0), 900), data(0, 900, none)], "of a body of 900 without LAST"),
        (&[announced(call(0), 900), data(0, 800, Flags::LAST)], "of a body of 900 with LAST"),
        (&[announced(call(0), 900), data(0, 0, none)], "empty DATA frame for call 0.0"),
        (&[announced(call(0), 900), data(0, 9, Flags::ABORTED)], "ABORTED DATA frame for call 0.0"),
        (&[announced(call(0), 900), announced(call(0), 900)], "second body for call 0.0"),
    ];
    for (frames, words) in cases {
        victim.assert_ends(&frames.concat(), words).await;
    }
}

async fn too_many_unfinished_bodies_end_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    // One slot used again and again without an end: each use is another call.
    let uses = (0..5000).map(|generation| {
        let slot = MAX_CALLS - 1;
        announced(CallId { slot, generation }, MAX_MESSAGE)
    });
    let bytes = uses.collect::<Vec<_>>().concat();
    victim.assert_ends(&bytes, "bodies arrive at a time").await;
}
