//! The longest message that there can be by configuration: 1 GiB, there and back.
//!
//! Takes 3 GiB of memory: what is sent, and what it lands in on either side.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use verbwire_core::client::Client;
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary, unknown_method,
};
use verbwire_core::transport::Transport;
use verbwire_core::{Body, Channel, Code, Executed, Request, Response, Server, Target};
use verbwire_rdma::fabric::Profile;
use verbwire_rdma::{Peers, RdmaConfig};

use crate::pair::{Net, exact, pattern};

const GIANT: usize = 1 << 30;
/// What protobuf puts in front of so long a field: its tag, and its length.
const HEAD: usize = 6;

/// What a giant consists of. A prime length: what came to lie at another page, or in another chunk, shows.
const UNIT: usize = 1_048_573;

static GIANTS: ServiceDescriptor = ServiceDescriptor::new(
    "test.Giants",
    &[
        MethodDescriptor::new("Echo", "/test.Giants/Echo"),
        MethodDescriptor::new("Grow", "/test.Giants/Grow"),
    ],
);

/// Sends back what it is sent, or one byte more than anybody accepts.
struct Giants;

impl Service for Giants {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &GIANTS
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        match method {
            0 => unary(request, |request: Request<Bytes>| async move {
                Ok(Response::new(request.into_inner()))
            }),
            1 => unary(request, |_: Request<Bytes>| async move { Ok(Response::new(too_long())) }),
            other => unknown_method(&GIANTS, other),
        }
    }
}

/// A message of one byte above the limit. Pages that nobody looks at take no memory.
fn too_long() -> Bytes {
    vec![0; GIANT - HEAD + 1].into()
}

fn config() -> RdmaConfig {
    let mut config = exact();
    config.peers = Peers::Trusted;
    for size in [&mut config.staging, &mut config.landing.size] {
        (size.longest, size.cap) = (GIANT, 2 * GIANT);
    }
    config
}

async fn connected(net: &Net) -> Client {
    let transport = |at: usize| Arc::new(net.transports[at].clone()) as Arc<dyn Transport>;
    let target = Target::new("fabric", "far:7");
    let builder = Server::builder().add_service(Giants).random(Random::from_seed(1));
    let builder = builder.max_message_size(GIANT);
    let bound = builder.bind([(transport(1), target.clone())]).await.expect("free");
    tokio::spawn(async move { bound.serve().await });
    let mut config = ClientConfig::default();
    config.random = Random::from_seed(2);
    config.limits.max_message_size = GIANT;
    let channel = Channel::connect_once(transport(0), &target, &config).await.expect("connect");
    Client::new(channel, &GIANTS)
}

#[tokio::test(start_paused = true)]
async fn a_gigabyte_goes_there_and_back_without_a_copy_and_a_byte_more_is_refused() {
    let net = Net::with(Profile::Rxe, 1, [config(), config()]);
    let client = connected(&net).await;
    let unit = pattern(1, UNIT);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut buffer = net.transports[0].alloc(GIANT - HEAD, deadline).await.expect("room");
    buffer.chunks_mut(UNIT).for_each(|part| part.copy_from_slice(&unit[..part.len()]));
    let reply = client.unary::<_, Bytes>(0, Request::new(buffer.freeze())).await;
    let reply = reply.expect("within the limits").into_inner();
    assert_eq!(reply.len(), GIANT - HEAD);
    let wrong = reply.chunks(UNIT).position(|part| *part != unit[..part.len()]);
    assert_eq!(wrong, None, "the first part of {UNIT} bytes that came changed");
    drop(reply);
    for transport in &net.transports {
        let pools = transport.pools();
        let copied = [pools.users, pools.staging, pools.landing].map(|pool| pool.copied_bytes);
        assert_eq!(copied, [0, HEAD as u64, 0], "the head and nothing else");
    }
    let status = client.unary::<_, Bytes>(0, Request::new(too_long())).await.expect_err("long");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No));
    let words = "request message of 1073741825 bytes exceeds max_message_size of 1024 MiB, \
                 set by the server's max_message_size(..)";
    assert_eq!(status.message(), words);
    let status = client.unary::<_, Bytes>(1, Request::new(Bytes::new())).await.expect_err("long");
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::Yes));
    let words = "reply message of 1073741825 bytes exceeds max_message_size of 1024 MiB, \
                 set by the client's max_message_size(..)";
    assert_eq!(status.message(), words);
    let refused = net.transports[0].alloc(GIANT + 1, deadline).await.expect_err("too long");
    assert!(refused.to_string().contains("raise `longest` of the pool"), "{refused}");
    sleep(Duration::from_millis(100)).await;
    net.assert_pools_idle();
}
