//! What keeps a peer from memory that it was granted before: what it costs, and that it comes back.
//!
//! What hostile peers reach is tried in the test crate, `hostile_rdma`.

use std::sync::Arc;
use std::time::Duration;

use verbwire_core::transport::Flush;
use verbwire_rdma::fabric::{Binding, FabricConfig, Profile};

use crate::pair::{
    End, Net, cancel, drive, exact, pattern, receive, receive_all, request, send, step,
};

const WINDOWS: Profile = Profile::Mlx5Like;

/// Binds and invalidations that succeeded on the accepting host.
fn windows(net: &Net) -> (u64, u64) {
    let counters = net.hosts[1].counters();
    (counters.binds, counters.invalidations)
}

/// Drives the end until it is over.
async fn over(end: &End) -> verbwire_core::Error {
    loop {
        if let Err(error) = receive(end).await {
            return error;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn behind_windows_bodies_of_untrusted_peers_are_not_copied() {
    let net = Net::new(WINDOWS, 1);
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(drive(Arc::clone(&near)));
    for number in 0..5 {
        send(&near, request(number, pattern(number, 1 << 20)), Flush::Now).await.expect("open");
        let received = receive_all(&far, 1).await.remove(0).body.into_bytes();
        assert!(received == pattern(number, 1 << 20));
        let round = u64::from(number) + 1;
        assert_eq!(windows(&net), (round, round), "one window per grant, invalidated");
    }
    assert_eq!(net.transports[1].pools().landing.copied_bytes, 0);
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_at_any_moment_gives_its_window_back() {
    for steps in 0..40 {
        let net = Net::new(WINDOWS, steps as u64);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let receiver = tokio::spawn(drive(Arc::clone(&far)));
        send(&near, request(1, pattern(1, 1 << 20)), Flush::Now).await.expect("open");
        for number in 0..steps {
            step(number).await;
        }
        if steps % 2 == 0 {
            near.revoke(crate::pair::call(1));
            send(&near, cancel(1), Flush::Now).await.expect("open");
        } else {
            far.revoke(crate::pair::call(1));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        net.assert_pools_idle();
        let (binds, invalidations) = windows(&net);
        assert_eq!(binds, invalidations, "after {steps} steps");
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
        receiver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_refuses_to_bind_says_so_and_later_peers_do_without() {
    let config =
        FabricConfig { profile: WINDOWS, binding: Binding::Refused, ..FabricConfig::new(1) };
    let net = Net::over(config, [exact(), exact()]);
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(drive(Arc::clone(&near)));
    send(&near, request(1, pattern(1, 1 << 20)), Flush::Now).await.expect("open");
    let error = over(&far).await;
    assert!(error.to_string().contains("refused to bind a memory window"), "{error}");
    far.retire().await;
    near.retire().await;
    driver.await.expect("no panic");
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(drive(Arc::clone(&near)));
    send(&near, request(1, pattern(1, 1 << 20)), Flush::Now).await.expect("open");
    let received = receive_all(&far, 1).await.remove(0).body.into_bytes();
    assert!(received == pattern(1, 1 << 20));
    assert_eq!(net.transports[1].pools().landing.copied_bytes, 1 << 20);
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
}

/// Once they were refused as soon as it was in use.
#[tokio::test(start_paused = true)]
async fn untrusted_peers_wait_in_turns_for_the_memory_that_they_have_together() {
    for profile in [Profile::Rxe, Profile::Siw] {
        let mut config = exact();
        config.landing.size.longest = 1 << 20;
        config.landing.size.cap = (1 << 20) + 4096;
        let net = Net::with(profile, 1, [exact(), config]);
        let mut ends = Vec::new();
        let mut receiving = Vec::new();
        for _ in 0..4 {
            let (near, far) = net.pair().await;
            let end = Arc::clone(&far);
            receiving.push(tokio::spawn(async move { receive_all(&end, 3).await }));
            ends.push((tokio::spawn(drive(Arc::clone(&near))), near, far));
        }
        for number in 0..3 {
            for (at, (_, near, _)) in (0..).zip(&ends) {
                let slot = 10 * at + number;
                send(near, request(slot, pattern(slot, 1 << 20)), Flush::Now).await.expect("open");
            }
        }
        for (at, received) in (0..).zip(receiving) {
            for message in received.await.expect("no panic") {
                let slot = crate::pair::slot(&message);
                assert_eq!(slot / 10, at);
                assert!(message.body.into_bytes() == pattern(slot, 1 << 20), "{profile:?}");
            }
        }
        let landing = net.transports[1].pools().landing;
        assert!(landing.waits > 0 && landing.slab_bytes <= (1 << 20) + 4096, "{landing:?}");
        for (driver, near, far) in ends {
            near.retire().await;
            far.retire().await;
            driver.await.expect("no panic");
        }
        net.assert_clean();
    }
}
