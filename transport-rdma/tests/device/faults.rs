//! Devices and links that go away. Changes the guest's devices, and puts them back.

use std::future::poll_fn;
use std::process::Command;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use verbwire_core::transport::{Listener, Transport};
use verbwire_core::{Error, ErrorKind};
use verbwire_rdma::{RdmaConfig, RdmaTransport};

use crate::{End, all_free, anywhere, connect, lab, pattern, receive, request, send, transport};

/// Runs a program of the guest, off the runtime: deleting a device waits until nobody uses it.
async fn run(program: &'static str, words: Vec<String>) {
    let shown = format!("{program} {}", words.join(" "));
    let running = tokio::task::spawn_blocking(move || Command::new(program).args(words).status());
    let status = timeout(Duration::from_secs(20), running).await;
    assert!(status.is_ok(), "'{shown}' does not end");
    let status = status.expect("in time").expect("no panic").expect("it runs");
    assert!(status.success(), "'{shown}' failed");
}

fn words(line: &str) -> Vec<String> {
    let replaced = line
        .replace("DEVICE", &lab("LAB_DEVICE"))
        .replace("KIND", &lab("LAB_KIND"))
        .replace("NETDEV", &lab("LAB_NETDEV"));
    replaced.split(' ').map(str::to_owned).collect()
}

/// Drives an end under load until it ends.
async fn until_lost(end: End) -> Error {
    let sender = end.clone();
    let load = tokio::spawn(async move {
        for slot in 0.. {
            if send(&sender, request(slot, pattern(slot, 3000))).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    });
    let error = loop {
        if let Err(error) = receive(&end).await {
            break error;
        }
    };
    end.close(error.clone());
    load.await.expect("no panic");
    error
}

/// Deletes the device, which ends `listener`, and adds it again.
///
/// Deleting returns only when everything of the device is closed, although its transport lives.
async fn delete_and_add(mut listener: Box<dyn Listener>) {
    let listening = tokio::spawn(async move {
        poll_fn(|cx| listener.poll_accept(cx)).await.err().expect("no request comes")
    });
    run("rdma", words("link delete DEVICE")).await;
    let error = listening.await.expect("no panic");
    assert!(error.to_string().contains("listen anew"), "{error}");
    run("rdma", words("link add DEVICE type KIND netdev NETDEV")).await;
}

/// Waits until the device can be listened on and connected to.
async fn works_again() {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let transport = transport(RdmaConfig::default());
        let tried = async {
            let mut listener = transport.listen(&anywhere()).await?;
            connect(&transport, &mut *listener, 7).await
        };
        match tried.await {
            Ok((near, far)) => {
                near.retire().await;
                return far.retire().await;
            }
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_device_that_is_deleted_under_load_ends_its_connections_and_may_come_again() {
    let transport = transport(RdmaConfig::default());
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let (near, far) = connect(&transport, &mut *listener, 1).await.expect("connected");
    let ends = [near, far].map(|end| tokio::spawn(until_lost(end)));
    sleep(Duration::from_millis(200)).await;
    delete_and_add(listener).await;
    for end in ends {
        let error = end.await.expect("no panic");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("was removed from this machine"), "{error}");
    }
    // The kernel lets go of a queue pair before the reaper has put its buffers back.
    all_free(&transport).await;
    works_again().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_link_that_goes_down_ends_connections_with_its_name() {
    let transport = transport(RdmaConfig::default());
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let (near, far) = connect(&transport, &mut *listener, 1).await.expect("connected");
    let ends = [near, far].map(|end| tokio::spawn(until_lost(end)));
    sleep(Duration::from_millis(200)).await;
    run("ip", words("link set NETDEV down")).await;
    for end in ends {
        let error =
            timeout(Duration::from_secs(20), end).await.expect("in time").expect("no panic");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
    // Some time with the link down, in which nothing may be sent: a message of the connection manager's stops
    // soft-RoCE's queue pair for management for good.
    sleep(Duration::from_secs(2)).await;
    run("ip", words("link set NETDEV up")).await;
    drop(listener);
    works_again().await;
}

/// Deletes the device and adds it again; nothing of it is in use but for what its transport keeps.
async fn delete_idle_and_add() {
    run("rdma", words("link delete DEVICE")).await;
    run("rdma", words("link add DEVICE type KIND netdev NETDEV")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_device_that_nobody_uses_any_more_can_be_deleted_and_its_transport_used_again() {
    let transport = transport(RdmaConfig::default());
    for round in 0..3 {
        let mut listener = listen_again(&transport).await;
        let (near, far) = connect(&transport, &mut *listener, round).await.expect("connected");
        near.retire().await;
        far.retire().await;
        drop((near, far, listener));
        delete_idle_and_add().await;
    }
    let mut listener = listen_again(&transport).await;
    connect(&transport, &mut *listener, 7).await.expect("connected");
}

/// A device that was just added takes some moments to know its addresses.
async fn listen_again(transport: &RdmaTransport) -> Box<dyn Listener> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match transport.listen(&anywhere()).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_device_can_be_deleted_when_the_transport_is_gone_and_it_is_the_last_of_the_machine() {
    let (other, kind, netdev) =
        if lab("LAB_KIND") == "rxe" { ("siw0", "siw", "wire1") } else { ("rxe0", "rxe", "wire0") };
    let other = |line: &str| {
        let line = line.replace("OTHER", other).replace("KIND", kind).replace("NETDEV", netdev);
        line.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    works_again().await;
    run("rdma", other("link delete OTHER")).await;
    run("rdma", words("link delete DEVICE")).await;
    run("rdma", words("link add DEVICE type KIND netdev NETDEV")).await;
    works_again().await;
    run("rdma", other("link add OTHER type KIND netdev NETDEV")).await;
}
