//! Peers that grant memory.

use verbwire_core::Body;
use verbwire_rdma::testing::{Fin, Frame, Grant, Name, Place, Rkey, RtsNumber};
use verbwire_tests::pattern;
use verbwire_tests::raw_rdma::{RawRdma, encode};

use crate::end::{End, call, drive, request, send, while_driven};
use crate::over_nics;
use crate::site::{LONG_BODY, Over, Site, assert_violations};
use crate::writers::{grant_id, names};

over_nics!(
    a_cts_that_nobody_asked_for_ends_the_connection,
    a_cts_must_be_as_long_as_asked_and_come_once,
    a_grant_must_lie_where_memory_can_be,
    a_body_is_written_into_memory_that_was_granted,
    a_forged_key_in_a_cts_costs_the_connection_and_nothing_else,
    a_stale_key_in_a_cts_costs_the_connection_and_nothing_else,
    a_peer_that_never_grants_costs_the_call_and_nothing_else,
    a_body_that_its_owner_does_not_want_is_forgotten,
);

/// How long a grant for a body of [`LONG_BODY`] must be.
const ROOM: usize = LONG_BODY + 4096;
const RIGHT: u64 = ROOM as u64;
/// A body of many Writes.
const MANY: usize = 4 << 20;

/// A grant of memory that is not there.
fn grant(index: u32, len: u64) -> Grant {
    Grant { id: grant_id(index), place: Place { address: 1 << 20, rkey: Rkey(7) }, len }
}

fn cts(grant: Grant) -> Vec<u8> {
    encode(Frame::Cts { rts: Some(RtsNumber(0)), grant })
}

/// A long body waits for the raw peer's grant. As a client or as a server, it is the same.
async fn asked(site: &mut Site) -> (End, RawRdma) {
    asked_for(site, LONG_BODY).await
}

/// The same with a body of this length.
async fn asked_for(site: &mut Site, len: usize) -> (End, RawRdma) {
    let (end, mut raw) = site.raw_server().await;
    send(&end, request(1, pattern::payload(len, 1))).await.expect("open");
    while_driven(&end, raw.receive()).await.expect("an RTS");
    (end, raw)
}

async fn a_cts_that_nobody_asked_for_ends_the_connection(over: Over) {
    let cases = [
        (cts(grant(0, 8192)), "CTS for RTS 0, which was never sent"),
        (
            encode(Frame::Cts { rts: None, grant: grant(0, 8192) }),
            "more than 0 standing grants at a time",
        ),
    ];
    assert_violations(over, &cases).await;
}

async fn a_cts_must_be_as_long_as_asked_and_come_once(over: Over) {
    let mut site = Site::new(over).await;
    for (len, words) in [
        (RIGHT + 1, "grant 0.0 of 104097 bytes, expected 104096: the body and 4096 more"),
        (RIGHT - 1, "grant 0.0 of 104095 bytes, expected 104096: the body and 4096 more"),
        // A body is not written in pieces of grants.
        (1, "grant 0.0 of 1 bytes, expected 104096: the body and 4096 more"),
        (0, "grant 0.0 of 0 bytes, expected 104096: the body and 4096 more"),
    ] {
        let (end, mut raw) = asked(&mut site).await;
        raw.send(&cts(grant(0, len)));
        assert_eq!(site.violation(end).await, words);
    }
    for (second, words) in
        [(1, "second CTS for RTS 0, grant 1.0"), (0, "second grant 0.0 while the first is open")]
    {
        // Far more than two Writes: it is still being written when the second grant comes. Later that would be late.
        let (end, mut raw) = asked_for(&mut site, MANY).await;
        for index in [0, second] {
            let place = raw.landing(MANY + 4096);
            raw.send(&cts(Grant { id: grant_id(index), place, len: MANY as u64 + 4096 }));
        }
        assert_eq!(site.violation(end).await, words);
    }
    site.close_clean().await;
}

