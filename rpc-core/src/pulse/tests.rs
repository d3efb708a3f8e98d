use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::buf::Body;
use crate::client::Channel;
use crate::config::{ClientConfig, Limits, Random};
use crate::proto::hello::Identity;
use crate::request::Request;
use crate::request::Response;
use crate::server::{OpenService, Server};
use crate::service::StreamInput;
use crate::status::{Code, Executed, Status};
use crate::transport::mem::MemTransport;
use crate::transport::{
    Announced, Incoming, Listener, LocalSide, Placement, PlacementHook, Target, Transport,
};

const MINUTE: Duration = Duration::from_secs(60);

struct Everything;

impl PlacementHook for Everything {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

/// A side whose messages the test sends and takes itself.
fn raw_side(features: u64) -> LocalSide {
    let hello = Identity::new(Random::from_seed(1)).hello(&Limits::default());
    let hello = Hello { features, ..hello };
    LocalSide {
        hello,
        placement: Arc::new(Everything),
        deadline: Instant::now() + MINUTE,
        ticket: None,
    }
}

async fn receive(end: &dyn Connection) -> Result<Vec<Head>, Error> {
    let mut received: Vec<Incoming> = Vec::new();
    poll_fn(|cx| match end.poll_recv(cx, &mut received) {
        Poll::Pending if !received.is_empty() => Poll::Ready(Ok(())),
        polled => polled,
    })
    .await?;
    Ok(received.into_iter().map(|incoming| incoming.message.head).collect())
}

fn say(end: &dyn Connection, head: Head) {
    let outgoing = Outgoing { message: Message::bare(head), hints: SendHints::default() };
    end.try_send(outgoing).expect("room");
}

/// A client with a call under way, and the server's end of its connection.
async fn client_of_a_raw_server(
    name: &str,
    features: u64,
) -> (tokio::task::JoinHandle<Result<(), Status>>, Arc<dyn Connection>) {
    let target = Target::new("mem", name);
    let mut listener: Box<dyn Listener> = MemTransport.listen(&target).await.expect("free");
    let config = ClientConfig { default_timeout: 100 * MINUTE, ..ClientConfig::default() };
    let accepted = async {
        let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("a client");
        accepting.handshake(raw_side(features)).await.expect("HELLO")
    };
    let connected = Channel::connect(Arc::new(MemTransport), &target, &config);
    let (channel, established) = tokio::join!(connected, accepted);
    let channel = channel.expect("connected");
    let call = tokio::spawn(async move {
        let request = Request::new(StreamInput::Whole(Body::new()));
        channel.call("/a.A/A", request).await.map(drop)
    });
    (call, established.connection)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_silent_ends_its_connection_within_interval_and_timeout() {
    let begun = Instant::now();
    let (call, end) = client_of_a_raw_server("silent", KEEP_ALIVE).await;
    let status = call.await.expect("no panic").expect_err("nobody answers");
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe));
    assert!(status.message().contains("keep_alive.timeout of 20s"), "{status}");
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(20) && took <= Duration::from_secs(30), "{took:?}");
    let heads = receive(&*end).await.expect("what was sent before the end");
    assert!(matches!(&heads[..], [Head::Request { .. }, Head::Ping]), "{heads:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_is_kept_and_one_that_cannot_is_not_asked() {
    for features in [KEEP_ALIVE, 0] {
        let name = format!("kept-{features}");
        let (call, end) = client_of_a_raw_server(&name, features).await;
        let answering = async {
            let mut pings = 0;
            loop {
                for head in receive(&*end).await.expect("the connection lives") {
                    if head == Head::Ping {
                        pings += 1;
                        say(&*end, Head::Pong);
                    }
                }
                if pings == 100 {
                    return;
                }
            }
        };
        let answered = timeout(60 * MINUTE, answering).await;
        assert_eq!(answered.is_ok(), features == KEEP_ALIVE);
        assert!(!call.is_finished());
    }
}

/// A server of one service, and a raw client's end of a connection to it.
async fn raw_client(name: &str, keep_alive: Option<KeepAlive>) -> Arc<dyn Connection> {
    let echo = |_: Arc<str>, request: Request<Body>| async move {
        Ok::<_, Status>(Response::new(request.into_inner()))
    };
    let target = Target::new("mem", name);
    let builder = Server::builder().add_service(OpenService::new("a.A", echo));
    let transport: Arc<dyn Transport> = Arc::new(MemTransport);
    let bound = builder.keep_alive(keep_alive).bind([(transport, target.clone())]).await;
    tokio::spawn(bound.expect("free").serve());
    MemTransport.connect(&target, raw_side(KEEP_ALIVE)).await.expect("HELLO").connection
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_silent_is_asked_once_and_let_go() {
    let begun = Instant::now();
    let end = raw_client("lost", Some(KeepAlive::default())).await;
    assert_eq!(receive(&*end).await.expect("asked"), [Head::Ping]);
    receive(&*end).await.expect_err("and let go");
    assert!(begun.elapsed() <= Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_keep_alive_nobody_is_asked_and_whoever_asks_is_answered() {
    let end = raw_client("calm", None).await;
    sleep(60 * MINUTE).await;
    for _ in 0..3 {
        say(&*end, Head::Ping);
        assert_eq!(receive(&*end).await.expect("open"), [Head::Pong]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_asks_a_thousand_times_is_answered_and_makes_nothing_pile_up() {
    let end = raw_client("flood", None).await;
    for _ in 0..1000 {
        poll_fn(|cx| end.poll_ready(cx)).await;
        say(&*end, Head::Ping);
    }
    let mut pongs = 0;
    while let Ok(heads) = timeout(MINUTE, receive(&*end)).await {
        pongs += heads.expect("open").len();
    }
    assert!((1..=1000).contains(&pongs), "{pongs}");
}
