//! The state of a fabric: all hosts and everything on them, and the events to come.
//!
//! Owns every table. What an event does stands in the file of what it happens to.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use super::cm::{Conn, ConnId, ListenAddress, Listening};
use super::config::FabricConfig;
use super::cq::{CqId, CqState};
use super::fate::{FaultCounts, Script};
use super::host::{Host, HostId};
use super::mr::Violation;
use super::profile::Behaviour;
use super::qp::{QpId, QpState};
use super::schedule::{Event, Schedule, Slot, Trace};
use super::shared::{After, Driver};
use super::srq::{SrqId, SrqState};
use super::wire::Wire;

/// The state of a fabric.
pub(super) struct Network {
    pub(super) config: FabricConfig,
    pub(super) behaviour: &'static Behaviour,
    pub(super) rng: Rng,
    /// Time since the fabric was made; during an event, the event's.
    pub(super) now: Duration,
    pub(super) schedule: Schedule,
    pub(super) driver: Driver,
    pub(super) after: After,
    pub(super) hosts: Vec<Host>,
    pub(super) cqs: BTreeMap<CqId, CqState>,
    pub(super) qps: BTreeMap<QpId, QpState>,
    pub(super) srqs: BTreeMap<SrqId, SrqState>,
    /// By the queue pair that sends on it. What is on the wire outlives its sender.
    pub(super) wires: BTreeMap<QpId, Wire>,
    pub(super) listeners: BTreeMap<ListenAddress, Listening>,
    pub(super) conns: BTreeMap<ConnId, Conn>,
    pub(super) script: Script,
    pub(super) faults: FaultCounts,
    pub(super) violations: Vec<Violation>,
    pub(super) trace: Trace,
    ids: u64,
}

impl Network {
    pub(super) fn new(config: FabricConfig) -> Self {
        Self {
            behaviour: config.profile.behaviour(),
            rng: Rng::with_seed(config.seed),
            config,
            now: Duration::ZERO,
            schedule: Schedule::default(),
            driver: Driver::Absent,
            after: After::default(),
            hosts: Vec::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            wires: BTreeMap::new(),
            listeners: BTreeMap::new(),
            conns: BTreeMap::new(),
            script: Script::default(),
            faults: FaultCounts::default(),
            violations: Vec::new(),
            trace: Trace::default(),
            ids: 0,
        }
    }

    /// A number that no other object of this fabric has.
    pub(super) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub(super) fn host(&mut self, id: HostId) -> &mut Host {
        // Hosts are only ever added.
        &mut self.hosts[id.0]
    }

    /// Time over the wire for `bytes`.
    pub(super) fn wire_delay(&mut self, bytes: usize) -> Duration {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let latency = self.config.latency;
        latency.base + latency.per_kib.saturating_mul(bytes) / 1024 + self.jitter()
    }

    /// Time that a device takes for itself.
    pub(super) fn jitter(&mut self) -> Duration {
        let most = u64::try_from(self.config.latency.jitter.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.u64(0..=most))
    }

    /// A place in the order of events, so much later.
    pub(super) fn slot(&mut self, delay: Duration) -> Slot {
        Slot { at: self.now.saturating_add(delay), tie: self.rng.u64(..) }
    }

    pub(super) fn schedule(&mut self, delay: Duration, event: Event) {
        let slot = self.slot(delay);
        self.schedule.push(slot, event);
    }

    /// Lets happen everything until `until`.
    pub(super) fn run_until(&mut self, until: Duration) {
        while let Some((at, event)) = self.schedule.pop_due(until) {
            self.now = at;
            self.trace.note(at, &event);
            tracing::trace!(?at, ?event, "fabric");
            self.execute(event);
        }
        self.now = until;
    }

    fn execute(&mut self, event: Event) {
        match event {
            Event::Depart(qp) => self.depart(qp),
            Event::Arrive(qp) => self.arrive(qp),
            Event::Place(qp, piece) => self.place(qp, piece),
            Event::Settle(qp, index, outcome) => self.settle(qp, index, outcome),
            Event::Complete(cq, cqe) => self.show(cq, cqe),
            Event::StreamEnd(qp) => self.enter_error(qp),
            Event::Cm(event) => self.handle_cm(event),
        }
    }

    /// Wakes everyone who waits, for example because the driving task has gone.
    pub(super) fn wake_all(&mut self) {
        for cq in self.cqs.values_mut() {
            self.after.wake(&mut cq.waker);
        }
        for listener in self.listeners.values_mut() {
            self.after.wake(&mut listener.waker);
        }
        for conn in self.conns.values_mut() {
            self.after.wake(&mut conn.active.waker);
            self.after.wake(&mut conn.passive.waker);
        }
    }
}
