//! A network with two hosts, two ends of a connection on it, and what tests do with them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use verbwire_core::buf::Body;
use verbwire_core::config::{Limits, Random};
use verbwire_core::message::{CallId, Form, Head, Message, MethodId, ReplyForm};
use verbwire_core::proto::hello::Identity;
use verbwire_core::transport::{
    Announced, Connection, Flush, Incoming, Listener, LocalSide, Outgoing, Placement,
    PlacementHook, SendError, SendHints, Transport,
};
use verbwire_core::wire::Hello;
use verbwire_core::{Error, Target};
use verbwire_rdma::fabric::{Fabric, FabricConfig, FabricHost, Profile};
use verbwire_rdma::{BufferCounts, PoolCounts, RdmaConfig, RdmaTransport};

pub(crate) const PROFILES: [Profile; 3] = [Profile::Rxe, Profile::Siw, Profile::Mlx5Like];

/// Places every body.
pub(crate) struct Everything;

impl PlacementHook for Everything {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

/// Places every body in memory that is not the device's.
pub(crate) struct Owned;

impl PlacementHook for Owned {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Owned
    }
}

/// Refuses every body.
pub(crate) struct Nothing;

impl PlacementHook for Nothing {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Refuse
    }
}

pub(crate) type End = Arc<dyn Connection>;

/// Completion queues of exactly the depth that one connection asks for: the fabric loses a queue that it overflows.
pub(crate) fn exact() -> RdmaConfig {
    let mut config = RdmaConfig::default();
    config.completion_queue_depth = 0;
    config
}

/// A network of two hosts with a transport each.
pub(crate) struct Net {
    pub(crate) fabric: Fabric,
    pub(crate) hosts: [FabricHost; 2],
    pub(crate) transports: [RdmaTransport; 2],
}

impl Net {
    pub(crate) fn new(profile: Profile, seed: u64) -> Self {
        Self::with(profile, seed, [exact(), exact()])
    }

    pub(crate) fn with(profile: Profile, seed: u64, configs: [RdmaConfig; 2]) -> Self {
        Self::over(FabricConfig { profile, ..FabricConfig::new(seed) }, configs)
    }

    pub(crate) fn over(config: FabricConfig, configs: [RdmaConfig; 2]) -> Self {
        let fabric = Fabric::new(config);
        let hosts = ["near", "far"].map(|name| fabric.host(name));
        let [near, far] = configs;
        let transports = [
            RdmaTransport::over_fabric(&hosts[0], near),
            RdmaTransport::over_fabric(&hosts[1], far),
        ];
        Self { fabric, hosts, transports }
    }

    pub(crate) async fn listen(&self) -> Box<dyn Listener> {
        let target = Target::new("fabric", "far:0");
        self.transports[1].listen(&target).await.expect("a free port")
    }

    /// A connected pair: the connecting and the accepting end.
    pub(crate) async fn pair(&self) -> (End, End) {
        self.pair_placing(Everything).await
    }

    /// The same; the accepting end places as `placement` says.
    pub(crate) async fn pair_placing(&self, placement: impl PlacementHook + 'static) -> (End, End) {
        let (near, far) = self.try_pair(placement).await;
        // Its refusal says more than what the connecting end hears of it.
        let far = far.expect("handshake");
        (near.expect("connect"), far)
    }

    /// The same where it may fail.
    pub(crate) async fn try_pair(
        &self,
        placement: impl PlacementHook + 'static,
    ) -> (Result<End, Error>, Result<End, Error>) {
        let mut listener = self.listen().await;
        let at = listener.local_target().clone();
        let (near, far) = tokio::join!(self.transports[0].connect(&at, side(Everything)), async {
            let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
            accepting.handshake(side(placement)).await
        });
        (near.map(|near| near.connection), far.map(|far| far.connection))
    }

    /// Asserts that nothing forbidden happened, and that every buffer of both sides is back.
    pub(crate) fn assert_clean(&self) {
        let seed = self.fabric.seed();
        assert_eq!(self.fabric.violations(), [], "seed {seed}");
        let counters = self.fabric.counters();
        assert_eq!((counters.rnr, counters.overflows), (0, 0), "seed {seed}");
        for transport in &self.transports {
            let BufferCounts { total, free, leaked } = transport.buffers();
            assert_eq!((free, leaked), (total, 0), "seed {seed}");
        }
        self.assert_pools_idle();
    }

