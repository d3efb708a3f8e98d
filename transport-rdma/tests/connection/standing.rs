//! Long requests that are written at once, into memory that their server granted before it knew of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use verbwire_core::Request;
use verbwire_core::message::Message;
use verbwire_core::transport::{Flush, Transport};
use verbwire_rdma::fabric::Profile;
use verbwire_rdma::{Peers, RdmaConfig};

use crate::dying::{at_each_of, send_and_answer};
use crate::faults::{drop_after, echo};
use crate::long::response;
use crate::pair::{
    End, Everything, Net, Nothing, PROFILES, call, drive, exact, pattern, receive, receive_all,
    request, send, side, slot,
};

const LEN: usize = 1 << 20;
/// A region for so much.
const REGION: usize = LEN + 8192;

/// A server that gives `grants` to each client.
fn giving(grants: u32, peers: Peers) -> RdmaConfig {
    let mut config = exact();
    config.standing_grants = grants;
    config.peers = peers;
    config
}

/// Whether there are standing grants: not where untrusted peers have protection domains of their own.
fn stands(profile: Profile, peers: Peers) -> bool {
    peers == Peers::Trusted || profile == Profile::Mlx5Like
}

/// A pair whose far end has given its grants; the near end is driven.
async fn standing(net: &Net, grants: usize) -> (End, End, JoinHandle<verbwire_core::Error>) {
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(drive(Arc::clone(&near)));
    give(&far).await;
    assert_eq!(landing(net), grants * REGION, "they are there");
    (near, far, driver)
}

/// Polls an end until it has nothing more to do for now.
async fn give(end: &End) {
    let polled = tokio::time::timeout(Duration::from_millis(5), receive(end)).await;
    assert!(polled.is_err(), "nothing is received");
}

fn landing(net: &Net) -> usize {
    net.transports[1].pools().landing.in_use_bytes
}

