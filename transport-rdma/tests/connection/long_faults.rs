//! Long bodies that are given up, or whose peers die, at every point; and memory that is used again at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use verbwire_core::client::Client;
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary, unknown_method,
};
use verbwire_core::transport::{Flush, Transport};
use verbwire_core::{Body, Channel, Code, Request, Response, Server, Target};
use verbwire_rdma::fabric::{Death, Profile};
use verbwire_rdma::{Peers, RdmaConfig};

use crate::faults::{drop_after, echo};
use crate::long::response;
use crate::pair::{Net, PROFILES, drive, exact, pattern, receive, request, send, slot};

fn trusting() -> RdmaConfig {
    let mut config = exact();
    config.peers = Peers::Trusted;
    config
}

#[tokio::test(start_paused = true)]
async fn a_long_call_dropped_at_every_step_leaves_all_memory_free_while_the_connection_lives() {
    for profile in PROFILES {
        for config in [exact(), trusting()] {
            let net = Net::with(profile, 1, [config.clone(), config]);
            let (client, server) = echo(&net).await;
            let body = pattern(1, 700_000);
            let mut steps = 0;
            loop {
                let call = client.unary::<_, Bytes>(0, Request::new(body.clone()));
                if drop_after(call, steps).await {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
                net.assert_pools_idle();
                steps += 1;
            }
            assert!(steps > 20, "{steps} steps are not enough to drop a call in every phase");
            let call = client.unary::<_, Bytes>(0, Request::new(body.clone()));
            assert!(call.await.expect("the connection lives").into_inner() == body);
            drop(client);
            sleep(Duration::from_secs(10)).await;
            server.abort();
            sleep(Duration::from_secs(10)).await;
            net.assert_clean();
        }
    }
}

/// Long bodies both ways, until one side dies; then both ends are retired.
async fn until_dead(net: &Net) {
    let (near, far) = net.pair().await;
    let answering = {
        let far = Arc::clone(&far);
        tokio::spawn(async move {
            while let Ok(messages) = receive(&far).await {
                for message in messages {
                    let answer = response(slot(&message), message.body.into_bytes());
                    // A dead connection takes no answer.
                    let _sent = send(&far, answer, Flush::Now).await;
                }
            }
        })
    };
    let driving = tokio::spawn(drive(Arc::clone(&near)));
    let body = pattern(1, 300_000);
    for number in 0.. {
        if send(&near, request(number, body.clone()), Flush::Now).await.is_err() {
            break;
        }
    }
    driving.await.expect("no panic");
    near.retire().await;
    far.retire().await;
    answering.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_host_may_die_at_any_work_request_of_a_long_body() {
    for profile in PROFILES {
        for death in [Death::Host, Death::Process] {
            for host in 0..2 {
                for nth in 86..118 {
                    let net = Net::new(profile, nth);
                    net.hosts[host].kill_at(nth, death);
                    until_dead(&net).await;
                    assert_eq!(net.fabric.pending_fates(), 0, "nobody died");
                    net.assert_clean();
                }
            }
        }
    }
}

static SLOW: ServiceDescriptor =
    ServiceDescriptor::new("test.Slow", &[MethodDescriptor::new("Check", "/test.Slow/Check")]);

/// Takes its time, then looks at the request: all of its bytes must be of one call.
struct Slow(tokio::sync::mpsc::UnboundedSender<Result<u8, String>>);

impl Service for Slow {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SLOW
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        let seen = self.0.clone();
        match method {
            0 => unary(request, |request: Request<Bytes>| {
                // A handler is dropped at its deadline; what it received is looked at all the same.
                let body = request.into_inner();
                tokio::spawn(async move {
                    sleep(Duration::from_millis(200)).await;
                    let first = body[0];
                    let is_whole = body.iter().all(|byte| *byte == first);
                    let found = if is_whole { Ok(first) } else { Err(format!("mixed: {first}")) };
                    seen.send(found).expect("the test listens");
                });
                async move {
                    sleep(Duration::from_millis(200)).await;
                    Ok(Response::new(Bytes::new()))
                }
            }),
            other => unknown_method(&SLOW, other),
        }
    }
}

async fn slow(net: &Net) -> (Channel, tokio::sync::mpsc::UnboundedReceiver<Result<u8, String>>) {
    let transport = |index: usize| Arc::new(net.transports[index].clone()) as Arc<dyn Transport>;
    let target = Target::new("fabric", "far:7");
    let (seen, found) = tokio::sync::mpsc::unbounded_channel();
    let builder = Server::builder().add_service(Slow(seen)).random(Random::from_seed(1));
    let bound = builder.bind([(transport(1), target.clone())]).await.expect("free");
    tokio::spawn(async move { bound.serve().await });
    let mut config = ClientConfig::default();
    config.random = Random::from_seed(2);
    (Channel::connect(transport(0), &target, &config).await.expect("connect"), found)
}

/// The bug that corrupted data elsewhere: a call that had timed out gave its buffer back while it could still be
/// sent, and the server took the next call's bytes for the first one's.
#[tokio::test(start_paused = true)]
async fn the_one_buffer_of_a_pool_is_used_again_at_once_after_a_timeout_and_no_call_is_mixed_up() {
    const LEN: usize = 1 << 20;
    for profile in PROFILES {
        let mut config = trusting();
        config.staging.longest = LEN;
        config.staging.cap = LEN;
        let net = Net::with(profile, 1, [config, trusting()]);
        let (channel, mut found) = slow(&net).await;
        let client = Client::new(channel.clone(), &SLOW);
        let mut timeouts = 0;
        for number in 1..=60_u8 {
            // Also in the middle of the Writes, in front of them, and behind.
            let timeout = Duration::from_micros(match number % 3 {
                0 => 50_000,
                1 => 40 * u64::from(number),
                _ => 400 * u64::from(number),
            });
            let deadline = Instant::now() + Duration::from_secs(20);
            let mut buffer = net.transports[0].alloc(LEN, deadline).await.expect("it comes back");
            buffer.fill(number);
            let mut request = Request::new(buffer.freeze());
            request.set_timeout(timeout);
            let status = client.unary::<_, Bytes>(0, request).await.expect_err("too slow");
            assert_eq!(status.code(), Code::DeadlineExceeded);
            timeouts += 1;
        }
        assert_eq!(timeouts, 60);
        drop((client, channel));
        sleep(Duration::from_secs(10)).await;
        let mut handled = Vec::new();
        while let Ok(seen) = found.try_recv() {
            handled.push(seen.expect("all bytes of a request are of one call"));
        }
        assert!(handled.len() > 15, "{} requests reached their handler", handled.len());
        assert!(handled.is_sorted_by(|one, next| one < next), "{handled:?}");
        assert!(handled.len() < 60, "no call was given up before its body had landed");
        net.assert_pools_idle();
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_keeps_what_it_was_granted_loses_its_queue_pair() {
    let net = Net::new(Profile::Rxe, 1);
    let (near, far) = net.pair().await;
    // The near end has no driver: it never answers an ABORT.
    let sending = tokio::spawn(drive(Arc::clone(&near)));
    send(&near, request(1, pattern(1, 8 << 20)), Flush::Now).await.expect("open");
    let receiving = tokio::spawn(drive(Arc::clone(&far)));
    while net.fabric.counters().writes == 0 {
        sleep(Duration::from_micros(10)).await;
    }
    sending.abort();
    far.revoke(crate::pair::call(1));
    sleep(Duration::from_millis(100)).await;
    assert!(net.transports[1].pools().landing.quarantined_bytes > 8 << 20);
    let error = receiving.await.expect("no panic");
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("sent nothing for 2s (revoke_timeout)"), "{error}: {source}");
    net.close([&near, &far]).await;
}
