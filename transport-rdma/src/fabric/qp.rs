//! Queue pairs: their queues, their states, and how they end.
//!
//! ```text
//!  Idle ──(connection manager)──► Ready ──(failure, overflow, fail)──► Error ──(destroy)──► gone
//!    └──────────────────────────(fail)──────────────────────────────────┘
//! ```
//!
//! Owns what was posted and has not completed. What travels between two queue pairs stands in `wire`.

use std::any::Any;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use super::cm::EndId;
use super::cq::{CqId, CqIds, Cqe, CqeLife, Frees};
use super::fate::Fate;
use super::host::HostId;
use super::mr::Aim;
use super::network::Network;
use super::nic::PdId;
use super::placing::{Placing, WriteNumber};
use super::profile::AfterDestroy;
use super::schedule::{Event, Lane};
use super::shared::Shared;
use super::srq::SrqId;
use crate::nic::{
    Capabilities, Cqs, Depths, NicError, Qp, QpNumber, RecvWr, SendWr, Signal, Wc, WcStatus, Wire,
    WrId,
};

/// Which queue pair of the fabric. Never reused, unlike its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QpId(pub(super) u64);

/// A queue pair.
pub(super) struct QpState {
    pub(super) host: HostId,
    pub(super) domain: PdId,
    pub(super) number: QpNumber,
    pub(super) cqs: CqIds,
    pub(super) phase: Phase,
    pub(super) peer: Option<QpId>,
    /// Its end of a connection, from the attempt on.
    pub(super) end: Option<EndId>,
    /// Whether a message of the peer has arrived.
    pub(super) heard: bool,
    pub(super) abilities: Abilities,
    pub(super) send: SendQueue,
    pub(super) recv: RecvQueue,
    /// Where its receives come from, if they are not its own.
    pub(super) srq: Option<SrqId>,
    pub(super) placing: Placing,
    /// Completions that show when it is destroyed.
    withheld: Vec<(CqId, Cqe)>,
}

/// What a device says that it can do, and what it does.
pub(super) struct Abilities {
    pub(super) claimed: Capabilities,
    pub(super) real: Capabilities,
}

/// The states of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Ready,
    Error,
}

/// A send queue.
pub(super) struct SendQueue {
    pub(super) depth: u32,
    /// Posted and not settled, in order.
    entries: VecDeque<Wqe>,
    /// The index of the next to be posted, and of the next to depart.
    next: u64,
    next_to_depart: u64,
    /// Slots that are taken: those of `entries`, and of what settled until a completion that covers it is
    /// polled.
    used: u32,
    /// Settled without a completion since the last one.
    silent: u32,
    /// A work request failed before it left: none may follow it.
    pub(super) stopped: bool,
    completions: Lane,
}

/// A receive queue.
pub(super) struct RecvQueue {
    pub(super) depth: u32,
    entries: VecDeque<(RecvWr, Fate)>,
    used: u32,
    completions: Lane,
}

/// A work request in a send queue.
pub(super) struct Wqe {
    pub(super) index: u64,
    pub(super) wr: SendWr,
    /// The bytes of an inline one, copied when it was posted.
    pub(super) inline: Option<Vec<u8>>,
    /// What a Write was aimed at.
    pub(super) aim: Option<Aim>,
    pub(super) fate: Fate,
    outcome: Option<Result<(), WcStatus>>,
}

/// A work request that completes.
struct Done {
    id: WrId,
    result: Result<u32, WcStatus>,
    frees: Frees,
    fate: Fate,
}

impl SendQueue {
    fn new(depth: u32) -> Self {
        Self {
            depth,
            entries: VecDeque::new(),
            next: 0,
            next_to_depart: 0,
            used: 0,
            silent: 0,
            stopped: false,
            completions: Lane::default(),
        }
    }

    pub(super) fn free(&mut self, slots: u32) {
        self.used = self.used.saturating_sub(slots);
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= self.depth
    }

    /// Takes a slot for a work request that nothing will execute.
    pub(super) fn swallow(&mut self) {
        self.used += 1;
    }

    pub(super) fn push(
        &mut self,
        wr: SendWr,
        inline: Option<Vec<u8>>,
        (aim, fate): (Option<Aim>, Fate),
    ) {
        self.entries.push_back(Wqe { index: self.next, wr, inline, aim, fate, outcome: None });
        self.next += 1;
        self.used += 1;
    }

    /// The next to depart.
    pub(super) fn depart(&mut self) -> Option<&mut Wqe> {
        let position = self.position(self.next_to_depart)?;
        self.next_to_depart += 1;
        self.entries.get_mut(position)
    }

