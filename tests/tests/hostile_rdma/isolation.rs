//! Peers that write where they were not granted anything, or are no longer.
//!
//! What keeps them out differs by device. Behind memory windows that isolate nothing changes but what is granted.
//! Elsewhere no byte changes that a user sees.

use bytes::Bytes;
use verbwire_rdma::fabric::Profile;
use verbwire_rdma::testing::Place;
use verbwire_tests::raw_rdma::{RawRdma, rts};

use crate::end::{End, call, drive, receive_one};
use crate::over_nics;
use crate::site::{LONG_BODY, Over, Site};
use crate::writers::{LEN, fin, granted};

over_nics!(
    who_writes_on_after_its_fin_changes_nothing_that_is_seen,
    no_byte_beside_a_grant_is_seen,
    what_another_peer_was_granted_is_out_of_reach,
);

/// Whether the device has windows that isolate.
fn isolates(over: Over) -> bool {
    over == Over::Fabric(Profile::Mlx5Like)
}

/// A body that begins with fives, and where the raw peer has written it.
async fn landed(end: &End, raw: &mut RawRdma, number: u32) -> (Bytes, Place) {
    raw.send(&rts(call(number), number, LEN));
    let grant = granted(end, raw).await;
    raw.write(grant.place, &[5; 64]);
    raw.send(&fin(grant.id, 0, LEN));
    (receive_one(end).await.body.into_bytes(), grant.place)
}

fn is_as_it_was(body: &[u8]) -> bool {
    body.len() == LONG_BODY && body[..64] == [5; 64] && body[64..].iter().all(|byte| *byte == 0)
}

/// Waits for the end of a connection whose peer was refused, where it was. The software NIC refuses every access to
/// memory that is not its own; devices without windows do not know.
async fn refused(over: Over, end: &End, raw: &mut RawRdma) {
    if matches!(over, Over::Fabric(_)) {
        let (error, _status) = tokio::join!(drive(end), raw.ended());
        assert!(!error.is_peer_fault(), "the device refuses it, not the protocol: {error}");
    } else {
        // What it sends next comes behind what it wrote.
        raw.send(&rts(call(9), 1, LEN));
        granted(end, raw).await;
    }
}

async fn who_writes_on_after_its_fin_changes_nothing_that_is_seen(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    let (body, place) = landed(&end, &mut raw, 0).await;
    assert!(is_as_it_was(&body));
    raw.write(place, &[9; 64]);
    refused(over, &end, &mut raw).await;
    assert!(is_as_it_was(&body));
    drop(body);
    site.retired(end).await;
    site.close().await;
}

/// One peer knows the key of what another one was granted, and writes there in the middle of it.
async fn what_another_peer_was_granted_is_out_of_reach(over: Over) {
    let mut site = Site::new(over).await;
    let (end, mut raw) = site.raw_client().await;
    let (hostile_end, mut hostile) = site.raw_client().await;
    raw.send(&rts(call(0), 0, LEN));
    let grant = granted(&end, &mut raw).await;
    hostile.write(grant.place, &[9; 64]);
    // Refused by the device whose memory it is, on each kind of it.
    let (error, _status) = tokio::join!(drive(&hostile_end), hostile.ended());
    assert!(!error.is_peer_fault(), "{error}");
    raw.send(&fin(grant.id, 0, LEN));
    let body = receive_one(&end).await.body.into_bytes();
    assert!(body.len() == LONG_BODY && body.iter().all(|byte| *byte == 0), "nobody's bytes");
    drop(body);
    site.retired(hostile_end).await;
    site.retired(end).await;
    site.close_clean().await;
}

/// Just before a grant, across its end, and with its key where an earlier one was.
async fn no_byte_beside_a_grant_is_seen(over: Over) {
    if !isolates(over) {
        return;
    }
    let mut site = Site::new(over).await;
    for case in 0..4 {
        let (end, mut raw) = site.raw_client().await;
        let (body, before) = landed(&end, &mut raw, 0).await;
        raw.send(&rts(call(1), 1, LEN));
        let grant = granted(&end, &mut raw).await;
        let Place { address, rkey } = grant.place;
        let place = match case {
            0 => Place { address: address - 1, rkey },
            1 => Place { address: address + grant.len - 1, rkey },
            2 => Place { address: before.address, rkey },
            _ => before,
        };
        raw.write(place, &[9; 64]);
        refused(over, &end, &mut raw).await;
        assert!(is_as_it_was(&body), "case {case}");
        drop(body);
        site.retired(end).await;
    }
    site.close_clean().await;
}
