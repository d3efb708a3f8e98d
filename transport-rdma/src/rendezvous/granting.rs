//! What the driver of a connection waits for on behalf of long bodies: its turn at the device's desk, landing memory,
//! staging memory, and time.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};
use verbwire_core::message::{CallId, Head, Message};
use verbwire_core::transport::driver::DriverSignal;
use verbwire_core::transport::{Incoming, Outgoing, PlacementHook, SendHints};
use verbwire_core::wire::status;
use verbwire_core::{Code, Error, ErrorKind, Executed, Status};

use super::arrival::less_words;
use super::desk::{Admitted, Client, Wanting};
use super::{Asking, LandedBody, Region, Settled, Stands};
use crate::device::Device;
use crate::pool::{Granted, PoolError, StagingBuf, Tenant};
use crate::poster::SendQueue;
use crate::proto::rendezvous::BodyLen;
use crate::proto::rendezvous::wire::RtsNumber;

/// For how long memory is waited for where the call's own deadline gives the waiting up. A day: never.
pub(super) const NEVER: Duration = Duration::from_secs(24 * 3600);

pub(super) type Landing = Pin<Box<dyn Future<Output = Result<Granted, PoolError>> + Send>>;
type Staging = Pin<Box<dyn Future<Output = Result<StagingBuf, PoolError>> + Send>>;

/// See the module.
pub(crate) struct Granting {
    device: Arc<Device>,
    tenant: Tenant,
    client: Client,
    /// Told of messages of streams that find no memory.
    placement: Arc<dyn PlacementHook>,
    /// RTSs at the desk, with what is needed when it is their turn.
    asking: Vec<Asking>,
    landing: Vec<Waiting>,
    staging: Option<Staging>,
    /// `None` where this side gives no standing grants.
    stands: Option<Stands>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Memory for what is collected.
    settled: Settled,
}

/// An RTS whose turn it is, and that waits for memory.
struct Waiting {
    rts: RtsNumber,
    admitted: Admitted,
    memory: Landing,
    /// As soon as it is not there at once: those who hold memory for requests to come are asked for it.
    wanting: Option<Wanting>,
}

impl Granting {
    pub(crate) fn new(
        device: Arc<Device>,
        tenant: Tenant,
        placement: Arc<dyn PlacementHook>,
        driver: &Arc<DriverSignal>,
    ) -> Self {
        let client = device.desk().sit_down(tenant, Arc::clone(driver));
        Self {
            device,
            tenant,
            client,
            placement,
            asking: Vec::new(),
            landing: Vec::new(),
            staging: None,
            stands: None,
            timer: None,
            settled: Settled::default(),
        }
    }

    /// Gives the peer standing grants for requests of up to `len` bytes.
    pub(crate) fn stand(&mut self, len: BodyLen) {
        self.client.stand();
        self.stands = Some(Stands::new(len));
    }

