//! One connection: the `Connection` of the seam over a queue pair.
//!
//! Owns the send queue, the receiver and what tasks tell the driver. Locks, never nested but in this order, and
//! none held while waiting:
//!
//! * `inbound`: the driver's, held while it polls. Closing tries it and never waits.
//! * the queue's `post`: held while frames are posted; only ever tried.
//! * the queue's `staged`, and the endpoint's table of work: for moments, one at a time.
//!
//! **Ending.** `end` marks the stage; from then on nothing is accepted. Whoever has the post lock next lets
//! the poster's hold on the endpoint go, whoever has the inbound lock next the receiver's. Both look at the
//! mark after they gave their lock back, so that a `close` that found it taken is not missed: either its mark
//! came before that look, or the lock was free when it tried. With both holds gone nobody posts any more,
//! and the endpoint's own end begins (`endpoint::teardown`). This needs no living driver.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use verbwire_core::message::CallId;
use verbwire_core::transport::driver::DriverSignal;
use verbwire_core::transport::post::{Posted, Staged};
use verbwire_core::transport::pressure::PressureWatch;
use verbwire_core::transport::stall::Stall;
use verbwire_core::transport::{
    BoxFuture, Connection, DeviceInfo, Flush, Incoming, Outgoing, Path, SendError, SendHints,
};
use verbwire_core::{Error, ErrorKind};

use crate::error::ReceiveError;
use crate::outbound::{EndKind, NextPost, Outbound, Revoked, Standing};
use crate::poster::{Poster, Role, SendQueue};
use crate::reactor::{Awaited, Left};
use crate::receiver::{Progress, Receiver};
use crate::rendezvous::{Granting, Offer, Offers};

/// Batches of completions in one poll. 16: half a thousand frames; then other tasks have their turn.
const ROUNDS: usize = 16;

/// A connection over a queue pair on which HELLO was exchanged.
pub(crate) struct RdmaConnection {
    queue: SendQueue,
    /// `None` once the connection has ended.
    inbound: Mutex<Option<Inbound>>,
    driver: Arc<DriverSignal>,
    offers: Offers,
    /// What received messages hold of the device's landing memory.
    pressure: PressureWatch,
    /// Errs once the queue pair is destroyed.
    destroyed: watch::Receiver<()>,
    path: Path,
    device: DeviceInfo,
}

/// The driver's state.
struct Inbound {
    receiver: Receiver,
    /// Whether Writes are in flight, which the driver alone posts.
    writes: Awaited,
    granting: Granting,
    post: PostState,
    /// Completions so far: as long as there are some, the peer lives.
    completions: u64,
    stall: Stall,
}

/// What the driver does about posting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PostState {
    /// Nothing is known to be staged, or it has to wait for completions.
    Idle,
    /// It let others run once, so that they stage more; it posts in this poll.
    Yielded,
}

/// What the stage holds for the poster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    Frames,
}

impl RdmaConnection {
    pub(crate) fn new(
        outbound: Outbound,
        poster: Poster,
        (receiver, granting, offers): (Receiver, Granting, Offers),
        (driver, destroyed): (Arc<DriverSignal>, watch::Receiver<()>),
        (path, device): (Path, DeviceInfo),
        stall_timeout: Duration,
    ) -> Self {
        let stall = Stall::new(stall_timeout);
        let (writes, post) = (Awaited::No, PostState::Idle);
        let inbound = Inbound { receiver, writes, granting, post, completions: 0, stall };
        Self {
            queue: SendQueue::new(outbound, poster),
            inbound: Mutex::new(Some(inbound)),
            driver,
            pressure: offers.pressure(),
            offers,
            destroyed,
            path,
            device,
        }
    }

    /// Posts what is staged, Writes apart, unless another task does.
    fn post(&self) -> Posted {
        self.queue.post(|poster, queue| poster.hand_over(queue, &self.driver, Role::Caller))
    }

    /// Ends the connection and lets go of what no other task is using at this moment.
    fn end(&self, cause: Error) {
        self.mark_ended(EndKind::Closed, cause);
        self.release();
        self.driver.wake();
    }

    /// Lets go of the endpoint if the connection has ended. See "Ending" above.
    fn release(&self) {
        let how = self.queue.with_staged(|staged| staged.ended().map(|(how, _)| how));
        let Some(how) = how else { return };
        self.post();
        if how == EndKind::Broken {
            return;
        }
        let Some(mut inbound) = self.inbound.try_lock() else { return };
        let released = inbound.take();
        drop(inbound);
        let Some(released) = released else { return };
        let rendezvous = self.queue.with_staged(Outbound::take_rendezvous);
        rendezvous.into_iter().for_each(|rendezvous| released.receiver.keep(rendezvous));
        drop(released);
    }

    fn cause(&self) -> Error {
        self.queue
            .with_staged(|staged| staged.ended().map(|(_, cause)| cause.clone()))
            .unwrap_or_else(|| Error::new(ErrorKind::Closed, "the connection is closed"))
    }

