//! Handshakes of TLS that nobody finishes: what they hold is bounded, and honest clients are served beside and after them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use verbwire_tests::fixture::{LONG, Serving, offering};
use verbwire_tests::proto::conformance::Blob;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::service::Desk;
use verbwire_tests::spy;

use crate::bad::{HANDSHAKE, Victim, connect_in_time, fixture};

/// The header of a record that announces the longest one, and of a handshake message that announces the longest one.
const BEGUN: &[u8] = b"\x16\x03\x01\x40\x00\x01\x00\xff\xff\x03\x03";

async fn dial(serving: &Serving) -> TcpStream {
    let (_, address) = serving.target().split_once("://").expect("a target");
    TcpStream::connect(address).await.expect("a server listens")
}

/// Waits until the server has closed the connection; returns what it said.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // What it has not read resets the connection.
    let ended = timeout(LONG, stream.read_to_end(&mut said)).await;
    let _reset = ended.expect("it is closed in the end");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_handshakes_of_tls_keep_no_client_out() {
    let victim = Victim::impatient(&fixture("tls")).await;
    let mut strangers = Vec::new();
    for number in 0..300 {
        let mut stranger = dial(&victim.serving).await;
        let says = [&b""[..], BEGUN, &BEGUN[..5]][number % 3];
        stranger.write_all(says).await.expect("it listens");
        strangers.push(stranger);
    }
    victim.assert_serves().await;
    for stranger in strangers {
        assert_eq!(rest(stranger).await, b"", "who has said no hello is told nothing");
    }
    victim.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_handshakes_that_are_dropped_leaves_the_server_serving() {
    let victim = Victim::start(&fixture("tls")).await;
    for number in 0..2000 {
        let mut stranger = dial(&victim.serving).await;
        if number % 2 == 0 {
            stranger.write_all(BEGUN).await.expect("it listens");
        }
    }
    victim.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_of_tls_count_for_max_handshakes_until_their_time_is_over() {
    let fixture = fixture("tls");
    let time = HANDSHAKE * 2;
    let builder = offering(&Desk::default()).max_handshakes(2).handshake_timeout(time);
    let serving = Serving::start(builder, &fixture.target()).await;
    let before = spy::count(&["handshake failed", "did not finish it within handshake_timeout"]);
    let (begun, mut strangers) = (Instant::now(), Vec::new());
    for _ in 0..2 {
        let mut stranger = dial(&serving).await;
        stranger.write_all(BEGUN).await.expect("it listens");
        strangers.push(stranger);
    }
    // They have come first, and their time has begun later than this.
    let client = ConformanceClient::new(connect_in_time(&serving).await);
    assert!(begun.elapsed() >= time, "there was no place for it before");
    client.echo(Blob::default()).await.expect("served");
    spy::until(before + 2, &["handshake failed", "did not finish it within handshake_timeout"])
        .await;
}
