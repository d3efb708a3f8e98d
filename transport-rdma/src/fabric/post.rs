//! Posting: what a device checks before it takes a work request.

use super::fate::{Fate, WrKind};
use super::host::HostId;
use super::mr::Fetch;
use super::network::Network;
use super::profile::LateSend;
use super::qp::{Abilities, Phase, QpId, QpState};
use super::schedule::Event;
use super::srq::{SrqId, SrqState};
use crate::nic::{Capabilities, Inline, NicError, RecvWr, SendOp, SendWr, Windows};

const SEND: &str = "ibv_post_send";
const RECV: &str = "ibv_post_recv";
const SRQ_RECV: &str = "ibv_post_srq_recv";

fn refuse<T>(verb: &'static str, reason: impl Into<String>) -> Result<T, NicError> {
    Err(NicError { verb, reason: reason.into() })
}

impl Network {
    /// Takes work requests in order; those before one that is refused stay taken.
    pub(super) fn post_send(&mut self, id: QpId, batch: &[SendWr]) -> Result<(), NicError> {
        self.post(SEND, batch, |network, wr| {
            let fate = network.count_wr(id, WrKind::of(&wr.op), SEND)?;
            network.take_send(id, wr, fate).map(|()| fate)
        })
    }

    /// As `post_send`.
    pub(super) fn post_recv(&mut self, id: QpId, batch: &[RecvWr]) -> Result<(), NicError> {
        self.post(RECV, batch, |network, wr| {
            let fate = network.count_wr(id, WrKind::Recv, RECV)?;
            network.take_recv(id, wr, fate).map(|()| fate)
        })
    }

    /// Takes a batch, or a part of it that the seed decides where that is a work request's fate.
    fn post<W>(
        &mut self,
        verb: &'static str,
        batch: &[W],
        mut take: impl FnMut(&mut Self, &W) -> Result<Fate, NicError>,
    ) -> Result<(), NicError> {
        let mut left = None;
        for (at, wr) in batch.iter().enumerate() {
            if left == Some(at) {
                break;
            }
            if take(self, wr)? == Fate::PartialPost && left.is_none() {
                left = Some(self.rng.usize(at + 1..=batch.len()));
            }
        }
        if left.is_none() {
            return Ok(());
        }
        self.faults.partial_posts += 1;
        refuse(verb, "EIO: the device took a part of the batch")
    }

    fn take_send(&mut self, id: QpId, wr: &SendWr, fate: Fate) -> Result<(), NicError> {
        let max_message = self.behaviour.max_message;
        let windows = self.behaviour.windows;
        let qp = self.live_qp(id, SEND)?;
        if let (SendOp::Bind { .. } | SendOp::Invalidate { .. }, Windows::No) = (wr.op, windows) {
            return refuse(SEND, "EOPNOTSUPP: the device has no memory windows");
        }
        let Abilities { claimed, real } = &qp.abilities;
        if let Err(refused) = check_send(qp, real, wr, max_message) {
            self.faults.lies += u64::from(check_send(qp, claimed, wr, max_message).is_ok());
            return Err(refused);
        }
        let inline = match wr.inline {
            Inline::No => None,
            Inline::Yes => match self.gather(id, wr.sges.as_slice(), Fetch::ByAddress) {
                Ok(bytes) => Some(bytes),
                Err(_) => return refuse(SEND, "EFAULT: inline data is not in the NIC's memory"),
            },
        };
        let late = self.behaviour.late_send;
        let aim = match wr.op {
            SendOp::Send | SendOp::Bind { .. } | SendOp::Invalidate { .. } => None,
            SendOp::Write { address, rkey } => self.aim(id, address, rkey),
        };
        let qp = self.live_qp(id, SEND)?;
        match (qp.phase, late) {
            (Phase::Idle, _) => return refuse(SEND, "EINVAL: the queue pair is not connected"),
            (Phase::Ready, _) => {
                qp.send.push(wr.clone(), inline, (aim, fate));
                let delay = self.jitter();
                self.schedule(delay, Event::Depart(id));
            }
            (Phase::Error, LateSend::Flushed) => self.flush_late_send(id, wr),
            (Phase::Error, LateSend::Swallowed) => qp.send.swallow(),
        }
        Ok(())
    }