    /// Where a work request is; their indices follow each other.
    fn position(&self, index: u64) -> Option<usize> {
        let position = usize::try_from(index.checked_sub(self.entries.front()?.index)?).ok()?;
        (position < self.entries.len()).then_some(position)
    }

    /// Whether a work request is not settled.
    pub(super) fn holds(&self, index: u64) -> bool {
        self.position(index).is_some()
    }

    /// The first, if its outcome is known: whatever the order of outcomes, they settle in order.
    fn pop_settled(&mut self) -> Option<(Wqe, Result<(), WcStatus>)> {
        let outcome = self.entries.front()?.outcome?;
        Some((self.entries.pop_front()?, outcome))
    }

    /// The slots that a completion frees: its own, and those of what was settled in silence.
    fn freed_slots(&mut self) -> u32 {
        mem::take(&mut self.silent) + 1
    }
}

impl RecvQueue {
    pub(super) fn new(depth: u32) -> Self {
        Self { depth, entries: VecDeque::new(), used: 0, completions: Lane::default() }
    }

    pub(super) fn free_one(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= self.depth
    }

    pub(super) fn push(&mut self, wr: RecvWr, fate: Fate) {
        self.entries.push_back((wr, fate));
        self.used += 1;
    }

    pub(super) fn swallow(&mut self) {
        self.used += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(RecvWr, Fate)> {
        self.entries.pop_front()
    }
}

impl Network {
    pub(super) fn create_qp(
        &mut self,
        (host, domain): (HostId, PdId),
        cqs: CqIds,
        (depths, srq): (Depths, Option<SrqId>),
        abilities: Abilities,
    ) -> (QpId, QpNumber) {
        let id = QpId(self.next_id());
        let number = self.host(host).take_qp_number();
        let state = QpState {
            host,
            domain,
            number,
            cqs,
            phase: Phase::Idle,
            peer: None,
            end: None,
            heard: false,
            abilities,
            send: SendQueue::new(depths.send),
            recv: RecvQueue::new(depths.recv),
            srq,
            placing: Placing::default(),
            withheld: Vec::new(),
        };
        self.qps.insert(id, state);
        (id, number)
    }

    /// The outcome of a work request is known.
    pub(super) fn settle(&mut self, id: QpId, index: u64, outcome: Result<(), WcStatus>) {
        let Some(qp) = self.qps.get_mut(&id) else { return };
        let Some(position) = qp.send.position(index) else { return };
        qp.send.entries[position].outcome = Some(outcome);
        while let Some(qp) = self.qps.get_mut(&id) {
            let Some((wqe, outcome)) = qp.send.pop_settled() else { return };
            let covered = wqe.wr.signal == Signal::No || wqe.fate == Fate::LostCompletion;
            if outcome.is_ok() && covered {
                qp.send.silent += 1;
                continue;
            }
            let frees = Frees::Send(qp.send.freed_slots());
            let result = outcome.map(|()| 0);
            self.complete(id, Done { id: wqe.wr.id, result, frees, fate: wqe.fate });
            if outcome.is_err() {
                return self.enter_error(id);
            }
        }
    }

    /// A receive completes.
    pub(super) fn complete_recv(
        &mut self,
        id: QpId,
        (wr, fate): (RecvWr, Fate),
        result: Result<u32, WcStatus>,
    ) {
        if result.is_ok() && fate == Fate::LostCompletion {
            return;
        }
        let srq = self.qps.get(&id).and_then(|qp| qp.srq);
        let frees = srq.map_or(Frees::Recv, Frees::Shared);
        self.complete(id, Done { id: wr.id, result, frees, fate });
    }

    /// A send that was posted in the error state completes.
    pub(super) fn flush_late_send(&mut self, id: QpId, wr: &SendWr) {
        let Some(qp) = self.qps.get_mut(&id) else { return };
        qp.send.swallow();
        let frees = Frees::Send(qp.send.freed_slots());
        let result = Err(WcStatus::FLUSHED);
        self.complete(id, Done { id: wr.id, result, frees, fate: Fate::Execute });
    }

