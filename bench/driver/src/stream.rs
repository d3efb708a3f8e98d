//! Messages of streams, one way, over one connection.
//!
//! Does: opens one stream after the other, each of many messages, and measures rate and the CPU time of both sides over
//! whole streams. Does not: measure how long a message takes; a stream has many on their way.

use std::process;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::args::{Load, Way};
use crate::load::{payload, server_cpu};
use crate::{Echo, Outcome, cpu};

/// Messages of one stream: so many that opening it does not count.
const MESSAGES: usize = 20_000;

/// Streams for as long as the window and returns a JSON line. The first stream warms up and is not measured.
pub(crate) async fn run<C: Echo>(mut client: C, way: Way, load: &Load) -> Outcome<String> {
    let payload = Bytes::from(payload(load.size));
    one(&mut client, way, &payload).await?;
    let (client_before, server_before) = (cpu::time_of(process::id())?, server_cpu(load)?);
    let started = Instant::now();
    let mut messages = 0;
    while started.elapsed() < load.window {
        messages += one(&mut client, way, &payload).await?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let (client_after, server_after) = (cpu::time_of(process::id())?, server_cpu(load)?);
    let per_message = |cpu: Duration| cpu.as_secs_f64() * 1e6 / messages as f64;
    let mut figures = format!(
        r#"{{"messages": {messages}, "seconds": {seconds:.3}, "messages_per_s": {:.1}, "cpu_us_per_message_client": {:.3}"#,
        messages as f64 / seconds,
        per_message(client_after - client_before),
    );
    if let Some((after, before)) = server_after.zip(server_before) {
        let server = per_message(after - before);
        figures += &format!(r#", "cpu_us_per_message_server": {server:.3}"#);
    }
    Ok(figures + "}")
}

async fn one<C: Echo>(client: &mut C, way: Way, payload: &Bytes) -> Outcome<u64> {
    let messages = match way {
        Way::Up => client.up(payload.clone(), MESSAGES).await?,
        Way::Down => client.down(payload.len(), MESSAGES).await?,
    };
    if messages != MESSAGES as u64 {
        return Err(format!("{messages} messages came of {MESSAGES}").into());
    }
    Ok(messages)
}
