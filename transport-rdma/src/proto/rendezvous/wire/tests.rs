use proptest::prelude::*;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::tlv::MANDATORY;
use verbwire_core::wire::{HEADER_LEN, WireError};

use super::*;

fn ids() -> impl Strategy<Value = GrantId> {
    (any::<u32>(), any::<u32>()).prop_map(|(index, generation)| GrantId { index, generation })
}

fn grants() -> impl Strategy<Value = Grant> {
    (ids(), any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(id, address, rkey, len)| Grant {
        id,
        place: Place { address, rkey: Rkey(rkey) },
        len,
    })
}

fn fins() -> impl Strategy<Value = Fin> {
    (ids(), any::<u32>(), any::<u32>(), prop::option::of(any::<u32>().prop_map(Crc)))
        .prop_map(|(grant, offset, len, crc)| Fin { grant, offset, len, crc })
}

fn numbers() -> impl Strategy<Value = RtsNumber> {
    any::<u32>().prop_map(RtsNumber)
}

fn names() -> impl Strategy<Value = Names> {
    let name = prop_oneof![numbers().prop_map(Name::Rts), ids().prop_map(Name::Grant)];
    prop::collection::vec(name, 1..=MAX_NAMES)
        .prop_map(|names| Names::first_of(names).expect("one at least"))
}

fn frames() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (prop::option::of(numbers()), grants()).prop_map(|(rts, grant)| Frame::Cts { rts, grant }),
        fins().prop_map(Frame::Fin),
        names().prop_map(Frame::Abort),
        names().prop_map(Frame::AbortAck),
    ]
}

fn tlvs(frame: &Frame) -> Vec<u8> {
    let mut tlvs = Vec::new();
    frame.encode_tlvs(&mut tlvs);
    tlvs
}

fn block(parts: &[(u16, &[u8])]) -> Vec<u8> {
    let mut tlvs = Vec::new();
    parts.iter().for_each(|(kind, value)| Tlv { kind: *kind, value }.encode(&mut tlvs));
    tlvs
}

fn header(kind: Kind) -> Header {
    let flags = Flags::BODY_FOLLOWS;
    Header { flags, ..Header::new(kind, CallId { slot: 0, generation: 0 }) }
}

proptest! {
    #[test]
    fn every_frame_survives_the_wire(frame in frames()) {
        let (header, tlvs) = (frame.header(), tlvs(&frame));
        prop_assert_eq!(tlvs.len(), usize::from(header.tlv_len));
        prop_assert!(HEADER_LEN + tlvs.len() <= 220, "it travels in its work request");
        prop_assert_eq!(Frame::decode(&header, &tlvs), Ok(frame));
    }

    #[test]
    fn extras_survive_the_wire_beside_the_core_s_tlvs(
        written in prop_oneof![
            numbers().prop_map(|rts| HeadExtras { rts: Some(rts), ..HeadExtras::default() }),
            fins().prop_map(|fin| HeadExtras { fin: Some(fin), ..HeadExtras::default() }),
            Just(HeadExtras::default()),
        ],
        reply in prop::option::of(grants()),
        unused in prop::option::of(ids()),
    ) {
        let mut tlvs = block(&[(MANDATORY | 1, b"/a/b")]);
        let before = tlvs.len();
        let request = HeadExtras { reply, ..written };
        request.encode(&mut tlvs);
        prop_assert_eq!(tlvs.len(), before + request.encoded_len());
        prop_assert_eq!(HeadExtras::decode(&header(Kind::Request), &tlvs), Ok(request));
        let response = HeadExtras { unused, ..written };
        let mut tlvs = Vec::new();
        response.encode(&mut tlvs);
        prop_assert_eq!(HeadExtras::decode(&header(Kind::Response), &tlvs), Ok(response));
    }

    #[test]
    fn no_bytes_can_panic_the_decoder(
        kind in 0..6_usize,
        tlvs in prop::collection::vec(any::<u8>(), 0..80),
        known in prop::sample::select(vec![RTS, GRANT, FIN, BODY_CRC, GRANT_ID]),
        len in 0..30_u8,
    ) {
        let kinds =
            [Kind::Request, Kind::Response, Kind::Cts, Kind::Fin, Kind::Abort, Kind::AbortAck];
        let [low, high] = known.to_le_bytes();
        let tlvs = [&[low, high, len, 0], &tlvs[..]].concat();
        let _frame = Frame::decode(&header(kinds[kind]), &tlvs);
        let _extras = HeadExtras::decode(&header(kinds[kind]), &tlvs);
    }
}

