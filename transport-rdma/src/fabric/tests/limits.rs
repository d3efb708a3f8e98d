//! Depths and sizes are enforced where the post happens.

use super::rig::{A_WHILE, CHUNK, DEPTHS, Side, config, connect, pair, pair_of, registered_pool};
use crate::fabric::{Fabric, FabricConfig, Profile};
use crate::memory::{Poison, Pool, Slab};
use crate::nic::{Access, Cqs, Depths, Inline, Sges, Signal, WcStatus};

#[tokio::test(start_paused = true)]
async fn a_send_beyond_the_queue_is_refused_until_a_completion_was_polled() {
    let (_fabric, mut a, mut b) = pair(Profile::Rxe, 16).await;
    (0..16).for_each(|id| a.send(id, b"x"));
    let error = a.try_send(16, b"x").expect_err("full");
    assert!(error.to_string().contains("the send queue of 16 is full"), "{error}");
    tokio::time::sleep(A_WHILE).await;
    assert!(a.try_send(17, b"x").is_err(), "complete, but not polled");
    assert_eq!(a.poll().len(), 16);
    b.poll();
    b.recv(200);
    a.send(18, b"x");
}

#[tokio::test(start_paused = true)]
async fn a_receive_beyond_the_queue_is_refused() {
    let fabric = Fabric::new(config(Profile::Siw));
    let mut a = Side::new(&fabric, "a", Depths { send: 1, recv: 2 }, 8);
    a.recv(1);
    a.recv(2);
    assert!(a.recv_of(3, 8).is_err());
}

#[tokio::test(start_paused = true)]
async fn work_requests_before_a_refused_one_are_executed() {
    let (_fabric, mut a, b) = pair(Profile::Rxe, 2).await;
    let (first, mut bad, last) = (a.wr(1, b"x"), a.wr(2, &[0; 513]), a.wr(3, b"x"));
    bad.inline = Inline::Yes;
    assert!(a.qp.post_send(&[first, bad, last]).is_err());
    assert_eq!(b.outcomes().await, [(100, Ok(1))]);
}

#[tokio::test(start_paused = true)]
async fn a_full_completion_queue_is_lost_and_its_queue_pairs_with_it() {
    let fabric = Fabric::new(config(Profile::Rxe));
    let mut a = Side::new(&fabric, "a", DEPTHS, 2);
    let mut b = Side::new(&fabric, "b", DEPTHS, 64);
    connect(&fabric, &mut a, &mut b, 4).await;
    (0..3).for_each(|id| a.send(id, b"x"));
    tokio::time::sleep(A_WHILE).await;
    let error = a.cq.poll(&mut Vec::new(), 8).expect_err("lost");
    assert!(error.to_string().contains("overflowed its depth of 2"), "{error}");
    assert!(a.cq.arm().is_err());
    assert_eq!(a.host.counters().overflows, 1);
    b.send(9, b"x");
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let statuses: Vec<_> = b.poll().into_iter().filter(|wc| wc.id.0 == 9).collect();
    assert_eq!(statuses[0].result, Err(WcStatus::RETRY_EXCEEDED));
}

#[tokio::test(start_paused = true)]
async fn inline_entry_and_message_limits_are_enforced() {
    let mut capabilities = Profile::Rxe.capabilities("tiny");
    (capabilities.max_inline, capabilities.max_sge) = (10, 2);
    let config = FabricConfig { capabilities: Some(capabilities), ..config(Profile::Rxe) };
    let (_fabric, mut a, _b) = pair_of(config, 4).await;
    assert_eq!(a.nic.capabilities().device, "tiny-a");

    let mut wr = a.wr(1, &[0; 11]);
    wr.inline = Inline::Yes;
    let error = a.qp.post_send(&[wr]).expect_err("too much inline");
    assert!(error.to_string().contains("11 bytes inline are more than 10"), "{error}");

    let mut wr = a.wr(2, b"x");
    let sge = wr.sges.as_slice()[0];
    assert!(wr.sges.push(sge));
    a.qp.post_send(std::slice::from_ref(&wr)).expect("two entries");
    assert!(wr.sges.push(sge));
    assert!(a.qp.post_send(&[wr]).is_err());

    let mut wr = a.wr(3, b"x");
    let mut sge = wr.sges.as_slice()[0];
    sge.len = (8 << 20) + 1;
    (wr.sges, wr.signal) = (Sges::one(sge), Signal::No);
    let error = a.qp.post_send(&[wr]).expect_err("too long");
    assert!(error.to_string().contains("a message of 8388609 bytes"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn queues_deeper_than_the_device_are_refused() {
    let fabric = Fabric::new(config(Profile::Rxe));
    let nic = fabric.host("a").nic();
    assert!(nic.create_cq(32_768).is_err());
    let cq = nic.create_cq(32_767).expect("the most");
    assert!(nic.create_qp(&Cqs::one(&cq), Depths { send: 1, recv: 1_048_577 }).is_err());
    assert!(nic.create_qp(&Cqs::one(&cq), Depths { send: 1_048_576, recv: 1 }).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_queue_pair_that_is_not_connected_takes_receives_but_no_sends() {
    let fabric = Fabric::new(config(Profile::Mlx5Like));
    let mut a = Side::new(&fabric, "a", DEPTHS, 8);
    a.recv(1);
    assert!(a.try_send(2, b"x").is_err());
}

#[tokio::test(start_paused = true)]
async fn the_limit_on_locked_memory_holds_and_deregistering_gives_back() {
    let lockable_bytes = 2 * CHUNK as u64;
    let fabric = Fabric::new(FabricConfig { lockable_bytes, ..config(Profile::Rxe) });
    let nic = fabric.host("a").nic();
    let pool = registered_pool(&*nic, 2);
    let other = Pool::new(Slab::new(CHUNK, 1), Poison::Off);
    let error = nic.register(other.slab(), Access::Local).map(drop).expect_err("the limit");
    assert!(error.to_string().contains("exceed the limit of 16384"), "{error}");
    drop(pool);
    assert!(nic.register(other.slab(), Access::Local).is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_numbers_of_destroyed_queue_pairs_come_back() {
    let fabric = Fabric::new(config(Profile::Rxe));
    let nic = fabric.host("a").nic();
    let cq = nic.create_cq(8).expect("within limits");
    let first = nic.create_qp(&Cqs::one(&cq), DEPTHS).expect("within limits");
    let second = nic.create_qp(&Cqs::one(&cq), DEPTHS).expect("within limits");
    assert_ne!(first.number(), second.number());
    first.destroy();
    let third = nic.create_qp(&Cqs::one(&cq), DEPTHS).expect("within limits");
    assert_eq!(first.number(), third.number());
}
