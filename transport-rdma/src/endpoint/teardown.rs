//! The end of a queue pair.
//!
//! ```text
//!   1  wait until the peer has what was sent         at most close_timeout
//!   2  disconnect; move the queue pair to the error state
//!   3  take flushed work back                        at most drain_timeout
//!   4  destroy the queue pair                        by the reaper: it may block
//!   5  release the buffers that did not come back
//!   6  leave the completion queue; what still comes is known by its id and dropped
//! ```
//!
//! Receives that are shared are others': what comes is posted again in all steps, and none is waited for. The peer is told
//! nothing of these, so that it may send as much as it was promised at the end, and is cut off by step 2 if it sends more.
//!
//! Nobody waits for more than that: a receive that is posted in the error state never completes, some
//! devices flush only when they destroy, and a dead peer answers nothing. Destruction alone is proof (4).
//!
//! Dropped at any point, with a runtime that shuts down for example, it goes on with step 2 and leaves step
//! 3 out. So no buffer is ever lost, and none is released while a NIC may touch it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::watch;
use tokio::time::timeout;

use super::{Bounds, Endpoint};
use crate::device::Lease;
use crate::nic::{CmConnection, Qp};
use crate::reactor::{Awaited, Share};
use crate::reaper::Reaper;
use crate::rendezvous::Rendezvous;
use crate::shared::Membership;
use crate::work::{Completed, Work, Written};

/// Completions taken at a time.
const BATCH: usize = 64;

/// Batches taken in one poll before other tasks have their turn.
const ROUNDS: usize = 8;

/// What is left of an endpoint.
pub(super) struct Teardown {
    qp: Arc<dyn Qp>,
    /// `None` if the connection never stood, or is disconnected.
    events: Option<Box<dyn CmConnection>>,
    bounds: Bounds,
    reaper: Arc<dyn Reaper>,
    /// `None` only when `self` is about to drop.
    remains: Option<Remains>,
    /// Whether the queue pair is known to send nothing more.
    is_dead: bool,
    /// Frames that the peer may still send, where others share the receives.
    promised: u32,
}

/// What a look at the completion queue gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Some,
    /// It gives nothing any more.
    Lost,
}

/// What may be released only when the queue pair is destroyed. Dropped before, its buffers are leaked.
struct Remains {
    work: Work,
    rendezvous: Option<Rendezvous>,
    lease: Option<Lease>,
    share: Option<Share>,
    membership: Option<Membership>,
    open: Option<watch::Sender<()>>,
}

impl Teardown {
    pub(super) fn new(endpoint: &mut Endpoint) -> Self {
        let promised = endpoint.membership().map_or(0, Membership::promised);
        let work = endpoint.work().take();
        let rendezvous = endpoint.kept().take();
        endpoint.await_sends(Awaited::Yes);
        let remains = Remains {
            work,
            rendezvous,
            lease: endpoint.lease.take(),
            share: endpoint.share.take(),
            membership: endpoint.membership.take(),
            open: endpoint.open.take(),
        };
        Self {
            qp: Arc::clone(&endpoint.qp),
            events: endpoint.events().take(),
            bounds: endpoint.bounds,
            reaper: Arc::clone(&endpoint.reaper),
            remains: Some(remains),
            is_dead: false,
            promised,
        }
    }

    /// All steps; from the fourth on when `self` is dropped.
    pub(super) async fn run(mut self) {
        let bounds = self.bounds;
        let sent = poll_fn(|cx| self.poll_until(cx, |teardown| !teardown.expects_sent()));
        if timeout(bounds.close, sent).await.is_err() {
            tracing::debug!("the peer did not take the last frames of a closed connection in time");
        }
        self.disconnect();
        let empty = poll_fn(|cx| self.poll_until(cx, Self::is_empty));
        if timeout(bounds.drain, empty).await.is_err() {
            tracing::debug!("a queue pair in the error state kept buffers; its end frees them");
        }
    }

    fn expects_sent(&self) -> bool {
        let is_live = self.events.is_some() && !self.is_dead;
        is_live && self.remains.as_ref().is_some_and(|remains| remains.work.expects_sent())
    }

    fn is_empty(&self) -> bool {
        self.remains.as_ref().is_none_or(|remains| remains.work.is_empty())
    }

    /// Takes completions until `is_done`, or until there is no queue to take them from.
    fn poll_until(&mut self, cx: &mut Context<'_>, is_done: impl Fn(&Self) -> bool) -> Poll<()> {
        for _ in 0..ROUNDS {
            let taken = self.poll_completions(cx);
            if let Some(events) = &mut self.events {
                self.is_dead |= events.poll_disconnected(cx).is_ready();
            }
            // What is in flight on a lost queue comes back by destruction.
            if is_done(self) || taken == Poll::Ready(Taken::Lost) {
                return Poll::Ready(());
            }
            ready!(taken);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_completions(&mut self, cx: &mut Context<'_>) -> Poll<Taken> {
        let Some(Remains { work, share: Some(share), membership, .. }) = &mut self.remains else {
            return Poll::Ready(Taken::Lost);
        };
        let (mut taken, mut is_overrun) = (Vec::new(), false);
        if ready!(share.poll(cx, &mut taken, BATCH)).is_err() {
            return Poll::Ready(Taken::Lost);
        }
        for wc in &taken {
            let shared = membership.as_ref().and_then(|membership| membership.complete(wc));
            match shared.unwrap_or_else(|| work.complete(wc)) {
                Completed::Failed(_) => self.is_dead = true,
                Completed::Received(buf, _) => {
                    if let Some(membership) = membership {
                        // Others are promised it. If that fails, they hear of it.
                        let _told = membership.shared().repost([buf], &mut Vec::new());
                        is_overrun |= self.promised == 0;
                        self.promised = self.promised.saturating_sub(1);
                    }
                }
                Completed::Sent(_) | Completed::HelloSent | Completed::Stray => {}
            }
        }
        if is_overrun && !self.is_dead {
            tracing::debug!("a peer went on sending on a connection that is closed");
            self.is_dead = true;
            self.fail();
        }
        Poll::Ready(Taken::Some)
    }

    fn disconnect(&mut self) {
        if let Some(mut events) = self.events.take() {
            events.disconnect();
        }
        self.fail();
    }

    fn fail(&self) {
        self.qp.fail();
        let membership = self.remains.as_ref().and_then(|remains| remains.membership.as_ref());
        membership.into_iter().for_each(Membership::part);
    }
}

impl Drop for Teardown {
    fn drop(&mut self) {
        self.disconnect();
        let (qp, remains) = (Arc::clone(&self.qp), self.remains.take());
        self.reaper.run(Box::new(move || {
            let share = remains.as_ref().and_then(|remains| remains.share.as_ref());
            share.into_iter().for_each(Share::take_all);
            qp.destroy();
            remains.into_iter().for_each(Remains::release);
        }));
    }
}

impl Remains {
    /// The queue pair is destroyed.
    fn release(mut self) {
        self.work.release();
        // Before the pools can go, which the lease keeps.
        self.work.take_written(&mut Written::default());
        self.rendezvous.into_iter().for_each(Rendezvous::release);
        drop(self.lease);
        drop(self.share);
        drop(self.membership);
        drop(self.open);
    }
}
