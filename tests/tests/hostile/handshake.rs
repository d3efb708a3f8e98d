//! Bytes before and instead of HELLO.

use verbwire_core::wire::Hello;
use verbwire_tests::fixture::Fixture;
use verbwire_tests::raw::{self, RawPeer};
use verbwire_tests::spy;

use crate::bad::Victim;
use crate::over_sockets;

over_sockets!(
    bytes_that_are_no_hello_end_the_connection,
    a_hello_that_does_not_fit_ends_the_connection,
    a_peer_that_says_nothing_is_given_up,
    a_hello_cut_anywhere_ends_the_connection,
    silent_peers_do_not_keep_others_out,
);

/// What a peer hears before it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hears {
    /// A HELLO, from which it can see why.
    Hello,
    /// Nothing: what it says does not begin as a HELLO.
    Nothing,
}

async fn assert_refused(victim: &Victim, bytes: &[u8], hears: Hears, words: &str) {
    let mut peer = RawPeer::dial(victim.serving.target()).await;
    let before = spy::count(&["handshake failed", words]);
    peer.send(bytes).await;
    if hears == Hears::Hello {
        peer.read_hello().await;
    }
    assert_eq!(peer.rest().await.len(), 0);
    spy::until(before + 1, &["handshake failed", words]).await;
    victim.assert_serves().await;
}

async fn bytes_that_are_no_hello_end_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let prefixed =
        |len: u32, content: &[u8]| [b"VERBWIRE", &len.to_le_bytes()[..], content].concat();
    for (bytes, hears, words) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], Hears::Nothing, "got \"GET / HT\""),
        (b"VERBWIRF\x04\0\0\0\x08\0\x10\0", Hears::Nothing, "got \"VERBWIRF\""),
        (b"MPA ID Req Frame\0\x01\0\0", Hears::Nothing, "got \"MPA ID R\""),
        (&[0; 100_000], Hears::Nothing, "got \"\\x00"),
        (&prefixed(u32::MAX, b""), Hears::Nothing, "HELLO of 4294967295 bytes, at most 4096"),
        (&prefixed(4097, b""), Hears::Nothing, "HELLO of 4097 bytes, at most 4096"),
        (&prefixed(4, b"\xff\xff\xff\xff"), Hears::Hello, "HELLO does not decode"),
        (&prefixed(0, b""), Hears::Hello, "the peer () 0 to 0; upgrade the older"),
    ] {
        assert_refused(&victim, bytes, hears, words).await;
    }
}

async fn a_hello_that_does_not_fit_ends_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let hello = raw::hello();
    let cases = [
        (Hello { version_min: 5, version_max: 9, ..hello.clone() }, "5 to 9; upgrade the older"),
        (
            Hello { version_min: 3, version_max: 0, ..hello.clone() },
            "no protocol version in common",
        ),
        (Hello { required_features: 1 << 40, ..hello.clone() }, "requires features 0x10000000000"),
        (Hello { max_frame_body: 17, ..hello.clone() }, "max_frame_body 17"),
        (Hello { max_concurrent_calls: 0, ..hello }, "max_concurrent_calls 0"),
    ];
    for (hello, words) in cases {
        assert_refused(&victim, &hello.encode_framed(), Hears::Hello, words).await;
    }
}

async fn a_peer_that_says_nothing_is_given_up(fixture: Fixture) {
    let victim = Victim::impatient(&fixture).await;
    assert_refused(&victim, b"", Hears::Nothing, "said nothing in time").await;
    let words = "said only 9 bytes of HELLO in time";
    assert_refused(&victim, b"VERBWIRE\x01", Hears::Nothing, words).await;
}

async fn a_hello_cut_anywhere_ends_the_connection(fixture: Fixture) {
    let victim = Victim::start(&fixture).await;
    let hello = raw::hello().encode_framed();
    for len in 0..hello.len() {
        let words = format!("closed the connection after {len} bytes of HELLO");
        let before = spy::count(&[&words]);
        let mut peer = RawPeer::dial(victim.serving.target()).await;
        peer.send(&hello[..len]).await;
        peer.finish().await;
        spy::until(before + 1, &[&words]).await;
    }
    victim.assert_serves().await;
}

async fn silent_peers_do_not_keep_others_out(fixture: Fixture) {
    let victim = Victim::impatient(&fixture).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(RawPeer::dial(victim.serving.target()).await);
    }
    victim.assert_serves().await;
    for mut peer in silent {
        assert_eq!(peer.rest().await.len(), 0, "it is closed in the end");
    }
}
