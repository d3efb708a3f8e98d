//! Shared receive queues: whose message takes which receive, and what becomes of receives when queue pairs end.

use std::sync::Arc;
use std::time::Duration;

use super::rig::{A_WHILE, ALL, DEPTHS, Side, config, connect, len_of, pair};
use crate::fabric::{Fabric, FabricConfig, Fate, Profile};
use crate::memory::{NicAccess, NicBuf, Released};
use crate::nic::{CmConnection, Cqs, Depths, NicError, Qp, RecvWr, Sge, Srq, WcStatus, WrId};

/// A side whose receives are those of a queue of so many.
fn shared_side(fabric: &Fabric, name: &str, depth: u32) -> (Side, Arc<dyn Srq>) {
    let mut side = Side::new(fabric, name, DEPTHS, 64);
    let srq = side.nic.create_srq(depth).expect("within limits");
    side.qp = side.nic.create_qp_on(&srq, &Cqs::one(&side.cq), 16).expect("within limits");
    (side, srq)
}

/// Posts a receive whose buffer the side keeps.
fn post(side: &mut Side, srq: &Arc<dyn Srq>, id: u64, len: u32) -> Result<(), NicError> {
    let buf: NicBuf = side.pool.take().expect("free").into_nic(NicAccess::Write);
    let sge = Sge { address: buf.address(), len, lkey: buf.lkey().expect("registered") };
    side.in_flight.insert(id, buf);
    srq.post_recv(&[RecvWr { id: WrId(id), sge }])
}

/// A side with so many shared receives, each of `len` bytes and posted under numbers from 1 on, and a peer that is connected
/// to it.
async fn shared_pair(fabric: &Fabric, receives: u32, len: u32) -> (Side, Side, Arc<dyn Srq>) {
    let (mut b, srq) = shared_side(fabric, "b", receives);
    let mut a = Side::new(fabric, "a", DEPTHS, 64);
    (1..=receives).for_each(|id| post(&mut b, &srq, id.into(), len).expect("room"));
    connect(fabric, &mut a, &mut b, 0).await;
    (a, b, srq)
}

/// A second queue pair of `side`, connected to a new host.
async fn second(fabric: &Fabric, side: &mut Side, srq: &Arc<dyn Srq>) -> (Side, First) {
    let other = side.nic.create_qp_on(srq, &Cqs::one(&side.cq), 16).expect("within limits");
    let first = std::mem::replace(&mut side.qp, other);
    let events = side.events.take().expect("connected");
    let mut peer = Side::new(fabric, "c", DEPTHS, 64);
    connect(fabric, &mut peer, side, 0).await;
    (peer, First { qp: first, _events: events })
}

/// The end of the first connection.
struct First {
    qp: Arc<dyn Qp>,
    _events: Box<dyn CmConnection>,
}

