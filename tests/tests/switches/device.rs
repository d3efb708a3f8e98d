//! Calls over `auto://` on a device of the lab, which goes away under them and returns. Run there with `--ignored`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use verbwire::{Channel, Endpoint, Paths, Server};
use verbwire_core::config::PathPolicy;
use verbwire_tests::lab;

use crate::ledger::{Ledger, Load, Running, Runs};

/// Longer than a guest takes to make a path, with others on its cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long after its deadline a call may end where each instruction is emulated.
const SLACK: Duration = Duration::from_secs(5);

/// Longer than any handler takes.
const SETTLED: Duration = Duration::from_secs(1);

/// A server here and a channel to it.
struct Pair {
    channel: Channel,
    runs: Runs,
}

async fn run(line: &str) {
    let ran = tokio::time::timeout(PATIENCE, lab::run(line)).await;
    ran.expect("it ends in time").expect("it succeeds");
}

fn device_address() -> String {
    lab::variable("LAB_ADDRESS").expect("in the lab")
}

impl Pair {
    async fn at(server: &str, client: &str, policy: PathPolicy) -> Self {
        let runs = Runs::default();
        let builder = Server::builder().add_service(Ledger(Arc::clone(&runs)));
        let bound = builder.bind(&[format!("{server}:0")]).await.expect("a free port");
        let target = bound.local_targets()[0].address().to_owned();
        tokio::spawn(bound.serve());
        let endpoint = Endpoint::new(&format!("{client}://{target}")).expect("well-formed");
        let endpoint = endpoint.path_backoff(Duration::from_millis(100), Duration::from_secs(1));
        let endpoint = endpoint.path_policy(policy).connect_timeout(PATIENCE);
        Self { channel: endpoint.connect().await.expect("it serves"), runs }
    }

    fn paths(&self) -> Paths {
        self.channel.paths().expect("TCP stays connected")
    }

    /// Waits until calls go over the device for the `nth` time.
    async fn moved(&self, nth: u64) {
        self.until("calls are not on RDMA", |paths| {
            paths.switches == nth && paths.current().path.transport == "rdma"
        })
        .await;
    }

    /// Waits until calls are back on TCP, and sees that they get replies there.
    async fn left(&self, load: &Running) {
        self.until("calls are still on RDMA", |paths| paths.second.is_none()).await;
        let (replies, before) = (load.replies(), self.paths().first.traffic.calls);
        let goes_on = |paths: &Paths| {
            paths.first.traffic.calls > before + 20 && load.replies() > replies + 10
        };
        self.until("no calls go over TCP", goes_on).await;
    }

    async fn until(&self, why: &str, condition: impl Fn(&Paths) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !condition(&self.paths()) {
            assert!(Instant::now() < until, "{why}: {}", self.paths());
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_device_that_is_deleted_under_calls_is_left_and_found_again() {
    let pair = Pair::at(&device_address(), "auto", PathPolicy::Auto).await;
    let load = Load::begin(&pair.channel, &pair.runs, 1, SLACK);
    for nth in 1..=3 {
        pair.moved(nth).await;
        sleep(Duration::from_millis(300)).await;
        run("rdma link delete DEVICE").await;
        pair.left(&load).await;
        println!("without the device: {}", pair.paths());
        run("rdma link add DEVICE type KIND netdev NETDEV").await;
    }
    pair.moved(4).await;
    println!("{} at the end: {:?}", pair.paths(), load.end(SETTLED).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_link_that_is_down_for_a_while_is_left_and_taken_again() {
    let pair = Pair::at(&device_address(), "auto", PathPolicy::Auto).await;
    let load = Load::begin(&pair.channel, &pair.runs, 2, SLACK);
    for nth in 1..=2 {
        pair.moved(nth).await;
        sleep(Duration::from_millis(300)).await;
        run("ip link set NETDEV down").await;
        pair.left(&load).await;
        println!("with the link down: {}", pair.paths());
        // Long enough for attempts to fail.
        sleep(Duration::from_secs(3)).await;
        run("ip link set NETDEV up").await;
    }
    pair.moved(3).await;
    println!("{} at the end: {:?}", pair.paths(), load.end(SETTLED).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn where_one_side_goes_without_the_device_calls_stay_on_tcp_and_say_why() {
    let address = device_address();
    for (server, client, policy, why) in [
        (&*address, "auto", PathPolicy::TcpOnly, "TcpOnly"),
        (&*format!("tcp://{address}"), "auto", PathPolicy::Auto, "which has one path"),
        // No device has this address.
        ("127.0.0.1", "auto", PathPolicy::Auto, "127.0.0.1"),
        (&*address, "tcp", PathPolicy::Auto, "one path"),
    ] {
        let pair = Pair::at(server, client, policy).await;
        let load = Load::begin(&pair.channel, &pair.runs, 3, SLACK);
        pair.until("no reply", |_| load.replies() > 20).await;
        let paths = pair.paths();
        println!("server at {server}, client by {client}://: {paths}");
        assert!(paths.second.is_none() && paths.switches == 0, "{paths}");
        assert!(paths.why_not.contains(why), "{paths}");
        let report = load.end(SETTLED).await;
        assert_eq!(report.cut_off(), 0, "{report:?}");
    }
}
