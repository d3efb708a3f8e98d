//! Connections over a real device, end to end: run in the device lab with `--ignored`.
//!
//! `LAB_ADDRESS` is an address of the device. Peers are never asked a second time for a receive (`rnr_retry` 0),
//! so that a credit too many ends the connection on soft-RoCE, as it does on soft-iWARP anyway.

mod faults;
mod killed;
mod limits;
mod many;
mod sharing;
mod standing;

use std::env;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use verbwire_core::buf::Body;
use verbwire_core::config::{Limits, Random};
use verbwire_core::message::{CallId, Form, Head, Message, MethodId, ReplyForm};
use verbwire_core::proto::hello::Identity;
use verbwire_core::transport::{
    Announced, Connection, Flush, Incoming, Listener, LocalSide, Outgoing, Placement,
    PlacementHook, SendError, SendHints, Transport,
};
use verbwire_core::{Error, ErrorKind, Target};
use verbwire_rdma::verbs::VerbsConfig;
use verbwire_rdma::{RdmaConfig, RdmaTransport};

type End = Arc<dyn Connection>;

struct Everything;

impl PlacementHook for Everything {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

fn transport(config: RdmaConfig) -> RdmaTransport {
    let mut verbs = VerbsConfig::default();
    verbs.rnr_retry = 0;
    RdmaTransport::over_verbs(config, verbs)
}

/// Little memory, so that many connections fit the guest.
fn small() -> RdmaConfig {
    let mut config = RdmaConfig::default();
    (config.data_window, config.control_window, config.staging_buffers) = (8, 2, 4);
    (config.send_depth, config.eager_len) = (32, 4096);
    config
}

fn anywhere() -> Target {
    Target::new("rdma", format!("{}:0", lab("LAB_ADDRESS")))
}

fn lab(name: &str) -> String {
    env::var(name).expect("the device lab sets its variables")
}

fn side(seed: u64) -> LocalSide {
    LocalSide {
        hello: Identity::new(Random::from_seed(seed)).hello(&Limits::default()),
        placement: Arc::new(Everything),
        deadline: Instant::now() + Duration::from_secs(20),
        ticket: None,
    }
}

async fn connect(
    transport: &RdmaTransport,
    listener: &mut dyn Listener,
    seed: u64,
) -> Result<(End, End), Error> {
    let at = listener.local_target().clone();
    let (near, far) = tokio::try_join!(transport.connect(&at, side(seed)), async {
        let accepting = poll_fn(|cx| listener.poll_accept(cx)).await?;
        accepting.handshake(side(seed + 1)).await
    })?;
    Ok((near.connection, far.connection))
}

fn request(slot: u32, body: Bytes) -> Message {
    let head = Head::Request {
        call: CallId { slot, generation: 1 },
        method: MethodId(1),
        path: None,
        // Longer than a test takes: a long body that comes later is thrown away.
        timeout: Duration::from_secs(600),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    };
    Message::with_body(head, Body::from(body))
}

fn pattern(slot: u32, len: usize) -> Bytes {
    let byte = |at: usize| (at * 7 + at / 251 + slot as usize).to_le_bytes()[0];
    (0..len).map(byte).collect()
}

async fn send(end: &End, message: Message) -> Result<(), Error> {
    let mut outgoing = Outgoing { message, hints: SendHints::flush(Flush::Batch) };
    loop {
        match end.try_send(outgoing) {
            Ok(()) => return Ok(()),
            Err(SendError::Closed(error)) => return Err(error),
            Err(SendError::Full(back)) => outgoing = *back,
        }
        poll_fn(|cx| end.poll_ready(cx)).await;
    }
}

async fn receive(end: &End) -> Result<Vec<Message>, Error> {
    let mut received: Vec<Incoming> = Vec::new();
    poll_fn(|cx| match end.poll_recv(cx, &mut received) {
        // It would be polled again for more.
        Poll::Pending if !received.is_empty() => Poll::Ready(Ok(())),
        polled => polled,
    })
    .await?;
    Ok(received.into_iter().map(|incoming| incoming.message).collect())
}

fn slot(message: &Message) -> u32 {
    message.head.call().expect("about a call").slot
}

/// Sends a message from `near` to `far`, while both are driven.
async fn works(near: &End, far: &End) {
    send(near, request(7, pattern(7, 100))).await.expect("open");
    let crosses = async {
        tokio::select! {
            biased;
            received = receive(far) => assert_eq!(received.expect("open").len(), 1),
            ended = receive(near) => assert!(ended.is_ok(), "{ended:?}"),
        }
    };
    timeout(Duration::from_secs(20), crosses).await.expect("a message crosses in time");
}

/// Receives `count` requests and sends each back.
async fn echo(end: &End, count: usize) {
    let mut seen = 0;
    while seen < count {
        for message in receive(end).await.expect("open") {
            let body = message.body.into_bytes();
            send(end, request(slot_of(&message.head), body)).await.expect("open");
            seen += 1;
        }
    }
    // Credits for the last of them are given back by whoever polls.
    let _closed = timeout(Duration::from_secs(20), receive(end)).await;
}

fn slot_of(head: &Head) -> u32 {
    head.call().expect("about a call").slot
}

/// Sends requests of these lengths and checks what comes back.
async fn check_echo(end: &End, lengths: &[usize]) {
    let sending = async {
        for (slot, len) in (0..).zip(lengths) {
            send(end, request(slot, pattern(slot, *len))).await.expect("open");
        }
    };
    let receiving = async {
        let mut left = lengths.len();
        while left > 0 {
            for message in receive(end).await.expect("open") {
                let slot = slot(&message);
                let body = message.body.into_bytes();
                assert_eq!(body, pattern(slot, lengths[slot as usize]), "request {slot}");
                left -= 1;
            }
        }
    };
    tokio::join!(sending, receiving);
    end.close(Error::new(ErrorKind::Closed, "done"));
}

/// Waits until the reaper has put all buffers back.
async fn all_free(transport: &RdmaTransport) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let counts = transport.buffers();
        assert_eq!(counts.leaked, 0);
        if counts.free == counts.total {
            return;
        }
        assert!(Instant::now() < until, "{counts:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn assert_clean(transport: &RdmaTransport, ends: [End; 2]) {
    for end in ends {
        timeout(Duration::from_secs(20), end.retire()).await.expect("retired in time");
    }
    let counts = transport.buffers();
    assert_eq!((counts.free, counts.leaked), (counts.total, 0));
    let pools = transport.pools();
    for pool in [pools.staging, pools.landing] {
        let amounts = (pool.in_use_bytes, pool.quarantined_bytes, pool.leaked_bytes);
        assert_eq!(amounts, (0, 0, 0), "{pool:?}");
    }
}

async fn round_trips() {
    let transport = transport(RdmaConfig::default());
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let (near, far) = connect(&transport, &mut *listener, 1).await.expect("connected");
    let mut lengths: Vec<usize> = vec![0, 1, 64, 65, 220, 4000, 8192, 8193, 100_000, 1 << 20];
    lengths.extend((0..500).map(|at| at % 300));
    tokio::join!(echo(&far, lengths.len()), check_echo(&near, &lengths));
    assert_clean(&transport, [near, far]).await;
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn who_listens_at_all_addresses_says_those_of_roce_devices() {
    let transport = transport(small());
    let everywhere = Target::new("rdma", "0.0.0.0:0");
    let mut listener = transport.listen(&everywhere).await.expect("listens");
    let (_, port) = listener.local_target().address().rsplit_once(':').expect("a port");
    let at = Target::new("rdma", format!("{}:{port}", lab("LAB_ADDRESS")));
    let said = listener.targets();
    // The GIDs of soft-iWARP are no addresses.
    assert_eq!(said.contains(&at), lab("LAB_DEVICE").starts_with("rxe"), "{said:?}");
    let (near, far) = tokio::try_join!(transport.connect(&at, side(1)), async {
        poll_fn(|cx| listener.poll_accept(cx)).await?.handshake(side(2)).await
    })
    .expect("it is listened at");
    works(&near.connection, &far.connection).await;
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn bodies_of_every_length_come_back_on_one_thread() {
    round_trips().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn bodies_of_every_length_come_back_on_two_threads() {
    round_trips().await;
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_peer_that_goes_away_ends_the_other_side() {
    let transport = transport(RdmaConfig::default());
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let (near, far) = connect(&transport, &mut *listener, 1).await.expect("connected");
    drop(near);
    let error = timeout(Duration::from_secs(20), receive(&far)).await.expect("in time");
    assert_eq!(error.expect_err("ended").kind(), ErrorKind::Lost);
    far.retire().await;
}

#[test]
#[ignore = "needs an RDMA device: run it in the device lab"]
fn a_runtime_that_shuts_down_under_load_loses_no_buffer() {
    let transport = transport(RdmaConfig::default());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut listener = transport.listen(&anywhere()).await.expect("listens");
        let (near, far) = connect(&transport, &mut *listener, 1).await.expect("connected");
        tokio::spawn(async move { echo(&far, usize::MAX).await });
        tokio::spawn(async move {
            for slot in 0.. {
                let _closed = send(&near, request(slot, pattern(slot, 3000))).await;
            }
        });
        sleep(Duration::from_millis(300)).await;
    });
    drop(runtime);
    // The reaper's thread destroys the queue pairs and gives the buffers back.
    let until = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let counts = transport.buffers();
        assert_eq!(counts.leaked, 0);
        if counts.free == counts.total {
            return;
        }
        assert!(std::time::Instant::now() < until, "{counts:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
