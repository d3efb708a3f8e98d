//! Peers that write into memory that they were granted, or say that they did.

use std::time::Duration;

use verbwire_core::message::CallId;
use verbwire_core::wire::{Header, Hello, Kind};
use verbwire_rdma::testing::{Crc, Fin, Frame, Grant, GrantId, HeadExtras, Name, Names, RtsNumber};
use verbwire_tests::pattern;
use verbwire_tests::raw::hello;
use verbwire_tests::raw_rdma::{RawRdma, encode, head, head_of, rts};

use crate::end::{End, call, drive, receive_one, side, while_driven};
use crate::over_nics;
use crate::site::{LONG_BODY, Over, Site, assert_violations};

over_nics!(
    frames_about_what_never_was_end_the_connection,
    a_fin_must_be_the_first_of_its_grant_and_say_what_the_head_said,
    a_grant_of_another_connection_is_nobodys_here,
    bodies_of_any_length_are_taken_and_none_beyond_the_limit,
    a_body_may_come_in_pieces_of_one_byte,
    more_rts_than_the_limit_end_the_connection,
    an_rts_that_is_repeated_ends_the_connection,
    a_grant_that_the_writer_gives_back_is_free_and_closed,
    a_peer_that_never_finishes_loses_its_queue_pair,
    a_peer_that_never_finishes_and_talks_on_keeps_its_memory_in_quarantine,
);

pub(crate) const LEN: u32 = 100_000;
const _: () = assert!(LEN as usize == LONG_BODY);

pub(crate) fn grant_id(index: u32) -> GrantId {
    GrantId { index, generation: 0 }
}

pub(crate) fn fin(grant: GrantId, offset: u32, len: u32) -> Vec<u8> {
    encode(Frame::Fin(Fin { grant, offset, len, crc: None }))
}

pub(crate) fn names(name: Name) -> Names {
    Names::first_of([name]).expect("one")
}

/// An RTS of a call that has so many microseconds.
fn rts_within(call: CallId, number: u32, time_us: u64) -> Vec<u8> {
    let header = Header { method: 1, time_us, ..Header::new(Kind::Request, call) };
    let extras = HeadExtras { rts: Some(RtsNumber(number)), ..HeadExtras::default() };
    head_of(header, LEN, extras)
}

/// The grant that the end gives for the RTS that the raw peer has sent.
pub(crate) async fn granted(end: &End, raw: &mut RawRdma) -> Grant {
    let heard = while_driven(end, raw.heard()).await;
    let grant = match heard {
        Frame::Cts { grant, .. } => Some(grant),
        _ => None,
    };
    assert!(grant.is_some(), "expected a CTS, heard {heard:?}");
    grant.expect("looked at above")
}

async fn frames_about_what_never_was_end_the_connection(over: Over) {
    let forged = grant_id(3);
    let cases = [
        (rts(call(1), 1, LEN), "RTS 1, expected 0: a writer counts them"),
        (fin(forged, 0, LEN), "FIN for grant 3.0, which was never given"),
        (
            encode(Frame::AbortAck(names(Name::Grant(forged)))),
            "ABORT_ACK for grant 3.0, which was never given",
        ),
        (
            encode(Frame::AbortAck(names(Name::Rts(RtsNumber(0))))),
            "ABORT_ACK for RTS 0, which was never sent",
        ),
        (
            encode(Frame::Abort(names(Name::Rts(RtsNumber(0))))),
            "ABORT for RTS 0, which was never sent",
        ),
    ];
    assert_violations(over, &cases).await;
}

