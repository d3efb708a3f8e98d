//! Clients that were given grants for requests to come, and use them as they must not.

use verbwire_core::wire::Hello;
use verbwire_rdma::testing::{
    Crc, Fin, Frame, Grant, GrantId, HeadExtras, Name, Place, Rkey, WcStatus,
};
use verbwire_rdma::{Peers, RdmaConfig};
use verbwire_tests::pattern;
use verbwire_tests::raw_rdma::{RawRdma, encode, head};

use crate::end::{End, call, plain, receive_one, request, send, while_driven};
use crate::over_nics;
use crate::site::{LONG_BODY, Over, Site, exact};
use crate::writers::{LEN, assert_cut_off, names};

over_nics!(
    a_standing_grant_is_used_once_and_within_its_length,
    a_write_beyond_a_standing_grant_costs_the_connection_and_nothing_else,
    a_standing_grant_that_was_given_back_is_closed,
    a_request_that_crosses_the_end_of_its_standing_grant_counts,
    a_client_that_keeps_a_standing_grant_that_is_wanted_back_is_cut_off,
);

/// Memory of one grant.
const REGION: usize = (LONG_BODY + 4096).next_multiple_of(4096);

/// Each client is given one grant. Only where there are windows may it be a stranger.
fn config(over: Over) -> RdmaConfig {
    let mut config = exact();
    (config.standing_grants, config.standing_grant_len) = (1, LEN);
    config.peers = if over.has_windows() { Peers::Untrusted } else { Peers::Trusted };
    config
}

/// The same, with memory for three grants.
fn narrow(over: Over) -> RdmaConfig {
    let mut config = config(over);
    let size = &mut config.landing.size;
    (size.longest, size.slab_len, size.cap) = (LONG_BODY, 1, 3 * REGION);
    (config.landing.pinned_budget, config.landing.quarantine_cap) = (4 * REGION, 8 * REGION);
    config
}

/// A raw client with its grant.
async fn given(site: &mut Site) -> (End, RawRdma, Grant) {
    let theirs = Hello { standing_grants: 8, ..RawRdma::hello() };
    let (end, mut raw) = site.raw_client_as(plain(), &theirs).await;
    let grant = again(&end, &mut raw).await;
    assert_eq!(grant.len, u64::from(LEN) + 4096);
    (end, raw, grant)
}

/// The next grant that nobody asked for.
async fn again(end: &End, raw: &mut RawRdma) -> Grant {
    let heard = while_driven(end, raw.heard()).await;
    let grant = match heard {
        Frame::Cts { rts: None, grant } => Some(grant),
        _ => None,
    };
    assert!(grant.is_some(), "expected a standing grant, heard {heard:?}");
    grant.expect("looked at above")
}

/// A REQUEST that says that its body of `len` bytes is written.
fn written(number: u32, grant: GrantId, (offset, len): (u32, u32), crc: Option<Crc>) -> Vec<u8> {
    let fin = Some(Fin { grant, offset, len, crc });
    head(call(number), len, HeadExtras { fin, ..HeadExtras::default() })
}

/// The same of the whole length.
fn whole(number: u32, grant: GrantId) -> Vec<u8> {
    written(number, grant, (0, LEN), None)
}

async fn a_standing_grant_is_used_once_and_within_its_length(over: Over) {
    type Requests = fn(GrantId) -> Vec<Vec<u8>>;
    let cases: [(Requests, &str); 7] = [
        (|id| vec![whole(0, id), whole(1, id)], "for grant 0.0, which is closed"),
        (
            |id| vec![whole(0, GrantId { generation: id.generation + 1, ..id })],
            "for grant 0.1, which was never given",
        ),
        (
            |id| vec![whole(0, GrantId { index: id.index + 1, ..id })],
            "for grant 1.0, which was never given",
        ),
        (
            |id| vec![written(0, id, (4097, LEN), None)],
            "for grant 0.0 with bytes 4097 to 104097 of 104096",
        ),
        (
            |id| vec![written(0, id, (0, LEN + 4097), None)],
            "for grant 0.0 with bytes 0 to 104097 of 104096",
        ),
        (|id| vec![written(0, id, (0, LEN), Some(Crc(1)))], "a body with CRC32C 0x"),
        // The frame is for bodies that were asked for.
        (
            |grant| vec![encode(Frame::Fin(Fin { grant, offset: 0, len: LEN, crc: None }))],
            "FIN in a frame of its own for grant 0.0, which was given for something else",
        ),
    ];
    let mut site = Site::standing(over, config(over)).await;
    for (requests, words) in &cases {
        let (end, mut raw, grant) = given(&mut site).await;
        requests(grant.id).iter().for_each(|request| raw.send(request));
        let told = site.violation(end).await;
        assert!(told.contains(words), "{told}");
    }
    // Kept to its rules it serves, and is given anew.
    let (end, mut raw, mut grant) = given(&mut site).await;
    for number in 0..3 {
        let body = pattern::payload(LONG_BODY, number.into());
        raw.write(grant.place, &body);
        raw.send(&whole(number, grant.id));
        assert!(receive_one(&end).await.body.into_bytes() == body);
        grant = again(&end, &mut raw).await;
    }
    site.retired(end).await;
    site.close_clean().await;
}

