use std::sync::Arc;

use super::*;
use crate::memory::{Domain, Lkey, NicAccess, Poison, Pool, Region, Rkey, Slab};
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

fn staged(staged: usize) -> Encoded {
    Encoded { staged, ..Encoded::default() }
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
        work.send(buf, staged(40), signal).id
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
        work.send(buf, staged(40), Signal::Yes).id
    });
    assert!(matches!(work.complete(&wc(ids[0], Ok(0))), Completed::Sent(1)));
    assert!(matches!(work.complete(&wc(ids[1], Ok(0))), Completed::Sent(1)));
}

#[test]
fn destroying_the_queue_pair_brings_everything_back() {
    let (pool, mut work) = (pool(3), work());
    let _hello = work.send_hello(buf(&pool).into_nic(NicAccess::Read), 9);
    let _send = work.send(buf(&pool).into_nic(NicAccess::Read), staged(9), Signal::No);
    work.receives.push(buf(&pool));
    assert!(work.expects_sent());
    work.release();
    assert!(work.is_empty());
    assert_eq!((pool.free(), pool.leaked()), (3, 0));
}

#[test]
fn a_frame_is_gathered_from_its_buffer_and_what_is_lent_and_all_comes_back_together() {
    let (frames, mut work) = (pool(1), work());
    let (blocks, domain) = (Pool::new(Slab::new(64, 2), Poison::Off), Domain::unique());
    blocks.slab().add_region(domain, Box::new(Keys));
    let lend = || {
        let bytes = Bytes::from_owner(buf(&blocks));
        Lent::new(Arc::clone(blocks.slab()), domain, bytes).expect("registered")
    };
    let (one, two) = (lend(), lend());
    let ([first, second], frame) = ([one.address(), two.address()], buf(&frames));
    let begin = frame.as_ptr().addr() as u64;
    let encoded = Encoded { staged: 30, gathered: vec![(20, one), (20, two)], long_copied: 0 };
    let wr = work.send(frame.into_nic(NicAccess::Read), encoded, Signal::Yes);
    let runs: Vec<_> = wr.sges.as_slice().iter().map(|sge| (sge.address, sge.len)).collect();
    assert_eq!(runs, [(begin, 20), (first, 64), (second, 64), (begin + 20, 10)]);
    assert_eq!((frames.free(), blocks.free()), (0, 0), "the user has dropped them, the NIC not");
    assert!(matches!(work.complete(&wc(wr.id, Ok(0))), Completed::Sent(1)));
    let mut written = Written::default();
    work.take_written(&mut written);
    assert_eq!((written.transfers.len(), written.sources.len()), (0, 2));
    drop(written);
    assert_eq!((frames.free(), blocks.free(), blocks.slab().lost_loans()), (1, 2, 0));
}
