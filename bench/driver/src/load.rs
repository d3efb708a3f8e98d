//! Closed-loop load over one connection.
//!
//! Does: keeps a fixed number of calls in flight, and measures rate, latency and the CPU time of
//! both sides over one window after a warm-up. Owns: the phases of a run. Does not: correct for
//! coordinated omission; in a closed loop the latency is that of a call under this load.

use std::fmt;
use std::process;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::args::Load;
use crate::{Echo, Outcome, cpu};

/// Long enough for TCP's window and every lazily grown buffer to reach their size.
const WARM_UP: Duration = Duration::from_millis(300);

const WARMING: u8 = 0;
const MEASURING: u8 = 1;
const OVER: u8 = 2;

/// What one run found; displays as one JSON line.
#[derive(Debug)]
pub(crate) struct Figures {
    window: Duration,
    latencies: Histogram<u64>,
    client_cpu: Duration,
    server_cpu: Option<Duration>,
}

/// What the callers of a run share.
struct Run {
    phase: AtomicU8,
    /// Nanoseconds per call that ended in the window. The lock is free whenever it is taken on a
    /// current-thread runtime, and costs every framework the same.
    latencies: Mutex<Histogram<u64>>,
}

/// Loads the server behind `client`; an error of any call ends the run.
pub(crate) async fn run<C: Echo>(client: C, load: &Load) -> Outcome<Figures> {
    let run = Arc::new(Run { phase: AtomicU8::new(WARMING), latencies: Mutex::new(histogram()?) });
    let payload = Bytes::from(payload(load.size));
    let mut callers = JoinSet::new();
    for _ in 0..load.callers {
        callers.spawn(call_until_over(client.clone(), payload.clone(), Arc::clone(&run)));
    }
    if let Some(bytes) = load.beside {
        let payload = Bytes::from(self::payload(bytes));
        callers.spawn(send_until_over(client.clone(), payload, Arc::clone(&run)));
    }

    tokio::time::sleep(WARM_UP).await;
    let (client_before, server_before) = (cpu::time_of(process::id())?, server_cpu(load)?);
    let started = Instant::now();
    run.phase.store(MEASURING, Ordering::Relaxed);
    tokio::time::sleep(load.window).await;
    run.phase.store(OVER, Ordering::Relaxed);
    let window = started.elapsed();
    let (client_after, server_after) = (cpu::time_of(process::id())?, server_cpu(load)?);

    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    let latencies = run.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if latencies.is_empty() {
        return Err(format!("no call was answered within {window:?}").into());
    }
    Ok(Figures {
        window,
        latencies,
        client_cpu: client_after - client_before,
        server_cpu: server_after.zip(server_before).map(|(after, before)| after - before),
    })
}

async fn call_until_over<C: Echo>(mut client: C, payload: Bytes, run: Arc<Run>) -> Outcome<()> {
    if client.echo(payload.clone()).await? != payload {
        return Err("the first reply is not the payload that was sent".into());
    }
    let mut started = Instant::now();
    loop {
        let reply = client.echo(payload.clone()).await?;
        if reply.len() != payload.len() {
            return Err(format!("sent {} bytes, got {}", payload.len(), reply.len()).into());
        }
        let ended = Instant::now();
        match run.phase.load(Ordering::Relaxed) {
            WARMING => {}
            MEASURING => run.record(ended - started),
            _ => return Ok(()),
        }
        started = ended;
    }
}

/// Sends `payload` again and again, so that it is under way all the time.
async fn send_until_over<C: Echo>(mut client: C, payload: Bytes, run: Arc<Run>) -> Outcome<()> {
    while run.phase.load(Ordering::Relaxed) != OVER {
        let taken = client.take(payload.clone()).await?;
        if taken != payload.len() as u64 {
            return Err(format!("sent {} bytes, the server had {taken}", payload.len()).into());
        }
    }
    Ok(())
}

impl Run {
    fn record(&self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.saturating_record(nanoseconds);
    }
}

/// Up to a minute, three significant digits.
fn histogram() -> Outcome<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

/// Bytes that differ from their neighbours, so that a shifted or truncated reply shows.
pub(crate) fn payload(size: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().take(size).collect()
}

pub(crate) fn server_cpu(load: &Load) -> Outcome<Option<Duration>> {
    Ok(load.server.map(cpu::time_of).transpose()?)
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.latencies.len();
        let seconds = self.window.as_secs_f64();
        let per_call = |cpu: Duration| cpu.as_secs_f64() * 1e6 / calls as f64;
        let quantile = |q| self.latencies.value_at_quantile(q) as f64 / 1e3;
        write!(f, r#"{{"calls": {calls}, "seconds": {seconds:.3}"#)?;
        write!(f, r#", "calls_per_s": {:.1}"#, calls as f64 / seconds)?;
        write!(f, r#", "p50_us": {:.2}, "p99_us": {:.2}"#, quantile(0.5), quantile(0.99))?;
        write!(f, r#", "cpu_us_per_call_client": {:.3}"#, per_call(self.client_cpu))?;
        if let Some(cpu) = self.server_cpu {
            write!(f, r#", "cpu_us_per_call_server": {:.3}"#, per_call(cpu))?;
        }
        write!(f, "}}")
    }
}
