//! Long bodies that are given up, or whose peers die, at every point.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use verbwire_core::Request;
use verbwire_core::message::Message;
use verbwire_core::transport::Flush;
use verbwire_rdma::fabric::Profile;
use verbwire_rdma::{Peers, RdmaConfig};

use crate::dying::{at_each_of, send_and_answer};
use crate::faults::{drop_after, echo};
use crate::long::response;
use crate::pair::{Net, PROFILES, drive, exact, pattern, request, send, slot};

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

/// Long bodies both ways, until one side dies.
async fn until_dead(net: &Net) {
    let body = pattern(1, 300_000);
    let answer = |message: Message| response(slot(&message), message.body.into_bytes());
    send_and_answer(net, async |number| request(number, body.clone()), answer).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_may_die_at_any_work_request_of_a_long_body() {
    at_each_of(86..118, Net::new, until_dead).await;
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