    fn complete(&mut self, id: QpId, done: Done) {
        let mut delay = self.jitter();
        let is_flush = done.result == Err(WcStatus::FLUSHED);
        match done.fate {
            Fate::LateCompletion(late) => {
                delay = delay.saturating_add(late);
                self.faults.late_completions += 1;
            }
            Fate::LostFlush if is_flush => {
                self.faults.lost_flushes += 1;
                return;
            }
            _ => {}
        }
        let slot = self.slot(delay);
        let Some(qp) = self.qps.get_mut(&id) else { return };
        let (slot, cq) = match done.frees {
            Frees::Send(_) => (qp.send.completions.follow(slot), qp.cqs.send),
            Frees::Recv | Frees::Shared(_) => (qp.recv.completions.follow(slot), qp.cqs.recv),
        };
        let wc = Wc { id: done.id, qp: qp.number, result: done.result };
        let behind = match (done.frees, done.result) {
            (Frees::Recv | Frees::Shared(_), Ok(_)) => qp.placing.arrived(),
            _ => WriteNumber::default(),
        };
        let cqe = Cqe { wc, qp: id, frees: done.frees, behind, life: CqeLife::OfQp };
        if is_flush && done.fate == Fate::FlushAfterDestroy {
            return qp.withheld.push((cq, Cqe { life: CqeLife::Own, ..cqe }));
        }
        self.schedule.push(slot, Event::Complete(cq, cqe));
    }

    /// Moves a queue pair to the error state and flushes what it holds.
    pub(super) fn enter_error(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(&id).filter(|qp| qp.phase != Phase::Error) else { return };
        let was_ready = mem::replace(&mut qp.phase, Phase::Error) == Phase::Ready;
        let left = qp.send.next_to_depart;
        let sends = mem::take(&mut qp.send.entries);
        let recvs = mem::take(&mut qp.recv.entries);
        // In order: a peer never gets what stands behind something that it does not.
        let leaves = |wqe: &Wqe| was_ready && wqe.fate == Fate::FlushedYetSent;
        let last = sends.iter().rev().find(|wqe| leaves(wqe)).map(|wqe| wqe.index);
        for mut wqe in sends {
            if wqe.index >= left && last.is_some_and(|last| wqe.index <= last) {
                self.depart_flushed(id, &mut wqe);
            }
            let Some(qp) = self.qps.get_mut(&id) else { return };
            let frees = Frees::Send(qp.send.freed_slots());
            let result = Err(WcStatus::FLUSHED);
            self.complete(id, Done { id: wqe.wr.id, result, frees, fate: wqe.fate });
        }
        for recv in recvs {
            self.complete_recv(id, recv, Err(WcStatus::FLUSHED));
        }
        if self.behaviour.wire == Wire::Iwarp {
            self.end_stream(id);
        }
    }

    /// Destroys a queue pair.
    pub(super) fn destroy_qp(&mut self, id: QpId) {
        if self.behaviour.wire == Wire::Iwarp {
            self.enter_error(id);
        }
        self.place_all(id);
        self.remove_qp(id, self.behaviour.after_destroy);
    }

    pub(super) fn remove_qp(&mut self, id: QpId, completions: AfterDestroy) {
        let Some(qp) = self.qps.remove(&id) else { return };
        self.host(qp.host).free_qp_number(qp.number);
        if completions == AfterDestroy::Purged {
            for cq in [qp.cqs.send, qp.cqs.recv] {
                let purged = self.cqs.get_mut(&cq).map(|cq| cq.purge(id));
                purged.into_iter().flatten().for_each(|frees| self.free_shared(frees));
            }
        }
        for (cq, cqe) in qp.withheld {
            let delay = self.jitter();
            self.schedule(delay, Event::Complete(cq, cqe));
        }
        self.forget_idle_wire(id);
    }
}

/// A queue pair of the fabric. Destroyed when dropped.
pub(super) struct FabricQp {
    shared: Arc<Shared>,
    id: QpId,
    number: QpNumber,
    /// Outlive their queue pairs.
    _cqs: Cqs,
}

impl FabricQp {
    pub(super) fn new(shared: Arc<Shared>, (id, number): (QpId, QpNumber), cqs: Cqs) -> Self {
        Self { shared, id, number, _cqs: cqs }
    }

    pub(super) fn id(&self) -> QpId {
        self.id
    }

    /// Whether it is one of this fabric.
    pub(super) fn is_on(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl Qp for FabricQp {
    fn number(&self) -> QpNumber {
        self.number
    }

    fn post_send(&self, batch: &[SendWr]) -> Result<(), NicError> {
        self.shared.with(|network| network.post_send(self.id, batch))
    }

    fn post_recv(&self, batch: &[RecvWr]) -> Result<(), NicError> {
        self.shared.with(|network| network.post_recv(self.id, batch))
    }

    fn fail(&self) {
        self.shared.with(|network| network.enter_error(self.id));
    }

    fn destroy(&self) {
        self.shared.with(|network| network.destroy_qp(self.id));
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for FabricQp {
    fn drop(&mut self) {
        self.destroy();
    }
}
