//! Attempts that are given up, disconnects that nobody answers, and what is left of them.

use std::io::Write as _;
use std::net::TcpListener;
use std::thread::sleep as block;
use std::time::Instant;

use verbwire_core::Error;

use super::*;
use crate::nic::CmListener;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// How many descriptors stay open when the reaper has closed what it was given.
fn settled() -> usize {
    let mut count = descriptors();
    loop {
        block(Duration::from_millis(300));
        let now = descriptors();
        if now == count {
            return now;
        }
        count = now;
    }
}

/// Waits until no more descriptors are open than that.
fn wait_until_closed(most: usize, limit: Duration) {
    let until = Instant::now() + limit;
    while descriptors() > most {
        assert!(Instant::now() < until, "{} descriptors are open and not {most}", descriptors());
        block(Duration::from_millis(20));
    }
}

async fn listen() -> Box<dyn CmListener> {
    cm().listen(&format!("{}:0", lab("LAB_ADDRESS"))).await.expect("listens")
}

async fn connect(address: &str) -> Result<(Side, Connected), Error> {
    let resolved = cm().resolve(address).await?;
    let side = Side::open(&resolved.nic());
    let connected = resolved.connect(Arc::clone(&side.qp), b"hello".to_vec()).await?;
    Ok((side, connected))
}

/// Says to the lab that a device cannot do what a test is about.
pub(super) fn cannot(test: &str, reason: &str) {
    let line = format!("@cannot verbs::tests::{test}: {reason}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("standard output");
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn an_attempt_that_is_dropped_in_any_state_leaves_nothing_behind() {
    let listener = listen().await;
    let address = listener.local_address().to_owned();
    // The device and its thread stay open.
    let _resolved = cm().resolve(&address).await.expect("resolves");
    let before = settled();
    for millis in [0, 1, 2, 5, 10, 20, 50, 100, 300] {
        // Nobody takes the request.
        let attempt = timeout(Duration::from_millis(millis), connect(&address));
        assert!(attempt.await.is_err(), "nobody accepts within {millis} ms");
    }
    drop(listener);
    wait_until_closed(before, Duration::from_secs(15));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn attempts_that_are_dropped_keep_nobody_else_waiting() {
    // A port that takes a connection and says nothing: iWARP waits for an answer that never comes.
    let silent = TcpListener::bind((lab("LAB_ADDRESS").as_str(), 0)).expect("a TCP port");
    let address = silent.local_addr().expect("bound").to_string();
    for _ in 0..16 {
        let attempt = timeout(Duration::from_millis(50), connect(&address)).await;
        assert!(attempt.is_err() || !is_siw(), "iWARP waits for the answer");
    }
    let begun = Instant::now();
    let ((_client, one), (_server, two)) = pair().await;
    drop((one, two));
    // Destroying is what would wait.
    let (sender, receiver) = std::sync::mpsc::channel();
    reap(move || sender.send(()).expect("the test waits"));
    receiver.recv_timeout(Duration::from_secs(20)).expect("the reaper works");
    // One after another they would take 5 s each.
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_peer_that_never_answers_is_given_up() {
    // Its kernel takes the request, and nobody asks for it.
    let listener = listen().await;
    let begun = Instant::now();
    let error = connect(listener.local_address()).await.err().expect("given up");
    let took = begun.elapsed();
    if is_siw() {
        // soft-iWARP's own limit is 5 s.
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    } else {
        assert!(error.to_string().ends_with("connect request within 20s"), "{error}");
        assert!(took >= Duration::from_secs(20), "{took:?}");
    }
    assert!(took < Duration::from_secs(45), "{took:?}");
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_peer_that_never_establishes_is_given_up() {
    if is_siw() {
        return cannot(
            "endings::a_peer_that_never_establishes_is_given_up",
            "the kernel establishes by itself",
        );
    }
    let mut listener = listen().await;
    let address = listener.local_address().to_owned();
    let resolved = cm().resolve(&address).await.expect("resolves");
    let near = Side::open(&resolved.nic());
    // It is polled until the request is there, and never again.
    let mut stuck = resolved.connect(Arc::clone(&near.qp), b"hello".to_vec());
    let request = tokio::select! {
        biased;
        request = poll_fn(|cx| listener.poll_request(cx)) => request.expect("a request"),
        _ = &mut stuck => panic!("nobody has accepted yet"),
    };
    let far = Side::open(&request.nic());
    let begun = Instant::now();
    let error = request.accept(Arc::clone(&far.qp), Vec::new()).await.err().expect("given up");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("did not finish connecting within 20s"), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(20));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn an_id_lingers_until_the_peer_has_answered_the_disconnect() {
    let ((client, one), (server, two)) = pair().await;
    let before = settled();
    let mut one = one;
    one.events.disconnect();
    drop(one);
    block(Duration::from_millis(500));
    if !is_siw() {
        // The kernel's answer comes from whom the peer's id belongs to, and nobody has read its events.
        assert_eq!(descriptors(), before, "the id is there to repeat the disconnect");
    }
    drop(two);
    wait_until_closed(before - 2, Duration::from_secs(5));
    drop((client, server));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn an_id_does_not_linger_for_ever() {
    let ((_client, mut one), (_server, two)) = pair().await;
    let before = settled();
    one.events.disconnect();
    drop(one);
    // Kept and never looked at, like a process that is stopped.
    wait_until_closed(before - 1, Duration::from_secs(15));
    drop(two);
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_listener_at_all_addresses_takes_requests_by_any_device() {
    let mut listener = cm().listen("0.0.0.0:0").await.expect("listens");
    let (_, port) = listener.local_address().rsplit_once(':').expect("has a port");
    let address = format!("{}:{port}", lab("LAB_ADDRESS"));
    let accepting = async {
        let request = poll_fn(|cx| listener.poll_request(cx)).await.expect("a request");
        assert_eq!(request.nic().capabilities().device, lab("LAB_DEVICE"));
        let side = Side::open(&request.nic());
        let qp = Arc::clone(&side.qp);
        (request.accept(qp, Vec::new()).await.expect("accepts"), side)
    };
    let both = async { tokio::join!(connect(&address), accepting) };
    let (near, _far) = timeout(Duration::from_secs(30), both).await.expect("in time");
    near.expect("connects");
}
