//! Hands staged frames to the queue pair. Runs under the post lock, in whichever task has it.
//!
//! Encodes frames straight into registered memory, and posts them with the Writes between them by one call. The last thing it does
//! is to post what can go out without waiting and to let the endpoint go.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use verbwire_core::Error;
use verbwire_core::transport::driver::DriverSignal;
use verbwire_core::transport::post::{PostQueue, Posted};

use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::error;
use crate::memory::NicAccess;
use crate::nic::SendWr;
use crate::outbound::{BATCH, EndKind, Frame, Next, Outbound};
use crate::reactor::Awaited;
use crate::rendezvous::NextWrite;

/// Staged frames and who posts them.
pub(crate) type SendQueue = PostQueue<Outbound, Poster>;

/// Batches that one call of [`Poster::hand_over`] posts. 8: more than a send queue holds, unless the driver
/// frees it meanwhile; a calling task must not become the sender of everyone's long bodies.
const BATCHES: usize = 8;

/// What posts.
pub(crate) struct Poster {
    /// `None` once the connection has ended.
    endpoint: Option<Arc<Endpoint>>,
    /// Gone with the endpoint: another peer may have its protection domain then.
    device: Option<Arc<Device>>,
    /// Whether a Write went out since the driver asked.
    wrote: Awaited,
    /// Memory for batches. Requests that are gathered are known to the endpoint's table of work, and posted before
    /// [`hand_over`](Self::hand_over) returns.
    frames: Vec<Frame>,
    requests: Vec<SendWr>,
}

/// Who posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The connection's driver. It alone posts Writes, so that it knows whether completions of Writes are needed, and
    /// nobody else becomes the sender of long bodies.
    Driver,
    /// Any other task. It leaves Writes to the driver.
    Caller,
}

/// Whether Writes went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrote {
    All,
    /// There is no memory for the next one.
    Blocked,
}

impl Poster {
    pub(crate) fn new(endpoint: Arc<Endpoint>, device: Arc<Device>) -> Self {
        let (frames, requests) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        let (endpoint, wrote) = (Some(endpoint), Awaited::No);
        Self { endpoint, device: Some(device), wrote, frames, requests }
    }

    /// Whether a Write or an invalidation was posted since the last time: then its completion is awaited.
    pub(crate) fn take_wrote(&mut self) -> Awaited {
        mem::replace(&mut self.wrote, Awaited::No)
    }

    /// Posts until nothing is staged (`All`), or until there is no credit, slot or memory, or it is someone else's
    /// turn (`Blocked`).
    pub(crate) fn hand_over(
        &mut self,
        queue: &SendQueue,
        driver: &DriverSignal,
        role: Role,
    ) -> Posted {
        loop {
            let gathered = self.gather(queue, role);
            let posted = gathered.and_then(|posted| self.post().map(|()| posted));
            match posted {
                Ok(posted) => return posted,
                // The stage has ended by that, and next the endpoint is let go.
                Err(cause) => {
                    let waiting = queue.with_staged(|staged| staged.end(EndKind::Broken, cause));
                    waiting.into_iter().for_each(|waker| waker.wake());
                    driver.wake();
                }
            }
        }
    }

    /// Turns what is staged into work requests, as far as [`hand_over`](Self::hand_over) says.
    fn gather(&mut self, queue: &SendQueue, role: Role) -> Result<Posted, Error> {
        for _ in 0..BATCHES {
            if self.requests.len() >= BATCH {
                self.post()?;
            }
            let (next, waiting) = queue.with_staged(|staged| staged.next(&mut self.frames));
            waiting.into_iter().for_each(|waker| waker.wake());
            match (next, role) {
                (Next::Idle, _) => return Ok(Posted::All),
                (Next::Blocked, _) | (Next::Write, Role::Caller) => return Ok(Posted::Blocked),
                (Next::End(how), _) => {
                    self.finish(how, queue);
                    return Ok(Posted::All);
                }
                (Next::Bind, _) => self.gather_binds(queue),
                // What was staged since is seen by the queue, which looks once more.
                (Next::PostLast, _) => return self.gather_frames().map(|()| Posted::All),
                (Next::Post, Role::Caller) => self.gather_frames()?,
                // A Write behind each batch: neither keeps the other waiting.
                (Next::Post | Next::Write, Role::Driver) => {
                    self.gather_frames()?;
                    let wrote = self.gather_write(queue)?;
                    if wrote == Wrote::Blocked && next == Next::Write {
                        return Ok(Posted::Blocked);
                    }
                }
            }
        }
        Ok(Posted::Blocked)
    }

