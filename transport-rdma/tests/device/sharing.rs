//! Connections that share receives.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use verbwire_rdma::{Peers, RdmaConfig};

use crate::{
    End, all_free, anywhere, connect, pattern, receive, request, send, slot, transport, works,
};
use verbwire_core::transport::Transport;

/// So many receives for all, of trusted peers.
fn sharing(receives: u32) -> RdmaConfig {
    let mut config = RdmaConfig::for_many(0);
    (config.shared_receives, config.eager_len) = (receives, 4096);
    config.peers = Peers::Trusted;
    config
}

/// Receives messages 0 to `count` in order, then drives the end until it is over.
async fn take(end: End, count: u32) {
    let mut next = 0;
    while next < count {
        for message in receive(&end).await.expect("open") {
            assert_eq!(slot(&message), next);
            next += 1;
        }
    }
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn two_dozen_connections_share_a_queue_of_receives() {
    let transport = transport(sharing(512));
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let mut all = Vec::new();
    for number in 0..24 {
        let pair = connect(&transport, &mut *listener, number * 2).await;
        all.push(pair.unwrap_or_else(|error| panic!("connection {number}: {error}")));
    }
    // Both ends are this process's, and one device is one queue.
    let idle = transport.shared_receives();
    assert_eq!((idle.posted, idle.members, idle.floors), (512, 48, 288));
    assert_eq!(transport.buffers().total, 512 + 48 * 8);
    for (near, far) in &all {
        works(near, far).await;
    }
    let mut tasks = JoinSet::new();
    for (number, (near, far)) in all.iter().enumerate() {
        let count = if number % 8 == 0 { 150 } else { 3 };
        let (sender, near, far) = (near.clone(), near.clone(), far.clone());
        tokio::spawn(async move { while receive(&near).await.is_ok() {} });
        tasks.spawn(take(far, count));
        tasks.spawn(async move {
            for number in 0..count {
                send(&sender, request(number, pattern(number, 40))).await.expect("open");
            }
        });
    }
    let done = async {
        while let Some(task) = tasks.join_next().await {
            task.expect("no panic")
        }
    };
    timeout(Duration::from_secs(60), done).await.expect("all is received in time");
    let ends = all.iter().flat_map(|(near, far)| [near, far]);
    let retired: Vec<_> = ends.map(|end| tokio::spawn(end.retire())).collect();
    for end in retired {
        timeout(Duration::from_secs(30), end).await.expect("retired in time").expect("no panic");
    }
    // The queue is destroyed by the reaper when its last connection has ended.
    all_free(&transport).await;
    assert_eq!(transport.shared_receives().posted, 0);
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_burst_borrows_on_a_device_and_a_connection_that_ends_leaves_the_others() {
    let transport = transport(sharing(256));
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let (near, far) = connect(&transport, &mut *listener, 0).await.expect("connected");
    for round in 0..10 {
        let other = connect(&transport, &mut *listener, 2 * round + 2).await.expect("connected");
        send(&other.0, request(9, pattern(9, 3000))).await.expect("open");
        drop(other);
        let (sender, driven) = (near.clone(), near.clone());
        let driver = tokio::spawn(async move { while receive(&driven).await.is_ok() {} });
        let burst = tokio::spawn(async move {
            for number in 0..200 {
                send(&sender, request(number, pattern(number, 40))).await.expect("open");
            }
        });
        let taken = timeout(Duration::from_secs(60), take(far.clone(), 200)).await;
        taken.expect("all is received in time");
        burst.await.expect("no panic");
        driver.abort();
    }
    // What the connections that have ended had is put back by the reaper.
    let until = Instant::now() + Duration::from_secs(20);
    while transport.shared_receives().missing > 16 {
        assert!(Instant::now() < until, "{:?}", transport.shared_receives());
        sleep(Duration::from_millis(20)).await;
    }
    let now = transport.shared_receives();
    assert!(now.lent > 0, "{now:?}");
    near.retire().await;
    far.retire().await;
}
