//! Shared receive queues.
//!
//! Owns what was posted to one and not taken by a message. Whose message took a receive, its completion says.

use std::any::Any;
use std::sync::Arc;

use super::cq::Frees;
use super::fate::Fate;
use super::host::HostId;
use super::network::Network;
use super::nic::PdId;
use super::qp::{QpId, RecvQueue};
use super::shared::Shared;
use crate::nic::{Capabilities, NicError, RecvWr, Srq};

/// Which shared receive queue of the fabric. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SrqId(u64);

/// A shared receive queue.
pub(super) struct SrqState {
    pub(super) host: HostId,
    domain: PdId,
    pub(super) queue: RecvQueue,
}

impl Network {
    /// What the device `claimed` of its shared receive queues may be a lie.
    pub(super) fn create_srq(
        &mut self,
        (host, domain): (HostId, PdId),
        depth: u32,
        claimed: &Capabilities,
    ) -> Result<SrqId, NicError> {
        const VERB: &str = "ibv_create_srq";
        self.check_alive(host, VERB)?;
        let really = self.config.really.as_ref().map_or(claimed.max_srq_wr, |real| real.max_srq_wr);
        if depth == 0 || depth > really {
            self.faults.lies += u64::from((1..=claimed.max_srq_wr).contains(&depth));
            let reason = match really {
                0 => "EOPNOTSUPP: the device has no shared receive queues".to_owned(),
                most => format!("EINVAL: depth {depth} is not within 1 to {most}"),
            };
            return Err(NicError { verb: VERB, reason });
        }
        let id = SrqId(self.next_id());
        self.srqs.insert(id, SrqState { host, domain, queue: RecvQueue::new(depth) });
        Ok(id)
    }

    /// Whether a queue pair of this domain may be made on it.
    pub(super) fn fits_srq(&self, id: SrqId, (host, domain): (HostId, PdId)) -> bool {
        self.srqs.get(&id).is_some_and(|srq| srq.host == host && srq.domain == domain)
    }

    /// The receive that the next message to a queue pair takes.
    pub(super) fn take_receive(&mut self, to: QpId) -> Option<(RecvWr, Fate)> {
        let qp = self.qps.get_mut(&to)?;
        match qp.srq {
            None => qp.recv.pop(),
            Some(srq) => self.srqs.get_mut(&srq)?.queue.pop(),
        }
    }

    /// A completion was polled, or will never be: its slot is free if it is one of a shared receive queue.
    pub(super) fn free_shared(&mut self, frees: Frees) {
        if let Frees::Shared(id) = frees
            && let Some(srq) = self.srqs.get_mut(&id)
        {
            srq.queue.free_one();
        }
    }

    /// Destroys it, unless there are queue pairs on it.
    fn destroy_srq(&mut self, id: SrqId) {
        if self.qps.values().any(|qp| qp.srq == Some(id)) {
            // What real devices do: it goes on to receive, which shows as a violation if its memory is used again.
            tracing::error!("EBUSY: a shared receive queue is destroyed before its queue pairs");
            return;
        }
        self.srqs.remove(&id);
    }
}

/// A shared receive queue of the fabric. Destroyed when dropped.
pub(super) struct FabricSrq {
    shared: Arc<Shared>,
    id: SrqId,
}

impl FabricSrq {
    pub(super) fn new(shared: Arc<Shared>, id: SrqId) -> Self {
        Self { shared, id }
    }

    /// Its name, if it is of this fabric.
    pub(super) fn id_on(&self, shared: &Arc<Shared>) -> Option<SrqId> {
        Arc::ptr_eq(&self.shared, shared).then_some(self.id)
    }
}

impl Srq for FabricSrq {
    fn post_recv(&self, batch: &[RecvWr]) -> Result<(), NicError> {
        self.shared.with(|network| network.post_srq_recv(self.id, batch))
    }

    fn destroy(&self) {
        self.shared.with(|network| network.destroy_srq(self.id));
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for FabricSrq {
    fn drop(&mut self) {
        self.destroy();
    }
}
