//! Receiving: from the completion queue to messages.
//!
//! Owns the driver's view of the endpoint, the decoder, and what was found behind the last messages. A
//! receive is posted again as soon as its bytes are copied out, before anybody sees its message.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};
use verbwire_core::Error;
use verbwire_core::message::{CallId, Head, Message};
use verbwire_core::transport::{Announced, Incoming, Placement, PlacementHook};

use crate::decoder::{Account, FrameDecoder};
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::error::{self, ReceiveError};
use crate::memory::CpuBuf;
use crate::nic::{RecvWr, Wc, WcStatus};
use crate::pool::Isolation;
use crate::poster::SendQueue;
use crate::proto::rendezvous::{BodyLen, TransferId};
use crate::reactor::{Awaited, Left};
use crate::rendezvous::{
    Arrival, Came, InvalidationId, LandedBody, LandingError, Placed, Rendezvous,
};
use crate::shared::Membership;
use crate::work::{Completed, Written};

/// Completions taken at a time. 32: what a processor's cache holds with their frames' heads.
const BATCH: usize = 32;

/// How long a dead queue pair may take to flush what came before its death. 100 ms: devices flush at once, or
/// only when it is destroyed.
const FLUSH: Duration = Duration::from_millis(100);

/// The same where receives are shared and nothing says that all has come. 10 ms: what has arrived is known at once.
const SETTLE: Duration = Duration::from_millis(10);

/// What receives.
pub(crate) struct Receiver {
    endpoint: Arc<Endpoint>,
    decoder: FrameDecoder,
    placement: Arc<dyn PlacementHook>,
    device: Arc<Device>,
    isolation: Isolation,
    replies: Replies,
    awaited: Awaited,
    /// Memory for batches.
    completions: Vec<Wc>,
    buffers: Vec<CpuBuf>,
    requests: Vec<RecvWr>,
    accounts: Vec<Account>,
    written: Written,
    end: Option<End>,
}

/// Whether the stage is told of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replies {
    /// A grant is out for one at least.
    Watched,
    Ignored,
}

/// Why nothing more is received. Found behind messages, it is reported by the poll after theirs.
enum End {
    /// The peer broke the protocol: what follows is not looked at.
    Violated(Error),
    /// The queue pair is dead. What the peer sent before still comes, in front of the flushed receives.
    Lost(Cause, Rest),
}

/// How long what came before the death of a queue pair is waited for.
struct Rest {
    limit: Pin<Box<Sleep>>,
    /// The limit has passed, and the queues were looked at since: an event may be late, or lost.
    has_looked: bool,
}

/// Why a queue pair is dead.
enum Cause {
    Known(Error),
    /// Something else moved it to the error state first; the connection manager may say what.
    Flushed,
}

/// What a batch of completions brought, besides messages.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    /// Sends that are done.
    pub(crate) sent: u32,
    /// Frames whose receives are posted again, in order.
    pub(crate) accounts: &'a [Account],
    /// Transfers, for each of their Writes that is done.
    pub(crate) written: &'a [TransferId],
    /// Invalidations that have succeeded.
    pub(crate) invalidated: &'a [InvalidationId],
    /// Whether completions are left.
    pub(crate) left: Left,
}