    /// Binds windows of which the peer is told by frames behind this.
    fn gather_binds(&mut self, queue: &SendQueue) {
        let Some(endpoint) = &self.endpoint else { return };
        while let Some((bind, signal)) = queue.with_staged(Outbound::next_bind) {
            self.requests.push(endpoint.work().bind(bind, signal));
        }
    }

    /// Invalidates windows whose grants are closed.
    fn gather_invalidations(&mut self, queue: &SendQueue) {
        let Some(endpoint) = &self.endpoint else { return };
        while let Some((id, op)) = queue.with_staged(Outbound::next_invalidation) {
            self.wrote = Awaited::Yes;
            self.requests.push(endpoint.work().invalidate(id, op));
        }
    }

    /// The next Write, if one may go out, behind all invalidations.
    fn gather_write(&mut self, queue: &SendQueue) -> Result<Wrote, Error> {
        self.gather_invalidations(queue);
        let (Some(endpoint), Some(device)) = (&self.endpoint, &self.device) else {
            return Ok(Wrote::All);
        };
        let mut next = queue.with_staged(Outbound::next_write);
        if let NextWrite::NeedsReserve(len) = next {
            let staging = device.staging().try_stage(len)?;
            let Some(reserve) = staging else { return Ok(Wrote::Blocked) };
            drop(queue.with_staged(|staged| staged.set_reserve(reserve)));
            next = queue.with_staged(Outbound::next_write);
        }
        match next {
            NextWrite::Write(write) => {
                self.wrote = Awaited::Yes;
                let (transfer, place) = (write.transfer, write.place);
                let source = write.lend(|bytes: &Bytes| device.lend(bytes))?;
                self.requests.push(endpoint.work().write(transfer, source, place));
                Ok(Wrote::All)
            }
            NextWrite::NeedsReserve(_) => Ok(Wrote::Blocked),
            NextWrite::Nothing => Ok(Wrote::All),
        }
    }

    /// The frames, in order.
    fn gather_frames(&mut self) -> Result<(), Error> {
        let (Some(endpoint), Some(device)) = (&self.endpoint, &self.device) else {
            self.frames.clear();
            return Ok(());
        };
        // Each has a run of the buffer in front of it and one behind.
        let gather = device.max_sge().saturating_sub(1) / 2;
        let mut copied = 0;
        let gathered = self.frames.iter().try_for_each(|frame| {
            let mut buf = endpoint.take()?;
            let encoded = frame.encode(&mut buf, gather, |bytes| device.lend(bytes));
            copied += encoded.long_copied;
            let buf = buf.into_nic(NicAccess::Read);
            self.requests.push(endpoint.work().send(buf, encoded, frame.signal));
            Ok(())
        });
        self.frames.clear();
        device.count_copied(copied);
        gathered
    }

    /// Posts what was gathered, with one call.
    fn post(&mut self) -> Result<(), Error> {
        let Some(endpoint) = self.endpoint.as_ref().filter(|_| !self.requests.is_empty()) else {
            return Ok(());
        };
        let posted = endpoint.qp().post_send(&self.requests);
        self.requests.clear();
        posted.map_err(|error| endpoint.explain(error::lost("sending", error)))
    }

    /// Posts what can go out without waiting, and lets the endpoint go.
    fn finish(&mut self, how: EndKind, queue: &SendQueue) {
        if how == EndKind::Closed {
            queue.with_staged(|staged| staged.last(&mut self.frames));
            if let Err(error) = self.gather_frames().and_then(|()| self.post()) {
                tracing::debug!(%error, "the last frames of a closed connection are not sent");
            }
        }
        queue.with_staged(Outbound::discard);
        self.frames.clear();
        self.requests.clear();
        self.endpoint = None;
        self.device = None;
    }
}
