//! Peers that want too much and give nothing: the server's memory stays bounded, and others are served.

use tokio::time::timeout;
use verbwire_core::message::{CallId, Head};
use verbwire_tests::fixture::{Fixture, LONG};
use verbwire_tests::raw::{self, call, message};

use crate::bad::{MAX_CALLS, MAX_MESSAGE, PLENTY, PRODUCE, Victim};
use crate::over_sockets;

over_sockets!(
    a_peer_that_reads_no_replies_costs_bounded_memory,
    a_peer_that_reads_no_refusals_costs_bounded_memory,
    announced_bodies_that_never_come_cost_nothing_to_others,
);

async fn a_peer_that_reads_no_replies_costs_bounded_memory(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let mut produced = 0;
    for generation in 0..400 {
        // Each asks for 256 KiB. Slots are used again, as a caller that had its answers would use them.
        for slot in 0..MAX_CALLS {
            let id = CallId { slot, generation };
            let request = raw::request(id, PRODUCE, PLENTY, b"\x08\x80\x80\x10");
            peer.send_while_taken(&request, LONG).await;
        }
        let all = produced + u64::from(MAX_CALLS) * 256 * 1024;
        let more = victim.witness.until(|log| log.produced >= all);
        if timeout(LONG / 2, more).await.is_err() {
            break;
        }
        produced = all;
    }
    victim.assert_serves().await;
    let log = victim.witness.log();
    assert!(log.produced > 128 << 20, "the peer got only {} bytes made for it", log.produced);
    // What a send queue may hold of bodies, one reply for each call, and some that are being let go.
    let held = log.most_held >> 20;
    assert!(held < 80, "{held} MiB were held at a time for a peer that reads nothing");
    drop(peer);
    victim.witness.until(|log| log.held == 0).await;
    victim.assert_serves().await;
}

async fn a_peer_that_reads_no_refusals_costs_bounded_memory(fixture: Fixture) {
    const REQUESTS: u32 = 200_000;
    let victim = Victim::start(&fixture).await;
    let mut peer = victim.raw_client().await;
    let requests = (0..REQUESTS).map(|generation| {
        let path = "/no.Such/Method";
        raw::request(CallId { slot: 0, generation }, path, PLENTY, b"")
    });
    let requests = requests.collect::<Vec<_>>().concat();
    let taken = peer.send_while_taken(&requests, LONG).await;
    assert_eq!(taken, requests.len(), "the server stopped reading");
    victim.assert_serves().await;
    // Beyond what the sockets and the send queue hold, an answer takes the place of the one before it in the
    // slot: few of them were kept, and the last is among them.
    let mut answers = 0;
    loop {
        let frame = peer.frame().await.expect("the connection lives");
        answers += 1;
        if frame.head().call().is_some_and(|call| call.generation == REQUESTS - 1) {
            break;
        }
    }
    assert!(answers < REQUESTS / 2, "{answers} answers were kept for a peer that read nothing");
}

async fn announced_bodies_that_never_come_cost_nothing_to_others(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let mut peers = Vec::new();
    for _ in 0..20 {
        let mut peer = victim.raw_client().await;
        for slot in 0..MAX_CALLS {
            let mut bytes = raw::request(call(slot), PRODUCE, PLENTY, b"");
            bytes[1] = 1;
            bytes[32..36].copy_from_slice(&MAX_MESSAGE.to_le_bytes());
            peer.send(&bytes).await;
        }
        // Answered behind the announcements, which were read by then.
        let cancel = Head::Cancel { call: CallId { slot: 0, generation: 7 } };
        peer.send(&message(&cancel, b"")).await;
        let frame = peer.frame().await.expect("a CANCELLED");
        assert!(matches!(frame.head(), Head::Cancelled { .. }));
        peers.push(peer);
    }
    victim.assert_serves().await;
}