impl Receiver {
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        decoder: FrameDecoder,
        placement: Arc<dyn PlacementHook>,
        (device, isolation): (Arc<Device>, Isolation),
    ) -> Self {
        Self {
            endpoint,
            decoder,
            placement,
            device,
            isolation,
            replies: Replies::Ignored,
            awaited: Awaited::No,
            completions: Vec::with_capacity(BATCH),
            buffers: Vec::with_capacity(BATCH),
            requests: Vec::with_capacity(BATCH),
            accounts: Vec::with_capacity(BATCH),
            written: Written::default(),
            end: None,
        }
    }

    /// See [`FrameDecoder::revoke`].
    pub(crate) fn revoke(&mut self, call: CallId) {
        self.decoder.revoke(call);
    }

    /// Says whether the stage is to be told of replies that come.
    pub(crate) fn watch_replies(&mut self, replies: Replies) {
        self.replies = replies;
    }

    /// See [`Endpoint::keep`].
    pub(crate) fn keep(&self, rendezvous: Rendezvous) {
        self.endpoint.keep(rendezvous);
    }

    /// See [`Endpoint::await_sends`].
    pub(crate) fn await_sends(&mut self, awaited: Awaited) {
        if mem::replace(&mut self.awaited, awaited) != awaited {
            self.endpoint.await_sends(awaited);
        }
    }

    /// The peer broke the protocol. The first reason stays.
    pub(crate) fn violated(&mut self, violation: Error) {
        self.end.get_or_insert(End::Violated(violation));
    }

    /// The peer has sent what it had no right to: it is cut off, before it takes more of what others were promised.
    pub(crate) fn overrun(&mut self, violation: Error) {
        self.endpoint.fail();
        self.violated(violation);
    }

    /// Its place among those that share receives.
    pub(crate) fn membership(&self) -> Option<&Membership> {
        self.endpoint.membership()
    }

    /// The queue pair is dead, or is to be. The first reason stays.
    pub(crate) fn lost(&mut self, cause: Error) {
        self.dead(Cause::Known(cause));
    }

    fn dead(&mut self, cause: Cause) {
        match &mut self.end {
            None => {
                self.endpoint.fail();
                let limit = if self.endpoint.membership().is_some() { SETTLE } else { FLUSH };
                let rest = Rest { limit: Box::pin(sleep(limit)), has_looked: false };
                self.end = Some(End::Lost(cause, rest));
            }
            Some(End::Lost(known @ Cause::Flushed, _)) => *known = cause,
            Some(_) => {}
        }
    }

    /// Takes what has completed; appends messages to `received`. Ready with what it brought, or waits.
    ///
    /// # Errors
    ///
    /// Why nothing more comes.
    pub(crate) fn poll_completions(
        &mut self,
        cx: &mut Context<'_>,
        queue: &SendQueue,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<Progress<'_>, Error>> {
        // At once, whatever the peer goes on to send: it is not counted any more.
        if let Some(End::Violated(violation)) = &self.end {
            return Poll::Ready(Err(violation.clone()));
        }
        let mut completions = mem::take(&mut self.completions);
        match self.endpoint.poll_completions(cx, &mut completions, BATCH) {
            Poll::Ready(Ok(left)) => {
                let sent = self.take(&completions, queue, received);
                completions.clear();
                self.completions = completions;
                let (accounts, written) = (&self.accounts, &self.written.transfers);
                let invalidated = &self.written.invalidated;
                Poll::Ready(Ok(Progress { sent, accounts, written, invalidated, left }))
            }
            Poll::Ready(Err(lost)) => {
                // A device that goes takes its queues along, and its own words say more.
                self.look_for_cause(cx, queue);
                Poll::Ready(Err(self.ended_by(error::lost("polling for completions", lost))))
            }
            Poll::Pending => {
                self.completions = completions;
                self.poll_end(cx, queue).map(Err)
            }
        }
    }

    /// The completion queue gives nothing more: the first reason for that.
    fn ended_by(&self, cause: Error) -> Error {
        match &self.end {
            Some(End::Violated(first) | End::Lost(Cause::Known(first), _)) => first.clone(),
            Some(End::Lost(Cause::Flushed, _)) | None => cause,
        }
    }

    /// Asks the connection manager and the device, as long as nobody else has said why the connection ended.
    fn look_for_cause(&mut self, cx: &mut Context<'_>, queue: &SendQueue) {
        if let None | Some(End::Lost(Cause::Flushed, _)) = self.end
            && let Poll::Ready(cause) = self.endpoint.poll_disconnected(cx)
        {
            let to_write = queue.with_staged(|staged| staged.open_bodies());
            self.lost(error::disconnected(cause, self.decoder.open_bodies() + to_write));
        }
    }

    /// Ready with the reason when there is nothing more to wait for.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>, queue: &SendQueue) -> Poll<Error> {
        self.look_for_cause(cx, queue);
        match &mut self.end {
            None => Poll::Pending,
            Some(End::Violated(violation)) => Poll::Ready(violation.clone()),
            Some(End::Lost(cause, rest)) => {
                let is_shared = self.endpoint.membership().is_some();
                let flushed = !is_shared && self.endpoint.work().receives.is_empty();
                if !flushed && rest.limit.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                if !flushed && !mem::replace(&mut rest.has_looked, true) {
                    self.endpoint.take_all();
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(match cause {
                    Cause::Known(cause) => cause.clone(),
                    Cause::Flushed => error::failed(WcStatus::FLUSHED),
                })
            }
        }
    }

    /// Takes a batch of completions. Returns how many sends are done.
    fn take(&mut self, completions: &[Wc], queue: &SendQueue, received: &mut Vec<Incoming>) -> u32 {
        self.accounts.clear();
        self.written.transfers.clear();
        self.written.invalidated.clear();
        let mut sent = 0;
        for wc in completions {
            match self.endpoint.complete(wc) {
                Completed::Sent(count) => sent += count,
                Completed::Received(buf, len) => self.decode(buf, len, queue, received),
                Completed::Failed(WcStatus::FLUSHED) => self.dead(Cause::Flushed),
                Completed::Failed(status) => {
                    if status == WcStatus::WINDOW_BIND {
                        self.device.refuse_windows();
                    }
                    self.lost(self.endpoint.explain(error::failed(status)));
                }
                Completed::HelloSent | Completed::Stray => {}
            }
        }
        if sent > 0 {
            self.endpoint.work().take_written(&mut self.written);
            self.written.sources.clear();
        }
        // A receive that is posted to a dead queue pair never comes back but by its destruction; a shared one serves others.
        if self.end.is_some() && self.endpoint.membership().is_none() {
            self.buffers.clear();
        } else if !self.buffers.is_empty()
            && let Err(error) =
                self.endpoint.post_receives(self.buffers.drain(..), &mut self.requests)
        {
            self.lost(self.endpoint.explain(error::lost("posting receives", error)));
        }
        sent
    }

    fn decode(&mut self, buf: CpuBuf, len: usize, queue: &SendQueue, received: &mut Vec<Incoming>) {
        if let Some(End::Violated(_)) = self.end {
            return self.buffers.push(buf);
        }
        let decoded = self.decoder.decode(&buf[..len], &*self.placement, received);
        self.buffers.push(buf);
        match decoded {
            Ok(account) => self.accounts.push(account),
            Err(violation) => return self.violated(violation.into()),
        }
        let before = received.len();
        if let Some(arrival) = self.decoder.take_arrival() {
            self.arrived(*arrival, queue, received);
        }
        if self.replies == Replies::Watched {
            tell_replies(&received[before.saturating_sub(1)..], queue);
        }
    }

    /// Takes what a frame said about bodies that are written.
    fn arrived(&mut self, arrival: Arrival, queue: &SendQueue, received: &mut Vec<Incoming>) {
        let now = Instant::now();
        match queue.with_staged(|staged| staged.arrived(arrival, now)) {
            Ok(Came::Nothing) => {}
            Ok(Came::Announced { message, rts, len, landing }) => {
                // Those in pieces count as well, which have no more than the threshold each.
                let landing = landing.saturating_add(self.decoder.landing_bytes());
                // Not under the lock of the stage: the hook has its own.
                let placement = self.place(&message, len, landing);
                let announced = (message, rts, len);
                queue.with_staged(|staged| staged.place(announced, placement, now));
            }
            Ok(Came::Landed(body)) => self.landed(*body, received),
            Err(violation) => self.violated(ReceiveError::from(violation).into()),
        }
    }

    fn place(&self, message: &Message, len: BodyLen, landing: usize) -> Placement {
        let len = len.bytes() as usize;
        let (head, metadata) = (&message.head, &message.metadata);
        self.placement.place(Announced { head, metadata, len, landing })
    }

    /// Takes bodies whose windows are invalidated.
    pub(crate) fn isolated(
        &mut self,
        bodies: impl Iterator<Item = LandedBody>,
        queue: &SendQueue,
        received: &mut Vec<Incoming>,
    ) {
        let before = received.len();
        bodies.for_each(|body| self.landed(body, received));
        if self.replies == Replies::Watched {
            tell_replies(&received[before..], queue);
        }
    }

    fn landed(&mut self, body: LandedBody, received: &mut Vec<Incoming>) {
        let placement = match body.placed {
            Placed::At(placement) => placement,
            Placed::Unwanted => Placement::Refuse,
            Placed::No => self.place(&body.message, body.len, 0),
        };
        match body.receive(self.isolation, placement, self.device.landing()) {
            Ok(_unwanted) if placement == Placement::Refuse => {}
            Ok(message) => received.push(Incoming { message }),
            Err(LandingError::Violation(violation)) => self.violated(violation.into()),
            Err(LandingError::Memory(error)) => self.lost(error),
        }
    }
}

/// Tells the stage of replies that are here, so that no grant that was advertised for one outlives it.
fn tell_replies(received: &[Incoming], queue: &SendQueue) {
    for incoming in received {
        if let Head::Response { call, .. } | Head::Cancelled { call, .. } = incoming.message.head {
            queue.with_staged(|staged| staged.reply_came(call, Instant::now()));
        }
    }
}
