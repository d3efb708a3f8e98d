//! What travels between two queue pairs, and what it does where it arrives.
//!
//! Owns the messages on the wire. They outlive their sender: what has left cannot be called back.
//!
//! On InfiniBand the peer's answer settles a work request. On iWARP it is settled as soon as it has left, and
//! an error at the peer ends the stream instead.

use std::collections::VecDeque;
use std::time::Duration;

use super::cm::Role;
use super::fate::Fate;
use super::mr::{Aim, Fetch, Landing, ViolationKind};
use super::network::Network;
use super::qp::{Phase, QpId, Wqe};
use super::schedule::{Event, Lane};
use crate::nic::{Inline, SendOp, Sges, Signal, WcStatus, Wire as WireKind};

/// From what length on soft-iWARP sends unsignalled bytes in place, without a copy.
const IN_PLACE: usize = 4096;

/// How often a message is tried again that came before its receiver was ready.
const READY_TRIES: u32 = 7;

/// The least time between two tries of a message: virtual time has to move.
const LEAST_RETRY: Duration = Duration::from_micros(10);

/// One direction between two queue pairs.
pub(super) struct Wire {
    to: QpId,
    messages: VecDeque<Message>,
    arrivals: Lane,
    /// The first message waits for its receiver until then, and all others behind it.
    stalled_until: Duration,
    /// A message was refused or lost: nothing behind it arrives any more.
    broken: bool,
}

/// A message on the wire.
struct Message {
    index: u64,
    op: SendOp,
    payload: Vec<u8>,
    /// Where the payload came from; `None` if it was inline.
    source: Option<Sges>,
    /// Whether the source is needed until arrival, completed or not.
    in_place: bool,
    /// What a Write was aimed at when it was posted.
    aim: Option<Aim>,
    fate: Fate,
    tries: u32,
}

/// What the receiving device makes of a message.
enum Verdict {
    Done,
    /// Not now: try the message again.
    Wait(Duration),
    Refused(WcStatus),
    /// Nobody is there.
    Silence,
}

impl Wire {
    pub(super) fn new(to: QpId) -> Self {
        Self {
            to,
            messages: VecDeque::new(),
            arrivals: Lane::default(),
            stalled_until: Duration::ZERO,
            broken: false,
        }
    }
}

impl Message {
    /// The message of a work request, its payload still missing unless it is inline.
    fn new(wqe: &mut Wqe, wire: WireKind) -> Self {
        let wr = &wqe.wr;
        let fetched = wr.inline == Inline::No;
        let in_place = fetched
            && wire == WireKind::Iwarp
            && wr.signal == Signal::No
            && wr.sges.total_len() >= IN_PLACE;
        let source = fetched.then_some(wr.sges);
        let payload = wqe.inline.take().unwrap_or_default();
        let (index, aim, fate) = (wqe.index, wqe.aim, wqe.fate);
        Self { index, op: wr.op, payload, source, in_place, aim, fate, tries: 0 }
    }
}

impl Network {
    /// The next work request of a queue pair leaves.
    pub(super) fn depart(&mut self, from: QpId) {
        let Some(qp) = self.qps.get_mut(&from) else { return };
        if qp.phase != Phase::Ready || qp.send.stopped {
            return;
        }
        let too_early = !qp.heard && qp.end.is_some_and(|end| end.role == Role::Passive);
        let wire = self.behaviour.wire;
        if wire == WireKind::Iwarp && too_early {
            tracing::debug!("iWARP: the accepting side sent first, which ends the connection");
            return self.enter_error(from);
        }
        let Some(wqe) = qp.send.depart() else { return };
        if let op @ (SendOp::Bind { .. } | SendOp::Invalidate { .. }) = wqe.wr.op {
            let index = wqe.index;
            return match self.change_window(from, op) {
                Ok(()) => self.settle(from, index, Ok(())),
                Err(status) => self.fail_departure(from, index, status),
            };
        }
        let mut message = Message::new(wqe, wire);
        let index = message.index;
        if let Some(source) = message.source {
            match self.gather(from, source.as_slice(), Fetch::ByKey) {
                Ok(payload) => message.payload = payload,
                Err(status) => return self.fail_departure(from, index, status),
            }
        }
        self.send_off(from, message);
        if wire == WireKind::Iwarp {
            self.settle(from, index, Ok(()));
        }
    }

