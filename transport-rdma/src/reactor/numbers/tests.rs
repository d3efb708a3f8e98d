use super::*;
use crate::config::RdmaConfig;
use crate::fabric::{Fabric, FabricConfig};
use crate::memory::{Poison, Pool, Slab};
use crate::nic::{Access, Cqs, Nic};
use crate::reaper::{InPlace, Reaper};

const RECEIVES: u32 = 64;

/// A device with receives of two kinds, and a queue pair.
struct Rig {
    shared: [Arc<SharedReceives>; 2],
    qp: Arc<dyn Qp>,
}

impl Rig {
    fn new() -> Self {
        let nic = Fabric::new(FabricConfig::new(1)).host("near").nic();
        let shared = [0, 1].map(|number| receives(&*nic, number));
        let cqs = Cqs::one(&nic.create_cq(100).expect("a queue"));
        let qp = nic.create_qp_on(shared[0].srq(), &cqs, 4).expect("a queue pair");
        Self { shared, qp }
    }

    fn bound(&self, of: usize) -> Bound {
        Bound::new(ConnectionNumber::of_shared(0), &self.shared[of], &self.qp, 1)
    }

    fn is_bound(&self, numbers: &mut Numbers, of: usize, settled: Option<Place>) -> bool {
        numbers.bind(QpNumber(7), self.bound(of), settled)
    }
}

fn receives(nic: &dyn Nic, number: u32) -> Arc<SharedReceives> {
    let pool = Pool::new(Slab::new(4096, RECEIVES as usize), Poison::Off);
    pool.slab().set_region(nic.register(pool.slab(), Access::Local).expect("memory"));
    let srq = nic.create_srq(RECEIVES).expect("a queue");
    let reaper: Arc<dyn Reaper> = Arc::new(InPlace);
    let config = RdmaConfig::for_many(0);
    SharedReceives::new(number, (srq, pool), &config, &reaper).expect("posted")
}

#[test]
fn a_number_is_in_use_for_its_receives_alone() {
    let (rig, mut numbers) = (Rig::new(), Numbers::default());
    assert!(rig.is_bound(&mut numbers, 0, None));
    assert!(!rig.is_bound(&mut numbers, 0, None));
    assert!(rig.is_bound(&mut numbers, 1, None));
    let mark = rig.shared[0].mark();
    numbers.leave(QpNumber(7), &rig.shared[0], (mark, Place::default()));
    let found = [0, 1].map(|of| numbers.find(QpNumber(7), rig.shared[of].number()).is_some());
    assert_eq!(found, [false, true]);
    let before = [0, 1].map(|of| numbers.before(QpNumber(7), rig.shared[of].number()));
    assert_eq!(before, [Some(mark), None]);
}

#[test]
fn a_number_that_was_left_since_it_was_judged_is_in_use() {
    let (rig, mut numbers) = (Rig::new(), Numbers::default());
    let judged = numbers.before(QpNumber(7), rig.shared[0].number());
    let mark = rig.shared[0].mark();
    numbers.leave(QpNumber(7), &rig.shared[0], (mark, Place::default()));
    assert!(!rig.is_bound(&mut numbers, 0, judged));
    assert!(rig.is_bound(&mut numbers, 0, Some(mark)));
}

#[test]
fn numbers_are_forgotten_once_their_receives_have_completed() {
    let (rig, mut numbers) = (Rig::new(), Numbers::default());
    let mark = rig.shared[0].mark();
    for number in 0..1000 {
        numbers.leave(QpNumber(number), &rig.shared[0], (mark, mark));
        assert!(numbers.before.len() <= REMEMBERED);
    }
    let mut numbers = Numbers::default();
    for number in 0..1000 {
        numbers.leave(QpNumber(number), &rig.shared[0], (mark, Place::default()));
    }
    assert_eq!(numbers.before.len(), 1000, "of any of them a completion may come");
    assert_eq!(numbers.enough, 1024, "looked for when there were 256 and 512");
}
