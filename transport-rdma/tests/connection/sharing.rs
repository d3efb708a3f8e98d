//! Connections that share receives.

use std::time::Duration;

use tokio::task::JoinHandle;
use verbwire_core::transport::{Flush, Outgoing, SendHints};
use verbwire_core::{Error, ErrorKind};
use verbwire_rdma::fabric::{Death, FabricConfig, Fate, Profile};
use verbwire_rdma::{Peers, RdmaConfig, Shares};

use crate::pair::{
    End, Everything, Net, PROFILES, cancel, drive, pattern, receive, receive_all, request, send,
    slot,
};

/// Trusted peers, and so many receives for all of them.
fn sharing(receives: u32) -> RdmaConfig {
    let mut config = RdmaConfig::for_many(0);
    config.shared_receives = receives;
    // These tests do not drive every end while they wait for another one, so that sends have to do without completions.
    config.staging_buffers = 40;
    config.peers = Peers::Trusted;
    config
}

fn trusting() -> RdmaConfig {
    let mut config = RdmaConfig::default();
    config.peers = Peers::Trusted;
    config
}

fn shares(net: &Net) -> Shares {
    net.transports[1].shared_receives()
}

async fn close_all(net: &Net, pairs: &[(End, End)]) {
    for (near, far) in pairs {
        near.retire().await;
        far.retire().await;
    }
    net.assert_clean();
    let left = shares(net);
    assert_eq!((left.members, left.posted), (0, 0), "the queue goes with its last connection");
}

