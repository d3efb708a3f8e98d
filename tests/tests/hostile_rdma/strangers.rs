//! Peers that write where they were not granted anything, and what others see of it.

use bytes::Bytes;
use verbwire_core::ErrorKind;
use verbwire_rdma::testing::{Crc, Fin, Frame, Grant, Place, Rkey, WcStatus};
use verbwire_tests::raw_rdma::{encode, rts};

use crate::end::{call, receive, receive_one, request, send, while_driven};
use crate::over_nics;
use crate::site::{LONG_BODY, Over, Site};
use crate::writers::{LEN, fin, granted};

over_nics!(
    a_fin_without_writes_shows_nothing_of_another_connection,
    a_fin_without_writes_and_with_a_checksum_is_a_violation,
    a_write_with_a_forged_key_costs_the_connection_and_nothing_else,
    a_write_out_of_range_costs_the_connection_and_nothing_else,
    a_write_into_the_grant_of_another_reaches_nothing_but_that,
);

/// What fills the bodies of the other connection, and of nobody else.
const MARK: u8 = 0xa5;
/// What a raw peer writes.
const OWN: u8 = 0x5a;

/// Another connection receives long bodies, and is done with them. What it had is free again.
async fn mark(site: &mut Site) {
    let [near, far] = site.pair().await;
    for slot in 0..4 {
        let body = Bytes::from(vec![MARK; LONG_BODY]);
        send(&near, request(slot, body.clone())).await.expect("open");
        assert!(while_driven(&near, receive_one(&far)).await.body.into_bytes() == body);
    }
    far.retire().await;
    near.retire().await;
    site.assert_pools_idle().await;
}

async fn a_fin_without_writes_shows_nothing_of_another_connection(over: Over) {
    let mut site = Site::new(over).await;
    mark(&mut site).await;
    let registrations = site.transports[1].pools().landing.registrations;
    let (end, mut raw) = site.raw_client().await;
    raw.send(&rts(call(0), 0, LEN));
    let grant = granted(&end, &mut raw).await;
    let now = site.transports[1].pools().landing.registrations;
    assert_eq!(now, registrations, "it is granted memory that another had");
    raw.send(&fin(grant.id, 96, LEN));
    let body = receive_one(&end).await.body.into_bytes();
    assert_eq!(body.len(), LONG_BODY);
    assert!(body.iter().all(|byte| *byte == 0), "another's bytes show");
    drop(body);
    // From here on memory may hold what this peer itself has written.
    for number in 1..4 {
        raw.send(&rts(call(number), number, LEN));
        let grant = granted(&end, &mut raw).await;
        if number == 1 {
            raw.write(grant.place, &[OWN; LONG_BODY]);
        }
        raw.send(&fin(grant.id, 0, LEN));
        let body = receive_one(&end).await.body.into_bytes();
        let is_known = |byte: &u8| *byte == OWN || number > 1 && *byte == 0;
        assert!(body.iter().all(is_known), "another's bytes show");
    }
    site.retired(end).await;
    site.close_clean().await;
}

async fn a_fin_without_writes_and_with_a_checksum_is_a_violation(over: Over) {
    let mut site = Site::new(over).await;
    mark(&mut site).await;
    let (end, mut raw) = site.raw_client().await;
    raw.send(&rts(call(0), 0, LEN));
    let Grant { id, .. } = granted(&end, &mut raw).await;
    // What it would be if the bytes of the other one showed.
    let crc = Crc::of(&[MARK; LONG_BODY]);
    raw.send(&encode(Frame::Fin(Fin { grant: id, offset: 0, len: LEN, crc: Some(crc) })));
    let words = format!(
        "a body with CRC32C 0x{:08x}, its sender says 0x{:08x}",
        Crc::of(&[0; LONG_BODY]).0,
        crc.0
    );
    assert_eq!(site.violation(end).await, words);
    site.close_clean().await;
}

/// A peer with a grant writes somewhere else; its device or the other side's refuses that.
async fn refused(over: Over, elsewhere: impl Fn(Place) -> Place) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    raw.send(&rts(call(0), 0, LEN));
    let grant = granted(&end, &mut raw).await;
    raw.write(elsewhere(grant.place), &[OWN; 64]);
    raw.send(&fin(grant.id, 0, LEN));
    site.lost(end).await;
    let status = raw.ended().await;
    if !over.is_iwarp() {
        assert_eq!(status, Some(WcStatus::REMOTE_ACCESS));
    }
    site.close_clean().await;
}

async fn a_write_with_a_forged_key_costs_the_connection_and_nothing_else(over: Over) {
    // Another use of the same key, a neighbour's, and any.
    for forge in [|key: u32| key ^ 0x3, |key| key ^ 0x4000, |_| 0, |_| u32::MAX] {
        refused(over, |place| Place { rkey: Rkey(forge(place.rkey.0)), ..place }).await;
    }
}

async fn a_write_out_of_range_costs_the_connection_and_nothing_else(over: Over) {
    for elsewhere in [
        |address: u64| address + (1 << 30),
        |address: u64| address - (1 << 30),
        |_| 0,
        |_| u64::MAX - 31,
    ] {
        refused(over, |place| Place { address: elsewhere(place.address), ..place }).await;
    }
}

/// What soft-iWARP and connections in one protection domain cannot refuse. It must not go further.
async fn a_write_into_the_grant_of_another_reaches_nothing_but_that(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    raw.send(&rts(call(0), 0, LEN));
    let first = granted(&end, &mut raw).await;
    raw.write(first.place, &[OWN; LONG_BODY]);
    raw.send(&fin(first.id, 0, LEN));
    let received = receive_one(&end).await.body.into_bytes();
    raw.send(&rts(call(1), 1, LEN));
    let open = granted(&end, &mut raw).await;
    raw.write(open.place, &[OWN; LONG_BODY]);
    let (foreign_end, mut foreigner) = site.raw_client().await;
    foreigner.send(&rts(call(0), 0, LEN));
    let theirs = granted(&foreign_end, &mut foreigner).await;
    foreigner.write(open.place, &[!OWN; 1000]);
    foreigner.send(&fin(theirs.id, 0, LEN));
    // Its own body is all zeroes, or its connection has ended.
    let is_written = match receive(&foreign_end).await {
        Ok(messages) => {
            let bodies = messages.into_iter().map(|message| message.body.into_bytes());
            assert!(bodies.into_iter().all(|body| body.iter().all(|byte| *byte == 0)));
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            false
        }
    };
    raw.send(&fin(open.id, 0, LEN));
    let body = receive_one(&end).await.body.into_bytes();
    let (reached, rest) = body.split_at(1000);
    let changed = reached.iter().filter(|byte| **byte != OWN).count();
    println!("the foreign Write was taken: {is_written}; {changed} bytes of it show");
    assert!(!is_written && changed == 0, "another peer reached the grant: {changed} bytes");
    assert!(reached.iter().all(|byte| [OWN, !OWN].contains(byte)));
    assert!(rest.iter().all(|byte| *byte == OWN), "the Write went further");
    assert!(received.iter().all(|byte| *byte == OWN), "what was received has changed");
    drop((body, received));
    foreign_end.retire().await;
    site.retired(end).await;
    site.close().await;
}
