//! Hands staged frames to the queue pair. Runs under the post lock, in whichever task has it.
//!
//! Encodes frames straight into registered memory and posts many with one call, and Writes one by one. The last thing it does is to
//! post what can go out without waiting and to let the endpoint go.

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
use crate::nic::{NicError, SendWr};
use crate::outbound::{BATCH, EndKind, Frame, Next, Outbound};
use crate::reactor::Awaited;
use crate::rendezvous::{NextWrite, Write};

/// Staged frames and who posts them.
pub(crate) type SendQueue = PostQueue<Outbound, Poster>;

/// Batches that one call of [`Poster::hand_over`] posts. 8: more than a send queue holds, unless the driver
/// frees it meanwhile; a calling task must not become the sender of everyone's long bodies.
const BATCHES: usize = 8;

/// What posts.
pub(crate) struct Poster {
    /// `None` once the connection has ended.
    endpoint: Option<Arc<Endpoint>>,
    device: Arc<Device>,
    /// Whether a Write went out since the driver asked.
    wrote: Awaited,
    /// Memory for batches.
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
        Self { endpoint, device, wrote, frames, requests }
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
        for _ in 0..BATCHES {
            let (next, waiting) = queue.with_staged(|staged| staged.next(&mut self.frames));
            waiting.into_iter().for_each(|waker| waker.wake());
            let posted = match (next, role) {
                (Next::Idle, _) => return Posted::All,
                (Next::Blocked, _) | (Next::Write, Role::Caller) => return Posted::Blocked,
                (Next::End(how), _) => {
                    self.finish(how, queue);
                    return Posted::All;
                }
                (Next::Bind, _) => self.post_binds(queue).map(|()| Wrote::All),
                (Next::PostLast, _) | (Next::Post, Role::Caller) => {
                    self.post().map(|()| Wrote::All)
                }
                // A Write behind each batch: neither keeps the other waiting.
                (Next::Post | Next::Write, Role::Driver) => {
                    self.post().and_then(|()| self.post_write(queue))
                }
            };
            match posted {
                Err(cause) => {
                    let waiting = queue.with_staged(|staged| staged.end(EndKind::Broken, cause));
                    waiting.into_iter().for_each(|waker| waker.wake());
                    driver.wake();
                }
                // What was staged since is seen by the queue, which looks once more.
                Ok(_) if next == Next::PostLast => return Posted::All,
                Ok(Wrote::Blocked) if next == Next::Write => return Posted::Blocked,
                Ok(_) => {}
            }
        }
        Posted::Blocked
    }

    /// Binds windows of which the peer is told by frames that are posted after this.
    fn post_binds(&mut self, queue: &SendQueue) -> Result<(), Error> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        self.requests.clear();
        while let Some((bind, signal)) = queue.with_staged(Outbound::next_bind) {
            self.requests.push(endpoint.work().bind(bind, signal));
        }
        endpoint.qp().post_send(&self.requests).map_err(|error| sending(endpoint, error))
    }

    /// Invalidates windows whose grants are closed.
    fn post_invalidations(&mut self, queue: &SendQueue) -> Result<(), Error> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        self.requests.clear();
        while let Some((id, op)) = queue.with_staged(Outbound::next_invalidation) {
            self.wrote = Awaited::Yes;
            self.requests.push(endpoint.work().invalidate(id, op));
        }
        endpoint.qp().post_send(&self.requests).map_err(|error| sending(endpoint, error))
    }

    /// Posts the next Write, if one may go out, and all invalidations.
    fn post_write(&mut self, queue: &SendQueue) -> Result<Wrote, Error> {
        self.post_invalidations(queue)?;
        let Some(endpoint) = &self.endpoint else { return Ok(Wrote::All) };
        let mut next = queue.with_staged(Outbound::next_write);
        if let NextWrite::NeedsReserve(len) = next {
            let staging = self.device.staging().try_stage(len)?;
            let Some(reserve) = staging else { return Ok(Wrote::Blocked) };
            drop(queue.with_staged(|staged| staged.set_reserve(reserve)));
            next = queue.with_staged(Outbound::next_write);
        }
        match next {
            NextWrite::Write(write) => {
                self.wrote = Awaited::Yes;
                self.write(endpoint, write).map(|()| Wrote::All)
            }
            NextWrite::NeedsReserve(_) => Ok(Wrote::Blocked),
            NextWrite::Nothing => Ok(Wrote::All),
        }
    }

    fn write(&self, endpoint: &Endpoint, write: Write) -> Result<(), Error> {
        let (transfer, place) = (write.transfer, write.place);
        let source = write.lend(|bytes: &Bytes| self.device.lend(bytes))?;
        let request = endpoint.work().write(transfer, source, place);
        endpoint.qp().post_send(&[request]).map_err(|error| sending(endpoint, error))
    }

    /// Posts the frames, in order.
    fn post(&mut self) -> Result<(), Error> {
        let Some(endpoint) = self.endpoint.as_ref().filter(|_| !self.frames.is_empty()) else {
            self.frames.clear();
            return Ok(());
        };
        self.requests.clear();
        // Each has a run of the buffer in front of it and one behind.
        let gather = self.device.max_sge().saturating_sub(1) / 2;
        let mut copied = 0;
        for frame in self.frames.drain(..) {
            let mut buf = endpoint.take()?;
            let encoded = frame.encode(&mut buf, gather, |bytes| self.device.lend(bytes));
            copied += encoded.long_copied;
            let buf = buf.into_nic(NicAccess::Read);
            self.requests.push(endpoint.work().send(buf, encoded, frame.signal));
        }
        self.device.count_copied(copied);
        endpoint.qp().post_send(&self.requests).map_err(|error| sending(endpoint, error))
    }

    /// Posts what can go out without waiting, and lets the endpoint go.
    fn finish(&mut self, how: EndKind, queue: &SendQueue) {
        if how == EndKind::Closed {
            queue.with_staged(|staged| staged.last(&mut self.frames));
            if let Err(error) = self.post() {
                tracing::debug!(%error, "the last frames of a closed connection are not sent");
            }
        }
        queue.with_staged(Outbound::discard);
        self.frames.clear();
        self.endpoint = None;
    }
}

/// A post that failed. It ends the connection and wakes its driver, which polls for the end again.
fn sending(endpoint: &Endpoint, error: NicError) -> Error {
    endpoint.explain(error::lost("sending", error))
}