#[tokio::test(start_paused = true)]
async fn messages_of_two_queue_pairs_take_receives_in_the_order_in_which_they_come() {
    for profile in ALL {
        let fabric = Fabric::new(config(profile));
        let (mut a, mut b, srq) = shared_pair(&fabric, 4, 64).await;
        let (mut c, first) = second(&fabric, &mut b, &srq).await;
        for (at, by_first) in [(1, true), (2, false), (3, false), (4, true)] {
            let (from, to) = if by_first { (&mut a, &first.qp) } else { (&mut c, &b.qp) };
            let number = to.number();
            from.send(at, format!("message {at}").as_bytes());
            let got = b.wait().await;
            assert_eq!((got.id.0, got.qp, got.result), (at, number, Ok(9)));
            assert_eq!(&b.take_back(at)[..9], format!("message {at}").as_bytes());
        }
        first.qp.destroy();
        assert_eq!((fabric.violations(), fabric.counters().rnr), (vec![], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_pair_that_fails_flushes_no_receive_and_the_others_go_on() {
    for profile in ALL {
        let fabric = Fabric::new(config(profile));
        let (_a, mut b, srq) = shared_pair(&fabric, 4, 64).await;
        let (mut c, first) = second(&fabric, &mut b, &srq).await;
        first.qp.fail();
        first.qp.destroy();
        assert_eq!(b.outcomes().await, [], "{profile:?}");
        c.send(9, b"still here");
        assert_eq!(b.outcomes().await, [(1, Ok(10))]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_queue_is_an_empty_receive_queue_to_who_sends() {
    for profile in ALL {
        let fabric = Fabric::new(config(profile));
        let (mut a, mut b, _srq) = shared_pair(&fabric, 1, 64).await;
        (1..=2).for_each(|id| a.send(id, b"x"));
        assert_eq!(b.outcomes().await, [(1, Ok(1))]);
        assert_eq!(fabric.counters().rnr, 1);
        if profile == Profile::Siw {
            assert!(b.is_disconnected().await, "iWARP ends the connection");
        } else {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let outcomes = a.outcomes().await;
            assert!(outcomes.contains(&(2, Err(WcStatus::RNR_RETRY_EXCEEDED))), "{outcomes:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_free_again_when_its_completion_was_polled() {
    let fabric = Fabric::new(config(Profile::Rxe));
    let (mut b, srq) = shared_side(&fabric, "b", 2);
    let mut a = Side::new(&fabric, "a", DEPTHS, 64);
    (1..=2).for_each(|id| post(&mut b, &srq, id, 64).expect("room"));
    let error = post(&mut b, &srq, 3, 64).expect_err("full");
    assert!(error.to_string().contains("the shared receive queue of 2 is full"), "{error}");
    connect(&fabric, &mut a, &mut b, 0).await;
    a.send(1, b"x");
    tokio::time::sleep(A_WHILE).await;
    assert!(post(&mut b, &srq, 4, 64).is_err(), "complete, but not polled");
    assert_eq!(b.poll().len(), 1);
    post(&mut b, &srq, 5, 64).expect("room");
}

#[tokio::test(start_paused = true)]
async fn destruction_takes_completions_along_and_gives_their_slots_back() {
    let fabric = Fabric::new(config(Profile::Mlx5Like));
    let (mut a, mut b, srq) = shared_pair(&fabric, 1, 64).await;
    a.send(1, b"x");
    tokio::time::sleep(A_WHILE).await;
    b.qp.destroy();
    assert_eq!(b.poll(), [], "the device has purged it");
    post(&mut b, &srq, 2, 64).expect("its slot is free");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_longer_than_the_receive_ends_its_connection_alone() {
    for profile in ALL {
        let fabric = Fabric::new(config(profile));
        let (mut a, mut b, srq) = shared_pair(&fabric, 4, len_of(&[0; 8])).await;
        let (mut c, first) = second(&fabric, &mut b, &srq).await;
        a.send(1, &[7; 9]);
        let outcomes = b.outcomes().await;
        assert!(matches!(outcomes[..], [(1, Err(_))]), "{profile:?} {outcomes:?}");
        c.send(2, b"fits");
        assert_eq!(b.outcomes().await, [(2, Ok(4))]);
        first.qp.destroy();
    }
}

#[tokio::test(start_paused = true)]
async fn devices_without_such_queues_and_devices_that_lie_say_so() {
    let mut capabilities = Profile::Siw.capabilities("plain");
    capabilities.max_srq_wr = 0;
    let plain = FabricConfig { capabilities: Some(capabilities.clone()), ..config(Profile::Siw) };
    let fabric = Fabric::new(plain);
    let error = fabric.host("a").nic().create_srq(1).err().expect("none");
    assert!(error.to_string().contains("no shared receive queues"), "{error}");

    let fabric = Fabric::new(FabricConfig { really: Some(capabilities), ..config(Profile::Siw) });
    let nic = fabric.host("a").nic();
    assert!(nic.capabilities().max_srq_wr > 0 && nic.create_srq(1).is_err());
    assert_eq!(fabric.faults().lies, 1);

    let fabric = Fabric::new(config(Profile::Rxe));
    let nic = fabric.host("a").nic();
    assert!(nic.create_srq(0).is_err() && nic.create_srq(1_048_577).is_err());
    let srq = nic.create_srq(1).expect("within limits");
    let cq = nic.create_cq(8).expect("within limits");
    let apart = nic.own_domain().expect("there are more");
    let error = apart.create_qp_on(&srq, &Cqs::one(&cq), 1).err().expect("another domain");
    assert!(error.to_string().contains("another protection domain"), "{error}");
    let foreign = Fabric::new(config(Profile::Rxe)).host("a").nic();
    let foreign_cq = foreign.create_cq(8).expect("within limits");
    assert!(foreign.create_qp_on(&srq, &Cqs::one(&foreign_cq), 1).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_queue_pair_on_one_takes_no_receives_of_its_own() {
    let (_fabric, a, _b) = pair(Profile::Rxe, 0).await;
    let srq = a.nic.create_srq(1).expect("within limits");
    let qp = a.nic.create_qp_on(&srq, &Cqs::one(&a.cq), 1).expect("within limits");
    let buf = a.pool.take().expect("free").into_nic(NicAccess::Write);
    let sge = Sge { address: buf.address(), len: 8, lkey: buf.lkey().expect("registered") };
    assert!(qp.post_recv(&[RecvWr { id: WrId(1), sge }]).is_err());
    drop(buf.into_cpu(Released::by_nic()));
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_batch_is_taken_where_that_is_its_fate() {
    let fabric = Fabric::new(config(Profile::Mlx5Like));
    let (mut b, srq) = shared_side(&fabric, "b", 4);
    b.host.script(1, Fate::PartialPost);
    assert!(post(&mut b, &srq, 1, 64).is_err());
    assert_eq!((fabric.pending_fates(), fabric.faults().partial_posts), (0, 1));
    let depths = Depths { send: 1, recv: 1 };
    let mut a = Side::new(&fabric, "a", depths, 64);
    connect(&fabric, &mut a, &mut b, 0).await;
    a.send(1, b"x");
    assert_eq!(b.outcomes().await, [(1, Ok(1))], "it was taken all the same");
    let _buf = b.in_flight.remove(&1).map(|buf| buf.into_cpu(Released::by_nic()));
}
