//! Thousands who come and shake no hands, or drop them: how many are let near at a time is bounded, they are expired and counted, and
//! who is a client already notices nothing.
//!
//! Descriptors and the system's queue of connections are fewer than ten thousand: strangers come in waves of more than the server
//! takes at a time.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use verbwire::{Connections, Request};
use verbwire_tests::fixture::{LONG, endpoint, offering};
use verbwire_tests::proto::conformance::Blob;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::raw::hello;
use verbwire_tests::service::Desk;

/// Handshakes at a time that the server allows, and the time that each has.
const MOST: usize = 128;
const SOON: Duration = Duration::from_millis(60);

/// Strangers at a time, and in all.
const WAVE: usize = 200;
const STRANGERS: usize = 10_000;

/// A server, and a client of it from before they come.
struct Site {
    address: String,
    connections: Connections,
    client: ConformanceClient,
}

impl Site {
    async fn new(target: &str) -> Self {
        let builder = offering(&Desk::default()).max_handshakes(MOST).handshake_timeout(SOON);
        let bound = builder.bind(&[target]).await.expect("a free port");
        let connections = bound.connections();
        let target = bound.local_targets()[0].to_string();
        tokio::spawn(bound.serve());
        // On a slow machine a server may give up on it, too, before it is connected.
        let channel = endpoint(&target).wait_for_ready(true).connect_lazy().expect("well-formed");
        let site = Self {
            address: target.split_once("://").expect("a target").1.to_owned(),
            connections,
            client: ConformanceClient::new(channel),
        };
        site.call().await;
        site
    }

    async fn call(&self) {
        let mut request = Request::new(Blob { payload: "good".into() });
        request.set_timeout(LONG);
        let reply = self.client.echo(request).await.expect("the server lives");
        assert_eq!(reply.get_ref().payload, "good");
    }

    async fn dial(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.expect("a server listens")
    }

    /// One call after the other, as long as `attack` goes on. None waits for longer than one that is expired.
    async fn serves_beside(&self, attack: impl Future<Output = ()>) {
        let before = self.connections.newcomers().let_in;
        let calls = async {
            for number in 0_u64.. {
                self.call().await;
                let waiting = self.connections.newcomers().waiting;
                assert!(waiting <= MOST as u64, "{waiting} shake hands after {number} calls");
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = attack => {}
            () = calls => unreachable!("there is no last call"),
        }
        let client = self.connections.list().into_iter().map(|one| one.paths().first.traffic.calls);
        let calls = client.max().expect("the client is connected");
        assert!(before >= 1 && calls > 50, "{calls} calls beside the attack");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_half_open_handshakes_are_bounded_expired_and_counted() {
    for target in ["tcp://127.0.0.1:0", "auto://127.0.0.1:0"] {
        let site = Site::new(target).await;
        let hello = hello().encode_framed();
        let before = site.connections.newcomers();
        let attack = async {
            for _ in 0..STRANGERS / WAVE / 2 {
                let mut wave = Vec::with_capacity(WAVE);
                for number in 0..WAVE {
                    let mut stranger = site.dial().await;
                    let says = [&b""[..], &hello[..3], &hello[..hello.len() / 2]][number % 3];
                    stranger.write_all(says).await.expect("it listens");
                    wave.push(stranger);
                }
                for mut stranger in wave {
                    // What the server has not read resets the connection.
                    let ended = timeout(LONG, stranger.read_to_end(&mut Vec::new())).await;
                    let _reset = ended.expect("it is expired");
                }
            }
        };
        site.serves_beside(attack).await;
        let counts = site.connections.newcomers();
        let expired = (counts.timed_out - before.timed_out, counts.waiting);
        assert_eq!(expired, (STRANGERS as u64 / 2, 0), "{counts:?}");
        assert_eq!((counts.let_in, counts.lost), (before.let_in, before.lost), "{counts:?}");
        assert_eq!(site.connections.list().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_handshakes_that_are_dropped_is_counted_and_leaves_nothing() {
    const DROPPED: u32 = 3000;
    let site = Site::new("tcp://127.0.0.1:0").await;
    let hello = hello().encode_framed();
    let before = site.connections.newcomers();
    let ended = || {
        let counts = site.connections.newcomers();
        let now = counts.let_in + counts.lost + counts.timed_out;
        now - before.let_in - before.lost - before.timed_out
    };
    let attack = async {
        for number in 0..DROPPED {
            let mut stranger = site.dial().await;
            let says = [&b""[..], &hello[..hello.len() / 2], &hello][number as usize % 3];
            stranger.write_all(says).await.expect("it listens");
            if number % 6 == 5 {
                // Until the server's HELLO begins: it is let in, and goes.
                let _closed = stranger.read(&mut [0; 8]).await;
            }
        }
        let all = async {
            while ended() < u64::from(DROPPED) || site.connections.list().len() > 1 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, all).await.expect("each ends");
    };
    site.serves_beside(attack).await;
    let counts = site.connections.newcomers();
    assert_eq!((ended(), counts.waiting), (u64::from(DROPPED), 0), "{counts:?}");
    assert!(counts.let_in - before.let_in >= u64::from(DROPPED) / 7, "{counts:?}");
    assert!(counts.lost - before.lost >= u64::from(DROPPED) / 2, "{counts:?}");
}