    /// What was posted and is about to be flushed leaves all the same.
    pub(super) fn depart_flushed(&mut self, from: QpId, wqe: &mut Wqe) {
        if let SendOp::Bind { .. } | SendOp::Invalidate { .. } = wqe.wr.op {
            return;
        }
        let mut message = Message::new(wqe, self.behaviour.wire);
        if let Some(source) = message.source {
            match self.gather(from, source.as_slice(), Fetch::ByKey) {
                Ok(payload) => message.payload = payload,
                Err(_) => return,
            }
        }
        self.faults.flushed_yet_sent += 1;
        self.send_off(from, message);
    }

    fn fail_departure(&mut self, from: QpId, index: u64, status: WcStatus) {
        if let Some(qp) = self.qps.get_mut(&from) {
            qp.send.stopped = true;
        }
        self.settle(from, index, Err(status));
    }

    fn send_off(&mut self, from: QpId, message: Message) {
        let len = message.payload.len();
        if let Some(host) = self.qps.get(&from).map(|qp| qp.host) {
            let counters = &mut self.host(host).counters;
            match message.op {
                SendOp::Send => counters.sends += 1,
                SendOp::Write { .. } => counters.writes += 1,
                SendOp::Bind { .. } | SendOp::Invalidate { .. } => {}
            }
            counters.bytes += len as u64;
        }
        let delay = self.wire_delay(len);
        let slot = self.slot(delay);
        let Some(wire) = self.wires.get_mut(&from).filter(|wire| !wire.broken) else { return };
        wire.messages.push_back(message);
        let slot = wire.arrivals.follow(slot);
        self.schedule.push(slot, Event::Arrive(from));
    }

    /// The first message on a wire arrives. There is one such event for each message.
    pub(super) fn arrive(&mut self, from: QpId) {
        let now = self.now;
        let Some(wire) = self.wires.get_mut(&from) else { return };
        if wire.stalled_until > now {
            let delay = wire.stalled_until - now;
            return self.schedule(delay, Event::Arrive(from));
        }
        let to = wire.to;
        let Some(mut message) = wire.messages.pop_front() else { return };
        self.check_source(from, &message);
        match self.deliver(from, to, &mut message) {
            Verdict::Done => self.acknowledge(from, message.index, Ok(())),
            Verdict::Wait(time) => {
                message.tries += 1;
                let time = time.max(LEAST_RETRY);
                if let Some(wire) = self.wires.get_mut(&from) {
                    wire.stalled_until = now.saturating_add(time);
                    wire.messages.push_front(message);
                }
                self.schedule(time, Event::Arrive(from));
            }
            Verdict::Refused(status) => {
                self.break_wire(from);
                self.acknowledge(from, message.index, Err(status));
            }
            Verdict::Silence => {
                self.break_wire(from);
                self.time_out(from, message.index);
            }
        }
        if !self.qps.contains_key(&from) {
            self.forget_idle_wire(from);
        }
    }

    fn deliver(&mut self, from: QpId, to: QpId, message: &mut Message) -> Verdict {
        let Some(qp) = self.qps.get_mut(&to) else { return Verdict::Silence };
        match qp.phase {
            Phase::Error => Verdict::Silence,
            // The peer was quicker than the answer of its connection manager.
            Phase::Idle if message.tries < READY_TRIES => {
                Verdict::Wait(self.retry_timeout() / (READY_TRIES + 1))
            }
            Phase::Idle => Verdict::Silence,
            Phase::Ready if qp.peer != Some(from) => Verdict::Silence,
            Phase::Ready => {
                let verdict = match message.op {
                    SendOp::Send => self.deliver_send(to, message),
                    SendOp::Write { address, rkey } => {
                        // A Write is never tried again.
                        let (aim, data) = (message.aim, std::mem::take(&mut message.payload));
                        let landing = Landing { address, rkey, aim, data };
                        match self.handle_write(to, landing, message.fate) {
                            Ok(()) => Verdict::Done,
                            Err(()) => Verdict::Refused(WcStatus::REMOTE_ACCESS),
                        }
                    }
                    // They do not travel.
                    SendOp::Bind { .. } | SendOp::Invalidate { .. } => Verdict::Done,
                };
                self.follow_up(to, verdict)
            }
        }
    }

