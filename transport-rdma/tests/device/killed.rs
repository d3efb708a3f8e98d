//! Peers that are killed in the middle of long bodies. All memory comes back to who survives.
//!
//! Each test runs itself again as the peer, in a process of its own.

use std::env;
use std::future::poll_fn;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use verbwire_core::transport::Transport;
use verbwire_core::{Error, ErrorKind, Target};
use verbwire_rdma::{PoolCounts, RdmaConfig, RdmaTransport};

use crate::{End, anywhere, pattern, receive, request, send, side, transport};

/// Set in the peer: where the test listens, or nothing.
const PEER: &str = "VERBWIRE_TEST_PEER";
/// In front of the target at which the peer listens.
const AT: &str = "@at ";
/// Longer than several Writes.
const LEN: usize = 8 << 20;
const LONG: Duration = Duration::from_secs(30);
/// Each time the peer dies at another point.
const ROUNDS: u32 = 4;

/// The other process; killed when dropped.
struct Peer(Child);

impl Peer {
    /// Runs the test of this name as the peer.
    fn start(test: &str, at: &str) -> Self {
        let child = Command::new(env::current_exe().expect("this binary has a path"))
            .args(["--ignored", "--exact", "--nocapture", test])
            .env(PEER, at)
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("this binary can be run again"))
    }

    /// Where it listens.
    async fn target(&mut self) -> Target {
        let said = self.0.stdout.take().expect("stdout is piped");
        let find = move || {
            let mut lines = BufReader::new(said).lines().map_while(Result::ok);
            lines.find_map(|line| line.split_once(AT).map(|(_, address)| address.to_owned()))
        };
        let address = tokio::task::spawn_blocking(find).await.expect("no panic");
        Target::new("rdma", address.expect("the peer says where it listens"))
    }

    fn kill(mut self) {
        self.0.kill().expect("it runs");
        let status = self.0.wait().expect("a child");
        assert_eq!(status.signal(), Some(9), "it ended before: {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ended = self.0.kill();
    }
}

/// Sends long bodies one after the other, until the connection ends.
async fn send_for_ever(end: End) -> Error {
    let body = pattern(1, LEN);
    let sending = async {
        for slot in 0.. {
            if let Err(error) = send(&end, request(slot, body.clone())).await {
                return error;
            }
        }
        unreachable!("slots do not end")
    };
    let receiving = async {
        loop {
            if let Err(error) = receive(&end).await {
                return error;
            }
        }
    };
    tokio::select! {
        biased;
        error = receiving => error,
        error = sending => error,
    }
}

/// Receives long bodies, and looks at each, until the connection ends.
async fn receive_for_ever(end: End, expected: Bytes) -> Error {
    loop {
        match receive(&end).await {
            Ok(messages) => messages
                .into_iter()
                .for_each(|message| assert!(message.body.into_bytes() == expected)),
            Err(error) => return error,
        }
    }
}

/// Waits until memory of this side is in the hands of the peer, then some more, and returns while it is again: between two bodies
/// none is.
async fn until(transport: &RdmaTransport, round: u32, is_used: impl Fn(PoolCounts) -> bool) {
    let deadline = Instant::now() + LONG;
    for more in [0, 7 * round] {
        sleep(Duration::from_millis(u64::from(more))).await;
        while !is_used(transport.pools()) {
            assert!(Instant::now() < deadline, "nothing is written: {:?}", transport.pools());
            sleep(Duration::from_micros(200)).await;
        }
    }
}

/// The survivor hears of it, and all memory is its own again.
async fn survived(transport: &RdmaTransport, end: End, ended: tokio::task::JoinHandle<Error>) {
    let error = timeout(LONG, ended).await.expect("in time").expect("no panic");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    end.close(error);
    crate::assert_clean(transport, [Arc::clone(&end), end]).await;
    let users = transport.pools().users;
    assert_eq!((users.in_use_bytes, users.leaked_bytes), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_client_killed_amid_its_writes_leaves_the_server_all_memory() {
    const NAME: &str = "killed::a_client_killed_amid_its_writes_leaves_the_server_all_memory";
    let transport = transport(RdmaConfig::default());
    if let Ok(at) = env::var(PEER) {
        let target = Target::new("rdma", at);
        let near = transport.connect(&target, side(7)).await.expect("connected").connection;
        send_for_ever(near).await;
        return;
    }
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    for round in 0..ROUNDS {
        let peer = Peer::start(NAME, listener.local_target().address());
        let accepting = timeout(LONG, poll_fn(|cx| listener.poll_accept(cx)));
        let accepting = accepting.await.expect("in time").expect("a client");
        let far = accepting.handshake(side(8)).await.expect("HELLO").connection;
        let ended = tokio::spawn(receive_for_ever(far.clone(), pattern(1, LEN)));
        until(&transport, round, |pools| pools.landing.in_use_bytes > 0).await;
        peer.kill();
        survived(&transport, far, ended).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_server_killed_amid_writes_leaves_the_client_all_memory() {
    const NAME: &str = "killed::a_server_killed_amid_writes_leaves_the_client_all_memory";
    let transport = transport(RdmaConfig::default());
    if env::var(PEER).is_ok() {
        let mut listener = transport.listen(&anywhere()).await.expect("listens");
        println!("{AT}{}", listener.local_target().address());
        let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("a client");
        let far = accepting.handshake(side(8)).await.expect("HELLO").connection;
        receive_for_ever(far, pattern(1, LEN)).await;
        return;
    }
    for round in 0..ROUNDS {
        let mut peer = Peer::start(NAME, "");
        let target = timeout(LONG, peer.target()).await.expect("in time");
        let near = transport.connect(&target, side(7)).await.expect("connected").connection;
        let ended = tokio::spawn(send_for_ever(near.clone()));
        until(&transport, round, |pools| pools.staging.in_use_bytes > 0).await;
        peer.kill();
        survived(&transport, near, ended).await;
    }
}
