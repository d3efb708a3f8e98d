//! Memory that is used again at once, after a call that has timed out.
//!
//! The bug that corrupted data elsewhere: such a call gave its buffer back while it could still be sent, and the
//! server took the next call's bytes for the first one's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use verbwire_core::client::Client;
use verbwire_core::config::ClientConfig;
use verbwire_core::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary, unknown_method,
};
use verbwire_core::transport::Transport;
use verbwire_core::{Body, Channel, Code, Request, Response, Server, Target};
use verbwire_rdma::Peers;
use verbwire_tests::fixture::LONG;

use crate::over_nics;
use crate::site::{Over, Site, exact};

over_nics!(the_one_buffer_of_a_pool_is_used_again_at_once_after_a_timeout_and_no_call_is_mixed_up);

/// The one buffer.
const LEN: usize = 256 << 10;
/// Calls, each with bytes of its own.
const CALLS: u8 = 60;
/// How long the handler takes.
const SLOW: Duration = Duration::from_millis(200);

static DESCRIPTOR: ServiceDescriptor = ServiceDescriptor::new(
    "test.Slow",
    &[
        MethodDescriptor::new("Check", "/test.Slow/Check"),
        MethodDescriptor::new("Count", "/test.Slow/Count"),
    ],
);

/// Takes its time, then looks at the request: all of its bytes must be of one call.
struct Slow(mpsc::UnboundedSender<Result<u8, String>>);

impl Slow {
    async fn check(found: mpsc::UnboundedSender<Result<u8, String>>, body: Bytes) {
        let early = body[0];
        sleep(SLOW).await;
        let is_whole = body.iter().all(|byte| *byte == early);
        // The test may have failed.
        let _heard = found.send(if is_whole { Ok(early) } else { Err(format!("{early}, mixed")) });
    }
}

impl Service for Slow {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &DESCRIPTOR
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        let found = self.0.clone();
        match method {
            // A handler is dropped at its deadline; what it received is looked at all the same.
            0 => unary(request, |request: Request<Bytes>| async move {
                tokio::spawn(Self::check(found, request.into_inner()));
                sleep(SLOW).await;
                Ok(Response::new(Bytes::new()))
            }),
            1 => unary(request, |request: Request<Bytes>| async move {
                let body = request.into_inner();
                let first = body[0];
                let count = body.iter().filter(|byte| **byte == first).count();
                Ok(Response::new(Bytes::from(count.to_string())))
            }),
            other => unknown_method(&DESCRIPTOR, other),
        }
    }
}

/// A client of a slow server, what its handlers found, and the server's task.
async fn slow(
    site: &Site,
) -> (Channel, mpsc::UnboundedReceiver<Result<u8, String>>, tokio::task::JoinHandle<()>) {
    let transport = |index: usize| Arc::new(site.transports[index].clone()) as Arc<dyn Transport>;
    let (seen, found) = mpsc::unbounded_channel();
    let builder = Server::builder().add_service(Slow(seen));
    let at = Target::new(site.scheme(), site.anywhere());
    let bound = builder.bind([(transport(1), at)]).await.expect("free");
    let target = bound.local_targets()[0].clone();
    let server = tokio::spawn(async move {
        // It ends when its task does.
        let _served = bound.serve().await;
    });
    let config = ClientConfig::default();
    (Channel::connect_once(transport(0), &target, &config).await.expect("connect"), found, server)
}

/// Also in the middle of the Writes, in front of them, and behind.
fn patience(number: u8) -> Duration {
    match number % 3 {
        0 => Duration::from_millis(50),
        1 => Duration::from_micros(40 * u64::from(number)),
        _ => Duration::from_micros(1000 * u64::from(number)),
    }
}

async fn the_one_buffer_of_a_pool_is_used_again_at_once_after_a_timeout_and_no_call_is_mixed_up(
    over: Over,
) {
    let mut config = exact();
    config.peers = Peers::Trusted;
    (config.staging.longest, config.staging.cap) = (LEN, LEN);
    let mut site = Site::with(over, config).await;
    let (channel, mut found, server) = slow(&site).await;
    let client = Client::new(channel.clone(), &DESCRIPTOR);
    let filled = async |number: u8| {
        let deadline = Instant::now() + LONG;
        let mut buffer = site.transports[0].alloc(LEN, deadline).await.expect("it comes back");
        buffer.fill(number);
        buffer.freeze()
    };
    for number in 1..=CALLS {
        let mut request = Request::new(filled(number).await);
        request.set_timeout(patience(number));
        let status = client.unary::<_, Bytes>(0, request).await.expect_err("too slow");
        assert_eq!(status.code(), Code::DeadlineExceeded);
    }
    // The pool of one and the connection are as good as new.
    let mut request = Request::new(filled(CALLS + 1).await);
    request.set_timeout(LONG);
    let reply = client.unary::<_, Bytes>(1, request).await.expect("in time").into_inner();
    assert_eq!(reply, LEN.to_string());
    sleep(2 * SLOW).await;
    let mut handled = Vec::new();
    while let Ok(seen) = found.try_recv() {
        handled.push(seen.expect("all bytes of a request are of one call"));
    }
    handled.sort_unstable();
    println!("handled: {handled:?}");
    assert!(handled.windows(2).all(|two| two[0] < two[1]), "a call is seen once: {handled:?}");
    assert!(!handled.is_empty(), "no body landed before its deadline");
    assert!(handled.len() < usize::from(CALLS), "every body landed before its deadline");
    drop((client, channel));
    site.assert_pools_idle().await;
    site.assert_others_served().await;
    server.abort();
    let _ended = timeout(LONG, server).await.expect("in time");
    site.close_clean().await;
}
