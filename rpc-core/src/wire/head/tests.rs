use super::*;
use proptest::prelude::*;

const PLAIN: EncodingId = EncodingId::NONE;

fn round_trip(head: &Head, encoding: EncodingId) -> Result<(Head, EncodingId), WireError> {
    let header = header(head, encoding);
    let mut tlvs = Vec::new();
    encode_tlvs(head, encoding, &mut tlvs);
    assert_eq!(tlvs.len(), usize::from(header.tlv_len));
    decode(&Header::decode(&header.encode())?, &tlvs)
}

fn heads() -> impl Strategy<Value = Head> {
    let call =
        (any::<u32>(), any::<u32>()).prop_map(|(slot, generation)| CallId { slot, generation });
    let executed = prop::sample::select(vec![Executed::No, Executed::Maybe, Executed::Yes]);
    let code = prop::sample::select(Code::ALL.to_vec());
    let form = prop::sample::select(vec![Form::Whole, Form::Stream]);
    let reply = prop::sample::select(vec![ReplyForm::Whole, ReplyForm::Stream, ReplyForm::Either]);
    let path = prop::option::of("/[a-z.]{0,40}/[A-Z]{1,9}");
    let slot = (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(id, slot, sequence)| {
        Box::new(SlotUse { session: SessionId(id), slot, sequence })
    });
    let slot = prop::option::of(slot);
    prop_oneof![
        (call.clone(), any::<u32>(), path, any::<u64>(), (form, reply), slot).prop_map(
            |(call, method, path, time_us, (form, reply), slot)| Head::Request {
                call,
                method: MethodId(method),
                path: path.map(Cow::Owned),
                timeout: Duration::from_micros(time_us),
                form,
                reply,
                slot,
            }
        ),
        (call.clone(), code, executed.clone(), any::<Option<u32>>()).prop_map(
            |(call, code, executed, messages)| Head::Response { call, code, executed, messages }
        ),
        (call.clone(), any::<u32>()).prop_map(|(call, number)| Head::Message { call, number }),
        (call.clone(), any::<u32>()).prop_map(|(call, messages)| Head::End { call, messages }),
        call.clone().prop_map(|call| Head::Headers { call }),
        (call.clone(), any::<u64>()).prop_map(|(call, granted)| Head::Window { call, granted }),
        call.clone().prop_map(|call| Head::Cancel { call }),
        (call, executed).prop_map(|(call, executed)| Head::Cancelled { call, executed }),
        Just(Head::Ping),
        Just(Head::Pong),
        any::<u32>().prop_map(|number| Head::GoAway { reason: reason(number) }),
    ]
}

proptest! {
    #[test]
    fn every_head_survives_the_wire(head in heads(), encoding in any::<u8>()) {
        let encoding = EncodingId(encoding);
        prop_assert_eq!(round_trip(&head, encoding), Ok((head, encoding)));
    }

    #[test]
    fn no_bytes_can_panic_the_decoder(
        bytes in prop::array::uniform32(any::<u8>()),
        tail in prop::array::uniform8(any::<u8>()),
        tlvs in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut all = [0; HEADER_LEN];
        all[..32].copy_from_slice(&bytes);
        all[32..].copy_from_slice(&tail);
        if let Ok(header) = Header::decode(&all) {
            let _ = decode(&header, &tlvs);
        }
    }
}

#[test]
fn unknown_optional_tlvs_are_skipped_and_mandatory_ones_refused() {
    let cancel = header(&Head::Cancel { call: NO_CALL }, PLAIN);
    let mut tlvs = Vec::new();
    Tlv { kind: 0x1234, value: b"later" }.encode(&mut tlvs);
    assert_eq!(decode(&cancel, &tlvs), Ok((Head::Cancel { call: NO_CALL }, PLAIN)));
    Tlv { kind: 0x1234 | MANDATORY, value: b"" }.encode(&mut tlvs);
    assert_eq!(decode(&cancel, &tlvs), Err(WireError::MandatoryTlv(0x9234)));
}

#[test]
fn a_transport_that_has_tlvs_looks_at_its_own() {
    let cancel = header(&Head::Cancel { call: NO_CALL }, PLAIN);
    let block = |kind| {
        let mut tlvs = Vec::new();
        Tlv { kind, value: b"" }.encode(&mut tlvs);
        tlvs
    };
    for kind in [MANDATORY | 0x2000, MANDATORY | 0x3fff] {
        let head = decode_beside_transport(&cancel, &block(kind));
        assert_eq!(head, Ok((Head::Cancel { call: NO_CALL }, PLAIN)));
        assert_eq!(decode(&cancel, &block(kind)), Err(WireError::MandatoryTlv(kind)));
    }
    for kind in [MANDATORY | 0x1fff, MANDATORY | 0x4000] {
        let head = decode_beside_transport(&cancel, &block(kind));
        assert_eq!(head, Err(WireError::MandatoryTlv(kind)));
    }
}

#[test]
fn a_use_of_a_slot_of_another_length_is_refused() {
    let request = Header::new(Kind::Request, NO_CALL);
    for len in [0, SLOT_LEN - 1, SLOT_LEN + 1] {
        let mut tlvs = Vec::new();
        Tlv { kind: SLOT, value: &[1; SLOT_LEN + 1][..len] }.encode(&mut tlvs);
        assert_eq!(decode(&request, &tlvs), Err(WireError::TlvValue(SLOT)));
    }
}

#[test]
fn a_tlv_that_may_be_there_once_is_refused_the_second_time() {
    let request = Header::new(Kind::Request, NO_CALL);
    for (kind, value) in [(METHOD_PATH, &b"/a.A/A"[..]), (SLOT, &[1; SLOT_LEN]), (ENCODING, &[1])] {
        let mut tlvs = Vec::new();
        Tlv { kind, value }.encode(&mut tlvs);
        decode(&request, &tlvs).expect("once");
        Tlv { kind, value }.encode(&mut tlvs);
        assert_eq!(decode(&request, &tlvs), Err(WireError::RepeatedTlv(kind)));
    }
}

#[test]
fn an_encoding_of_another_length_than_a_byte_is_refused() {
    let message = Header::new(Kind::Message, NO_CALL);
    for value in [&[][..], &[1, 0]] {
        let mut tlvs = Vec::new();
        Tlv { kind: ENCODING, value }.encode(&mut tlvs);
        assert_eq!(decode(&message, &tlvs), Err(WireError::TlvValue(ENCODING)));
    }
}

#[test]
fn a_path_that_is_no_text_or_too_long_is_refused() {
    let request = Header::new(Kind::Request, NO_CALL);
    for value in [&b"/\xff"[..], &[b'a'; MAX_PATH + 1]] {
        let mut tlvs = Vec::new();
        Tlv { kind: METHOD_PATH, value }.encode(&mut tlvs);
        assert_eq!(decode(&request, &tlvs), Err(WireError::TlvValue(METHOD_PATH)));
    }
}
