//! Work in flight: the table that owns every buffer which a NIC may touch.
//!
//! A buffer goes in before its work request is posted, and comes out by the work request's completion, or when
//! the queue pair is destroyed. Nobody else holds one, so that no future that is dropped, and no error on any
//! path, can free memory under a NIC. Completions are recognised by their id alone ([`WorkId`]); one that
//! fits nothing in flight is counted and ignored.

mod id;
mod receives;
mod sends;

use bytes::Bytes;

use crate::memory::{CpuBuf, Lent, NicBuf, Released};
use crate::nic::{Inline, SendOp, SendWr, Signal, Wc, WcStatus};
use crate::outbound::Encoded;
use crate::proto::rendezvous::TransferId;
use crate::proto::rendezvous::wire::Place;
use crate::rendezvous::InvalidationId;

pub(crate) use id::{ConnectionNumber, Kind, WorkId};
pub(crate) use receives::Receives;
use sends::Sends;

/// The work of one connection that is in flight.
#[derive(Debug)]
pub(crate) struct Work {
    connection: ConnectionNumber,
    /// Longest message that travels in its work request.
    max_inline: usize,
    /// HELLO is sent before there are credits, and counts against nothing.
    hello: Option<NicBuf>,
    sends: Sends,
    pub(crate) receives: Receives,
    /// Completions that fit nothing.
    strays: u64,
}

/// What completions of Writes gave back. Its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// A transfer for each of its Writes that is done.
    pub(crate) transfers: Vec<TransferId>,
    /// Invalidations that have succeeded.
    pub(crate) invalidated: Vec<InvalidationId>,
    /// Bytes that nobody reads any more. To be dropped without a lock: others' code may run.
    pub(crate) sources: Vec<Bytes>,
}

/// What a completion says.
#[derive(Debug)]
pub(crate) enum Completed {
    /// Sends are done: this many, the oldest first.
    Sent(u32),
    /// A message came; so many bytes of the buffer are its.
    Received(CpuBuf, usize),
    /// HELLO is sent.
    HelloSent,
    /// A work request failed: the queue pair is dead.
    Failed(WcStatus),
    /// Nothing: it fits nothing in flight.
    Stray,
}

impl Work {
    pub(crate) fn new(connection: ConnectionNumber, max_inline: usize) -> Self {
        Self {
            connection,
            max_inline,
            hello: None,
            sends: Sends::new(connection),
            receives: Receives::new(Kind::Receive, connection),
            strays: 0,
        }
    }

    /// All work that is in flight; none is left.
    pub(crate) fn take(&mut self) -> Self {
        let empty = Self::new(self.connection, self.max_inline);
        std::mem::replace(self, empty)
    }

    /// Takes the buffer of HELLO; `len` bytes of it are to be sent.
    pub(crate) fn send_hello(&mut self, buf: NicBuf, len: usize) -> SendWr {
        let id = WorkId { kind: Kind::Hello, connection: self.connection, sequence: 0 };
        let mut wr = sends::work_request(id, &buf, len, Signal::Yes);
        self.hello = Some(buf);
        wr.inline = self.inline(len);
        wr
    }

    /// Takes the buffer of a frame, and what is sent from where it lies, for which the send must be signalled.
    pub(crate) fn send(&mut self, buf: NicBuf, frame: Encoded, signal: Signal) -> SendWr {
        let (len, is_gathered) = (frame.staged, !frame.gathered.is_empty());
        let mut wr = self.sends.push(buf, frame, signal);
        if !is_gathered {
            wr.inline = self.inline(len);
        }
        wr
    }

    /// Takes the memory of a Write.
    pub(crate) fn write(
        &mut self,
        transfer: TransferId,
        source: Vec<Lent>,
        place: Place,
    ) -> SendWr {
        self.sends.push_write(transfer, source, place)
    }

    /// Takes note of a bind.
    pub(crate) fn bind(&mut self, op: SendOp, signal: Signal) -> SendWr {
        self.sends.push_bind(op, signal)
    }

    /// Takes note of an invalidation. Always signalled: its success is waited for.
    pub(crate) fn invalidate(&mut self, id: InvalidationId, op: SendOp) -> SendWr {
        self.sends.push_invalidation(id, op)
    }

    /// Takes what completions of Writes gave back since the last time.
    pub(crate) fn take_written(&mut self, written: &mut Written) {
        written.transfers.append(&mut self.sends.written.transfers);
        written.sources.append(&mut self.sends.written.sources);
        written.invalidated.append(&mut self.sends.written.invalidated);
    }

    /// Whether a message of this length travels in its work request.
    fn inline(&self, len: usize) -> Inline {
        if len <= self.max_inline { Inline::Yes } else { Inline::No }
    }

    /// Takes a completion; buffers of sends return to their pool.
    pub(crate) fn complete(&mut self, wc: &Wc) -> Completed {
        let completed = match WorkId::decode(wc.id) {
            Some(id) if id.connection == self.connection => self.complete_id(id, wc.result),
            _ => None,
        };
        match (completed, wc.result) {
            (None, _) => {
                self.strays += 1;
                tracing::debug!(id = wc.id.0, strays = self.strays, "completion of unknown work");
                Completed::Stray
            }
            (Some(_), Err(status)) => Completed::Failed(status),
            (Some(completed), Ok(_)) => completed,
        }
    }

    fn complete_id(&mut self, id: WorkId, result: Result<u32, WcStatus>) -> Option<Completed> {
        match id.kind {
            Kind::Hello => {
                drop(self.hello.take()?.into_cpu(Released::by_nic()));
                Some(Completed::HelloSent)
            }
            Kind::Send => self.sends.complete(id.sequence, result.is_ok()).map(Completed::Sent),
            // Those are no connection's own.
            Kind::Shared => None,
            Kind::Receive => {
                let buf = self.receives.complete(id.sequence)?;
                let len = result.map_or(0, |len| len as usize).min(buf.len());
                Some(Completed::Received(buf, len))
            }
        }
    }

    /// Whether a send is in flight whose completion will come.
    pub(crate) fn expects_sent(&self) -> bool {
        self.hello.is_some() || self.sends.has_signalled()
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.hello.is_none() && self.sends.is_empty() && self.receives.is_empty()
    }

    /// The queue pair is destroyed: everything comes back.
    pub(crate) fn release(&mut self) {
        if let Some(buf) = self.hello.take() {
            drop(buf.into_cpu(Released::by_nic()));
        }
        self.sends.release();
        self.receives.release();
    }
}

#[cfg(test)]
mod tests;
