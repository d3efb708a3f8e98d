//! Hosts that die, completions that come late or never, and calls that are given up at every point.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use verbwire_core::client::Client;
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary, unknown_method,
};
use verbwire_core::transport::{Flush, Transport};
use verbwire_core::{Body, Channel, Request, Response, Server, Target};
use verbwire_rdma::fabric::{Death, Fate, Profile};

use crate::dying::at_each_of;
use crate::pair::{
    Everything, Net, PROFILES, pattern, receive, receive_all, request, send, slot, step,
};

static ECHO: ServiceDescriptor =
    ServiceDescriptor::new("test.Echo", &[MethodDescriptor::new("Echo", "/test.Echo/Echo")]);

struct Echo;

impl Service for Echo {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &ECHO
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        match method {
            0 => unary(request, |request: Request<Bytes>| async move {
                tokio::task::yield_now().await;
                Ok(Response::new(request.into_inner()))
            }),
            other => unknown_method(&ECHO, other),
        }
    }
}

/// A client of an echo server, and the server's task.
pub(crate) async fn echo(net: &Net) -> (Client, tokio::task::JoinHandle<()>) {
    let transport = |index: usize| Arc::new(net.transports[index].clone()) as Arc<dyn Transport>;
    let target = Target::new("fabric", "far:7");
    let builder = Server::builder().add_service(Echo).random(Random::from_seed(1));
    let bound = builder.bind([(transport(1), target.clone())]).await.expect("free");
    let server = tokio::spawn(async move {
        // It ends when its task does.
        let _served = bound.serve().await;
    });
    let mut config = ClientConfig::default();
    config.random = Random::from_seed(2);
    let channel = Channel::connect_once(transport(0), &target, &config).await.expect("connect");
    (Client::new(channel, &ECHO), server)
}

/// Polls `call` once, lets everything else take `steps` steps, and drops it. Whether it was over by then.
pub(crate) async fn drop_after<F: Future + Unpin>(mut call: F, steps: usize) -> bool {
    let mut over = poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx).is_ready())).await;
    for number in 0..steps {
        if over {
            break;
        }
        step(number).await;
        over = poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx).is_ready())).await;
    }
    over
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_every_step_leaves_no_buffer_behind() {
    for profile in PROFILES {
        for len in [10, 8000, 100_000] {
            let net = Net::new(profile, 1);
            let (client, server) = echo(&net).await;
            let mut steps = 0;
            let body = pattern(1, len);
            while !drop_after(client.unary::<_, Bytes>(0, Request::new(body.clone())), steps).await
            {
                steps += 1;
                assert!(steps < 100_000, "it never ends");
            }
            assert!(steps > 5, "{steps} steps are not enough to drop a call in the middle");
            let call = client.unary::<_, Bytes>(0, Request::new(body.clone()));
            assert_eq!(call.await.expect("the connection lives").into_inner(), body);
            drop(client);
            tokio::time::sleep(Duration::from_secs(10)).await;
            server.abort();
            tokio::time::sleep(Duration::from_secs(10)).await;
            net.assert_clean();
        }
    }
}

/// Sends requests of several lengths and receives what comes, until the connection ends.
async fn until_dead(net: &Net) {
    let (near, far) = match net.try_pair(Everything).await {
        (Ok(near), Ok(far)) => (near, far),
        (near, far) => {
            for end in near.into_iter().chain(far) {
                end.retire().await;
            }
            return tokio::time::sleep(Duration::from_secs(60)).await;
        }
    };
    let tasks: Vec<_> = [&near, &far]
        .map(|end| {
            let (receiver, sender) = (Arc::clone(end), Arc::clone(end));
            [
                tokio::spawn(async move { while receive(&receiver).await.is_ok() {} }),
                tokio::spawn(async move {
                    for number in 0..100 {
                        let len = [9, 5000, 30_000][number as usize % 3];
                        let request = request(number, pattern(number, len));
                        if send(&sender, request, Flush::Now).await.is_err() {
                            return;
                        }
                    }
                }),
            ]
        })
        .into_iter()
        .flatten()
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    near.retire().await;
    far.retire().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_may_die_at_any_work_request() {
    at_each_of((84..100).chain((110..250).step_by(23)), Net::new, until_dead).await;
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_because_the_peer_is_gone_is_told_with_that_reason() {
    for profile in [Profile::Rxe, Profile::Mlx5Like] {
        let net = Net::new(profile, 1);
        let (near, far) = net.pair().await;
        net.hosts[1].kill(Death::Process);
        // Nobody drives this end, so that the failure of its work is looked at before the peer's goodbye.
        send(&near, request(1, pattern(1, 5000)), Flush::Now).await.expect("open");
        tokio::time::sleep(Duration::from_secs(3)).await;
        let error = receive(&near).await.expect_err("the peer is dead").to_string();
        let (symptom, why) = ("retries exceeded", "the peer has disconnected");
        assert!(error.contains(symptom) && error.ends_with(why), "{error}");
        near.retire().await;
        far.retire().await;
        net.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn lost_and_late_completions_of_sends_cost_nothing_but_time() {
    for profile in PROFILES {
        for (fate, seed) in
            [Fate::LostCompletion, Fate::LateCompletion(Duration::from_millis(40))].iter().zip(0..)
        {
            let net = Net::new(profile, seed);
            let (near, far) = net.pair().await;
            let posted = net.hosts[0].counters().work_requests;
            // The first run up to the signalled one; the first receive is posted again behind it.
            for nth in 1..=16 {
                net.hosts[0].script(posted + nth, *fate);
            }
            let driver = tokio::spawn(crate::pair::drive(Arc::clone(&near)));
            for number in 0..200 {
                let request = request(number, pattern(number, 100));
                let sent = send(&near, request, Flush::Now);
                sent.await.expect("open");
                assert_eq!(slot(&receive_all(&far, 1).await[0]), number);
            }
            assert_eq!(net.fabric.pending_fates(), 0);
            net.close([&near, &far]).await;
            driver.await.expect("no panic");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_runs_with_one_seed_are_one_run() {
    let run = || async {
        let net = Net::new(PROFILES[0], 7);
        let (client, server) = echo(&net).await;
        let calls: Vec<_> = (0..20)
            .map(|number| {
                let body = pattern(number, 1 + number as usize * 997);
                tokio::spawn(client.unary::<_, Bytes>(0, Request::new(body)))
            })
            .collect();
        for call in calls {
            call.await.expect("no panic").expect("answered");
        }
        drop(client);
        tokio::time::sleep(Duration::from_secs(10)).await;
        server.abort();
        net.fabric.trace_digest()
    };
    assert_eq!(run().await, run().await);
}