    /// Goes on with everything that can go on now; appends messages that end calls here.
    ///
    /// # Errors
    ///
    /// The queue pair must be destroyed, and why.
    pub(crate) fn poll(
        &mut self,
        queue: &SendQueue,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Result<(), Error> {
        loop {
            let timeout = self.settle(queue)?;
            self.take_turns();
            self.poll_landing(queue, cx, received);
            self.poll_staging(queue, cx)?;
            if let Some(stands) = &mut self.stands {
                stands.poll((&self.device, self.tenant), &self.client, queue, cx);
            }
            match timeout {
                Some(at) if self.is_over(at, cx) => {}
                _ => return Ok(()),
            }
        }
    }

    /// Bodies whose windows are invalidated.
    pub(crate) fn take_landed(&mut self) -> impl Iterator<Item = LandedBody> {
        self.settled.landed.drain(..)
    }

    /// Takes what is done with out of the stage, and lets it go.
    fn settle(&mut self, queue: &SendQueue) -> Result<Option<Instant>, Error> {
        let (now, settled) = (Instant::now(), &mut self.settled);
        let waiting = queue.with_staged(|staged| staged.settle(now, settled));
        waiting.into_iter().for_each(|waker| waker.wake());
        settled.released.drain(..).for_each(Region::release);
        settled.sources.clear();
        drop(settled.reserve.take());
        settled.heads.clear();
        for rts in settled.given_up.drain(..) {
            self.asking.retain(|asking| asking.rts != rts);
            self.landing.retain(|waiting| waiting.rts != rts);
            self.client.withdraw(rts);
        }
        for asking in settled.asking.drain(..) {
            self.asking.push(asking);
            self.client.ask(asking.rts, asking.len);
        }
        match settled.fault.take() {
            Some(fault) => {
                let message = "the peer keeps memory that it was granted";
                Err(Error::with_source(ErrorKind::Lost, message, fault))
            }
            None => Ok(settled.timeout),
        }
    }

    /// Whose turn it is waits for memory from now on.
    fn take_turns(&mut self) {
        for (rts, admitted) in self.client.take_admitted() {
            let at = self.asking.iter().position(|asking| asking.rts == rts);
            // Given up meanwhile: the right goes on to the next.
            let Some(asking) = at.map(|at| self.asking.swap_remove(at)) else { continue };
            let (len, deadline) = (asking.len, self.deadline(&asking));
            let len = len.bytes() as usize;
            let memory = Box::pin(self.device.landing().grant(self.tenant, len, deadline));
            self.landing.push(Waiting { rts, admitted, memory, wanting: None });
        }
    }

    /// Until when its memory is waited for. A message of a stream has the deadline of its call, whose request was handled
    /// before this is polled again.
    fn deadline(&self, asking: &Asking) -> Instant {
        let now = Instant::now();
        let of_stream = || {
            let ends = self.placement.stream_deadline(asking.call?)?;
            Some(now + less_words(ends.saturating_duration_since(now)))
        };
        asking.deadline.or_else(of_stream).unwrap_or(now + NEVER)
    }

    fn poll_landing(
        &mut self,
        queue: &SendQueue,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) {
        let mut at = 0;
        while let Some(waiting) = self.landing.get_mut(at) {
            let Poll::Ready(granted) = waiting.memory.as_mut().poll(cx) else {
                waiting.wanting.get_or_insert_with(|| self.device.desk().want());
                at += 1;
                continue;
            };
            let Waiting { rts, admitted, .. } = self.landing.remove(at);
            match granted {
                Ok(granted) => {
                    let region = Region::new(granted, admitted);
                    let unwanted = queue.with_staged(|staged| staged.grant(rts, region));
                    unwanted.into_iter().for_each(Region::untold);
                }
                Err(error) => refuse(queue, rts, &error, (&*self.placement, received)),
            }
        }
    }

    /// Waits for staging memory, so that the next Write can be posted.
    pub(crate) fn need_staging(&mut self, len: usize) {
        if self.staging.is_none() {
            let deadline = Instant::now() + NEVER;
            self.staging = Some(Box::pin(self.device.staging().stage(len, deadline)));
        }
    }

    /// Whether staging memory is waited for.
    pub(crate) fn awaits_staging(&self) -> bool {
        self.staging.is_some()
    }

    fn poll_staging(&mut self, queue: &SendQueue, cx: &mut Context<'_>) -> Result<(), Error> {
        let Some(staging) = &mut self.staging else { return Ok(()) };
        let Poll::Ready(staged) = staging.as_mut().poll(cx) else { return Ok(()) };
        self.staging = None;
        let reserve = staged.map_err(|error| {
            let message = format!("no memory to send from: {error}");
            Error::new(ErrorKind::LocalResource, message)
        })?;
        drop(queue.with_staged(|stage| stage.set_reserve(reserve)));
        Ok(())
    }

    fn is_over(&mut self, at: Instant, cx: &mut Context<'_>) -> bool {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        timer.as_mut().poll(cx).is_ready()
    }
}

/// There is no memory for a body: its call ends with words instead.
fn refuse(
    queue: &SendQueue,
    rts: RtsNumber,
    why: &PoolError,
    (placement, received): (&dyn PlacementHook, &mut Vec<Incoming>),
) {
    let now = Instant::now();
    let Some(message) = queue.with_staged(|staged| staged.give_up(rts, now)) else { return };
    let words = format!("no memory to receive a message in: {why}");
    tracing::debug!(%words, "gave up a body");
    match message.head {
        Head::Request { call, .. } => {
            let answer = exhausted(call, words, Executed::No);
            let hints = SendHints::default();
            let outgoing = Outgoing { message: answer, hints };
            // Where there is no room for it the caller's deadline ends the call.
            drop(queue.with_staged(|staged| staged.push(outgoing)));
        }
        Head::Response { call, executed, .. } => {
            received.push(Incoming { message: exhausted(call, words, executed) });
        }
        // It is one of many of its call, so that this side's core has to end the call at both ends.
        head => placement.lost(&head, &words),
    }
}

fn exhausted(call: CallId, words: String, executed: Executed) -> Message {
    let code = Code::ResourceExhausted;
    let body = status::encode(&Status::new(code, words), 0);
    Message::with_body(Head::Response { call, code, executed, messages: None }, body)
}

impl Drop for Granting {
    /// Rights that nobody uses any more go to others before memory does.
    fn drop(&mut self) {
        drop(mem::take(&mut self.landing));
    }
}