async fn a_grant_must_lie_where_memory_can_be(over: Over) {
    let mut site = Site::new(over).await;
    for address in [(1 << 20) + 1, u64::MAX - 4095, u64::MAX - RIGHT + 1] {
        let (end, mut raw) = asked(&mut site).await;
        let place = Place { address, rkey: Rkey(7) };
        raw.send(&cts(Grant { place, ..grant(0, RIGHT) }));
        let words = format!(
            "grant 0.0 of 104096 bytes at 0x{address:x}, expected a multiple of 4096 and an end below 2^64"
        );
        assert_eq!(site.violation(end).await, words);
    }
    site.close_clean().await;
}

/// Grants memory for the RTS of this number, and waits for the FIN; what was written.
async fn take(end: &End, raw: &mut RawRdma, number: u32, len: usize) -> Vec<u8> {
    let place = raw.landing(len + 4096);
    let grant = Grant { id: grant_id(number), place, len: len as u64 + 4096 };
    raw.say(Frame::Cts { rts: Some(RtsNumber(number)), grant });
    let heard = while_driven(end, raw.heard()).await;
    let fin = match heard {
        Frame::Fin(Fin { grant: id, offset, len, .. }) => Some((id, offset as usize, len as usize)),
        _ => None,
    };
    let (id, offset, said) = fin.expect("a FIN");
    assert_eq!((id, said), (grant.id, len));
    raw.landed(place, offset..offset + len)
}

async fn a_body_is_written_into_memory_that_was_granted(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_server().await;
    // Far more segments than a work request has entries.
    let mut body = Body::default();
    let mut whole = Vec::new();
    for number in 0..100_usize {
        let segment = pattern::payload(300 + number * 7 % 5000, number as u64);
        whole.extend_from_slice(&segment);
        body.push(segment);
    }
    send(&end, request(0, body)).await.expect("open");
    while_driven(&end, raw.receive()).await.expect("an RTS");
    assert!(take(&end, &mut raw, 0, whole.len()).await == whole);
    site.retired(end).await;
    site.close_clean().await;
}

async fn a_forged_key_in_a_cts_costs_the_connection_and_nothing_else(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = asked(&mut site).await;
    raw.send(&cts(grant(0, RIGHT)));
    site.lost(end).await;
    site.close_clean().await;
}

async fn a_stale_key_in_a_cts_costs_the_connection_and_nothing_else(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = asked(&mut site).await;
    let place = raw.landing(ROOM);
    raw.deregister(place);
    raw.send(&cts(Grant { id: grant_id(0), place, len: RIGHT }));
    site.lost(end).await;
    raw.ended().await;
    assert!(raw.landed(place, 0..ROOM).iter().all(|byte| *byte == 0));
    site.close_clean().await;
}

async fn a_peer_that_never_grants_costs_the_call_and_nothing_else(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = asked(&mut site).await;
    end.revoke(call(1));
    let heard = while_driven(&end, raw.heard()).await;
    assert_eq!(heard, Frame::AbortAck(names(Name::Rts(RtsNumber(0)))));
    while_driven(&end, site.assert_pools_idle()).await;
    // A grant that comes now is late, and nothing is written there; the next one is for the next body.
    raw.send(&cts(grant(7, RIGHT)));
    let body = pattern::payload(LONG_BODY, 2);
    send(&end, request(2, body.clone())).await.expect("open");
    while_driven(&end, raw.receive()).await.expect("an RTS");
    assert!(take(&end, &mut raw, 1, LONG_BODY).await == body);
    site.retired(end).await;
    site.close_clean().await;
}

async fn a_body_that_its_owner_does_not_want_is_forgotten(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = asked(&mut site).await;
    raw.say(Frame::Abort(names(Name::Rts(RtsNumber(0)))));
    let body = pattern::payload(LONG_BODY, 2);
    send(&end, request(2, body.clone())).await.expect("open");
    while_driven(&end, raw.receive()).await.expect("an RTS");
    assert!(take(&end, &mut raw, 1, LONG_BODY).await == body);
    // And once more what is settled: that is no answer to anything.
    raw.say(Frame::Abort(names(Name::Rts(RtsNumber(0)))));
    raw.say(Frame::Abort(names(Name::Rts(RtsNumber(9)))));
    let error = drive(&end).await.to_string();
    assert!(error.ends_with("ABORT for RTS 9, which was never sent"), "{error}");
    site.retired(end).await;
    site.close_clean().await;
}