#[test]
fn a_tlv_of_another_length_is_refused() {
    for (kind, len) in [(RTS, 4), (GRANT, 28), (FIN, 16), (BODY_CRC, 4), (GRANT_ID, 8)] {
        for wrong in [0, len - 1, len + 1] {
            let tlvs = block(&[(kind, &vec![0; wrong])]);
            let error = HeadExtras::decode(&header(Kind::Request), &tlvs);
            assert_eq!(error, Err(WireError::TlvValue(kind)));
        }
    }
}

#[test]
fn a_tlv_is_there_once_and_where_it_belongs() {
    let (rts, fin, grant, id) =
        ((RTS, &[0; 4][..]), (FIN, &[0; 16][..]), (GRANT, &[0; 28][..]), (GRANT_ID, &[0; 8][..]));
    let misplaced = |kind, tlv| Err(WireError::MisplacedTlv { kind, tlv });
    let heads = [
        (Kind::Request, vec![rts, rts], Err(WireError::RepeatedTlv(RTS))),
        (Kind::Request, vec![rts, fin], misplaced(Kind::Request, FIN)),
        (Kind::Request, vec![id], misplaced(Kind::Request, GRANT_ID)),
        (Kind::Response, vec![grant], misplaced(Kind::Response, GRANT)),
        (Kind::Cancel, vec![rts], misplaced(Kind::Cancel, RTS)),
        (Kind::Request, vec![(0xa999, b"")], Err(WireError::MandatoryTlv(0xa999))),
        (Kind::Request, vec![(0x2999, b"")], Ok(HeadExtras::default())),
    ];
    for (kind, parts, expected) in heads {
        assert_eq!(HeadExtras::decode(&header(kind), &block(&parts)), expected, "{kind:?}");
    }
    let misplaced = |kind, tlv| Err(WireError::MisplacedTlv { kind, tlv });
    let missing = |kind, tlv| Err(WireError::MissingTlv { kind, tlv });
    let frames = [
        (Kind::Cts, vec![rts], missing(Kind::Cts, GRANT)),
        (Kind::Cts, vec![grant, grant], Err(WireError::RepeatedTlv(GRANT))),
        (Kind::Cts, vec![grant, fin], misplaced(Kind::Cts, FIN)),
        (Kind::Fin, vec![], missing(Kind::Fin, FIN)),
        (Kind::Fin, vec![fin, rts], misplaced(Kind::Fin, RTS)),
        (Kind::Abort, vec![], missing(Kind::Abort, GRANT_ID)),
        (Kind::AbortAck, vec![id, grant], misplaced(Kind::AbortAck, GRANT)),
        (Kind::Abort, vec![(MANDATORY | 1, b"")], Err(WireError::MandatoryTlv(MANDATORY | 1))),
    ];
    for (kind, parts, expected) in frames {
        assert_eq!(Frame::decode(&header(kind), &block(&parts)), expected, "{kind:?}");
    }
}

#[test]
fn a_head_whose_body_is_written_says_that_it_follows() {
    let bare = Header { flags: Flags::default(), ..header(Kind::Request) };
    for part in [(RTS, &[0; 4][..]), (FIN, &[0; 16][..])] {
        let error = HeadExtras::decode(&bare, &block(&[part])).expect_err("no BODY_FOLLOWS");
        assert_eq!(error.to_string(), "flags is 0, a body that is written has BODY_FOLLOWS");
    }
}

#[test]
fn frames_about_grants_have_no_body_and_at_most_fifteen_names() {
    let id = (GRANT_ID, &[0; 8][..]);
    let names = block(&[id; MAX_NAMES]);
    assert!(Frame::decode(&header(Kind::Abort), &names).is_ok());
    let more = block(&[id; MAX_NAMES + 1]);
    let error = Frame::decode(&header(Kind::Abort), &more).expect_err("sixteen");
    assert_eq!(error.to_string(), "tlv_len is 192, at most 15 names are accepted");
    for bad in [
        Header { body_len: 1, ..header(Kind::Abort) },
        Header { metadata_len: 1, ..header(Kind::Abort) },
    ] {
        assert!(matches!(Frame::decode(&bad, &names), Err(WireError::Field { value: 1, .. })));
    }
}

#[test]
fn numbers_are_compared_around_their_end() {
    let last = RtsNumber(u32::MAX);
    assert_eq!(last.following(), RtsNumber(0));
    assert!(last.is_before(RtsNumber(0)) && RtsNumber(0).is_before(RtsNumber(1 << 31)));
    assert!(!RtsNumber(0).is_before(RtsNumber(0)) && !RtsNumber(1).is_before(RtsNumber(0)));
}
