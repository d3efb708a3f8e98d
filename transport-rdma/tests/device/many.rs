//! Many connections: at once, and one after another.

use std::fs;
use std::future::poll_fn;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use verbwire_core::Target;
use verbwire_core::transport::{Listener, Transport};
use verbwire_rdma::RdmaTransport;

use crate::{
    anywhere, connect, lab, pattern, receive, request, send, side, small, transport, works,
};

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn two_hundred_connections_stand_at_once() {
    let transport = transport(small());
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let mut all = Vec::new();
    for number in 0..200 {
        let pair = connect(&transport, &mut *listener, number * 2).await;
        all.push(pair.unwrap_or_else(|error| panic!("connection {number}: {error}")));
    }
    for (near, far) in &all {
        works(near, far).await;
    }
    let ends = all.iter().flat_map(|(near, far)| [near, far]);
    let retired: Vec<_> = ends.map(|end| tokio::spawn(end.retire())).collect();
    for end in retired {
        timeout(Duration::from_secs(30), end).await.expect("retired in time").expect("no panic");
    }
    let counts = transport.buffers();
    assert_eq!((counts.free, counts.leaked), (counts.total, 0));
}

/// How many connections come and go.
const COUNT: u64 = 2000;

/// How many clients at a time.
const AT_A_TIME: u64 = 10;

/// After so many everything that is kept for later connections is there.
const WARM_UP: u64 = 200;

/// What a process may not use more and more of.
#[derive(Debug)]
struct Usage {
    descriptors: usize,
    resident_kb: usize,
    locked_kb: usize,
    buffers: usize,
    /// Queue pairs, completion queues, registrations and so on, as the kernel counts them.
    objects: Vec<usize>,
}

impl Usage {
    fn now(transport: &RdmaTransport) -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("proc");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).expect("a field of proc");
            line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
        };
        Self {
            descriptors: fs::read_dir("/proc/self/fd").expect("proc").count(),
            resident_kb: field("VmRSS:"),
            locked_kb: field("VmPin:"),
            buffers: transport.buffers().total,
            objects: objects(),
        }
    }

    /// Whether it is no more than `before`, but for what a memory allocator keeps.
    fn is_within(&self, before: &Self) -> bool {
        let pairs = self.objects.iter().zip(&before.objects);
        self.descriptors <= before.descriptors
            && self.resident_kb <= before.resident_kb + HOLES_KB
            && self.locked_kb <= before.locked_kb
            && self.buffers <= before.buffers
            && pairs.into_iter().all(|(now, before)| now <= before)
    }
}

/// The numbers in the line of the device: "0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0".
fn objects() -> Vec<usize> {
    let said = Command::new("rdma").args(["resource", "show"]).output().expect("rdma runs");
    let said = String::from_utf8(said.stdout).expect("text");
    let device = format!(" {}: ", lab("LAB_DEVICE"));
    let (_, line) = said.lines().find_map(|line| line.split_once(&device)).expect("a line of it");
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Connects `rounds` times, one after another, says something each time and ends it in one of two ways.
async fn come_and_go(transport: RdmaTransport, at: Target, rounds: u64) {
    for round in 0..rounds {
        let connected = transport.connect(&at, side(round)).await;
        let end = connected.expect("connected").connection;
        send(&end, request(7, pattern(7, 100))).await.expect("open");
        if round.is_multiple_of(2) { end.retire().await } else { drop(end) }
    }
}

/// Serves connections until `count` have said something and gone.
async fn serve(mut listener: Box<dyn Listener>, count: u64) -> Box<dyn Listener> {
    let mut served = JoinSet::new();
    for number in 0..count {
        let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("the device lives");
        served.spawn(async move {
            let end = accepting.handshake(side(number)).await.expect("a HELLO").connection;
            assert_eq!(receive(&end).await.expect("open").len(), 1);
            receive(&end).await.expect_err("the peer has gone");
            end.retire().await;
        });
    }
    while let Some(ended) = served.join_next().await {
        ended.expect("no panic");
    }
    listener
}

/// So many connections, several at a time because their ends wait for each other.
async fn churn(
    transport: &RdmaTransport,
    listener: Box<dyn Listener>,
    count: u64,
) -> Box<dyn Listener> {
    let at = listener.local_target().clone();
    let mut clients = JoinSet::new();
    for _ in 0..AT_A_TIME {
        clients.spawn(come_and_go(transport.clone(), at.clone(), count / AT_A_TIME));
    }
    let listener = serve(listener, count).await;
    while let Some(ended) = clients.join_next().await {
        ended.expect("no panic");
    }
    listener
}

/// What holes in the heap may add, in KiB. 24 MiB, a sixth of what 2000 slabs would take; 1 to 6 MiB were seen, with never more
/// than 1 MiB in use. A leak of less than that in 2000 connections does not show here.
const HOLES_KB: usize = 24 << 10;

/// Settings of glibc with which its memory shows what is in use. By default it takes slabs, 68 KiB here and aligned to pages,
/// from its heaps, of which every few threads have one of their own: the holes that are left there (tens of MiB) cannot be
/// told from a leak. So: slabs mapped apart, and one heap.
const TIDY: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "65536"), ("MALLOC_ARENA_MAX", "1")];

#[test]
#[ignore = "needs an RDMA device: run it in the device lab"]
fn two_thousand_connections_that_come_and_go_leave_nothing_behind() {
    if TIDY.iter().all(|(name, value)| std::env::var(name).is_ok_and(|set| set == *value)) {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
        return runtime.block_on(come_and_go_two_thousand());
    }
    let test = "many::two_thousand_connections_that_come_and_go_leave_nothing_behind";
    let mut run = Command::new(std::env::current_exe().expect("this test"));
    run.args(["--ignored", "--exact", test, "--nocapture"]).envs(TIDY);
    // Its result is not one of this run's tests; what it fails with stands on standard error.
    let status = run.stdout(Stdio::null()).status();
    assert!(status.expect("it runs").success(), "see above");
}

async fn come_and_go_two_thousand() {
    let transport = transport(small());
    let listener = transport.listen(&anywhere()).await.expect("listens");
    let listener = churn(&transport, listener, WARM_UP).await;
    sleep(Duration::from_secs(2)).await;
    let before = Usage::now(&transport);
    let _listener = churn(&transport, listener, COUNT).await;
    // The reaper closes behind us.
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let now = Usage::now(&transport);
        if now.is_within(&before) {
            return println!("{before:?} became {now:?}");
        }
        assert!(Instant::now() < until, "{before:?} became {now:?} after {COUNT} connections");
        sleep(Duration::from_millis(200)).await;
    }
}
