//! What arrives, and in which order.

use std::sync::Arc;

use bytes::Bytes;
use verbwire_core::message::{Head, Message};
use verbwire_core::transport::Flush;
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::{Header, Kind};
use verbwire_tcp::TcpConfig;

use crate::pair::{
    Everything, Nothing, call, drive, follows, pair, piece, raw_pair, read_frame, receive, request,
    send, slot, tcp_pair, transports, write_frame, zeroes,
};

#[tokio::test]
async fn messages_arrive_whole_and_in_order_on_both_transports() {
    for (transport, target) in transports(&TcpConfig::default()) {
        let (near, far) = pair(&*transport, &target, Everything).await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let sender = tokio::spawn(async move {
            for number in 0..2000_u32 {
                let flush = [Flush::Now, Flush::Batch][number as usize % 2];
                let len = [3, 5000, 100_000][number as usize % 3];
                let body = Bytes::from(vec![number.to_le_bytes()[0]; len]);
                send(&near, request(number, body), flush).await.expect("open");
            }
        });
        let mut next = 0;
        while next < 2000 {
            for message in receive(&far).await.expect("open") {
                assert_eq!(slot(&message), next);
                let body = message.body.into_bytes();
                assert_eq!(body.len(), [3, 5000, 100_000][next as usize % 3]);
                assert!(body.iter().all(|byte| *byte == next.to_le_bytes()[0]));
                next += 1;
            }
        }
        sender.await.expect("no panic");
        driver.abort();
    }
}

#[tokio::test]
async fn a_small_message_arrives_before_a_long_body_that_was_sent_first() {
    for (transport, target) in transports(&TcpConfig::default()) {
        let (near, far) = pair(&*transport, &target, Everything).await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let long = zeroes(10 << 20);
        send(&near, request(1, long.clone()), Flush::Now).await.expect("open");
        send(&near, request(2, Bytes::from("small")), Flush::Now).await.expect("open");
        let mut received = Vec::new();
        while received.len() < 2 {
            received.extend(receive(&far).await.expect("open"));
        }
        assert_eq!(received.iter().map(slot).collect::<Vec<_>>(), [2, 1]);
        let body = received.remove(1).body;
        assert_eq!(body.segments().count(), 1, "it lands in one piece");
        assert_eq!(body.into_bytes(), long);
        driver.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_send_at_once_and_each_ones_messages_stay_in_order() {
    const TASKS: u32 = 16;
    const EACH: u32 = 500;
    let (near, far) = tcp_pair(TcpConfig::default()).await;
    tokio::spawn(drive(Arc::clone(&near)));
    for task in 0..TASKS {
        let near = Arc::clone(&near);
        tokio::spawn(async move {
            for number in 0..EACH {
                let flush = [Flush::Now, Flush::Batch][number as usize % 2];
                let body = Bytes::copy_from_slice(&number.to_le_bytes());
                send(&near, request(task, body), flush).await.expect("open");
            }
        });
    }
    let mut next = vec![0_u32; TASKS as usize];
    while next.iter().any(|next| *next < EACH) {
        for message in receive(&far).await.expect("open") {
            let expected = &mut next[slot(&message) as usize];
            assert_eq!(message.body.into_bytes(), expected.to_le_bytes()[..]);
            *expected += 1;
        }
    }
}

#[tokio::test]
async fn a_body_revoked_by_its_sender_is_aborted_on_the_wire() {
    let (near, mut raw) = raw_pair(TcpConfig::default(), Everything).await;
    send(&near, request(1, zeroes(60 << 20)), Flush::Now).await.expect("open");
    near.revoke(call(1));
    send(&near, Message::bare(Head::Cancel { call: call(1) }), Flush::Now).await.expect("open");
    let driver = tokio::spawn(drive(Arc::clone(&near)));
    let head = read_frame(&mut raw).await;
    assert!(head.flags.contains(Flags::BODY_FOLLOWS));
    let mut pieces = 0;
    let last = loop {
        let frame = read_frame(&mut raw).await;
        assert_eq!((frame.kind, frame.call), (Kind::Data, call(1)));
        if frame.flags.contains(Flags::ABORTED) {
            break frame;
        }
        pieces += 1;
    };
    assert!(pieces < 240, "all {pieces} pieces were sent");
    assert_eq!((last.body_len, last.aux), (0, pieces * (256 << 10)));
    assert_eq!(read_frame(&mut raw).await.kind, Kind::Cancel);
    driver.abort();
}

#[tokio::test]
async fn a_body_that_its_sender_revoked_is_not_delivered() {
    for (transport, target) in transports(&TcpConfig::default()) {
        let (near, far) = pair(&*transport, &target, Everything).await;
        send(&near, request(1, zeroes(10 << 20)), Flush::Now).await.expect("open");
        near.revoke(call(1));
        send(&near, request(2, Bytes::new()), Flush::Now).await.expect("open");
        let driver = tokio::spawn(drive(near));
        let received = receive(&far).await.expect("open");
        assert_eq!(received.iter().map(slot).collect::<Vec<_>>(), [2]);
        driver.abort();
    }
}

#[tokio::test]
async fn a_refused_body_is_received_and_not_delivered() {
    let (end, mut raw) = raw_pair(TcpConfig::default(), Nothing).await;
    write_frame(&mut raw, follows(1, 1000), &[]).await;
    write_frame(&mut raw, piece(1, 0, 600, Flags::default()), &[1; 600]).await;
    write_frame(&mut raw, piece(1, 600, 400, Flags::LAST), &[1; 400]).await;
    write_frame(&mut raw, Header::new(Kind::Cancel, call(2)), &[]).await;
    let received = receive(&end).await.expect("open");
    assert_eq!(received.iter().map(slot).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn a_body_that_its_receiver_revoked_is_received_and_not_delivered() {
    let (end, mut raw) = raw_pair(TcpConfig::default(), Everything).await;
    write_frame(&mut raw, follows(1, 1000), &[]).await;
    write_frame(&mut raw, piece(1, 0, 600, Flags::default()), &[1; 600]).await;
    write_frame(&mut raw, Header::new(Kind::Cancel, call(2)), &[]).await;
    assert_eq!(slot(&receive(&end).await.expect("open")[0]), 2);
    end.revoke(call(1));
    write_frame(&mut raw, piece(1, 600, 400, Flags::LAST), &[1; 400]).await;
    write_frame(&mut raw, Header::new(Kind::Cancel, call(3)), &[]).await;
    let received = receive(&end).await.expect("open");
    assert_eq!(received.iter().map(slot).collect::<Vec<_>>(), [3]);
}
