//! Measurements without a socket: calls inside one process, and encoding alone.
//!
//! Does: times batches and keeps the best one, which is the one that nothing else disturbed;
//! counts heap allocations. Does not: run while a load runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::args::Load;
use crate::load::payload;
use crate::{AllocationCount, Echo, Framework, Outcome};

/// Calls between two readings of the clock.
const CALLS_PER_BATCH: u32 = 1_000;
/// Fewer than for calls: a peer that copies 8 MiB takes milliseconds for each.
const ENCODES_PER_BATCH: u32 = 16;

/// Makes one call after another on `client` and returns a JSON line.
pub(crate) async fn in_process<C: Echo>(
    mut client: C,
    load: &Load,
    allocations: Option<AllocationCount>,
) -> Outcome<String> {
    let payload = Bytes::from(payload(load.size));
    let mut best = batch(&mut client, &payload).await?;
    let started = Instant::now();
    while started.elapsed() < load.window {
        best = best.min(batch(&mut client, &payload).await?);
    }
    let Some(count) = allocations else {
        return Ok(format!(r#"{{"ns": {:.1}}}"#, nanoseconds(best, CALLS_PER_BATCH)));
    };
    let before = count();
    batch(&mut client, &payload).await?;
    let per_call = (count() - before) as f64 / f64::from(CALLS_PER_BATCH);
    Ok(format!(r#"{{"allocs_per_call": {per_call:.2}}}"#))
}

async fn batch<C: Echo>(client: &mut C, payload: &Bytes) -> Outcome<Duration> {
    let started = Instant::now();
    for _ in 0..CALLS_PER_BATCH {
        let reply = client.echo(payload.clone()).await?;
        if reply.len() != payload.len() {
            return Err(format!("sent {} bytes, got {}", payload.len(), reply.len()).into());
        }
    }
    Ok(started.elapsed())
}

/// Encodes one message again and again and returns a JSON line.
pub(crate) fn encode<F: Framework>(load: &Load) -> Outcome<String> {
    let payload = Bytes::from(payload(load.size));
    let encoded = F::encode(&payload);
    if encoded < payload.len() {
        return Err(format!("{} bytes were encoded as {encoded}", payload.len()).into());
    }
    let mut best = Duration::MAX;
    let started = Instant::now();
    while started.elapsed() < load.window {
        let batch = Instant::now();
        for _ in 0..ENCODES_PER_BATCH {
            black_box(F::encode(black_box(&payload)));
        }
        best = best.min(batch.elapsed());
    }
    Ok(format!(r#"{{"ns": {:.1}}}"#, nanoseconds(best, ENCODES_PER_BATCH)))
}

fn nanoseconds(batch: Duration, operations: u32) -> f64 {
    batch.as_secs_f64() * 1e9 / f64::from(operations)
}