#[tokio::test(start_paused = true)]
async fn a_long_request_is_one_send_behind_its_writes() {
    for profile in PROFILES {
        for peers in [Peers::Trusted, Peers::Untrusted] {
            if !stands(profile, peers) {
                continue;
            }
            let net = Net::with(profile, 1, [exact(), giving(2, peers)]);
            let (near, far, driver) = standing(&net, 2).await;
            for (number, len) in (0..).zip([LEN, 40_000, LEN - 1, 300_000]) {
                let before = net.hosts[0].counters();
                send(&near, request(number, pattern(number, len)), Flush::Now).await.expect("open");
                let received = receive_all(&far, 1).await.remove(0).body.into_bytes();
                let after = net.hosts[0].counters();
                assert!(received == pattern(number, len), "{len} bytes over {profile:?}");
                assert_eq!(after.sends - before.sends, 1, "neither RTS nor FIN frame");
                drop(received);
                give(&far).await;
                assert_eq!(landing(&net), 2 * REGION, "what was used is given anew");
            }
            net.close([&near, &far]).await;
            driver.await.expect("no panic");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_longer_or_comes_too_often_asks() {
    for profile in PROFILES {
        let net = Net::with(profile, 1, [exact(), giving(2, Peers::Trusted)]);
        let (near, far, driver) = standing(&net, 2).await;
        let lengths = [LEN + 1, LEN, LEN, LEN, 5 * LEN, LEN, 50_000, 9];
        for (number, len) in (0..).zip(lengths) {
            send(&near, request(number, pattern(number, len)), Flush::Batch).await.expect("open");
        }
        for message in receive_all(&far, lengths.len()).await {
            let number = slot(&message);
            let expected = pattern(number, lengths[number as usize]);
            assert!(message.body.into_bytes() == expected, "request {number}");
        }
        give(&far).await;
        assert_eq!(landing(&net), 2 * REGION);
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_a_body_that_came_unasked_gives_its_memory_anew() {
    for profile in PROFILES {
        let net = Net::with(profile, 1, [exact(), giving(1, Peers::Trusted)]);
        let (near, far) = net.pair_placing(Nothing).await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        give(&far).await;
        for number in 0..5 {
            send(&near, request(number, pattern(number, LEN)), Flush::Now).await.expect("open");
            give(&far).await;
            assert_eq!(landing(&net), REGION);
        }
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn all_standing_grants_of_a_device_hold_a_quarter_of_what_may_be_granted() {
    let mut config = giving(8, Peers::Trusted);
    config.granted_bytes = 5 * (LEN as u64 + 4096) * 4;
    let net = Net::with(PROFILES[0], 1, [exact(), config]);
    let mut ends = Vec::new();
    for _ in 0..3 {
        let (near, far) = net.pair().await;
        give(&far).await;
        ends.push((near, far));
    }
    assert_eq!(landing(&net), 5 * REGION);
    for (near, far) in &ends {
        near.retire().await;
        far.retire().await;
    }
    net.assert_clean();
}

/// A server whose landing memory holds four regions of a megabyte, or one of two megabytes beside two of one.
fn narrow(peers: Peers) -> RdmaConfig {
    let mut config = giving(4, peers);
    config.landing.size.longest = 2 * LEN;
    config.landing.size.slab_len = 1;
    config.landing.size.cap = 4 * REGION;
    config.landing.pinned_budget = 4 * REGION;
    config.granted_bytes = 1 << 30;
    config
}

/// Another connection to the listener of a pair.
async fn two_pairs(net: &Net) -> [(End, End); 2] {
    let mut listener = net.listen().await;
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let at = listener.local_target().clone();
        let (near, far) = tokio::join!(net.transports[0].connect(&at, side(Everything)), async {
            let accepting = std::future::poll_fn(|cx| listener.poll_accept(cx)).await;
            accepting.expect("accept").handshake(side(Everything)).await
        });
        pairs.push((near.expect("connect").connection, far.expect("handshake").connection));
    }
    pairs.try_into().unwrap_or_else(|_| unreachable!("two were made"))
}

#[tokio::test(start_paused = true)]
async fn memory_of_standing_grants_is_taken_back_for_a_message_that_waits_and_no_request_is_lost() {
    for profile in PROFILES {
        for micros in (0..700).step_by(35) {
            let net = Net::with(profile, micros, [exact(), narrow(Peers::Trusted)]);
            let [(near, far), (other, server)] = two_pairs(&net).await;
            let driver = tokio::spawn(drive(Arc::clone(&near)));
            give(&far).await;
            assert_eq!(landing(&net), 4 * REGION, "all memory stands by for the first client");
            send(&near, request(1, pattern(1, LEN)), Flush::Now).await.expect("open");
            let first = tokio::spawn(async move { (receive_all(&far, 1).await.remove(0), far) });
            let driver_of_other = tokio::spawn(drive(Arc::clone(&other)));
            sleep(Duration::from_micros(micros)).await;
            send(&other, request(2, pattern(2, 2 * LEN)), Flush::Now).await.expect("open");
            let second =
                tokio::spawn(async move { (receive_all(&server, 1).await.remove(0), server) });
            let (first, far) = first.await.expect("no panic");
            assert!(first.body.into_bytes() == pattern(1, LEN), "{micros} us");
            let receiving = tokio::spawn(drive(Arc::clone(&far)));
            let (second, server) = second.await.expect("no panic");
            assert!(second.body.into_bytes() == pattern(2, 2 * LEN), "{micros} us");
            sleep(Duration::from_millis(100)).await;
            assert_eq!(net.transports[1].pools().landing.quarantined_bytes, 0);
            near.retire().await;
            other.retire().await;
            server.retire().await;
            far.retire().await;
            net.assert_clean();
            for task in [driver, driver_of_other, receiving] {
                task.await.expect("no panic");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_a_protection_domain_of_its_own_is_given_none() {
    for profile in PROFILES.into_iter().filter(|profile| !stands(*profile, Peers::Untrusted)) {
        let net = Net::with(profile, 1, [exact(), giving(2, Peers::Untrusted)]);
        let (near, far, driver) = standing(&net, 0).await;
        let before = net.hosts[0].counters();
        send(&near, request(1, pattern(1, LEN)), Flush::Now).await.expect("open");
        let received = receive_all(&far, 1).await.remove(0).body.into_bytes();
        assert!(received == pattern(1, LEN), "over {profile:?}");
        assert!(net.hosts[0].counters().sends - before.sends > 1, "it asked");
        drop(received);
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_a_standing_grant_that_is_wanted_back_loses_its_queue_pair() {
    let net = Net::with(PROFILES[0], 1, [exact(), narrow(Peers::Trusted)]);
    let [(near, far), (other, server)] = two_pairs(&net).await;
    // The near end is not driven: it never answers an ABORT.
    give(&far).await;
    assert_eq!(landing(&net), 4 * REGION);
    let receiving = tokio::spawn(drive(Arc::clone(&far)));
    let driver = tokio::spawn(drive(Arc::clone(&other)));
    let begin = Instant::now();
    send(&other, request(2, pattern(2, 2 * LEN)), Flush::Now).await.expect("open");
    let message = receive_all(&server, 1).await.remove(0);
    assert!(message.body.into_bytes() == pattern(2, 2 * LEN));
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let error = receiving.await.expect("no panic");
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("(revoke_timeout)"), "{error}: {source}");
    for end in [&near, &far, &other, &server] {
        end.retire().await;
    }
    net.assert_clean();
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_every_step_leaves_what_stands_and_nothing_else() {
    for profile in PROFILES {
        for peers in [Peers::Trusted, Peers::Untrusted] {
            if !stands(profile, peers) {
                continue;
            }
            let net = Net::with(profile, 1, [exact(), giving(2, peers)]);
            let (client, server) = echo(&net).await;
            sleep(Duration::from_millis(5)).await;
            let body = pattern(1, 700_000);
            let mut steps = 0;
            loop {
                let call = client.unary::<_, Bytes>(0, Request::new(body.clone()));
                if drop_after(call, steps).await {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
                let pools = net.transports[1].pools();
                assert_eq!(pools.landing.in_use_bytes, 2 * REGION, "after {steps} steps");
                assert_eq!((pools.landing.quarantined_bytes, pools.staging.in_use_bytes), (0, 0));
                steps += 1;
            }
            assert!(steps > 10, "{steps} steps are not enough to drop a call in every phase");
            let call = client.unary::<_, Bytes>(0, Request::new(body.clone()));
            assert!(call.await.expect("the connection lives").into_inner() == body);
            drop(client);
            sleep(Duration::from_secs(10)).await;
            server.abort();
            sleep(Duration::from_secs(10)).await;
            net.assert_clean();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_given_up_at_any_moment_closes_the_grant_that_it_had() {
    for profile in PROFILES {
        for micros in (0..400).step_by(7) {
            let net = Net::with(profile, micros, [exact(), giving(1, Peers::Trusted)]);
            let (near, far, driver) = standing(&net, 1).await;
            let receiving = tokio::spawn(drive(Arc::clone(&far)));
            send(&near, request(1, pattern(1, LEN)), Flush::Now).await.expect("open");
            sleep(Duration::from_micros(micros)).await;
            near.revoke(call(1));
            sleep(Duration::from_millis(50)).await;
            let pool = net.transports[1].pools().landing;
            assert_eq!((pool.in_use_bytes, pool.quarantined_bytes), (REGION, 0), "{micros} us");
            net.close([&near, &far]).await;
            driver.await.expect("no panic");
            receiving.await.expect("no panic");
        }
    }
}

/// Long requests, each answered, until one side dies.
async fn until_dead(net: &Net) {
    let body = pattern(1, 600_000);
    let answer = |message: Message| response(slot(&message), Bytes::new());
    send_and_answer(net, async |number| request(number, body.clone()), answer).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_may_die_at_any_work_request_of_a_standing_grant() {
    let net = |profile, nth| Net::with(profile, nth, [exact(), giving(2, Peers::Trusted)]);
    at_each_of(86..106, net, until_dead).await;
}
