//! Calls that are judged one by one: a service that counts how often each ran, and callers that hold every reply and every status
//! against that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use verbwire_core::client::Client;
use verbwire_core::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
use verbwire_core::{Body, Channel, Executed, Request, Response, Status};
use verbwire_tests::pattern;

/// Callers at a time.
const CALLERS: u64 = 8;

/// Deadline of each call: longer than it takes to find that a machine lost its power.
const DEADLINE: Duration = Duration::from_secs(20);

/// The method whose handler may run twice.
const IDEMPOTENT: usize = 1;

static LEDGER: ServiceDescriptor = ServiceDescriptor::new(
    "test.Ledger",
    &[
        MethodDescriptor::new("Once", "/test.Ledger/Once"),
        MethodDescriptor::new("Again", "/test.Ledger/Again").idempotent(),
    ],
);

/// By call: how often its handler ran.
pub(crate) type Runs = Arc<Mutex<BTreeMap<u64, u32>>>;

/// Says messages back, and notes who was called.
pub(crate) struct Ledger(pub(crate) Runs);

impl Service for Ledger {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &LEDGER
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        let runs = Arc::clone(&self.0);
        unary(request, |request: Request<Bytes>| async move {
            let message = request.into_inner();
            let number = number(&message);
            *lock(&runs).entry(number).or_default() += 1;
            if number.is_multiple_of(3) {
                sleep(Duration::from_millis(number % 40)).await;
            }
            Ok(Response::new(message))
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The message of a call: its number, and bytes that follow from it.
fn message(number: u64, len: usize) -> Bytes {
    [&number.to_le_bytes()[..], &pattern::payload(len, number)].concat().into()
}

fn number(message: &[u8]) -> u64 {
    message.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number))
}

/// What became of the calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) replies: u64,
    pub(crate) failures: BTreeMap<String, u64>,
    /// Calls whose handler is said never to have run.
    not_executed: Vec<u64>,
    /// Calls whose handler ran more than once.
    twice: u64,
}

impl Report {
    /// How many calls ended without a reply.
    pub(crate) fn cut_off(&self) -> u64 {
        self.failures.values().sum()
    }
}

/// Callers of a server's [`Ledger`].
pub(crate) struct Load {
    seed: u64,
    channel: Channel,
    runs: Runs,
    /// How long after its deadline a call may end.
    slack: Duration,
    report: Mutex<Report>,
}

/// Callers that call until they are told to stop.
pub(crate) struct Running {
    load: Arc<Load>,
    stop: watch::Sender<bool>,
    callers: JoinSet<()>,
}

impl Load {
    /// Begins to call. What and when follows from `seed`.
    pub(crate) fn begin(channel: &Channel, runs: &Runs, seed: u64, slack: Duration) -> Running {
        let (channel, runs) = (channel.clone(), Arc::clone(runs));
        let load = Arc::new(Self { seed, channel, runs, slack, report: Mutex::default() });
        let (stop, stopped) = watch::channel(false);
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            callers.spawn(Arc::clone(&load).call_on(caller, stopped.clone()));
        }
        Running { load, stop, callers }
    }

    /// One caller: one call after the other, until nobody wants more.
    async fn call_on(self: Arc<Self>, caller: u64, stop: watch::Receiver<bool>) {
        let client = Client::new(self.channel.clone(), &LEDGER);
        let mut random = fastrand::Rng::with_seed(self.seed << 8 | caller);
        for turn in 0.. {
            if *stop.borrow() {
                return;
            }
            let method = random.usize(0..2);
            let number = 2 * (turn * CALLERS + caller) + method as u64;
            let len = match random.u8(0..20) {
                0 => random.usize(0..300_000),
                1..4 => random.usize(0..30_000),
                _ => random.usize(0..600),
            };
            let sent = message(number, len);
            let mut request = Request::new(sent.clone());
            request.set_timeout(DEADLINE);
            let reply = client.unary::<Bytes, Bytes>(method, request);
            let ended = timeout(DEADLINE + self.slack, reply).await;
            assert!(ended.is_ok(), "seed {}: call {number} never ended", self.seed);
            let ended = ended.expect("looked at above");
            self.judge(number, &sent, ended);
            sleep(Duration::from_micros(random.u64(0..80_000))).await;
        }
    }

    fn judge(&self, number: u64, sent: &Bytes, ended: Result<Response<Bytes>, Status>) {
        let runs = lock(&self.runs).get(&number).copied().unwrap_or(0);
        let seed = self.seed;
        let mut report = lock(&self.report);
        match ended {
            Ok(reply) => {
                assert!(
                    reply.into_inner() == *sent,
                    "seed {seed}: call {number} came back changed"
                );
                assert!(runs >= 1, "seed {seed}: call {number} has a reply and did not run");
                report.replies += 1;
            }
            Err(status) => {
                let executed = status.executed();
                match executed {
                    Executed::No => report.not_executed.push(number),
                    Executed::Yes => assert!(runs >= 1, "seed {seed}: call {number}: {status:?}"),
                    Executed::Maybe => {}
                }
                let what = format!("{:?}, executed {executed:?}", status.code());
                *report.failures.entry(what).or_default() += 1;
            }
        }
    }
}

impl Running {
    /// How many replies came so far.
    #[cfg(feature = "device")]
    pub(crate) fn replies(&self) -> u64 {
        lock(&self.load.report).replies
    }

    /// Lets the callers end, and judges what the handlers did; those that were cut off get `settle` to do it.
    pub(crate) async fn end(mut self, settle: Duration) -> Report {
        let seed = self.load.seed;
        self.stop.send_replace(true);
        while let Some(ended) = self.callers.join_next().await {
            assert!(ended.is_ok(), "seed {seed}: {ended:?}");
        }
        sleep(settle).await;
        let mut report = std::mem::take(&mut *lock(&self.load.report));
        let runs = lock(&self.load.runs);
        for (number, runs) in runs.iter().filter(|(_, runs)| **runs > 1) {
            let is_idempotent = number % 2 == IDEMPOTENT as u64;
            assert!(is_idempotent, "seed {seed}: call {number} ran {runs} times");
            report.twice += 1;
        }
        for number in &report.not_executed {
            let ran = runs.get(number);
            assert_eq!(ran, None, "seed {seed}: call {number} ran, and was said not to have");
        }
        report
    }
}