    fn mark_ended(&self, how: EndKind, cause: Error) {
        let waiting = self.queue.with_staged(|staged| staged.end(how, cause));
        waiting.into_iter().for_each(|waker| waker.wake());
    }

    /// One poll of the driver, under the inbound lock.
    fn drive(
        &self,
        inbound: &mut Inbound,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<(), Error>> {
        let before = received.len();
        self.drive_posts(inbound, cx);
        for _ in 0..ROUNDS {
            let Standing { ended, is_busy, replies } =
                self.queue.with_staged(|staged| staged.standing());
            inbound.receiver.watch_replies(replies);
            self.drive_loans(inbound);
            match ended {
                Some((EndKind::Closed, cause)) => return Poll::Ready(Err(cause)),
                Some((EndKind::Broken, cause)) => inbound.receiver.lost(cause),
                None => {}
            }
            if is_busy {
                self.drive_grants(inbound, cx, received);
            }
            if received.len() > before {
                return Poll::Ready(Ok(()));
            }
            let receiver = &mut inbound.receiver;
            let progress = match receiver.poll_completions(cx, &self.queue, received) {
                Poll::Ready(Ok(progress)) => progress,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.failed(error))),
                Poll::Pending => return self.poll_stalled(inbound, cx).map(Err),
            };
            let left = progress.left;
            inbound.completions += 1;
            // Credits go out before anybody looks at the messages.
            match self.account(progress, &mut inbound.writes) {
                Ok(Due::Nothing) => receiver.await_sends(inbound.writes),
                Ok(Due::Frames) => self.post_now(inbound),
                Err(overrun @ ReceiveError::Overrun(_)) => receiver.overrun(overrun.into()),
                Err(violation) => {
                    receiver.violated(violation.into());
                    self.post_now(inbound);
                }
            }
            if received.len() > before {
                return match left == Left::Nothing && self.is_settled(inbound, cx) {
                    true => Poll::Pending,
                    false => Poll::Ready(Ok(())),
                };
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Completions were taken and none are left: whether that is all, so that another poll would do nothing but wait.
    /// Whatever comes from now on wakes the task.
    fn is_settled(&self, inbound: &mut Inbound, cx: &mut Context<'_>) -> bool {
        // Who has loans, or long bodies under way, or waits for the peer, has more to look at.
        if inbound.receiver.membership().is_some()
            || !self.queue.with_staged(|staged| staged.is_quiet())
        {
            return false;
        }
        inbound.stall.clear();
        inbound.receiver.poll_end(cx, &self.queue).is_pending()
    }

    /// Nothing happens. Ready, and ended, if the peer has let this side wait for too long.
    fn poll_stalled(&self, inbound: &mut Inbound, cx: &mut Context<'_>) -> Poll<Error> {
        if !self.queue.with_staged(|staged| staged.waits_for_peer()) {
            inbound.stall.clear();
            return Poll::Pending;
        }
        inbound.stall.poll_stalled(cx, inbound.completions).map(|cause| self.failed(cause))
    }

    /// Nothing more is received. Returns what the driver is told.
    fn failed(&self, error: Error) -> Error {
        // After a violation the stage stays open: the core says GOAWAY before it closes.
        if error.is_peer_fault() && !self.has_ended() {
            return error;
        }
        self.mark_ended(EndKind::Closed, error);
        self.cause()
    }

    fn has_ended(&self) -> bool {
        self.queue.with_staged(|staged| staged.ended().is_some())
    }

    fn account(&self, progress: Progress<'_>, writes: &mut Awaited) -> Result<Due, ReceiveError> {
        self.queue.with_staged(|staged| {
            staged.handle_sent(progress.sent);
            if staged.is_busy() {
                staged.handle_written(progress.written);
                staged.handle_invalidated(progress.invalidated);
                *writes = if staged.awaits_writes() { Awaited::Yes } else { Awaited::No };
                if !progress.accounts.is_empty() {
                    staged.handle_arrival(Instant::now());
                }
            }
            for account in progress.accounts {
                staged.handle_received(*account)?;
            }
            Ok(if staged.is_empty() { Due::Nothing } else { Due::Frames })
        })
    }

    /// Posts what others left to the driver, after letting them stage more.
    fn drive_posts(&self, inbound: &mut Inbound, cx: &mut Context<'_>) {
        if !self.driver.is_due() {
            return;
        }
        match inbound.post {
            PostState::Idle => {
                // The runtime tends to run a woken task next. Going behind the tasks that are ready lets
                // them stage their messages first, and one post carries all.
                inbound.post = PostState::Yielded;
                cx.waker().wake_by_ref();
            }
            PostState::Yielded => {
                inbound.post = PostState::Idle;
                self.post_now(inbound);
            }
        }
    }

    /// Posts as the driver. What has to wait for credits or slots is posted when completions bring them.
    fn post_now(&self, inbound: &mut Inbound) {
        self.driver.begin_write();
        let posted = self.queue.post(|poster, queue| {
            let posted = poster.hand_over(queue, &self.driver, Role::Driver);
            if poster.take_wrote() == Awaited::Yes {
                inbound.writes = Awaited::Yes;
            }
            posted
        });
        let mut awaited = inbound.writes;
        if posted == Posted::Blocked {
            match self.queue.with_staged(|staged| staged.next_post()) {
                NextPost::Now => self.driver.write_soon(),
                NextPost::AfterSends => awaited = Awaited::Yes,
                NextPost::AfterCredits => {}
                NextPost::AfterMemory => self.need_memory(inbound),
            }
        }
        inbound.receiver.await_sends(awaited);
    }

    /// There was no memory for the next Write: waits for some.
    fn need_memory(&self, inbound: &mut Inbound) {
        match self.queue.with_staged(|staged| staged.needed_reserve()) {
            Some(_) if inbound.granting.awaits_staging() => {}
            Some(len) => {
                inbound.granting.need_staging(len);
                // It is polled in the next poll of this task.
                self.driver.wake();
            }
            // The post ended before it was the Write's turn.
            None => self.driver.write_soon(),
        }
    }

    /// Tells the peer how its window has changed, and others what the peer has said of it.
    fn drive_loans(&self, inbound: &mut Inbound) {
        let Some(membership) = inbound.receiver.membership() else { return };
        let now = Instant::now();
        match self.queue.with_staged(|staged| staged.take_asked()) {
            Some(asked) => membership.handle(asked, now),
            None => membership.look(now),
        }
        match membership.take_changes() {
            Ok(changes) if changes.is_empty() => {}
            Ok(changes) => {
                self.queue.with_staged(|staged| {
                    changes.into_iter().for_each(|change| staged.lend(change));
                });
                self.post_now(inbound);
            }
            Err(error) => inbound.receiver.lost(error),
        }
    }

    /// Goes on with the long bodies, as far as nothing has to be waited for.
    fn drive_grants(
        &self,
        inbound: &mut Inbound,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) {
        if let Err(error) = inbound.granting.poll(&self.queue, cx, received) {
            inbound.receiver.lost(error);
        }
        inbound.receiver.isolated(inbound.granting.take_landed(), &self.queue, received);
        if self.queue.with_staged(|staged| staged.has_work_of_grants()) {
            self.post_now(inbound);
        }
    }
}

impl Connection for RdmaConnection {
    fn try_send(&self, outgoing: Outgoing) -> Result<(), SendError> {
        let SendHints { flush, expected_reply, .. } = outgoing.hints;
        match expected_reply.and_then(|len| self.offers.make(len)) {
            None => self.queue.with_staged(|staged| staged.push(outgoing))?,
            Some(offer) => {
                let (pushed, offer) =
                    self.queue.with_staged(|staged| staged.push_offering(outgoing, offer));
                offer.into_iter().for_each(Offer::take_back);
                pushed?;
            }
        }
        if flush == Flush::Batch || self.driver.is_due() {
            self.driver.write_soon();
        } else if self.post() == Posted::Blocked {
            self.driver.write_soon();
            self.release();
        }
        Ok(())
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.queue.with_staged(|staged| staged.wait(cx.waker())) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<(), Error>> {
        let revoked = self.driver.begin_poll(cx.waker());
        let polled = {
            let mut inbound = self.inbound.lock();
            match &mut *inbound {
                Some(inbound) => {
                    for call in revoked {
                        inbound.receiver.revoke(call);
                    }
                    self.drive(inbound, cx, received)
                }
                None => Poll::Ready(Err(self.cause())),
            }
        };
        self.release();
        polled
    }

    fn revoke(&self, call: CallId) {
        let now = Instant::now();
        if self.queue.with_staged(|staged| staged.revoke(call, now)) == Revoked::Body {
            self.driver.write_soon();
        }
        self.driver.revoke(call);
    }

    fn close(&self, cause: Error) {
        self.end(cause);
    }

    fn retire(&self) -> BoxFuture<'static, ()> {
        let cause = "this side retired the connection";
        self.end(Error::new(ErrorKind::Closed, cause));
        let mut destroyed = self.destroyed.clone();
        Box::pin(async move { while destroyed.changed().await.is_ok() {} })
    }

    fn path(&self) -> Path {
        self.path.clone()
    }

    fn capability(&self, id: TypeId) -> Option<&(dyn Any + Send + Sync)> {
        if id == TypeId::of::<DeviceInfo>() {
            return Some(&self.device);
        }
        (id == TypeId::of::<PressureWatch>()).then_some(&self.pressure as _)
    }
}

impl Drop for RdmaConnection {
    fn drop(&mut self) {
        // The peer gets what was sent before, as from a socket.
        self.end(Error::new(ErrorKind::Closed, "the connection was dropped"));
    }
}