    /// Asserts that no memory for long bodies is in use, while connections live.
    pub(crate) fn assert_pools_idle(&self) {
        let seed = self.fabric.seed();
        for transport in &self.transports {
            let PoolCounts { users, staging, landing, granted_bytes, .. } = transport.pools();
            for pool in [users, staging, landing] {
                let amounts = (pool.in_use_bytes, pool.quarantined_bytes, pool.leaked_bytes);
                assert_eq!((amounts, pool.waiting), ((0, 0, 0), 0), "seed {seed}");
            }
            assert_eq!(granted_bytes, 0, "seed {seed}");
        }
    }

    /// Retires both ends, then asserts as `assert_clean`.
    pub(crate) async fn close(&self, ends: [&End; 2]) {
        for end in ends {
            end.retire().await;
        }
        self.assert_clean();
    }
}

pub(crate) fn hello() -> Hello {
    Identity::new(Random::from_seed(1)).hello(&Limits::default())
}

pub(crate) fn side(placement: impl PlacementHook + 'static) -> LocalSide {
    LocalSide {
        hello: hello(),
        placement: Arc::new(placement),
        deadline: Instant::now() + Duration::from_secs(20),
        ticket: None,
    }
}

pub(crate) fn call(slot: u32) -> CallId {
    CallId { slot, generation: 1 }
}

pub(crate) fn request(slot: u32, body: Bytes) -> Message {
    let head = Head::Request {
        call: call(slot),
        method: MethodId(1),
        path: None,
        // Not before a test has ended: a body that comes later than that is thrown away.
        timeout: Duration::from_secs(3600),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    };
    Message::with_body(head, Body::from(body))
}

pub(crate) fn cancel(slot: u32) -> Message {
    Message::bare(Head::Cancel { call: call(slot) })
}

/// `len` bytes that differ from place to place and from call to call.
pub(crate) fn pattern(slot: u32, len: usize) -> Bytes {
    let byte = |at: usize| (at * 7 + at / 251 + slot as usize).to_le_bytes()[0];
    (0..len).map(byte).collect()
}

/// Sends, waiting for room.
pub(crate) async fn send(end: &End, message: Message, flush: Flush) -> Result<(), Error> {
    let hints = SendHints::flush(flush);
    let mut outgoing = Outgoing { message, hints };
    loop {
        match end.try_send(outgoing) {
            Ok(()) => return Ok(()),
            Err(SendError::Closed(error)) => return Err(error),
            Err(SendError::Full(back)) => outgoing = *back,
        }
        poll_fn(|cx| end.poll_ready(cx)).await;
    }
}

/// Lets everything else go on a little: some steps at the same time, then some time.
pub(crate) async fn step(number: usize) {
    if number % 4 == 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    } else {
        tokio::task::yield_now().await;
    }
}

/// One poll of the driver's that brought something.
pub(crate) async fn receive(end: &End) -> Result<Vec<Message>, Error> {
    let mut received: Vec<Incoming> = Vec::new();
    poll_fn(|cx| match end.poll_recv(cx, &mut received) {
        // It would be polled again for more.
        Poll::Pending if !received.is_empty() => Poll::Ready(Ok(())),
        polled => polled,
    })
    .await?;
    assert!(!received.is_empty(), "ready means a message at least");
    Ok(received.into_iter().map(|incoming| incoming.message).collect())
}

/// Receives `count` messages.
pub(crate) async fn receive_all(end: &End, count: usize) -> Vec<Message> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(receive(end).await.expect("open"));
    }
    assert_eq!(all.len(), count);
    all
}

/// Drives an end, and drops what it receives, until it ends.
pub(crate) async fn drive(end: End) -> Error {
    loop {
        if let Err(error) = receive(&end).await {
            return error;
        }
    }
}

pub(crate) fn slot(message: &Message) -> u32 {
    message.head.call().expect("about a call").slot
}
