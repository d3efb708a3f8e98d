//! What calls over one channel cost: each figure from one window of time.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use verbwire::{Channel, Status};

use crate::Outcome;
use crate::blockstore::WriteBlockRequest;
use crate::blockstore::block_store_client::BlockStoreClient;
use crate::helloworld::HelloRequest;
use crate::helloworld::greeter_client::GreeterClient;

/// Bytes in the request of a small call.
pub(crate) const NAME_LEN: usize = 64;
/// Callers of small calls at a time.
pub(crate) const CALLERS: usize = 32;
/// Callers of uploads at a time.
pub(crate) const UPLOADERS: usize = 4;
/// Bytes in an upload: one MiB, so that uploads per second are MiB per second.
const UPLOAD_LEN: usize = 1 << 20;

/// Calls before the first one that counts, for buffers to grow and method names to be learned.
const WARM_UP: usize = 100;

/// What was measured over one channel.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) calls_per_second: f64,
    pub(crate) mib_per_second: f64,
}

impl Figures {
    /// Measures for three times `window`.
    pub(crate) async fn measure(channel: &Channel, window: Duration) -> Outcome<Self> {
        let latencies = latencies(channel, window).await?;
        Ok(Self {
            p50: percentile(&latencies, 50),
            p99: percentile(&latencies, 99),
            calls_per_second: small_calls(channel, window).await?,
            mib_per_second: uploads(channel, window).await?,
        })
    }
}

/// How long calls take, one after the other; in order of length.
async fn latencies(channel: &Channel, window: Duration) -> Result<Vec<Duration>, Status> {
    let greeter = GreeterClient::new(channel.clone());
    for _ in 0..WARM_UP {
        greeter.say_hello(small_request()).await?;
    }
    let mut latencies = Vec::new();
    let end = Instant::now() + window;
    let mut begin = Instant::now();
    while begin < end {
        greeter.say_hello(small_request()).await?;
        let now = Instant::now();
        latencies.push(now - begin);
        begin = now;
    }
    latencies.sort_unstable();
    Ok(latencies)
}

/// Small calls per second.
async fn small_calls(channel: &Channel, window: Duration) -> Outcome<f64> {
    let greeter = GreeterClient::new(channel.clone());
    rate(CALLERS, window, move || {
        let call = greeter.say_hello(small_request());
        async move { call.await.map(drop) }
    })
    .await
}

/// Uploads per second. All send the same memory, which nobody copies on its way to the socket.
async fn uploads(channel: &Channel, window: Duration) -> Outcome<f64> {
    let store = BlockStoreClient::new(channel.clone());
    let data = channel.alloc(UPLOAD_LEN).await?.freeze();
    rate(UPLOADERS, window, move || {
        let call = store.write_block(WriteBlockRequest { block: 0, data: data.clone() });
        async move { call.await.map(drop) }
    })
    .await
}

/// How often per second `call` ends, when so many callers make it again and again.
async fn rate<F, C>(callers: usize, window: Duration, call: F) -> Outcome<f64>
where
    F: Fn() -> C + Clone + Send + 'static,
    C: Future<Output = Result<(), Status>> + Send,
{
    let begin = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..callers {
        let call = call.clone();
        running.spawn(async move {
            let mut count = 0_u32;
            while begin.elapsed() < window {
                call().await?;
                count += 1;
            }
            Ok::<_, Status>(count)
        });
    }
    let mut total = 0.0;
    while let Some(ended) = running.join_next().await {
        total += f64::from(ended??);
    }
    Ok(total / begin.elapsed().as_secs_f64())
}

fn small_request() -> HelloRequest {
    HelloRequest { name: "x".repeat(NAME_LEN) }
}

/// The value that `percent` of the `sorted` ones do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
