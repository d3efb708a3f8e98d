//! Completion queues.
//!
//! Owns a queue's completions, its arming and its loss. A queue that overflows is lost, and its queue pairs
//! with it: real devices only drop the completion, which nobody would ever notice.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::host::HostId;
use super::network::Network;
use super::placing::WriteNumber;
use super::profile::AfterDestroy;
use super::qp::QpId;
use super::shared::{After, Shared};
use super::srq::SrqId;
use crate::nic::{Cq, NicError, Wc};

/// Which completion queue of the fabric. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CqId(pub(super) u64);

/// The completion queues of a queue pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct CqIds {
    pub(super) send: CqId,
    pub(super) recv: CqId,
}

impl CqIds {
    fn contain(self, id: CqId) -> bool {
        self.send == id || self.recv == id
    }
}

/// A completion on its way, or in its queue.
#[derive(Debug)]
pub(super) struct Cqe {
    pub(super) wc: Wc,
    pub(super) qp: QpId,
    pub(super) frees: Frees,
    /// The last Write that must lie in memory when it shows.
    pub(super) behind: WriteNumber,
    pub(super) life: CqeLife,
}

/// How long a completion can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CqeLife {
    /// As long as its queue pair's can, on this kind of device.
    OfQp,
    /// Always.
    Own,
}

/// The slots that are free once a completion was polled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Frees {
    /// Of the send queue: its own, and those of earlier unsignalled work requests.
    Send(u32),
    /// One of the receive queue.
    Recv,
    /// One of a shared receive queue.
    Shared(SrqId),
}

/// A completion queue.
pub(super) struct CqState {
    pub(super) host: HostId,
    pub(super) waker: Option<Waker>,
    depth: u32,
    ready: VecDeque<Cqe>,
    /// The next completion makes an event.
    armed: bool,
    /// An event waits to be taken. Arming anew does not take it.
    event: bool,
    lost: Option<NicError>,
}

impl CqState {
    fn new(host: HostId, depth: u32) -> Self {
        let ready = VecDeque::new();
        Self { host, waker: None, depth, ready, armed: false, event: false, lost: None }
    }

    /// Ends the queue; the first reason stays.
    pub(super) fn lose(&mut self, reason: NicError, after: &mut After) {
        self.lost.get_or_insert(reason);
        after.wake(&mut self.waker);
    }

    /// Removes the completions of a queue pair; returns what their slots were.
    pub(super) fn purge(&mut self, qp: QpId) -> Vec<Frees> {
        let is_of = |cqe: &Cqe| cqe.qp == qp;
        let purged = self.ready.iter().filter(|cqe| is_of(cqe)).map(|cqe| cqe.frees).collect();
        self.ready.retain(|cqe| !is_of(cqe));
        purged
    }

    fn check(&self) -> Result<(), NicError> {
        self.lost.clone().map_or(Ok(()), Err)
    }
}

impl Network {
    pub(super) fn create_cq(
        &mut self,
        host: HostId,
        depth: u32,
        max_cqe: u32,
    ) -> Result<CqId, NicError> {
        const VERB: &str = "ibv_create_cq";
        self.check_alive(host, VERB)?;
        if depth == 0 || depth > max_cqe {
            let reason = format!("EINVAL: depth {depth} is not within 1 to {max_cqe}");
            return Err(NicError { verb: VERB, reason });
        }
        let id = CqId(self.next_id());
        self.cqs.insert(id, CqState::new(host, depth));
        Ok(id)
    }

    /// A completion shows.
    pub(super) fn show(&mut self, id: CqId, cqe: Cqe) {
        let still_come = self.behaviour.after_destroy == AfterDestroy::StillCome;
        let is_live = self.qps.contains_key(&cqe.qp);
        if !still_come && cqe.life == CqeLife::OfQp && !is_live {
            return self.free_shared(cqe.frees);
        }
        self.fence(cqe.qp, cqe.behind);
        let Some(cq) = self.cqs.get_mut(&id).filter(|cq| cq.lost.is_none()) else { return };
        if cq.ready.len() >= cq.depth as usize {
            return self.overflow(id);
        }
        self.faults.completions_after_destroy += u64::from(!is_live);
        cq.ready.push_back(cqe);
        if std::mem::take(&mut cq.armed) {
            cq.event = true;
            self.after.wake(&mut cq.waker);
        }
    }

    fn overflow(&mut self, id: CqId) {
        let Some(cq) = self.cqs.get_mut(&id) else { return };
        let host = cq.host;
        let reason = format!(
            "the completion queue overflowed its depth of {}: size it for all work requests of \
             its queue pairs, unsignalled ones included",
            cq.depth
        );
        cq.lose(NicError { verb: "ibv_poll_cq", reason }, &mut self.after);
        self.host(host).counters.overflows += 1;
        let qps: Vec<QpId> =
            self.qps.iter().filter(|(_, qp)| qp.cqs.contain(id)).map(|(qp, _)| *qp).collect();
        for qp in qps {
            self.enter_error(qp);
        }
    }

    fn poll_cq(&mut self, id: CqId, out: &mut Vec<Wc>, max: usize) -> Result<usize, NicError> {
        let Some(cq) = self.cqs.get_mut(&id) else { return Ok(0) };
        cq.check()?;
        let count = max.min(cq.ready.len());
        let taken: Vec<_> = cq.ready.drain(..count).collect();
        for Cqe { wc, qp, frees, .. } in taken {
            out.push(wc);
            self.free_shared(frees);
            let Some(qp) = self.qps.get_mut(&qp) else { continue };
            match frees {
                Frees::Send(slots) => qp.send.free(slots),
                Frees::Recv => qp.recv.free_one(),
                Frees::Shared(_) => {}
            }
        }
        Ok(count)
    }

    fn arm_cq(&mut self, id: CqId) -> Result<(), NicError> {
        let Some(cq) = self.cqs.get_mut(&id) else { return Ok(()) };
        cq.check()?;
        cq.armed = true;
        Ok(())
    }

    fn poll_cq_event(&mut self, id: CqId, cx: &Context<'_>) -> Poll<Result<(), NicError>> {
        let Some(cq) = self.cqs.get_mut(&id) else { return Poll::Pending };
        cq.check()?;
        if std::mem::take(&mut cq.event) {
            return Poll::Ready(Ok(()));
        }
        self.after.wait(&mut cq.waker, cx);
        Poll::Pending
    }

    fn remove_cq(&mut self, id: CqId) {
        if let Some(cq) = self.cqs.remove(&id) {
            self.after.discard(cq.waker);
        }
    }
}

/// A completion queue of the fabric. One task waits for its events at a time.
pub(super) struct FabricCq {
    shared: Arc<Shared>,
    id: CqId,
}

impl FabricCq {
    pub(super) fn new(shared: Arc<Shared>, id: CqId) -> Self {
        Self { shared, id }
    }

    pub(super) fn id(&self) -> CqId {
        self.id
    }

    /// Whether it is one of this fabric.
    pub(super) fn is_on(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl Cq for FabricCq {
    fn poll(&self, out: &mut Vec<Wc>, max: usize) -> Result<usize, NicError> {
        self.shared.with(|network| network.poll_cq(self.id, out, max))
    }

    fn arm(&self) -> Result<(), NicError> {
        self.shared.with(|network| network.arm_cq(self.id))
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Result<(), NicError>> {
        self.shared.with(|network| network.poll_cq_event(self.id, cx))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for FabricCq {
    fn drop(&mut self) {
        self.shared.with(|network| network.remove_cq(self.id));
    }
}
