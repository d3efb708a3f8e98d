//! Calls over `auto://`: with more and more loss, and with the wire cut for longer than both paths live. Each ends once, by its
//! deadline, and what comes back is what was sent; when the wire is whole again, calls are on the device again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use verbwire::config::KeepAlive;
use verbwire::{Channel, Code, Request};
use verbwire_tests::fixture::endpoint;
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::Blob;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;

use crate::site::{Host, Loss, Outcome, Place, meet};

/// Packets that are lost, in a hundred, in each direction.
const LOSSES: [u32; 3] = [0, 1, 5];

/// Callers at a time, and the calls of each at one rate of loss.
const CALLERS: u64 = 8;
const CALLS: u64 = 6;

/// Longest body.
const LONGEST: usize = 64 << 10;

/// Deadline of a call on a wire that loses packets, and on one that is cut.
const PATIENT: Duration = Duration::from_secs(60);
const HASTY: Duration = Duration::from_secs(5);

/// How long after its deadline a call may end where each instruction is emulated.
const SLACK: Duration = Duration::from_secs(5);

/// How long nothing crosses the wire: longer than either path is silent before it is given up.
const CUT: Duration = Duration::from_secs(10);
const KEEP_ALIVE: KeepAlive =
    KeepAlive { interval: Duration::from_secs(2), timeout: Duration::from_secs(3) };

/// Serves, or calls.
pub(crate) async fn run(host: Host) -> Outcome {
    match host {
        Host::Serves => {
            let place = Place::serve("auto", |builder| builder.keep_alive(KEEP_ALIVE)).await?;
            for percent in LOSSES {
                with_loss(percent, async { Ok(()) }).await?;
            }
            meet("to-cut").await?;
            cut().await?;
            place.close("auto").await
        }
        Host::Calls => {
            let place = Place::find("auto").await?;
            for percent in LOSSES {
                with_loss(percent, call_with_loss(place.target(), percent)).await?;
            }
            let called = call_while_cut(place.target()).await;
            place.close("auto").await?;
            called
        }
    }
}

/// Does `work` while this guest loses packets, as the other one does.
async fn with_loss(percent: u32, work: impl Future<Output = Outcome>) -> Outcome {
    let loss = Loss::begin(percent).await?;
    meet(&format!("lossy-{percent}")).await?;
    let done = work.await;
    meet(&format!("called-{percent}")).await?;
    loss.end().await?;
    done
}

async fn cut() -> Outcome {
    let loss = Loss::begin(100).await?;
    sleep(CUT).await;
    loss.end().await
}

async fn call_with_loss(target: &str, percent: u32) -> Outcome {
    let begun = Instant::now();
    let endpoint = endpoint(target).connect_timeout(PATIENT);
    let channel = endpoint.path_backoff(SOON.0, SOON.1).connect().await?;
    moved(&channel).await?;
    let taken = begun.elapsed();
    let load = Load::begin(&channel, PATIENT, Some(CALLS));
    let report = load.end().await?;
    let paths = channel.paths().ok_or("the connection is lost")?;
    println!("on {percent} % loss moved after {taken:.1?}: {report}; {paths}; {}", paths.switches);
    // A path that loss ends takes calls with it; on a whole wire there is no reason to.
    let lost = CALLERS * CALLS - report.replies;
    let allowed = if percent == 0 { 0 } else { CALLERS * CALLS / 10 };
    if lost > allowed { Err(format!("{lost} calls failed: {report}").into()) } else { Ok(()) }
}

/// How soon another connection or another second path is tried for.
const SOON: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

