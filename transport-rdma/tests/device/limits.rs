//! What a device or the system gives no more of: one clear error, and all is well when connections end.
//!
//! Each test runs itself again in a process of its own, in which the limit holds.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use verbwire_core::transport::{Listener, Transport};
use verbwire_core::{Error, ErrorKind};
use verbwire_rdma::{RdmaConfig, RdmaTransport};

use crate::{End, anywhere, connect, lab, small, transport, works};

/// Set in the process in which a limit holds.
const LIMITED: &str = "VERBWIRE_TEST_LIMITED";

/// Which of the two processes of a test this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    /// The limit holds here, and here the test is.
    Limited,
    /// It only ran the other one, which succeeded.
    Outer,
}

/// Runs this test again behind `prepare`, a command of the shell, without the right to lock any amount of memory.
fn limited(test: &str, prepare: &str) -> Process {
    if env::var_os(LIMITED).is_some() {
        return Process::Limited;
    }
    let shell =
        format!("{prepare} && exec \"$0\" --ignored --exact --nocapture \"limits::{test}\"");
    let program = env::current_exe().expect("this binary has a path");
    let ran = Command::new("setpriv")
        .args(["--bounding-set", "-ipc_lock", "sh", "-c", &shell])
        .arg(program)
        .env(LIMITED, "yes")
        .output()
        .expect("setpriv is in the lab's image");
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    println!("{said}");
    assert!(ran.status.success() && said.contains("1 passed"), "{:?}", ran.status);
    Process::Outer
}

/// Connects until that is refused: what stands, and why no more does.
async fn connect_all(
    transport: &RdmaTransport,
    listener: &mut dyn Listener,
) -> (Vec<(End, End)>, Error) {
    let mut standing = Vec::new();
    loop {
        assert!(standing.len() < 50, "the limit does not hold");
        match connect(transport, listener, 2 * standing.len() as u64).await {
            Ok(pair) => standing.push(pair),
            Err(error) => return (standing, error),
        }
    }
}

/// The limit on this device's objects in the control group of this process.
struct Group(&'static Path);

impl Group {
    const PATH: &str = "/sys/fs/cgroup/verbwire-test";

    fn limit(&self, objects: &str) {
        let line = format!("{} hca_object={objects}", lab("LAB_DEVICE"));
        fs::write(self.0.join("rdma.max"), line).expect("root may");
    }

    fn used(&self) -> usize {
        let text = fs::read_to_string(self.0.join("rdma.current")).expect("there");
        let device = lab("LAB_DEVICE");
        let line = text.lines().find(|line| line.starts_with(&device)).expect("a line of it");
        let (_, number) = line.split_once("hca_object=").expect("a count of objects");
        number.trim().parse().expect("a number")
    }

    /// Waits until what a failed attempt made is gone.
    async fn until_used(&self, objects: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.used() > objects {
            assert!(Instant::now() < until, "{} objects stay, not {objects}", self.used());
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_device_out_of_queues_refuses_a_connection_in_words_and_serves_the_others() {
    let test = "a_device_out_of_queues_refuses_a_connection_in_words_and_serves_the_others";
    let path = Group::PATH;
    let prepare = format!("mkdir -p {path} && echo $$ >{path}/cgroup.procs");
    if limited(test, &prepare) == Process::Outer {
        return;
    }
    let group = Group(Path::new(path));
    let mut config = small();
    // Registrations go with their connections, so that they count as queues do.
    config.kept_slabs = 0;
    let transport = transport(config);
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let (near, far) = connect(&transport, &mut *listener, 1).await.expect("connected");
    let used = group.used();
    let mut refusals = Vec::new();
    let second = loop {
        // One object more each time, so that each verb of a connection is the one that fails.
        group.limit(&(used + refusals.len()).to_string());
        match connect(&transport, &mut *listener, 11).await {
            Ok(second) => break second,
            Err(error) => refusals.push(error),
        }
        works(&near, &far).await;
        group.until_used(used).await;
    };
    println!("{refusals:#?}");
    assert!(refusals.len() >= 4, "queue pairs and registrations of both ends were refused");
    assert!(refusals.iter().all(|error| error.kind() == ErrorKind::LocalResource));
    let said: String = refusals.iter().map(ToString::to_string).collect();
    assert!(said.contains("ibv_create_qp failed") && said.contains("close connections"), "{said}");
    group.limit(&group.used().to_string());
    assert!(connect(&transport, &mut *listener, 21).await.is_err(), "none is left");
    near.retire().await;
    far.retire().await;
    let (near, far) = connect(&transport, &mut *listener, 31).await.expect("those are free again");
    for (near, far) in [(near, far), second] {
        works(&near, &far).await;
        near.retire().await;
        far.retire().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_limit_on_locked_memory_is_named_with_what_to_do_about_it() {
    let test = "a_limit_on_locked_memory_is_named_with_what_to_do_about_it";
    if limited(test, "ulimit -l 6144") == Process::Outer {
        return;
    }
    let transport = transport(RdmaConfig::default());
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let (mut standing, error) = connect_all(&transport, &mut *listener).await;
    println!("{} connections, then: {error}", standing.len());
    assert!((1..=3).contains(&standing.len()), "an end has nearly 1 MiB of 6");
    assert_eq!(error.kind(), ErrorKind::LocalResource);
    let words = error.to_string();
    for part in ["RLIMIT_MEMLOCK", "6291456", "ulimit -l unlimited", "LimitMEMLOCK=infinity"] {
        assert!(words.contains(part), "{words}");
    }
    let (near, far) = standing.pop().expect("one stands");
    near.retire().await;
    far.retire().await;
    standing.push(connect(&transport, &mut *listener, 101).await.expect("there is room again"));
    for (near, far) in standing {
        works(&near, &far).await;
        near.retire().await;
        far.retire().await;
    }
}
