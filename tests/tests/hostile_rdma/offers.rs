//! Grants that come with requests, for their replies.

use bytes::{BufMut, Bytes, BytesMut};
use verbwire_core::message::CallId;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Kind};
use verbwire_rdma::testing::{Fin, Grant, GrantId, HeadExtras, Place, Rkey};
use verbwire_tests::pattern;
use verbwire_tests::raw_rdma::{RawRdma, head_of};

use crate::end::{End, ask, call, drive, receive_one, response, send, slot, while_driven};
use crate::over_nics;
use crate::site::{LONG_BODY, Over, Site};
use crate::writers::{LEN, grant_id};

over_nics!(
    an_offer_that_is_no_memory_ends_the_connection,
    a_reply_must_keep_to_what_its_request_offered,
    a_reply_that_says_nothing_of_the_offer_leaves_it_open,
    a_reply_that_is_longer_than_expected_asks_like_any_other,
);

/// A message with a short body, and what it says of grants.
fn message(header: Header, extras: HeadExtras, body: &[u8]) -> Vec<u8> {
    let header = Header {
        tlv_len: u16::try_from(extras.encoded_len()).expect("short"),
        body_len: u32::try_from(body.len()).expect("short"),
        ..header
    };
    let mut bytes = BytesMut::new();
    bytes.put_slice(&header.encode());
    extras.encode(&mut bytes);
    bytes.put_slice(body);
    bytes.to_vec()
}

/// A REQUEST that offers memory for its reply.
fn offer(slot: u32, grant: Grant) -> Vec<u8> {
    let header =
        Header { method: 1, time_us: 60_000_000, ..Header::new(Kind::Request, call(slot)) };
    message(header, HeadExtras { reply: Some(grant), ..HeadExtras::default() }, b"")
}

async fn an_offer_that_is_no_memory_ends_the_connection(over: Over) {
    let place = |address| Place { address, rkey: Rkey(7) };
    let grant = |index, address, len| Grant { id: grant_id(index), place: place(address), len };
    let page = 1 << 20;
    let cases = [
        (
            vec![grant(0, page, 4096)],
            "grant 0.0 of 4096 bytes, expected 4097: the body and 4096 more",
        ),
        (
            vec![grant(0, page + 1, 8192)],
            "grant 0.0 of 8192 bytes at 0x100001, expected a multiple of 4096 and an end below 2^64",
        ),
        (
            vec![grant(0, page, u64::MAX)],
            "grant 0.0 of 18446744073709551615 bytes at 0x100000, expected a multiple of 4096 and an end below 2^64",
        ),
        (
            vec![grant(0, page, 8192), grant(0, page, 8192)],
            "second grant 0.0 while the first is open",
        ),
    ];
    let mut site = Site::new(over).await;
    for (grants, words) in cases {
        let (end, mut raw) = site.raw_client().await;
        for (slot, grant) in (0..).zip(grants) {
            raw.send(&offer(slot, grant));
        }
        assert_eq!(site.violation(end).await, words);
    }
    site.close_clean().await;
}

/// The transport under attack has landing memory, from a reply before.
async fn warm(site: &mut Site) {
    let [near, far] = site.pair().await;
    // A request the other way.
    ask(&far, 0, LONG_BODY as u64).await;
    while_driven(&far, receive_one(&near)).await;
    send(&near, response(0, pattern::payload(LONG_BODY, 1))).await.expect("open");
    while_driven(&near, receive_one(&far)).await;
    far.retire().await;
    near.retire().await;
    site.assert_pools_idle().await;
}

/// A raw server that was offered memory in the REQUEST of call 1.
async fn offered(site: &mut Site) -> (End, RawRdma, Grant) {
    let (end, mut raw) = site.raw_server().await;
    ask(&end, 1, u64::from(LEN)).await;
    let request = while_driven(&end, raw.receive()).await.expect("a REQUEST");
    let (header, behind) = request.split_first_chunk().expect("a header");
    let header = Header::decode(header).expect("honest");
    let tlvs = &behind[..usize::from(header.tlv_len)];
    let extras = HeadExtras::decode(&header, tlvs).expect("honest");
    let grant = extras.reply.expect("there is memory, so it is offered");
    assert_eq!(grant.len, u64::from(LEN) + 4096);
    (end, raw, grant)
}