async fn call_while_cut(target: &str) -> Outcome {
    let endpoint = endpoint(target).keep_alive(KEEP_ALIVE).connect_timeout(HASTY);
    let endpoint = endpoint.reconnect_backoff(SOON.0, SOON.1).path_backoff(SOON.0, SOON.1);
    let channel = endpoint.connect().await?;
    moved(&channel).await?;
    let load = Load::begin(&channel, HASTY, None);
    sleep(Duration::from_secs(1)).await;
    meet("to-cut").await?;
    let left = until(|| !is_on_device(&channel), "calls are still on RDMA", &channel);
    let (cut, left) = tokio::join!(cut(), left);
    cut.and(left)?;
    let (mended, replies) = (Instant::now(), load.replies());
    moved(&channel).await?;
    println!("calls are on RDMA again {:.1?} after the wire is whole", mended.elapsed());
    until(|| load.replies() > replies + 50, "calls get no replies", &channel).await?;
    let report = load.end().await?;
    println!("with the wire cut for {CUT:?}: {report}");
    if report.failures.is_empty() { Err("no call met the cut".into()) } else { Ok(()) }
}

fn is_on_device(channel: &Channel) -> bool {
    channel.path().is_some_and(|path| path.transport == "rdma")
}

async fn moved(channel: &Channel) -> Outcome {
    until(|| is_on_device(channel), "calls do not move to RDMA", channel).await
}

async fn until(condition: impl Fn() -> bool, why: &str, channel: &Channel) -> Outcome {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > PATIENT {
            let paths = channel.paths().map(|paths| paths.to_string());
            return Err(format!("{why} after {PATIENT:?}: {paths:?}").into());
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Callers, until each has made its calls or they are told to stop.
struct Load {
    callers: JoinSet<Outcome>,
    is_endless: bool,
    begun: Instant,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    replies: AtomicU64,
    failures: Mutex<BTreeMap<String, u64>>,
}

/// What became of the calls.
#[derive(Debug)]
struct Report {
    replies: u64,
    failures: BTreeMap<String, u64>,
    took: Duration,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} replies, {:?}, in {:.1?}", self.replies, self.failures, self.took)
    }
}

impl Load {
    fn begin(channel: &Channel, deadline: Duration, calls: Option<u64>) -> Self {
        let shared = Arc::<Shared>::default();
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let client = ConformanceClient::new(channel.clone());
            let shared = Arc::clone(&shared);
            callers.spawn(async move {
                for call in 0..calls.unwrap_or(u64::MAX) {
                    if shared.stop.load(Ordering::Relaxed) {
                        break;
                    }
                    shared.call(&client, caller << 32 | call, deadline).await?;
                }
                Ok(())
            });
        }
        Self { callers, is_endless: calls.is_none(), begun: Instant::now(), shared }
    }

    fn replies(&self) -> u64 {
        self.shared.replies.load(Ordering::Relaxed)
    }

    /// Waits for callers that have calls to make; others stop.
    async fn end(mut self) -> Outcome<Report> {
        self.shared.stop.store(self.is_endless, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended??;
        }
        let failures = self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Report { replies: self.replies(), failures, took: self.begun.elapsed() })
    }
}

impl Shared {
    async fn call(&self, client: &ConformanceClient, number: u64, deadline: Duration) -> Outcome {
        let mut random = fastrand::Rng::with_seed(number);
        let payload = pattern::payload(random.usize(0..=LONGEST), number);
        let mut request = Request::new(Blob { payload: payload.clone() });
        request.set_timeout(deadline);
        let ended = timeout(deadline + SLACK, client.echo(request)).await;
        match ended.map_err(|_elapsed| format!("call {number} has not ended by its deadline"))? {
            Ok(reply) => {
                if let Some(how) = pattern::difference(&reply.into_inner().payload, &payload) {
                    return Err(format!("call {number} came back changed: {how}").into());
                }
                self.replies.fetch_add(1, Ordering::Relaxed);
            }
            Err(status) if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) => {
                let what = format!("{:?}, executed {:?}", status.code(), status.executed());
                self.note(what);
                // Where nothing can be connected, calls fail at once.
                sleep(Duration::from_millis(100)).await;
            }
            Err(status) => return Err(format!("call {number}: {status}").into()),
        }
        Ok(())
    }

    fn note(&self, what: String) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry(what).or_default() += 1;
    }
}
