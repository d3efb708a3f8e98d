//! How connections end, and what each side is told.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use verbwire_core::message::{GoAway, Head, Message};
use verbwire_core::transport::{Announced, Flush, Path, Placement, PlacementHook};
use verbwire_core::wire::{HEADER_LEN, Header, Kind};
use verbwire_core::{Error, ErrorKind};
use verbwire_tcp::TcpConfig;

use crate::pair::{
    End, Everything, call, drive, follows, pair, raw_pair, read_frame, receive, request, send,
    slot, tcp_pair, transports, write_frame, zeroes,
};

fn enough() -> Error {
    Error::new(ErrorKind::Closed, "enough")
}

/// Writes until the system says that the other end's socket is gone; fails if it stays.
async fn write_until_refused(raw: &mut TcpStream) {
    let refused = async {
        while raw.write_all(&[0; HEADER_LEN]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), refused).await;
    waited.expect("the socket is still open");
}

#[tokio::test]
async fn a_peer_that_goes_away_is_told_by_where_it_stopped() {
    let head = follows(1, 9).encode();
    let cases = [
        (&b""[..], "the peer closed the connection"),
        (&[1], "the peer closed the connection within a frame"),
        (&head, "the peer closed the connection within a body"),
    ];
    for (said, expected) in cases {
        let (end, mut raw) = raw_pair(TcpConfig::default(), Everything).await;
        raw.write_all(said).await.expect("room");
        drop(raw);
        let error = receive(&end).await.expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(error.to_string(), expected);
        let refused = send(&end, request(1, Bytes::new()), Flush::Now).await;
        assert_eq!(refused.expect_err("ended").to_string(), expected);
    }
}

#[tokio::test]
async fn messages_before_the_end_are_received_also_when_writing_failed_first() {
    let (end, mut raw) = raw_pair(TcpConfig::default(), Everything).await;
    write_frame(&mut raw, Header::new(Kind::GoAway, call(0)), &[]).await;
    // Closing with unread bytes resets the connection.
    send(&end, request(1, zeroes(1000)), Flush::Now).await.expect("open");
    raw.readable().await.expect("bytes");
    drop(raw);
    while send(&end, request(2, Bytes::new()), Flush::Now).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let goaway = Head::GoAway { reason: GoAway::Draining };
    assert_eq!(receive(&end).await.expect("said before")[0].head, goaway);
    let error = receive(&end).await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().starts_with("connection lost while"), "{error}");
}

#[tokio::test]
async fn closing_sends_what_is_queued_and_the_first_cause_is_what_all_are_told() {
    for (transport, target) in transports(&TcpConfig::default()) {
        let (near, far) = pair(&*transport, &target, Everything).await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        send(&near, request(1, Bytes::from("queued")), Flush::Batch).await.expect("open");
        near.close(enough());
        near.close(Error::new(ErrorKind::Lost, "too late"));
        assert_eq!(driver.await.expect("no panic").to_string(), "enough");
        let refused = send(&near, request(2, Bytes::new()), Flush::Now).await;
        assert_eq!(refused.expect_err("closed").to_string(), "enough");
        assert_eq!(slot(&receive(&far).await.expect("sent before")[0]), 1);
        let error = receive(&far).await.expect_err("closed");
        assert_eq!(error.to_string(), "the peer closed the connection");
    }
}

#[tokio::test]
async fn retiring_closes_the_socket_with_and_without_a_driver() {
    for has_driver in [true, false] {
        let (near, mut raw) = raw_pair(TcpConfig::default(), Everything).await;
        let driver = has_driver.then(|| tokio::spawn(drive(Arc::clone(&near))));
        send(&near, request(1, Bytes::new()), Flush::Batch).await.expect("open");
        near.retire().await;
        near.retire().await;
        if let Some(driver) = driver {
            let error = driver.await.expect("no panic").to_string();
            assert_eq!(error, "this side retired the connection");
        }
        assert_eq!(read_frame(&mut raw).await.kind, Kind::Request);
        assert_eq!(raw.read(&mut [0]).await.expect("closed in order"), 0);
        // The socket is gone, not only shut: what is written to it is answered by a reset.
        write_until_refused(&mut raw).await;
    }
}

