//! How connections begin, and how they do not.

use std::future::poll_fn;
use std::time::Duration;

use tokio::time::Instant;
use verbwire_core::transport::{LocalSide, Transport};
use verbwire_core::{ErrorKind, Target};
use verbwire_rdma::fabric::{Fabric, FabricConfig};
use verbwire_rdma::{FabricTransport, RdmaConfig, RdmaTransport};

use crate::pair::{Everything, Net, PROFILES, side, step};

fn soon(limit: Duration) -> LocalSide {
    LocalSide { deadline: Instant::now() + limit, ..side(Everything) }
}

#[tokio::test(start_paused = true)]
async fn both_sides_learn_the_others_windows() {
    let net = Net::new(PROFILES[0], 1);
    let mut listener = net.listen().await;
    let at = listener.local_target().clone();
    let (near, far) = tokio::join!(net.transports[0].connect(&at, side(Everything)), async {
        let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
        assert!(accepting.peer().starts_with("near:"));
        accepting.handshake(side(Everything)).await
    });
    for established in [near.expect("connect"), far.expect("handshake")] {
        let peer = established.peer;
        assert_eq!((peer.data_window, peer.control_window, peer.receive_len), (64, 16, 8192));
        established.connection.retire().await;
    }
    net.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_one_sentence() {
    let net = Net::new(PROFILES[0], 1);
    for (address, words) in [("far:9", "nothing listens there"), ("moon:9", "no host moon")] {
        let target = Target::new("fabric", address);
        let error = net.transports[0].connect(&target, side(Everything)).await;
        let error = error.err().expect("nobody");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains(words), "{error}");
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    net.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_nobody_times_out() {
    let net = Net::new(PROFILES[0], 1);
    let listener = net.listen().await;
    let connect =
        net.transports[0].connect(listener.local_target(), soon(Duration::from_millis(300)));
    let error = connect.await.err().expect("silence");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("did not answer in time"), "{error}");
    tokio::time::sleep(Duration::from_secs(6)).await;
    net.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_dropped_at_any_step_leaves_nothing() {
    for profile in PROFILES {
        for steps in 0..60 {
            let net = Net::new(profile, steps as u64);
            let mut listener = net.listen().await;
            let at = listener.local_target().clone();
            let server = tokio::spawn(async move {
                while let Ok(accepting) = poll_fn(|cx| listener.poll_accept(cx)).await {
                    tokio::spawn(async { drop(accepting.handshake(side(Everything)).await) });
                }
            });
            let transport = net.transports[0].clone();
            let attempt =
                tokio::spawn(async move { drop(transport.connect(&at, side(Everything)).await) });
            for number in 0..steps {
                step(number).await;
            }
            attempt.abort();
            tokio::time::sleep(Duration::from_secs(30)).await;
            server.abort();
            net.assert_clean();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slabs_serve_one_connection_after_the_other() {
    let net = Net::new(PROFILES[0], 1);
    for _ in 0..20 {
        let (near, far) = net.pair().await;
        net.close([&near, &far]).await;
    }
    assert_eq!(net.fabric.counters().registrations, 2, "one per side");
}

#[tokio::test(start_paused = true)]
async fn targets_name_fabrics_of_this_process() {
    let net = Net::new(PROFILES[1], 1);
    let name = FabricTransport::publish("establishing", &net.fabric).expect("free");
    assert!(FabricTransport::publish("establishing", &net.fabric).is_err(), "taken");
    let transport = FabricTransport::default();
    let target = |address| Target::new("fabric", address);
    let listener = transport.listen(&target("establishing/far:0")).await.expect("free");
    assert!(listener.local_target().to_string().starts_with("fabric://establishing/far:4"));
    drop((listener, name));
    let gone = transport.connect(&target("establishing/far:1"), side(Everything)).await;
    assert_eq!(gone.err().expect("gone").kind(), ErrorKind::Unreachable);
    for malformed in ["far:1", "net/far", "/far:1", "net/:1", "net/far:x"] {
        let error = transport.connect(&target(malformed), side(Everything)).await;
        let error = error.err().expect(malformed);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("fabric://net/host:port"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_out_of_memory_says_so() {
    let fabric = Fabric::new(FabricConfig { lockable_bytes: 1 << 19, ..FabricConfig::new(1) });
    let transport = RdmaTransport::over_fabric(&fabric.host("near"), RdmaConfig::default());
    fabric.host("far");
    let error = transport.connect(&Target::new("fabric", "far:9"), side(Everything)).await;
    let error = error.err().expect("no memory");
    assert_eq!(error.kind(), ErrorKind::LocalResource);
    assert!(error.to_string().contains("registering a connection's buffers"), "{error}");
}
