//! Small windows, small queues, and peers that take nothing.

use std::time::Duration;

use bytes::Bytes;
use verbwire_core::message::{CallId, Head, Message};
use verbwire_core::transport::{Connection, Flush, Outgoing, SendError, SendHints};
use verbwire_core::{Code, Executed};
use verbwire_rdma::RdmaConfig;

use crate::pair::{
    End, Net, PROFILES, exact, pattern, receive, receive_all, request, send, slot, step,
};

fn config(data: u32, control: u32, staging: u32) -> RdmaConfig {
    let mut config = exact();
    (config.data_window, config.control_window) = (data, control);
    (config.staging_buffers, config.send_depth) = (staging, staging);
    config
}

/// Answers every request with its body.
async fn echo(end: End) {
    while let Ok(messages) = receive(&end).await {
        for message in messages {
            let call = message.head.call().expect("a request");
            let head =
                Head::Response { call, code: Code::Ok, executed: Executed::Yes, messages: None };
            let answer = Message::with_body(head, message.body);
            let (end, flush) = (end.clone(), [Flush::Now, Flush::Batch][call.slot as usize % 2]);
            // An ended connection has no one to answer.
            tokio::spawn(async move { send(&end, answer, flush).await });
        }
    }
}

/// Calls over one pair from several tasks, with bodies of many lengths.
async fn exchange(net: &Net, calls: u32) {
    let (near, far) = net.pair().await;
    let server = tokio::spawn(echo(far.clone()));
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let near = near.clone();
            tokio::spawn(async move {
                for number in (caller..calls).step_by(4) {
                    let len = [0, 100, 9000, 40_000][(number / 4) as usize % 4];
                    let flush = [Flush::Now, Flush::Batch][number as usize % 2];
                    let request = request(number, pattern(number, len));
                    send(&near, request, flush).await.expect("open");
                }
            })
        })
        .collect();
    for message in receive_all(&near, calls as usize).await {
        let (number, body) = (slot(&message), message.body.into_bytes());
        assert_eq!(body, pattern(number, body.len()));
    }
    for caller in callers {
        caller.await.expect("no panic");
    }
    net.close([&near, &far]).await;
    server.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn any_windows_carry_any_load_both_ways() {
    for profile in PROFILES {
        for (seed, near) in (1..=3).zip(0..) {
            for far in 1..=3 {
                let configs = [config(seed, far, 8), config(far, 4 - far, 3)];
                let net = Net::with(profile, u64::from(seed * 10 + far) + near, configs);
                exchange(&net, 60).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_on_several_threads_race_and_nothing_is_left_behind() {
    for seed in 0..8 {
        let configs = [config(2, 1, 3), config(3, 2, 2)];
        exchange(&Net::with(PROFILES[0], seed, configs), 40).await;
    }
}

#[tokio::test(start_paused = true)]
async fn send_queues_of_any_depth_never_stand_still() {
    for (depth, seed) in [2, 3, 5, 16, 17, 40].into_iter().zip(0..) {
        let configs = [config(64, 16, depth), config(64, 16, 42 - depth)];
        exchange(&Net::with(PROFILES[0], seed, configs), 200).await;
    }
}

#[tokio::test(start_paused = true)]
async fn frames_are_as_long_as_the_shorter_receive() {
    let mut short = exact();
    short.eager_len = 4096;
    for configs in [[short.clone(), exact()], [exact(), short]] {
        exchange(&Net::with(PROFILES[2], 1, configs), 60).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing_fills_the_queue_and_then_frees_it() {
    let net = Net::new(PROFILES[0], 1);
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(crate::pair::drive(near.clone()));
    let mut sent = 0;
    let back = loop {
        let hints = SendHints::flush(Flush::Now);
        let message = request(sent, Bytes::new());
        match near.try_send(Outgoing { message, hints }) {
            Ok(()) => sent += 1,
            Err(SendError::Full(back)) => break back,
            Err(SendError::Closed(error)) => panic!("{error}"),
        }
        step(sent as usize).await;
    };
    assert_eq!(sent, 64 + 1024, "the window, and the queue");
    assert_eq!(slot(&back.message), sent);
    // Control is not behind it.
    let head = Head::Cancel { call: CallId { slot: 5000, generation: 1 } };
    let hints = SendHints::flush(Flush::Now);
    let cancel = Outgoing { message: Message::bare(head.clone()), hints };
    assert!(near.try_send(cancel).is_ok(), "control has room of its own");
    let waiting = tokio::spawn({
        let near = near.clone();
        async move { send(&near, back.message, Flush::Now).await }
    });
    let messages = receive_all(&far, sent as usize + 2).await;
    let place = messages.iter().position(|message| message.head == head);
    assert_eq!(place, Some(64), "the cancel came behind what was in flight");
    waiting.await.expect("no panic").expect("open");
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing_for_too_long_ends_the_connection() {
    let net = Net::new(PROFILES[0], 1);
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(crate::pair::drive(near.clone()));
    for number in 0..64 {
        send(&near, request(number, Bytes::new()), Flush::Now).await.expect("open");
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!driver.is_finished(), "what the window holds waits for nobody");
    send(&near, request(64, Bytes::new()), Flush::Now).await.expect("open");
    let error = driver.await.expect("no panic");
    assert!(error.to_string().contains("for 30s while some were queued"), "{error}");
    assert_eq!(receive_all(&far, 64).await.len(), 64);
    net.close([&near, &far]).await;
}

#[tokio::test(start_paused = true)]
async fn one_way_traffic_costs_a_credit_per_quarter_of_the_window() {
    let net = Net::new(PROFILES[0], 1);
    let (near, far) = net.pair().await;
    let driver = tokio::spawn(crate::pair::drive(near.clone()));
    let before = net.hosts[0].counters().sends;
    for number in 0..400 {
        send(&near, request(number, Bytes::new()), Flush::Now).await.expect("open");
        receive_all(&far, 1).await;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(net.hosts[0].counters().sends - before, 400);
    let hello = 1;
    assert_eq!(net.hosts[1].counters().sends, hello + 400 / 16);
    net.close([&near, &far]).await;
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn metadata_beyond_a_frame_is_refused_in_words() {
    let net = Net::new(PROFILES[0], 1);
    let (near, far) = net.pair().await;
    let mut message = request(1, Bytes::new());
    message.metadata = Bytes::from(vec![0; 8153]);
    let error = send(&near, message, Flush::Now).await.expect_err("too long");
    assert!(error.to_string().contains("8153 bytes of metadata"), "{error}");
    send(&near, request(2, Bytes::new()), Flush::Now).await.expect("still open");
    let near: &End = &near;
    assert!(Connection::path(&**near).to_string().starts_with("fabric near:"));
    net.close([near, &far]).await;
}
