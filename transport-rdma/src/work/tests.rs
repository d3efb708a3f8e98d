use std::sync::Arc;

use super::*;
use crate::memory::{Lkey, NicAccess, Poison, Pool, Region, Rkey, Slab};
use crate::nic::{QpNumber, WrId};

struct Keys;

impl Region for Keys {
    fn lkey(&self) -> Lkey {
        Lkey(1)
    }

    fn rkey(&self) -> Rkey {
        Rkey(2)
    }
}

fn pool(chunks: usize) -> Arc<Pool> {
    let slab = Slab::new(64, chunks);
    slab.set_region(Box::new(Keys));
    Pool::new(slab, Poison::Off)
}

fn connection(slot: usize) -> ConnectionNumber {
    ConnectionNumber::first(slot).expect("a slot")
}

fn work() -> Work {
    Work::new(connection(3), 0)
}

fn wc(id: WrId, result: Result<u32, WcStatus>) -> Wc {
    Wc { id, qp: QpNumber(9), result }
}

fn buf(pool: &Arc<Pool>) -> CpuBuf {
    pool.take().expect("a free chunk")
}

#[test]
fn a_signalled_completion_brings_back_all_sends_before_it() {
    let (pool, mut work) = (pool(4), work());
    let signals = [Signal::No, Signal::No, Signal::Yes, Signal::No];
    let ids = signals.map(|signal| {
        let buf = buf(&pool).into_nic(NicAccess::Read);
        work.send(buf, 40, signal).id
    });
    assert!(matches!(work.complete(&wc(ids[1], Ok(0))), Completed::Stray), "nobody asked for it");
    assert!(matches!(work.complete(&wc(ids[2], Ok(0))), Completed::Sent(3)));
    assert_eq!(pool.free(), 3);
    assert!(!work.expects_sent(), "the last one will not say that it is done");
    assert!(matches!(work.complete(&wc(ids[2], Ok(0))), Completed::Stray), "a second time");
    let flushed = wc(ids[3], Err(WcStatus::FLUSHED));
    assert!(matches!(work.complete(&flushed), Completed::Failed(WcStatus::FLUSHED)));
    assert!(work.is_empty());
    assert_eq!((pool.free(), pool.leaked(), work.strays), (4, 0, 2));
}

#[test]
fn a_receive_comes_back_once_and_only_by_its_last_id() {
    let (pool, mut work) = (pool(1), work());
    let first = work.receives.push(buf(&pool)).id;
    let Completed::Received(buf, len) = work.complete(&wc(first, Ok(7))) else {
        panic!("it was in flight");
    };
    assert_eq!(len, 7);
    let second = work.receives.push(buf).id;
    assert_ne!(first, second);
    assert!(matches!(work.complete(&wc(first, Ok(7))), Completed::Stray), "a stale id");
    let flushed = wc(second, Err(WcStatus::FLUSHED));
    assert!(matches!(work.complete(&flushed), Completed::Failed(_)));
    assert_eq!((pool.free(), pool.leaked()), (1, 0));
}

#[test]
fn a_length_beyond_the_buffer_is_cut() {
    let (pool, mut work) = (pool(1), work());
    let id = work.receives.push(buf(&pool)).id;
    let completed = work.complete(&wc(id, Ok(u32::MAX)));
    assert!(matches!(completed, Completed::Received(_, 64)));
}

#[test]
fn completions_of_other_connections_are_strays() {
    let (pool, mut work) = (pool(2), work());
    let mut other = Work::new(connection(4), 0);
    let id = other.receives.push(buf(&pool)).id;
    work.receives.push(buf(&pool));
    for id in [id, WrId(0), WrId(u64::MAX)] {
        assert!(matches!(work.complete(&wc(id, Ok(1))), Completed::Stray));
    }
    work.release();
    other.release();
    assert_eq!((pool.free(), pool.leaked()), (2, 0));
}

#[test]
fn the_sequence_of_sends_wraps() {
    let (pool, mut work) = (pool(2), work());
    work.sends = Sends::starting_at(work.connection, id::SEQUENCE_MASK);
    let ids = [(); 2].map(|()| {
        let buf = buf(&pool).into_nic(NicAccess::Read);
        work.send(buf, 40, Signal::Yes).id
    });
    assert!(matches!(work.complete(&wc(ids[0], Ok(0))), Completed::Sent(1)));
    assert!(matches!(work.complete(&wc(ids[1], Ok(0))), Completed::Sent(1)));
}

#[test]
fn destroying_the_queue_pair_brings_everything_back() {
    let (pool, mut work) = (pool(3), work());
    let _hello = work.send_hello(buf(&pool).into_nic(NicAccess::Read), 9);
    let _send = work.send(buf(&pool).into_nic(NicAccess::Read), 9, Signal::No);
    work.receives.push(buf(&pool));
    assert!(work.expects_sent());
    work.release();
    assert!(work.is_empty());
    assert_eq!((pool.free(), pool.leaked()), (3, 0));
}