#[tokio::test]
async fn retiring_resolves_while_long_bodies_wait_for_a_peer_that_does_not_read() {
    let (near, _raw) = raw_pair(TcpConfig::default(), Everything).await;
    let driver = tokio::spawn(drive(Arc::clone(&near)));
    send(&near, request(1, zeroes(64 << 20)), Flush::Now).await.expect("open");
    tokio::task::yield_now().await;
    near.retire().await;
    driver.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retiring_resolves_at_any_moment_of_sending_and_receiving() {
    for round in 0..40 {
        let (near, far) = tcp_pair(TcpConfig::default()).await;
        let drivers = [Arc::clone(&near), Arc::clone(&far)]
            .map(|end| tokio::spawn(async move { while receive(&end).await.is_ok() {} }));
        let senders: Vec<_> = (0..4_u32)
            .map(|task| {
                let end = Arc::clone([&near, &far][task as usize % 2]);
                let flush = [Flush::Now, Flush::Batch][task as usize / 2];
                tokio::spawn(async move {
                    for number in 0.. {
                        let len = [9, 5000, 300_000][number as usize % 3];
                        if send(&end, request(number, zeroes(len)), flush).await.is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        for _ in 0..3 * round {
            tokio::task::yield_now().await;
        }
        near.retire().await;
        for task in senders.into_iter().chain(drivers) {
            task.await.expect("no panic");
        }
        far.retire().await;
    }
}

/// Closes its connection when it is asked, which is while the driver reads.
#[derive(Clone, Default)]
struct ClosesWhileReading(Arc<OnceLock<End>>);

impl PlacementHook for ClosesWhileReading {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        let end = self.0.get().expect("set before the first frame");
        end.close(enough());
        Placement::Pool
    }
}

#[tokio::test]
async fn closing_while_the_driver_reads_closes_the_socket_when_it_is_done() {
    let hook = ClosesWhileReading::default();
    let (end, mut raw) = raw_pair(TcpConfig::default(), hook.clone()).await;
    assert!(hook.0.set(Arc::clone(&end)).is_ok());
    write_frame(&mut raw, follows(1, 9), &[]).await;
    let error = receive(&end).await.expect_err("closed");
    assert_eq!(error.to_string(), "enough");
    // Nobody polls or retires the end any more, and still its socket is gone.
    write_until_refused(&mut raw).await;
}

#[tokio::test]
async fn dropping_an_end_closes_its_socket() {
    let (near, far) = tcp_pair(TcpConfig::default()).await;
    drop(near);
    let error = receive(&far).await.expect_err("closed");
    assert_eq!(error.to_string(), "the peer closed the connection");
}

#[tokio::test]
async fn a_path_names_both_ends() {
    let (near, far) = tcp_pair(TcpConfig::default()).await;
    let (near, far) = (near.path(), far.path());
    assert_eq!((near.transport, far.transport), ("tcp", "tcp"));
    let turned = Path { transport: "tcp", local: far.peer, peer: far.local };
    assert_eq!(near, turned);
}

#[tokio::test]
async fn a_goaway_after_a_violation_reaches_the_peer() {
    let (end, mut raw) = raw_pair(TcpConfig::default(), Everything).await;
    raw.write_all(&[0xff; HEADER_LEN]).await.expect("room");
    let error = receive(&end).await.expect_err("unknown type");
    assert!(error.is_peer_fault());
    let again = receive(&end).await.expect_err("still");
    assert_eq!(again.to_string(), error.to_string());
    let head = Head::GoAway { reason: GoAway::ProtocolViolation };
    send(&end, Message::bare(head), Flush::Batch).await.expect("open");
    end.close(error);
    let goaway = read_frame(&mut raw).await;
    assert_eq!((goaway.kind, goaway.aux), (Kind::GoAway, 1));
    assert_eq!(raw.read(&mut [0]).await.expect("closed in order"), 0);
}
