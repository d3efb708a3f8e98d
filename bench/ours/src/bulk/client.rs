//! The loading side.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;
use verbwire::{Channel, Request};
use verbwire_bench_driver::Outcome;
use verbwire_core::config::ClientConfig;
use verbwire_rdma::RdmaTransport;

use super::proto::bulk_client::BulkClient;
use super::{checksum, counts, proto};

/// The bytes of a message that are not its payload, at most: what a `bytes` field and a flag have before them.
const HEAD: u64 = 16;

/// The shape of a load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Which way the payload goes.
    pub way: Way,
    /// Bytes of payload in a call.
    pub size: usize,
    /// Calls in flight.
    pub callers: u8,
    /// Measured calls of each caller.
    pub calls: u32,
}

/// Which way the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In the request.
    Put,
    /// In the reply, which the request expects.
    Fetch,
}

impl FromStr for Way {
    type Err = &'static str;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "put" => Ok(Self::Put),
            "fetch" => Ok(Self::Fetch),
            _ => Err("the payload goes either by put or by fetch"),
        }
    }
}

#[derive(Clone)]
struct Caller {
    client: BulkClient,
    load: Load,
    payload: Bytes,
}

pub(super) async fn load(
    transport: Arc<RdmaTransport>,
    target: &str,
    load: Load,
) -> Outcome<String> {
    let (target, config) = (target.parse()?, ClientConfig::default());
    let channel = Channel::connect(Arc::clone(&transport) as _, &target, &config).await?;
    let mut callers = Vec::new();
    for number in 0..load.callers {
        callers.push(Caller::new(&channel, load, number).await?);
    }
    // Pools grow, and the method's path is not sent any more.
    all(&callers, 1).await?;
    let client = BulkClient::new(channel);
    let before = [counts(&transport), client.count(proto::Nothing {}).await?.into_inner()];
    let started = Instant::now();
    let mut latencies = all(&callers, load.calls).await?;
    let seconds = started.elapsed().as_secs_f64();
    let after = [counts(&transport), client.count(proto::Nothing {}).await?.into_inner()];
    latencies.sort_unstable();
    let more =
        |of: fn(&proto::Counts) -> u64| [0, 1].map(|side| of(&after[side]) - of(&before[side]));
    let copied = more(|counts| counts.copied_bytes);
    let registrations = more(|counts| counts.registrations);
    let calls = latencies.len();
    let payload = (calls * load.size) as f64;
    let median = latencies[calls / 2].as_secs_f64() * 1e6;
    Ok(format!(
        r#"{{"calls": {calls}, "seconds": {seconds:.6}, "mb_per_s": {:.2}, "p50_us": {median:.2}, "copied_client": {:.1}, "copied_server": {:.1}, "registrations": {}}}"#,
        payload / seconds / f64::from(1 << 20),
        copied[0] as f64 / calls as f64,
        copied[1] as f64 / calls as f64,
        registrations.iter().sum::<u64>(),
    ))
}

/// Each caller makes so many calls; their durations.
async fn all(callers: &[Caller], calls: u32) -> Outcome<Vec<Duration>> {
    let mut running = JoinSet::new();
    for caller in callers {
        running.spawn(caller.clone().run(calls));
    }
    let mut latencies = Vec::new();
    while let Some(ended) = running.join_next().await {
        latencies.extend(ended??);
    }
    Ok(latencies)
}

impl Caller {
    /// One that has proved that the payload arrives as it was sent.
    async fn new(channel: &Channel, load: Load, number: u8) -> Outcome<Self> {
        let mut payload = channel.alloc(load.size).await?;
        let pattern = (0..251_u8).map(|byte| byte.wrapping_add(number)).cycle();
        payload.iter_mut().zip(pattern).for_each(|(byte, pattern)| *byte = pattern);
        let payload = payload.freeze();
        let client = BulkClient::new(channel.clone());
        let caller = Self { client, load, payload };
        let blob = proto::Blob { data: caller.payload.clone(), check: true };
        let received = caller.client.put(blob).await?.into_inner();
        if received.checksum != checksum(&caller.payload) {
            return Err("the payload did not arrive as it was sent".into());
        }
        Ok(caller)
    }

    async fn run(self, calls: u32) -> Outcome<Vec<Duration>> {
        let mut latencies = Vec::new();
        for _ in 0..calls {
            let started = Instant::now();
            let len = match self.load.way {
                Way::Put => self.put().await?,
                Way::Fetch => self.fetch().await?,
            };
            latencies.push(started.elapsed());
            if len != self.load.size as u64 {
                return Err(format!("{len} bytes came instead of {}", self.load.size).into());
            }
        }
        Ok(latencies)
    }

    async fn put(&self) -> Outcome<u64> {
        let blob = proto::Blob { data: self.payload.clone(), check: false };
        Ok(self.client.put(blob).await?.into_inner().bytes)
    }

    async fn fetch(&self) -> Outcome<u64> {
        let mut request = Request::new(proto::Wanted { bytes: self.load.size as u64 });
        request.expect_reply(self.load.size as u64 + HEAD);
        Ok(self.client.fetch(request).await?.into_inner().data.len() as u64)
    }
}
