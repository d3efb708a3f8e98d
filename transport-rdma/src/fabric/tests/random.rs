//! Random posts on two connections: everything completes once, in order, with the right bytes.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::rig::{ALL, CHUNK, DEPTHS, Side, connect, len_of};
use crate::fabric::{Fabric, FabricConfig};
use crate::memory::{NicAccess, Rkey};
use crate::nic::{Inline, SendOp, Signal, Wc};

/// What is done next, on which of the two connections.
#[derive(Debug, Clone)]
enum Step {
    Send { len: usize, signal: bool, inline: bool },
    Write { len: usize, at: usize },
    Pause { millis: u64 },
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        4 => (0..CHUNK, any::<bool>(), any::<bool>())
            .prop_map(|(len, signal, inline)| Step::Send { len, signal, inline }),
        2 => (1..1000_usize, 0..CHUNK - 1000).prop_map(|(len, at)| Step::Write { len, at }),
        1 => (0..3_u64).prop_map(|millis| Step::Pause { millis }),
    ];
    proptest::collection::vec((0..2_usize, step), 1..60)
}

/// One connection, and what is expected of it.
struct Lane {
    from: Side,
    to: Side,
    landing: (u64, Rkey),
    next: u64,
    used: usize,
    /// Signalled work requests in order, each with the unsignalled ones that it covers.
    signalled: VecDeque<(u64, Vec<u64>)>,
    unsignalled: Vec<u64>,
    /// Payloads in order, and the receives that will take them.
    sent: VecDeque<Vec<u8>>,
    receives: VecDeque<u64>,
    /// What the landing region will hold.
    landed: Vec<u8>,
}

const LANDING: u64 = 1 << 40;

impl Lane {
    async fn new(fabric: &Fabric, names: (&str, &str)) -> Self {
        let mut from = Side::new(fabric, names.0, DEPTHS, 64);
        let mut to = Side::new(fabric, names.1, DEPTHS, 64);
        connect(fabric, &mut from, &mut to, 16).await;
        let buf = to.pool.take().expect("free").into_nic(NicAccess::Write);
        let landing = (buf.address(), buf.rkey().expect("registered"));
        to.in_flight.insert(LANDING, buf);
        Self {
            from,
            to,
            landing,
            next: 0,
            used: 0,
            signalled: VecDeque::new(),
            unsignalled: Vec::new(),
            sent: VecDeque::new(),
            receives: (100..116).collect(),
            landed: vec![0xdb; CHUNK],
        }
    }

    fn payload(&self, len: usize) -> Vec<u8> {
        let salt = self.next * 31;
        (0..len as u64).map(|at| (at + salt).to_le_bytes()[0]).collect()
    }

    /// Posts, if there is room on both sides.
    fn step(&mut self, step: &Step) {
        if self.used == 16 || self.sent.len() == self.receives.len() {
            return;
        }
        let id = self.next;
        let (mut wr, signal) = match *step {
            Step::Send { len, signal, inline } => {
                let len = if inline { len % 80 } else { len };
                let data = self.payload(len);
                let mut wr = self.from.wr(id, &data);
                wr.inline = if inline { Inline::Yes } else { Inline::No };
                self.sent.push_back(data);
                // Who posts the last free slot without a signal never gets one back.
                (wr, signal || self.used == 15 || len >= 4096)
            }
            Step::Write { len, at } => {
                let data = self.payload(len);
                let mut wr = self.from.wr(id, &data);
                wr.op = SendOp::Write { address: self.landing.0 + at as u64, rkey: self.landing.1 };
                self.landed[at..at + len].copy_from_slice(&data);
                (wr, true)
            }
            Step::Pause { .. } => return,
        };
        wr.signal = if signal { Signal::Yes } else { Signal::No };
        if signal {
            self.signalled.push_back((id, std::mem::take(&mut self.unsignalled)));
        } else {
            self.unsignalled.push(id);
        }
        self.from.qp.post_send(&[wr]).expect("room");
        (self.next, self.used) = (id + 1, self.used + 1);
    }

    fn check_completions(&mut self) {
        for Wc { id, result, .. } in self.from.poll() {
            assert_eq!(result, Ok(0));
            let (expected, covered) = self.signalled.pop_front().expect("posted");
            assert_eq!(id.0, expected);
            self.used -= covered.len() + 1;
            covered.into_iter().chain([expected]).for_each(|id| drop(self.from.take_back(id)));
        }
        for Wc { id, result, .. } in self.to.poll() {
            let (data, expected) = (self.sent.pop_front(), self.receives.pop_front());
            let data = data.expect("sent");
            assert_eq!((Some(id.0), result), (expected, Ok(len_of(&data))));
            assert_eq!(self.to.take_back(id.0)[..data.len()], data);
            self.to.recv(id.0);
            self.receives.push_back(id.0);
        }
    }
}

async fn run(seed: u64, which: usize, steps: Vec<(usize, Step)>) {
    let fabric = Fabric::new(FabricConfig { profile: ALL[which], ..FabricConfig::new(seed) });
    let mut lanes = [Lane::new(&fabric, ("a", "b")).await, Lane::new(&fabric, ("b", "a")).await];
    for (lane, step) in steps {
        if let Step::Pause { millis } = step {
            tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
        }
        lanes[lane].step(&step);
        lanes.iter_mut().for_each(Lane::check_completions);
    }
    tokio::time::sleep(super::rig::A_WHILE).await;
    for lane in &mut lanes {
        lane.check_completions();
        assert!(lane.signalled.is_empty() && lane.sent.is_empty(), "all have completed");
        assert_eq!(lane.to.take_back(LANDING), lane.landed);
    }
    assert_eq!(fabric.violations(), []);
    assert_eq!((fabric.counters().rnr, fabric.counters().overflows), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn every_signalled_work_request_completes_once_in_order_with_the_right_bytes(
        seed: u64,
        which in 0..3_usize,
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(run(seed, which, steps));
    }
}
