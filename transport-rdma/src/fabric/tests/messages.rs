//! What works: messages, Writes, events, inline data, unsignalled work requests.

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use super::rig::{A_WHILE, ALL, CHUNK, connect, pair, pair_of, slow};
use super::rig::{DEPTHS, Side, config};
use crate::fabric::{Fabric, FabricConfig, Latency, Profile};
use crate::memory::NicAccess;
use crate::nic::{Cq, Cqs, Inline, Signal};

#[tokio::test(start_paused = true)]
async fn a_message_goes_there_and_an_answer_comes_back() {
    for profile in ALL {
        let (fabric, mut a, mut b) = pair(profile, 1).await;
        a.recv(1);
        a.send(2, b"ping");
        let got = b.wait().await;
        assert_eq!((got.id.0, got.result, got.qp), (100, Ok(4), b.qp.number()));
        assert_eq!(&b.take_back(100)[..4], b"ping");
        b.send(3, b"pong!");
        let mut ids = vec![a.wait().await.id.0, a.wait().await.id.0];
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        assert_eq!(&a.take_back(1)[..5], b"pong!");
        assert_eq!(fabric.violations(), []);
        let counters = fabric.counters();
        assert_eq!((counters.sends, counters.bytes, counters.registrations), (2, 9, 2));
    }
}

#[tokio::test]
async fn a_message_goes_there_and_an_answer_comes_back_on_a_running_clock() {
    for latency in [Latency::NONE, Latency::default()] {
        let (_fabric, mut a, mut b) =
            pair_of(FabricConfig { latency, ..config(Profile::Siw) }, 1).await;
        a.recv(1);
        a.send(2, b"ping");
        assert_eq!(b.wait().await.id.0, 100);
        b.send(3, b"pong");
        a.wait().await;
        a.wait().await;
        assert_eq!(&a.take_back(1)[..4], b"pong");
    }
}

#[test]
fn a_fabric_goes_on_in_another_runtime_when_its_first_one_ends() {
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (_fabric, mut a, b) = runtime().block_on(pair(Profile::Rxe, 1));
    runtime().block_on(async {
        a.send(1, b"x");
        assert_eq!(b.wait().await.id.0, 100);
    });
}