async fn a_fin_must_be_the_first_of_its_grant_and_say_what_the_head_said(over: Over) {
    type Finish = fn(GrantId) -> Vec<Vec<u8>>;
    let cases: [(Finish, &str); 6] = [
        (
            |id| vec![fin(id, 0, LEN - 1)],
            "FIN for grant 0.0 with a body of 99999 bytes, expected 100000",
        ),
        (|id| vec![fin(id, 4097, LEN)], "FIN for grant 0.0 with bytes 4097 to 104097 of 104096"),
        (
            |id| vec![fin(id, u32::MAX, LEN)],
            "FIN for grant 0.0 with bytes 4294967295 to 4295067295 of 104096",
        ),
        (|id| vec![fin(id, 0, LEN), fin(id, 0, LEN)], "FIN for grant 0.0, which is closed"),
        (
            |grant| {
                let crc = Some(Crc(1));
                vec![encode(Frame::Fin(Fin { grant, offset: 0, len: LEN, crc }))]
            },
            "a body with CRC32C 0x",
        ),
        (
            // A REQUEST that says that its body is in memory which was granted for another one.
            |grant| {
                let fin = Some(Fin { grant, offset: 0, len: LEN, crc: None });
                vec![head(call(2), LEN, HeadExtras { fin, ..HeadExtras::default() })]
            },
            "FIN in a REQUEST for grant 0.0, which was given for something else",
        ),
    ];
    let mut site = Site::new(over).await;
    for (finish, words) in &cases {
        let (end, mut raw) = site.raw_client().await;
        raw.send(&rts(call(0), 0, LEN));
        let grant = granted(&end, &mut raw).await;
        finish(grant.id).iter().for_each(|fin| raw.send(fin));
        let told = site.violation(end).await;
        assert!(told.starts_with(words), "{told}");
    }
    site.close_clean().await;
}

async fn a_grant_of_another_connection_is_nobodys_here(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    let (foreign_end, mut foreigner) = site.raw_client().await;
    raw.send(&rts(call(0), 0, LEN));
    let grant = granted(&end, &mut raw).await;
    foreigner.send(&fin(grant.id, 0, LEN));
    let error = drive(&foreign_end).await;
    let words = "FIN for grant 0.0, which was never given";
    assert_eq!(error.to_string(), format!("the peer broke the protocol: {words}"));
    foreign_end.close(error);
    foreign_end.retire().await;
    // Whose it is goes on.
    let body = pattern::payload(LONG_BODY, 1);
    raw.write(grant.place, &body);
    raw.send(&fin(grant.id, 0, LEN));
    assert!(receive_one(&end).await.body.into_bytes() == body);
    site.retired(end).await;
    site.close_clean().await;
}

/// A side that takes bodies of a megabyte.
fn megabyte() -> Hello {
    Hello { max_message_size: 1 << 20, ..hello() }
}

async fn bodies_of_any_length_are_taken_and_none_beyond_the_limit(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client_of(side(megabyte())).await;
    for (number, len) in (0..).zip([1, 4095, (32 << 10) - 1, 32 << 10, (32 << 10) + 1]) {
        let body = pattern::payload(len as usize, len.into());
        raw.send(&rts(call(number), number, len));
        let grant = granted(&end, &mut raw).await;
        raw.write(grant.place, &body);
        raw.send(&fin(grant.id, 0, len));
        assert!(receive_one(&end).await.body.into_bytes() == body, "{len} bytes");
    }
    let max = 1 << 20;
    let body = pattern::payload(max as usize, 2);
    raw.send(&rts(call(9), 5, max));
    let mut grant = granted(&end, &mut raw).await;
    // At the very end of what is granted.
    grant.place.address += 4096;
    raw.write(grant.place, &body);
    raw.send(&fin(grant.id, 4096, max));
    assert!(receive_one(&end).await.body.into_bytes() == body);
    site.retired(end).await;
    for (len, words) in [
        (0, "body_len is 0, a body that is written has a byte at least"),
        (max + 1, "body of 1048577 bytes exceeds max_message_size of 1048576 bytes"),
        (u32::MAX, "body of 4294967295 bytes exceeds max_message_size of 1048576 bytes"),
    ] {
        let (end, mut raw) = site.raw_client_of(side(megabyte())).await;
        raw.send(&rts(call(0), 0, len));
        assert_eq!(site.violation(end).await, words);
    }
    site.close_clean().await;
}

async fn a_body_may_come_in_pieces_of_one_byte(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    let body = pattern::payload(100, 1);
    raw.send(&rts(call(0), 0, 100));
    let grant = granted(&end, &mut raw).await;
    // The last one first.
    for (at, byte) in (0..100_u32).zip(&body).rev() {
        let mut place = grant.place;
        place.address += u64::from(at);
        raw.write(place, &[*byte]);
    }
    raw.send(&fin(grant.id, 0, 100));
    assert!(receive_one(&end).await.body.into_bytes() == body);
    site.retired(end).await;
    site.close_clean().await;
}

