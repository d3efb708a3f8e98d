//! Posting: what a device checks before it takes a work request.

use super::fate::Fate;
use super::host::HostId;
use super::mr::Fetch;
use super::network::Network;
use super::profile::LateSend;
use super::qp::{Phase, QpId, QpState};
use super::schedule::Event;
use crate::nic::{Inline, NicError, RecvWr, SendWr};

const SEND: &str = "ibv_post_send";
const RECV: &str = "ibv_post_recv";

fn refuse<T>(verb: &'static str, reason: impl Into<String>) -> Result<T, NicError> {
    Err(NicError { verb, reason: reason.into() })
}

impl Network {
    /// Takes work requests in order; those before one that is refused stay taken.
    pub(super) fn post_send(&mut self, id: QpId, batch: &[SendWr]) -> Result<(), NicError> {
        batch.iter().try_for_each(|wr| self.take_send(id, wr))
    }

    /// As `post_send`.
    pub(super) fn post_recv(&mut self, id: QpId, batch: &[RecvWr]) -> Result<(), NicError> {
        batch.iter().try_for_each(|wr| self.take_recv(id, wr))
    }

    fn take_send(&mut self, id: QpId, wr: &SendWr) -> Result<(), NicError> {
        let fate = self.count_wr(id, SEND)?;
        let max_message = self.behaviour.max_message;
        let qp = self.live_qp(id, SEND)?;
        check_send(qp, wr, max_message)?;
        let inline = match wr.inline {
            Inline::No => None,
            Inline::Yes => match self.gather(id, wr.sges.as_slice(), Fetch::ByAddress) {
                Ok(bytes) => Some(bytes),
                Err(_) => return refuse(SEND, "EFAULT: inline data is not in the NIC's memory"),
            },
        };
        let late = self.behaviour.late_send;
        let qp = self.live_qp(id, SEND)?;
        match (qp.phase, late) {
            (Phase::Idle, _) => return refuse(SEND, "EINVAL: the queue pair is not connected"),
            (Phase::Ready, _) => {
                qp.send.push(wr.clone(), inline, fate);
                let delay = self.jitter();
                self.schedule(delay, Event::Depart(id));
            }
            (Phase::Error, LateSend::Flushed) => self.flush_late_send(id, wr),
            (Phase::Error, LateSend::Swallowed) => qp.send.swallow(),
        }
        Ok(())
    }

    fn take_recv(&mut self, id: QpId, wr: &RecvWr) -> Result<(), NicError> {
        let fate = self.count_wr(id, RECV)?;
        let qp = self.live_qp(id, RECV)?;
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
    fn count_wr(&mut self, id: QpId, verb: &'static str) -> Result<Fate, NicError> {
        let host: HostId = self.live_qp(id, verb)?.host;
        let counters = &mut self.host(host).counters;
        counters.work_requests += 1;
        let nth = counters.work_requests;
        let fate = self.script.fate_of(host, nth);
        if let Fate::Kill(death) = fate {
            self.kill(host, death);
        }
        Ok(fate)
    }

    fn live_qp(&mut self, id: QpId, verb: &'static str) -> Result<&mut QpState, NicError> {
        match self.qps.get_mut(&id) {
            Some(qp) => Ok(qp),
            None => refuse(verb, "EINVAL: the queue pair was destroyed, or its host is dead"),
        }
    }
}

fn check_send(qp: &QpState, wr: &SendWr, max_message: u64) -> Result<(), NicError> {
    let (sges, len) = (wr.sges.as_slice().len(), wr.sges.total_len());
    let limits = &qp.capabilities;
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
