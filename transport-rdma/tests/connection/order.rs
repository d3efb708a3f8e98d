//! What arrives, in which order, and what it costs.

use std::time::Duration;

use bytes::Bytes;
use verbwire_core::transport::Flush;
use verbwire_rdma::fabric::{FabricConfig, Latency};

use crate::pair::{
    Net, Nothing, PROFILES, cancel, drive, exact, pattern, receive, receive_all, request, send,
    slot,
};

#[tokio::test(start_paused = true)]
async fn messages_of_every_length_arrive_whole_and_in_order() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(near.clone()));
        let lens = [0, 1, 40, 41, 180, 4095, 4096, 8151, 8152, 8153, 20_000, 1 << 20];
        for (len, number) in lens.into_iter().zip(0..) {
            let flush = [Flush::Now, Flush::Batch][number as usize % 2];
            send(&near, request(number, pattern(number, len)), flush).await.expect("open");
            let message = receive_all(&far, 1).await.remove(0);
            assert_eq!(slot(&message), number);
            assert_eq!(message.body.into_bytes(), pattern(number, len), "{len} bytes");
        }
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

/// On iWARP a send of a page or more goes out from where it lies. With only every sixteenth of them signalled, a
/// later completion freed the buffers of some that were still on their way, and the next frames were
/// written over them.
#[tokio::test(start_paused = true)]
async fn buffers_stay_until_their_frames_have_left_on_slow_wires() {
    for profile in PROFILES {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut micros = |most| Duration::from_micros(rng.u64(0..most));
            let latency = Latency { base: micros(3000), per_kib: micros(10), jitter: micros(5000) };
            let config = FabricConfig { profile, latency, ..FabricConfig::new(seed) };
            let net = Net::over(config, [exact(), exact()]);
            let (near, far) = net.pair().await;
            let driver = tokio::spawn(drive(near.clone()));
            for number in 0..60 {
                let len = [8000, 4096, 100, 30_000][number as usize % 4];
                send(&near, request(number, pattern(number, len)), Flush::Batch)
                    .await
                    .expect("open");
            }
            for message in receive_all(&far, 60).await {
                let number = slot(&message);
                let len = [8000, 4096, 100, 30_000][number as usize % 4];
                assert_eq!(message.body.into_bytes(), pattern(number, len), "seed {seed}");
            }
            net.close([&near, &far]).await;
            driver.await.expect("no panic");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_message_passes_a_long_body() {
    let net = Net::new(PROFILES[0], 2);
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(drive(near.clone()));
    send(&near, request(1, pattern(1, 10 << 20)), Flush::Now).await.expect("open");
    send(&near, request(2, Bytes::from("short")), Flush::Now).await.expect("open");
    let messages = receive_all(&far, 2).await;
    assert_eq!(messages.iter().map(slot).collect::<Vec<_>>(), [2, 1]);
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_cancel_passes_waiting_requests_of_other_calls_but_not_its_own() {
    let net = Net::new(PROFILES[0], 3);
    let (near, far) = net.pair().await;
    // The peer is not driven, so that what is beyond its window waits.
    for number in 0..70 {
        send(&near, request(number, Bytes::new()), Flush::Now).await.expect("open");
    }
    send(&near, cancel(69), Flush::Now).await.expect("open");
    send(&near, cancel(3), Flush::Now).await.expect("open");
    let driver = tokio::spawn(drive(near.clone()));
    let messages = receive_all(&far, 72).await;
    let cancels: Vec<_> = (0..72).filter(|at| messages[*at].head == cancel(3).head).collect();
    assert!(cancels[0] <= 64, "the cancel waited for requests: it came as number {}", cancels[0]);
    assert_eq!(messages[71].head, cancel(69).head);
    assert_eq!(slot(&messages[70]), 69);
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_body_ends_at_the_peer_without_a_message() {
    let net = Net::new(PROFILES[0], 4);
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(drive(near.clone()));
    // One that has begun, and one whose head has not left.
    for number in 0..2 {
        send(&near, request(number, pattern(number, 4 << 20)), Flush::Now).await.expect("open");
    }
    tokio::task::yield_now().await;
    (0..2).for_each(|number| near.revoke(request(number, Bytes::new()).head.call().expect("call")));
    send(&near, request(7, Bytes::from("next")), Flush::Now).await.expect("open");
    assert_eq!(slot(&receive_all(&far, 1).await[0]), 7);
    send(&near, request(0, pattern(0, 1 << 20)), Flush::Now).await.expect("open");
    assert_eq!(slot(&receive_all(&far, 1).await[0]), 0, "its first body was not ended");
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_refused_body_is_thrown_away_and_others_pass() {
    let net = Net::new(PROFILES[0], 5);
    let (near, far) = net.pair_placing(Nothing).await;
    let driver = tokio::spawn(drive(near.clone()));
    send(&near, request(1, pattern(1, 1 << 20)), Flush::Now).await.expect("open");
    send(&near, request(2, Bytes::from("whole")), Flush::Now).await.expect("open");
    assert_eq!(slot(&receive_all(&far, 1).await[0]), 2);
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn idle_connections_send_nothing() {
    let net = Net::new(PROFILES[0], 6);
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(drive(near.clone()));
    for number in 0..4 {
        send(&near, request(number, Bytes::new()), Flush::Now).await.expect("open");
    }
    receive_all(&far, 4).await;
    let silent = tokio::spawn({
        let far = far.clone();
        async move { receive(&far).await }
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    // Two HELLOs, and four requests: less than a quarter of the window owes no CREDIT.
    assert_eq!(net.fabric.counters().sends, 6);
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
    silent.await.expect("no panic").expect_err("retired");
}