async fn a_write_beyond_a_standing_grant_costs_the_connection_and_nothing_else(over: Over) {
    let mut beyond: Vec<fn(Grant) -> Place> =
        vec![|grant| Place { address: grant.place.address + (1 << 30), ..grant.place }, |grant| {
            Place { rkey: Rkey(grant.place.rkey.0 ^ 0x4000), ..grant.place }
        }];
    if over.has_windows() {
        // Elsewhere that is a neighbour's, whose bytes peers are trusted with.
        beyond.push(|grant| Place { address: grant.place.address + grant.len - 32, ..grant.place });
        beyond.push(|grant| Place { address: grant.place.address - 32, ..grant.place });
    }
    for place in beyond {
        let mut site = Site::standing(over, config(over)).await;
        let (end, mut raw, grant) = given(&mut site).await;
        raw.write(place(grant), &[0x5a; 64]);
        raw.send(&whole(0, grant.id));
        site.lost(end).await;
        let status = raw.ended().await;
        if !over.is_iwarp() {
            assert_eq!(status, Some(WcStatus::REMOTE_ACCESS));
        }
        site.close_clean().await;
    }
}

/// A raw client whose grant is wanted back, since messages that the program keeps leave no memory for another one.
async fn wanted_back(site: &mut Site) -> (End, RawRdma, Grant) {
    let (end, mut raw, grant) = given(site).await;
    let [near, far] = site.pair().await;
    let body = pattern::payload(LONG_BODY, 1);
    send(&near, request(0, body.clone())).await.expect("open");
    let kept = while_driven(&near, receive_one(&far)).await.body.into_bytes();
    send(&near, request(1, body.clone())).await.expect("open");
    let told = while_driven(&end, raw.heard());
    let both = async { tokio::join!(receive_one(&far), told) };
    let (next, heard) = while_driven(&near, both).await;
    assert_eq!(heard, Frame::Abort(names(Name::Grant(grant.id))));
    assert!(kept == body && next.body.into_bytes() == body, "they came as they were");
    near.retire().await;
    far.retire().await;
    (end, raw, grant)
}

async fn a_standing_grant_that_was_given_back_is_closed(over: Over) {
    let mut site = Site::standing(over, narrow(over)).await;
    let (end, mut raw, grant) = wanted_back(&mut site).await;
    raw.say(Frame::AbortAck(names(Name::Grant(grant.id))));
    raw.send(&whole(0, grant.id));
    let told = site.violation(end).await;
    assert!(told.contains("for grant 0.0, which is closed"), "{told}");
    site.close_clean().await;
}

async fn a_request_that_crosses_the_end_of_its_standing_grant_counts(over: Over) {
    let mut site = Site::standing(over, narrow(over)).await;
    let (end, mut raw, grant) = wanted_back(&mut site).await;
    let body = pattern::payload(LONG_BODY, 2);
    raw.write(grant.place, &body);
    raw.send(&whole(0, grant.id));
    assert!(receive_one(&end).await.body.into_bytes() == body);
    site.retired(end).await;
    site.close_clean().await;
}

async fn a_client_that_keeps_a_standing_grant_that_is_wanted_back_is_cut_off(over: Over) {
    let mut site = Site::standing(over, narrow(over)).await;
    let (end, raw, _grant) = wanted_back(&mut site).await;
    assert_cut_off(site, end, raw).await;
}
