//! A peer that takes less than is sent.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use verbwire_core::ErrorKind;
use verbwire_core::transport::{Connection, Flush, Outgoing, SendError, SendHints};
use verbwire_tcp::TcpConfig;

use crate::pair::{
    End, Everything, drive, raw_pair, receive, request, send, slot, tcp_pair, zeroes,
};

/// Sends until the queue is full; returns how many messages it took.
fn fill(end: &dyn Connection) -> u32 {
    for number in 0.. {
        let outgoing = Outgoing {
            message: request(number, Bytes::from(vec![1; 1000])),
            hints: SendHints::flush(Flush::Now),
        };
        if let Err(refused) = end.try_send(outgoing) {
            assert!(matches!(refused, SendError::Full(_)), "{refused:?}");
            return number;
        }
    }
    unreachable!("u32 is not enough")
}

fn ready(end: &End) -> impl Future<Output = ()> + Send + 'static {
    let end = Arc::clone(end);
    async move { poll_fn(|cx| end.poll_ready(cx)).await }
}

#[tokio::test]
async fn all_who_wait_for_room_are_woken_and_nothing_is_lost() {
    let mut config = TcpConfig::default();
    config.send_queue_bytes = 64 << 10;
    let (near, far) = tcp_pair(config).await;
    let sent = fill(&*near);
    let waiting: Vec<_> = (0..8).map(|_| tokio::spawn(ready(&near))).collect();
    tokio::task::yield_now().await;
    assert!(waiting.iter().all(|task| !task.is_finished()));
    tokio::spawn(drive(Arc::clone(&near)));
    let mut next = 0;
    while next < sent {
        for message in receive(&far).await.expect("open") {
            assert_eq!(slot(&message), next);
            next += 1;
        }
    }
    for task in waiting {
        task.await.expect("woken");
    }
    send(&near, request(7, Bytes::new()), Flush::Now).await.expect("open");
    assert_eq!(slot(&receive(&far).await.expect("open")[0]), 7);
}

#[tokio::test]
async fn who_waits_for_room_is_woken_by_the_end() {
    let (near, _raw) = raw_pair(TcpConfig::default(), Everything).await;
    fill(&*near);
    let waiting = tokio::spawn(ready(&near));
    tokio::task::yield_now().await;
    near.close(verbwire_core::Error::new(ErrorKind::Closed, "enough"));
    waiting.await.expect("woken");
    let error = send(&near, request(1, Bytes::new()), Flush::Now).await;
    assert_eq!(error.expect_err("closed").to_string(), "enough");
}

#[tokio::test]
async fn a_peer_that_takes_no_byte_for_the_stall_timeout_is_given_up() {
    let (near, _raw) = raw_pair(TcpConfig::default(), Everything).await;
    send(&near, request(1, zeroes(64 << 20)), Flush::Now).await.expect("open");
    tokio::time::pause();
    let start = Instant::now();
    let error = drive(Arc::clone(&near)).await;
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("took no byte for 30s"), "{error}");
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(30), "{waited:?}");
    let error = send(&near, request(2, Bytes::new()), Flush::Now).await;
    assert!(error.expect_err("ended").to_string().contains("took no byte"));
}

#[tokio::test]
async fn an_idle_connection_is_not_stalled() {
    let (near, far) = tcp_pair(TcpConfig::default()).await;
    tokio::time::pause();
    let waited = tokio::time::timeout(Duration::from_secs(3600), drive(Arc::clone(&near))).await;
    assert!(waited.is_err(), "ended: {waited:?}");
    tokio::time::resume();
    send(&near, request(1, Bytes::new()), Flush::Now).await.expect("open");
    assert_eq!(slot(&receive(&far).await.expect("open")[0]), 1);
}