    /// The same for a shared receive queue.
    pub(super) fn post_srq_recv(&mut self, id: SrqId, batch: &[RecvWr]) -> Result<(), NicError> {
        self.post(SRQ_RECV, batch, |network, wr| {
            let host = network.live_srq(id)?.host;
            let fate = network.count_wr_of(host, WrKind::Recv);
            let queue = &mut network.live_srq(id)?.queue;
            if queue.is_full() {
                let reason = format!("ENOMEM: the shared receive queue of {} is full", queue.depth);
                return refuse(SRQ_RECV, reason);
            }
            queue.push(*wr, fate);
            Ok(fate)
        })
    }

    fn take_recv(&mut self, id: QpId, wr: &RecvWr, fate: Fate) -> Result<(), NicError> {
        let qp = self.live_qp(id, RECV)?;
        if qp.srq.is_some() {
            return refuse(RECV, "EINVAL: the queue pair is on a shared receive queue");
        }
        if qp.recv.is_full() {
            let reason = format!("ENOMEM: the receive queue of {} is full", qp.recv.depth);
            return refuse(RECV, reason);
        }
        match qp.phase {
            Phase::Idle | Phase::Ready => qp.recv.push(*wr, fate),
            // Observed on every device: accepted, and never completes.
            Phase::Error => qp.recv.swallow(),
        }
        Ok(())
    }

    /// Counts a work request and looks up its fate.
    fn count_wr(&mut self, id: QpId, kind: WrKind, verb: &'static str) -> Result<Fate, NicError> {
        let host: HostId = self.live_qp(id, verb)?.host;
        Ok(self.count_wr_of(host, kind))
    }

    fn count_wr_of(&mut self, host: HostId, kind: WrKind) -> Fate {
        let counters = &mut self.host(host).counters;
        counters.work_requests += 1;
        let nth = counters.work_requests;
        let malice = &self.config.malice;
        let fate = self.script.fate_of((host, nth), kind, malice, &mut self.rng);
        if let Fate::Kill(death) = fate {
            self.kill(host, death);
        }
        fate
    }

    fn live_srq(&mut self, id: SrqId) -> Result<&mut SrqState, NicError> {
        match self.srqs.get_mut(&id) {
            Some(srq) => Ok(srq),
            None => refuse(
                SRQ_RECV,
                "EINVAL: the shared receive queue was destroyed, or its host is dead",
            ),
        }
    }

    fn live_qp(&mut self, id: QpId, verb: &'static str) -> Result<&mut QpState, NicError> {
        match self.qps.get_mut(&id) {
            Some(qp) => Ok(qp),
            None => refuse(verb, "EINVAL: the queue pair was destroyed, or its host is dead"),
        }
    }
}

fn check_send(
    qp: &QpState,
    limits: &Capabilities,
    wr: &SendWr,
    max_message: u64,
) -> Result<(), NicError> {
    let (sges, len) = (wr.sges.as_slice().len(), wr.sges.total_len());
    if qp.send.is_full() {
        return refuse(SEND, format!("ENOMEM: the send queue of {} is full", qp.send.depth));
    }
    if sges > limits.max_sge {
        let reason = format!("EINVAL: {sges} entries are more than {}", limits.max_sge);
        return refuse(SEND, reason);
    }
    if wr.inline == Inline::Yes && len > limits.max_inline {
        let reason = format!("EINVAL: {len} bytes inline are more than {}", limits.max_inline);
        return refuse(SEND, reason);
    }
    if len as u64 > max_message {
        return refuse(SEND, format!("EINVAL: a message of {len} bytes exceeds {max_message}"));
    }
    Ok(())
}