/// The header of a RESPONSE that succeeds.
fn reply_to(call: CallId) -> Header {
    let executed = Flags(2 << Flags::EXECUTED_SHIFT);
    Header { flags: executed, ..Header::new(Kind::Response, call) }
}

fn written(call: CallId, fin: Fin) -> Vec<u8> {
    head_of(reply_to(call), fin.len, HeadExtras { fin: Some(fin), ..HeadExtras::default() })
}

fn unused(call: CallId, grant: Grant) -> Vec<u8> {
    let extras = HeadExtras { unused: Some(grant.id), ..HeadExtras::default() };
    message(reply_to(call), extras, b"short")
}

async fn a_reply_must_keep_to_what_its_request_offered(over: Over) {
    type Answer = fn(Grant) -> Vec<Vec<u8>>;
    let cases: [(Answer, &str); 5] = [
        (
            |grant| {
                let fin = Fin { grant: grant.id, offset: 4095, len: LEN + 2, crc: None };
                vec![written(call(1), fin)]
            },
            "with bytes 4095 to 104097 of 104096",
        ),
        (
            |grant| {
                let fin = Fin { grant: grant.id, offset: 0, len: LEN, crc: None };
                vec![written(call(2), fin)]
            },
            "FIN in the RESPONSE of call 2.1 for grant",
        ),
        (|grant| vec![unused(call(1), grant), unused(call(1), grant)], "which is closed"),
        (
            |grant| {
                let fin = Fin { grant: grant.id, offset: 0, len: LEN, crc: None };
                vec![written(call(1), fin), written(call(1), fin)]
            },
            "which is closed",
        ),
        (
            |grant| {
                let id = GrantId { index: 9, ..grant.id };
                vec![unused(call(1), Grant { id, ..grant })]
            },
            "ABORT_ACK for grant 9.",
        ),
    ];
    let mut site = Site::new(over).await;
    warm(&mut site).await;
    for (answer, words) in cases {
        let (end, mut raw, grant) = offered(&mut site).await;
        answer(grant).iter().for_each(|bytes| raw.send(bytes));
        let told = site.violation(end).await;
        assert!(told.contains(words), "{told}");
    }
    site.close_clean().await;
}

async fn a_reply_that_says_nothing_of_the_offer_leaves_it_open(over: Over) {
    let mut site = Site::new(over).await;
    warm(&mut site).await;
    let (end, mut raw, _grant) = offered(&mut site).await;
    raw.send(&message(reply_to(call(1)), HeadExtras::default(), b"short"));
    assert_eq!(receive_one(&end).await.body.into_bytes(), Bytes::from_static(b"short"));
    // The memory is asked back, and nobody answers.
    let error = drive(&end).await;
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("left 1 aborted grants open"), "{error}: {source}");
    site.retired(end).await;
    site.close_clean().await;
}

async fn a_reply_that_is_longer_than_expected_asks_like_any_other(over: Over) {
    let mut site = Site::new(over).await;
    warm(&mut site).await;
    let [near, far] = site.pair().await;
    for (number, len) in (0..).zip([LONG_BODY, LONG_BODY + 1, 3 * LONG_BODY, 10]) {
        ask(&far, number, LONG_BODY as u64).await;
        while_driven(&far, receive_one(&near)).await;
        let body = pattern::payload(len, 1);
        send(&near, response(number, body.clone())).await.expect("open");
        let reply = while_driven(&near, receive_one(&far)).await;
        assert_eq!(slot(&reply), number);
        assert!(reply.body.into_bytes() == body, "{len} bytes");
        let idle = site.assert_pools_idle();
        while_driven(&near, while_driven(&far, idle)).await;
    }
    near.retire().await;
    site.retired(far).await;
    site.close_clean().await;
}