#[tokio::test(start_paused = true)]
async fn messages_go_to_and_fro_whichever_side_shares() {
    for profile in PROFILES {
        for (near, far) in [(true, true), (true, false), (false, true)] {
            let configs = [near, far].map(|shares| if shares { sharing(128) } else { trusting() });
            let net = Net::with(profile, 21, configs);
            let (near, far) = net.pair().await;
            for round in 0..50 {
                let body = pattern(round, 100 * round as usize);
                send(&near, request(round, body.clone()), Flush::Now).await.expect("open");
                let got = receive_all(&far, 1).await.remove(0);
                assert_eq!((slot(&got), got.body.into_bytes()), (round, body), "{profile:?}");
                send(&far, request(round, pattern(round, 10)), Flush::Now).await.expect("open");
                assert_eq!(slot(&receive_all(&near, 1).await[0]), round);
            }
            close_all(&net, &[(near, far)]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_borrows_what_it_can_use_and_loses_nothing() {
    for profile in PROFILES {
        let net = Net::with(profile, 22, [trusting(), sharing(256)]);
        let (near, far) = net.pair().await;
        let idle = shares(&net);
        assert_eq!((idle.posted, idle.floors, idle.lent, idle.members), (256, 6, 0, 1));
        let sender = near.clone();
        let driver = tokio::spawn(drive(near.clone()));
        let burst = tokio::spawn(async move {
            for number in 0..1000 {
                let message = request(number, pattern(number, 60));
                send(&sender, message, Flush::Batch).await.expect("open");
            }
        });
        let (mut most, mut next) = (0, 0);
        while next < 1000 {
            for message in receive(&far).await.expect("open") {
                assert_eq!(slot(&message), next);
                next += 1;
            }
            most = most.max(shares(&net).lent);
        }
        assert_eq!(most, 62, "all of its window: {profile:?}");
        burst.await.expect("no panic");
        close_all(&net, &[(near, far)]).await;
        driver.await.expect("no panic");
    }
}

/// Sends `count` messages over each connection; returns when all are received, and how many of the others' had come when
/// each of the connections was done.
async fn run_all(pairs: &[(End, End)], counts: &[u32]) {
    let mut tasks = Vec::new();
    for ((near, far), count) in pairs.iter().zip(counts.iter().copied()) {
        let (sender, near, far) = (near.clone(), near.clone(), far.clone());
        tokio::spawn(drive(near));
        tasks.push(tokio::spawn(async move {
            for number in 0..count {
                let message = request(number, pattern(number, 40));
                send(&sender, message, Flush::Batch).await.expect("open");
            }
        }));
        tasks.push(tokio::spawn(async move {
            let mut next = 0;
            while next < count {
                for message in receive(&far).await.expect("open") {
                    assert_eq!(slot(&message), next);
                    next += 1;
                }
            }
            drive(far).await;
        }));
    }
    let (senders, _receivers): (Vec<_>, Vec<_>) =
        tasks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    for (_, sender) in senders {
        sender.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_connections_share_a_queue_and_their_memory_is_counted() {
    for profile in PROFILES {
        let configs = [(); 2].map(|()| {
            let mut config = sharing(2048);
            config.staging_buffers = 8;
            config
        });
        let net = Net::with(profile, 23, configs);
        let mut pairs = vec![net.pair().await];
        let bytes = |net: &Net| net.transports[1].buffers().total * (8 << 10);
        let alone = bytes(&net);
        assert_eq!(alone, (2048 + 8) * (8 << 10));
        for _ in 1..200 {
            pairs.push(net.pair().await);
        }
        let all = bytes(&net);
        // 16 MiB for all, and 64 KiB each; 192 MiB if each had its own.
        assert_eq!(all - alone, 199 * (64 << 10));
        assert!(all < 200 * (984 << 10) / 6, "{all} bytes");
        let idle = shares(&net);
        assert_eq!((idle.posted, idle.floors, idle.members), (2048, 1200, 200));
        // Most say little, some a lot.
        let counts: Vec<u32> = (0..200).map(|at| if at % 20 == 0 { 500 } else { at % 7 }).collect();
        run_all(&pairs, &counts).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let busy = shares(&net);
        assert!(busy.floors + busy.lent <= busy.posted - 128, "{busy:?}");
        close_all(&net, &pairs).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hog_takes_nothing_from_those_that_say_little() {
    for profile in PROFILES {
        // One floor and ten receives more than the reserve.
        let net = Net::with(profile, 24, [trusting(), sharing(64)]);
        let mut pairs = Vec::new();
        for _ in 0..4 {
            pairs.push(net.pair().await);
        }
        let (hog, _) = &pairs[0];
        tokio::spawn(drive(pairs[0].1.clone()));
        tokio::spawn(drive(hog.clone()));
        let (stop, mut stopped) = tokio::sync::watch::channel(());
        let sender = hog.clone();
        let hogging = tokio::spawn(async move {
            let mut sent: u32 = 0;
            while stopped.has_changed().is_ok() {
                let message = request(sent, pattern(sent, 40));
                tokio::select! {
                    biased;
                    sent_one = send(&sender, message, Flush::Batch) => sent_one.expect("open"),
                    _ = stopped.changed() => break,
                }
                sent += 1;
            }
            sent
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        for round in 0..40 {
            for (near, far) in &pairs[1..] {
                let begun = tokio::time::Instant::now();
                send(near, request(round, pattern(round, 30)), Flush::Now).await.expect("open");
                assert_eq!(slot(&receive_all(far, 1).await[0]), round);
                send(far, cancel(round), Flush::Now).await.expect("open");
                assert_eq!(slot(&receive_all(near, 1).await[0]), round);
                assert!(begun.elapsed() < Duration::from_millis(20), "{:?}", begun.elapsed());
            }
        }
        drop(stop);
        let sent = hogging.await.expect("no panic");
        assert!(sent > 1000, "it went on meanwhile: {sent}");
        close_all(&net, &pairs).await;
    }
}

/// A pair that is driven.
struct Driven {
    ends: [End; 2],
    drivers: [JoinHandle<Error>; 2],
}

impl Driven {
    async fn new(net: &Net) -> Self {
        let (near, far) = net.pair().await;
        let ends = [near, far];
        let drivers = ends.clone().map(|end| tokio::spawn(drive(end)));
        Self { ends, drivers }
    }

    /// Sends so many messages, or as many as there is room for.
    fn burst(&self, count: u32) {
        for number in 0..count {
            let message = request(number, pattern(number, 200));
            let hints = SendHints::flush(Flush::Batch);
            drop(self.ends[0].try_send(Outgoing { message, hints }));
        }
    }

    /// Ends it in one of three ways.
    fn end(self, how: u8) {
        match how {
            0 | 1 => {
                self.ends[usize::from(how)].close(Error::new(ErrorKind::Closed, "a test"));
            }
            // Both are dropped, and nobody drives them.
            _ => self.drivers.iter().for_each(JoinHandle::abort),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connections_that_die_at_random_give_all_back() {
    for (profile, seed) in
        PROFILES.into_iter().flat_map(|profile| (0..2).map(move |seed| (profile, seed)))
    {
        let net = Net::with(profile, 100 + seed, [trusting(), sharing(1024)]);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut pairs = Vec::new();
        for _ in 0..20 {
            while pairs.len() < 12 {
                pairs.push(Driven::new(&net).await);
            }
            pairs.iter().for_each(|pair| pair.burst(rng.u32(0..40)));
            for _ in 0..rng.u32(0..20) {
                tokio::task::yield_now().await;
            }
            if rng.bool() {
                tokio::time::sleep(Duration::from_millis(rng.u64(0..3))).await;
            }
            for _ in 0..rng.usize(1..6) {
                pairs.swap_remove(rng.usize(..pairs.len())).end(rng.u8(..3));
            }
            let now = shares(&net);
            assert!(now.floors + now.lent <= now.posted - 64, "seed {seed}: {now:?}");
        }
        let before = shares(&net);
        for pair in pairs {
            for end in &pair.ends {
                end.retire().await;
            }
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(net.fabric.counters().rnr, 0, "{profile:?} seed {seed}: {before:?}");
        net.assert_clean();
        assert_eq!(shares(&net), Shares::default());
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_too_many_is_refused_in_words_and_one_that_leaves_makes_room() {
    let net = Net::with(Profile::Rxe, 25, [trusting(), sharing(64)]);
    let mut pairs = Vec::new();
    let refused = loop {
        let (near, far) = net.try_pair(Everything).await;
        match (near, far) {
            (Ok(near), Ok(far)) => pairs.push((near, far)),
            (_, far) => break far.err().expect("the server has refused").to_string(),
        }
    };
    // Of 64, 8 are never promised, 6 are each one's, and one more for HELLO.
    assert_eq!(pairs.len(), 9);
    assert!(refused.contains("raise shared_receives"), "{refused}");
    assert!(refused.contains("needs 7 of the 64 receives"), "{refused}");
    let (near, far) = pairs.pop().expect("some");
    near.retire().await;
    far.retire().await;
    pairs.push(net.pair().await);
    close_all(&net, &pairs).await;
}

#[tokio::test(start_paused = true)]
async fn where_nothing_can_be_shared_connections_have_their_own() {
    let mut capabilities = Profile::Rxe.capabilities("plain");
    capabilities.max_srq_wr = 0;
    let plain = FabricConfig { capabilities: Some(capabilities), ..FabricConfig::new(26) };
    let untrusted = |profile| FabricConfig { profile, ..FabricConfig::new(26) };
    let mut distrusting = sharing(128);
    distrusting.peers = Peers::Untrusted;
    for (fabric, config, shares) in [
        (plain, sharing(128), false),
        (untrusted(Profile::Rxe), distrusting.clone(), false),
        (untrusted(Profile::Mlx5Like), distrusting, true),
    ] {
        let net = Net::over(fabric, [trusting(), config]);
        let (near, far) = net.pair().await;
        assert_eq!(net.transports[1].shared_receives().members, usize::from(shares));
        send(&near, request(1, pattern(1, 50)), Flush::Now).await.expect("open");
        assert_eq!(slot(&receive_all(&far, 1).await[0]), 1);
        close_all(&net, &[(near, far)]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_device_ends_all_that_share() {
    for profile in PROFILES {
        let net = Net::with(profile, 27, [trusting(), sharing(128)]);
        let mut drivers = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..3 {
            let (near, far) = net.pair().await;
            drivers.push(tokio::spawn(drive(far.clone())));
            ends.push((near, far));
        }
        net.hosts[1].kill(Death::Process);
        for driver in drivers {
            let error = driver.await.expect("no panic");
            assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn receives_that_cannot_be_posted_end_all_connections_in_words() {
    for profile in PROFILES {
        let net = Net::with(profile, 28, [trusting(), sharing(128)]);
        let mut pairs = Vec::new();
        let mut drivers = Vec::new();
        for _ in 0..3 {
            let (near, far) = net.pair().await;
            tokio::spawn(drive(near.clone()));
            drivers.push(tokio::spawn(drive(far.clone())));
            pairs.push((near, far));
        }
        let posted = net.hosts[1].counters().work_requests;
        net.hosts[1].script(posted + 1, Fate::PartialPost);
        send(&pairs[0].0, request(1, pattern(1, 50)), Flush::Now).await.expect("open");
        for driver in drivers {
            let error = driver.await.expect("no panic").to_string();
            assert!(error.contains("posting"), "{error}");
        }
        assert_eq!(net.fabric.pending_fates(), 0);
        close_all(&net, &pairs).await;
        let again = net.pair().await;
        close_all(&net, &[again]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn reconnecting_for_ever_is_never_refused_beside_a_connection_that_says_nothing() {
    for profile in PROFILES {
        let net = Net::with(profile, 29, [trusting(), sharing(1024)]);
        let (idle, far) = net.pair().await;
        for round in 0..200 {
            let (near, other) = net.pair().await;
            send(&near, request(round, pattern(round, 50)), Flush::Now).await.expect("open");
            assert_eq!(slot(&receive_all(&other, 1).await[0]), round, "{profile:?}");
            near.retire().await;
            other.retire().await;
        }
        send(&idle, request(1, pattern(1, 50)), Flush::Now).await.expect("open");
        assert_eq!(slot(&receive_all(&far, 1).await[0]), 1);
        close_all(&net, &[(idle, far)]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_that_nobody_takes_are_not_missing() {
    for profile in PROFILES {
        let net = Net::with(profile, 30, [trusting(), sharing(128)]);
        let (quiet, unread) = net.pair().await;
        let (near, far) = net.pair().await;
        send(&quiet, request(0, pattern(0, 50)), Flush::Now).await.expect("open");
        tokio::time::sleep(Duration::from_millis(1)).await;
        for round in 0..2 {
            send(&near, request(round, pattern(round, 50)), Flush::Now).await.expect("open");
            assert_eq!(slot(&receive_all(&far, 1).await[0]), round);
        }
        assert_eq!(shares(&net).missing, 0, "{profile:?}");
        assert_eq!(slot(&receive_all(&unread, 1).await[0]), 0);
        close_all(&net, &[(quiet, unread), (near, far)]).await;
    }
}
