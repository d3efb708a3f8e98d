//! Peers that grant memory.

use verbwire_core::ErrorKind;
use verbwire_rdma::testing::{Frame, Grant, Place, Rkey, RtsNumber};
use verbwire_tests::pattern;
use verbwire_tests::raw_rdma::encode;

use crate::end::{receive, request, send};
use crate::over_nics;
use crate::site::{LONG_BODY, Over, Site};
use crate::writers::{LEN, grant_id};

over_nics!(
    a_cts_that_nobody_asked_for_ends_the_connection,
    a_cts_must_be_as_long_as_asked_and_come_once,
    a_forged_key_in_a_cts_costs_the_connection_and_nothing_else,
);

/// What a grant for a body of [`LEN`] must be long.
const RIGHT: u64 = LEN as u64 + 4096;

/// A grant of memory that is not there.
fn grant(index: u32, len: u64) -> Grant {
    Grant { id: grant_id(index), place: Place { address: 1 << 20, rkey: Rkey(7) }, len }
}

fn cts(grant: Grant) -> Vec<u8> {
    encode(Frame::Cts { rts: Some(RtsNumber(0)), grant })
}

async fn a_cts_that_nobody_asked_for_ends_the_connection(over: Over) {
    let cases = [
        (cts(grant(0, 8192)), "CTS for RTS 0, which was never sent"),
        (
            encode(Frame::Cts { rts: None, grant: grant(0, 8192) }),
            "more than 0 standing grants at a time",
        ),
    ];
    let mut site = Site::new(over).await;
    for (bytes, words) in &cases {
        let (end, mut raw) = site.raw_client().await;
        raw.send(bytes);
        assert_eq!(site.violation(end).await, *words);
    }
    site.close_clean().await;
}

async fn a_cts_must_be_as_long_as_asked_and_come_once(over: Over) {
    let cases = [
        (
            vec![cts(grant(0, RIGHT + 1))],
            "grant 0.0 of 104097 bytes, expected 104096: the body and 4096 more",
        ),
        (vec![cts(grant(0, 1))], "grant 0.0 of 1 bytes, expected 104096: the body and 4096 more"),
        (vec![cts(grant(0, RIGHT)), cts(grant(1, RIGHT))], "second CTS for RTS 0, grant 1.0"),
    ];
    let mut site = Site::new(over).await;
    for (frames, words) in &cases {
        let (end, mut raw) = site.raw_client().await;
        send(&end, request(1, pattern::payload(LONG_BODY, 1))).await.expect("open");
        frames.iter().for_each(|frame| raw.send(frame));
        assert_eq!(site.violation(end).await, *words);
    }
    site.close_clean().await;
}

async fn a_forged_key_in_a_cts_costs_the_connection_and_nothing_else(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    send(&end, request(1, pattern::payload(LONG_BODY, 1))).await.expect("open");
    raw.send(&cts(grant(0, RIGHT)));
    let error = receive(&end).await.expect_err("the device refuses it");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    site.retired(end).await;
    site.close_clean().await;
}