#[tokio::test(start_paused = true)]
async fn a_write_is_there_before_the_receive_of_the_send_behind_it() {
    for profile in ALL {
        let (fabric, mut a, mut b) = pair(profile, 1).await;
        let landing = b.pool.take().expect("free").into_nic(NicAccess::Write);
        let (address, rkey) = (landing.address(), landing.rkey().expect("registered"));
        b.in_flight.insert(9, landing);
        a.write(1, &[7; 3000], address + 100, rkey);
        a.send(2, b"done");
        assert_eq!(b.wait().await.id.0, 100);
        let landed = b.take_back(9);
        assert!(landed[100..3100].iter().all(|byte| *byte == 7));
        assert!(landed[..100].iter().all(|byte| *byte == 0xdb));
        assert_eq!(fabric.violations(), []);
        assert_eq!(fabric.counters().writes, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unsignalled_send_completes_silently_and_a_later_signalled_one_frees_its_slot() {
    let (_fabric, mut a, mut b) = pair(Profile::Rxe, 16).await;
    for round in 0..4 {
        for id in 0..16 {
            let mut wr = a.wr(id, b"x");
            wr.signal = if id == 15 { Signal::Yes } else { Signal::No };
            a.qp.post_send(&[wr]).expect("the slots of the last round are free");
        }
        assert_eq!(a.outcomes().await, [(15, Ok(0))], "round {round}");
        (0..16).for_each(|id| drop(a.take_back(id)));
        for id in b.poll().into_iter().map(|wc| wc.id.0) {
            b.take_back(id);
            b.recv(id);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn inline_bytes_are_free_when_the_post_returns() {
    let (fabric, mut a, mut b) = pair(Profile::Rxe, 1).await;
    let mut wr = a.wr(1, b"inline");
    wr.inline = Inline::Yes;
    a.qp.post_send(&[wr]).expect("room");
    a.take_back(1);
    b.wait().await;
    assert_eq!(&b.take_back(100)[..6], b"inline");
    assert_eq!(fabric.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn entries_are_gathered_in_order_and_empty_messages_arrive() {
    let (_fabric, mut a, mut b) = pair(Profile::Siw, 2).await;
    let mut wr = a.wr(1, b"head ");
    let tail = a.wr(2, b"tail");
    assert!(wr.sges.push(tail.sges.as_slice()[0]));
    a.qp.post_send(&[wr]).expect("room");
    a.send(3, b"");
    assert_eq!(b.outcomes().await, [(100, Ok(9)), (101, Ok(0))]);
    assert_eq!(&b.take_back(100)[..9], b"head tail");
}

fn has_event(cq: &dyn Cq) -> bool {
    matches!(cq.poll_event(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
}

#[tokio::test(start_paused = true)]
async fn arming_a_queue_that_holds_completions_gives_no_event() {
    let (_fabric, mut a, _b) = pair(Profile::Rxe, 2).await;
    a.send(1, b"x");
    tokio::time::sleep(A_WHILE).await;
    a.cq.arm().expect("not lost");
    assert!(!has_event(&*a.cq));
    a.send(2, b"x");
    tokio::time::sleep(A_WHILE).await;
    assert!(has_event(&*a.cq));
    assert!(!has_event(&*a.cq));
    assert_eq!(a.poll().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn arming_again_with_an_event_untaken_loses_neither() {
    let (_fabric, mut a, _b) = pair(Profile::Rxe, 2).await;
    a.cq.arm().expect("not lost");
    a.send(1, b"x");
    tokio::time::sleep(A_WHILE).await;
    a.cq.arm().expect("not lost");
    assert!(has_event(&*a.cq));
    a.send(2, b"x");
    tokio::time::sleep(A_WHILE).await;
    assert!(has_event(&*a.cq));
}

#[tokio::test(start_paused = true)]
async fn a_completion_wakes_whoever_waits_for_the_event() {
    let (_fabric, mut a, b) = pair(Profile::Rxe, 1).await;
    b.cq.arm().expect("not lost");
    let cq = std::sync::Arc::clone(&b.cq);
    let waiter = tokio::spawn(async move { poll_fn(|cx| cq.poll_event(cx)).await });
    tokio::task::yield_now().await;
    a.send(1, b"x");
    waiter.await.expect("no panic").expect("not lost");
}

#[tokio::test(start_paused = true)]
async fn latency_grows_with_length_and_order_stays() {
    let mut config = slow(Profile::Rxe);
    config.latency.per_kib = std::time::Duration::from_millis(10);
    let (_fabric, mut a, b) = pair_of(config, 2).await;
    let begin = tokio::time::Instant::now();
    a.send(1, &[0; CHUNK]);
    a.send(2, b"small");
    assert_eq!(b.wait().await.id.0, 100);
    assert!(begin.elapsed() >= std::time::Duration::from_millis(85));
    assert_eq!(b.wait().await.id.0, 101);
}

#[tokio::test(start_paused = true)]
async fn fabrics_are_independent_of_each_other() {
    let (first, mut a, _b) = pair(Profile::Rxe, 1).await;
    let second = Fabric::new(config(Profile::Rxe));
    let (mut c, mut d) = (Side::new(&second, "a", DEPTHS, 8), Side::new(&second, "b", DEPTHS, 8));
    connect(&second, &mut c, &mut d, 0).await;
    a.send(1, b"x");
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((first.counters().sends, second.counters().sends), (1, 0));
    assert!(c.nic.create_qp(&Cqs::one(&a.cq), DEPTHS).is_err(), "a foreign completion queue");
}
