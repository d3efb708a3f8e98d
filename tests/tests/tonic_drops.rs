//! Calls of tonic's clients that are dropped at every step, over the software NIC: all memory comes back, every place for a call
//! too, and the connection goes on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::transport::Transport;
use verbwire_core::{Channel, Server, Target};
use verbwire_rdma::fabric::{Fabric, FabricConfig, Profile};
use verbwire_rdma::{PoolCounts, RdmaConfig, RdmaTransport};
use verbwire_tests::bridge::{self, Client};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::{Blob, ScanRequest, Step};
use verbwire_tests::service::Desk;
use verbwire_tests::streams::items;

/// Calls at a time on the connection: a place that does not come back is missed soon.
const PLACES: u32 = 4;

struct Net {
    fabric: Fabric,
    transports: [RdmaTransport; 2],
}

impl Net {
    fn new() -> Self {
        let fabric =
            Fabric::new(FabricConfig { profile: Profile::Mlx5Like, ..FabricConfig::new(1) });
        let mut config = RdmaConfig::default();
        // The fabric loses a completion queue that overflows: exactly as deep as one connection needs.
        config.completion_queue_depth = 0;
        let transports = ["near", "far"]
            .map(|name| RdmaTransport::over_fabric(&fabric.host(name), config.clone()));
        Self { fabric, transports }
    }

    /// tonic's client of tonic's service on the other host.
    async fn client(&self, desk: &Desk) -> Client {
        let transport =
            |index: usize| Arc::new(self.transports[index].clone()) as Arc<dyn Transport>;
        let target = Target::new("fabric", "far:7");
        let builder = Server::builder()
            .add_service(bridge::conformance(desk))
            .max_concurrent_calls(PLACES)
            .random(Random::from_seed(1));
        let bound = builder.bind([(transport(1), target.clone())]).await.expect("free");
        tokio::spawn(bound.serve());
        let mut config = ClientConfig::default();
        config.random = Random::from_seed(2);
        let channel = Channel::connect_once(transport(0), &target, &config).await.expect("connect");
        bridge::client(&channel)
    }

    fn assert_idle(&self) {
        assert_eq!(self.fabric.violations(), []);
        for transport in &self.transports {
            let PoolCounts { users, staging, landing, granted_bytes, .. } = transport.pools();
            for pool in [users, staging, landing] {
                let amounts = (pool.in_use_bytes, pool.quarantined_bytes, pool.leaked_bytes);
                assert_eq!((amounts, pool.waiting), ((0, 0, 0), 0));
            }
            assert_eq!(granted_bytes, 0);
        }
    }
}

/// Polls `call` once, then again after each of so many steps of everything else, and drops it. Whether it was over by then.
async fn drop_after(call: impl Future<Output = ()>, steps: usize) -> bool {
    let mut call = pin!(call);
    for number in 0..=steps {
        if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await {
            return true;
        }
        match number % 4 {
            3 => sleep(Duration::from_millis(1)).await,
            _ => tokio::task::yield_now().await,
        }
    }
    false
}

/// Drops `call` at every step that it has, and then lets it come to its end.
async fn sweep(call: impl Fn(Client) -> Pin<Box<dyn Future<Output = ()>>>) {
    let (net, desk) = (Net::new(), Desk::default());
    let client = net.client(&desk).await;
    let mut steps = 0;
    while !drop_after(call(client.clone()), steps).await {
        sleep(Duration::from_secs(1)).await;
        net.assert_idle();
        assert_eq!(desk.witness().log().running, 0, "a handler was left behind");
        steps += 1;
        assert!(steps < 10_000, "it never ends");
    }
    assert!(steps > 5, "{steps} steps are not enough to drop a call in the middle");
    for _ in 0..2 * PLACES {
        call(client.clone()).await;
    }
    sleep(Duration::from_secs(1)).await;
    net.assert_idle();
}

fn step(len: usize) -> Step {
    Step { payload: pattern::payload(len, 1), ..Step::default() }
}

#[tokio::test(start_paused = true)]
async fn a_unary_call_of_tonics_may_be_dropped_at_every_step() {
    for len in [10, 200_000] {
        sweep(move |mut client| {
            Box::pin(async move {
                let payload = pattern::payload(len, 1);
                let reply = client.echo(Blob { payload: payload.clone() }).await.expect("echo");
                assert!(reply.get_ref().payload == payload);
            })
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_requests_of_tonics_may_be_dropped_at_every_step() {
    sweep(|mut client| {
        Box::pin(async move {
            let reply = client.collect(items([10, 100_000, 0].map(step))).await.expect("collect");
            assert_eq!(reply.get_ref().len, 100_010);
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_replies_of_tonics_may_be_dropped_at_every_step() {
    sweep(|mut client| {
        Box::pin(async move {
            let request = ScanRequest { count: 4, lens: vec![10, 100_000], ..Default::default() };
            let mut replies = client.scan(request).await.expect("scan").into_inner();
            for len in [10, 100_000, 10, 100_000] {
                let reply = replies.message().await.expect("no error").expect("one more");
                assert_eq!(reply.payload.len(), len);
            }
            assert!(replies.message().await.expect("no error").is_none());
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn streams_both_ways_of_tonics_may_be_dropped_at_every_step() {
    sweep(|mut client| {
        Box::pin(async move {
            let steps = items([10, 100_000].map(step));
            let mut replies = client.talk(steps).await.expect("talk").into_inner();
            for len in [10, 100_000] {
                let reply = replies.message().await.expect("no error").expect("one more");
                assert_eq!(reply.payload.len(), len);
            }
            assert!(replies.message().await.expect("no error").is_none());
        })
    })
    .await;
}