    fn deliver_send(&mut self, to: QpId, message: &Message) -> Verdict {
        let Some(host) = self.qps.get(&to).map(|qp| qp.host) else { return Verdict::Silence };
        let Some(recv) = self.take_receive(to) else {
            self.host(host).counters.rnr += 1;
            let limit = u32::from(self.config.rnr_retry);
            let again = limit == 7 || message.tries < limit;
            return match self.behaviour.wire {
                WireKind::InfiniBand if again => Verdict::Wait(self.config.rnr_delay),
                _ => Verdict::Refused(WcStatus::RNR_RETRY_EXCEEDED),
            };
        };
        let sge = recv.0.sge;
        let len = u32::try_from(message.payload.len()).unwrap_or(u32::MAX);
        if len > sge.len {
            let (receiver, sender) = self.behaviour.short_receive;
            self.complete_recv(to, recv, Err(receiver));
            return Verdict::Refused(sender);
        }
        match self.fill(to, &sge, &message.payload) {
            Ok(()) => {
                self.complete_recv(to, recv, Ok(len));
                Verdict::Done
            }
            Err(()) => {
                self.complete_recv(to, recv, Err(WcStatus::LOCAL_PROTECTION));
                Verdict::Refused(WcStatus::REMOTE_OPERATION)
            }
        }
    }

    /// What a verdict does to the queue pair that gave it.
    fn follow_up(&mut self, to: QpId, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Done => {
                if let Some(qp) = self.qps.get_mut(&to) {
                    qp.heard = true;
                }
            }
            // On InfiniBand a missing receive only fails the sender.
            Verdict::Refused(WcStatus::RNR_RETRY_EXCEEDED)
                if self.behaviour.wire == WireKind::InfiniBand => {}
            Verdict::Refused(_) => self.enter_error(to),
            Verdict::Wait(_) | Verdict::Silence => {}
        }
        verdict
    }

    /// The answer travels back.
    fn acknowledge(&mut self, from: QpId, index: u64, outcome: Result<(), WcStatus>) {
        if self.behaviour.wire == WireKind::InfiniBand {
            let delay = self.wire_delay(0);
            self.schedule(delay, Event::Settle(from, index, outcome));
        }
    }

    /// No answer will come.
    fn time_out(&mut self, from: QpId, index: u64) {
        let event = match self.behaviour.wire {
            WireKind::InfiniBand => Event::Settle(from, index, Err(WcStatus::RETRY_EXCEEDED)),
            WireKind::Iwarp => Event::StreamEnd(from),
        };
        let delay = self.retry_timeout();
        self.schedule(delay, event);
    }

    pub(super) fn retry_timeout(&self) -> Duration {
        self.config.retry_timeout.unwrap_or(self.behaviour.retry_timeout)
    }

    /// The source of a message must still be the NIC's, and the same, as long as a device may send it again.
    fn check_source(&mut self, from: QpId, message: &Message) {
        let Some(source) = message.source else { return };
        let Some(qp) = self.qps.get(&from) else { return };
        let sends_again = qp.send.holds(message.index) || message.in_place;
        if qp.phase != Phase::Ready || !sends_again {
            return;
        }
        if self
            .gather(from, source.as_slice(), Fetch::ByKey)
            .is_ok_and(|now| now != message.payload)
        {
            self.violate(from, ViolationKind::SourceChanged);
        }
    }

    fn break_wire(&mut self, from: QpId) {
        if let Some(wire) = self.wires.get_mut(&from) {
            wire.broken = true;
            wire.messages.clear();
        }
    }

    /// Forgets the wire of a sender that is gone, once nothing is on it.
    pub(super) fn forget_idle_wire(&mut self, from: QpId) {
        if self.wires.get(&from).is_some_and(|wire| wire.messages.is_empty()) {
            self.wires.remove(&from);
        }
    }

    /// The end of a stream travels to the peer, behind all that was sent.
    pub(super) fn end_stream(&mut self, from: QpId) {
        self.end_connection_of(from);
        let Some(peer) = self.qps.get(&from).and_then(|qp| qp.peer) else { return };
        let delay = self.wire_delay(0);
        let slot = self.slot(delay);
        let slot = match self.wires.get_mut(&from) {
            Some(wire) => wire.arrivals.follow(slot),
            None => slot,
        };
        self.schedule.push(slot, Event::StreamEnd(peer));
    }
}