async fn more_rts_than_the_limit_end_the_connection(over: Over) {
    let mut site = Site::new(over).await;
    let few = Hello { max_concurrent_calls: 1, ..hello() };
    let theirs = Hello { max_concurrent_calls: 1, ..RawRdma::hello() };
    let (end, mut raw) = site.raw_client_as(side(few), &theirs).await;
    (0..66).for_each(|number| raw.send(&rts(call(number), number, LEN)));
    let words = "more than 65 bodies wait or are written at a time; \
                 the limit follows from max_concurrent_calls";
    assert_eq!(site.violation(end).await, words);
    site.close_clean().await;
}

async fn an_rts_that_is_repeated_ends_the_connection(over: Over) {
    let mut site = Site::new(over).await;
    for (second, words) in [
        (0, "RTS 0, expected 1: a writer counts them"),
        (2, "RTS 2, expected 1: a writer counts them"),
        (u32::MAX, "RTS 4294967295, expected 1: a writer counts them"),
    ] {
        let (end, mut raw) = site.raw_client().await;
        raw.send(&rts(call(0), 0, LEN));
        granted(&end, &mut raw).await;
        raw.send(&rts(call(1), second, LEN));
        assert_eq!(site.violation(end).await, words);
    }
    site.close_clean().await;
}

async fn a_grant_that_the_writer_gives_back_is_free_and_closed(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    raw.send(&rts(call(0), 0, LEN));
    let grant = granted(&end, &mut raw).await;
    raw.write(grant.place, &[1; 5000]);
    raw.say(Frame::AbortAck(names(Name::Grant(grant.id))));
    while_driven(&end, site.assert_pools_idle()).await;
    // The message is void, and the connection goes on.
    raw.send(&rts(call(1), 1, LEN));
    let next = granted(&end, &mut raw).await;
    assert_ne!(next.id, grant.id, "another use of the same entry");
    raw.send(&fin(grant.id, 0, LEN));
    let words = format!("FIN for grant {}, which is closed", grant.id);
    assert_eq!(site.violation(end).await, words);
    site.close_clean().await;
}

/// A writer that was granted memory whose call is over.
async fn unfinished(site: &mut Site) -> (End, RawRdma, Grant) {
    let (end, mut raw) = site.raw_client().await;
    raw.send(&rts_within(call(0), 0, 300_000));
    let grant = granted(&end, &mut raw).await;
    raw.write(grant.place, &[1; 5000]);
    let heard = while_driven(&end, raw.heard()).await;
    assert_eq!(heard, Frame::Abort(names(Name::Grant(grant.id))));
    let quarantined = site.transports[1].pools().landing.quarantined_bytes;
    assert!(quarantined >= LONG_BODY, "{quarantined} bytes");
    (end, raw, grant)
}

async fn a_peer_that_never_finishes_loses_its_queue_pair(over: Over) {
    let mut site = Site::new(over).await;
    let (end, raw, _grant) = unfinished(&mut site).await;
    assert_cut_off(site, end, raw).await;
}

/// The peer keeps a grant that was revoked, says nothing more, and loses its queue pair.
pub(crate) async fn assert_cut_off(mut site: Site, end: End, mut raw: RawRdma) {
    let error = drive(&end).await;
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    let words = "the peer left 1 aborted grants open and sent nothing for 2s (revoke_timeout)";
    assert_eq!(source, words, "{error}");
    site.retired(end).await;
    raw.ended().await;
    site.close_clean().await;
}

async fn a_peer_that_never_finishes_and_talks_on_keeps_its_memory_in_quarantine(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw, grant) = unfinished(&mut site).await;
    for _ in 0..8 {
        raw.send_frame(Header::new(Kind::Cancel, call(7)), b"");
        while_driven(&end, tokio::time::sleep(Duration::from_millis(500))).await;
    }
    // Time proves nothing; nobody else is given it meanwhile.
    assert!(site.transports[1].pools().landing.quarantined_bytes >= LONG_BODY);
    site.assert_others_served().await;
    raw.say(Frame::AbortAck(names(Name::Grant(grant.id))));
    while_driven(&end, site.assert_pools_idle()).await;
    site.retired(end).await;
    site.close_clean().await;
}
