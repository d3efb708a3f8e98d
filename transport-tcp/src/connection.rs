//! One connection: the `Connection` of the seam over the two halves of a socket.
//!
//! Owns the send queue, the receiver and what tasks tell the driver. Three locks, never nested but in this
//! order, and none held while waiting:
//!
//! * `inbound`: the driver's, held while it reads. Closing tries it and never waits.
//! * the queue's `post`: held while frames are written; only ever tried.
//! * the queue's `staged`: for moments.
//!
//! **Ending.** `end` marks the stage; from then on nothing is accepted. Whoever has the post lock next lets
//! the writing half go, whoever has the inbound lock next the reading half. Both look at the mark after
//! they gave their lock back, so that a `close` that found it taken is not missed: either its mark came
//! before that look, or the lock was free when it tried. This needs no living driver.

use std::any::{Any, TypeId};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::{Context, Poll};

use tokio::sync::watch;
use verbwire_core::message::CallId;
use verbwire_core::transport::driver::DriverSignal;
use verbwire_core::transport::inbound::InboundLimits;
use verbwire_core::transport::post::Posted;
use verbwire_core::transport::stall::Stall;
use verbwire_core::transport::{
    BoxFuture, Connection, Established, Flush, Incoming, LocalSide, Outgoing, Path,
    PeerCertificates, PlacementHook, SendError,
};
use verbwire_core::wire::Hello;
use verbwire_core::{Error, ErrorKind};

use crate::config::Shared;
use crate::decoder::FrameDecoder;
use crate::error;
use crate::handshake::{self, Side};
use crate::outbound::{EndKind, Outbound, OutboundLimits, Revoked};
use crate::poster::{Poster, SendQueue};
use crate::receiver::Receiver;
use crate::stream::Stream;
use crate::written::Written;

/// A connection over a byte stream.
pub(crate) struct StreamConnection {
    queue: SendQueue,
    /// `None` once the connection has ended.
    inbound: Mutex<Option<Inbound>>,
    driver: DriverSignal,
    /// Errs once the socket is closed.
    closed: watch::Receiver<()>,
    path: Path,
    certificates: Option<PeerCertificates>,
}

/// The driver's state.
struct Inbound {
    receiver: Receiver,
    stall: Stall,
    written: Written,
    write: WriteState,
}

/// What the driver does about writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteState {
    /// Nothing is known to be staged.
    Idle,
    /// It let others run once, so that they stage more; it writes in this poll.
    Yielded,
    /// The socket took no more.
    Blocked,
}

impl StreamConnection {
    /// Exchanges HELLO over a connected socket, and makes the connection.
    pub(crate) async fn establish(
        mut stream: impl Stream,
        side: Side,
        path: Path,
        shared: &Shared,
        local: LocalSide,
    ) -> Result<Established, Error> {
        let LocalSide { hello, placement, deadline, .. } = local;
        let peer = handshake::exchange(&mut stream, side, &hello, &path.peer, deadline).await?;
        let connection = Self::new(stream, path, (&hello, &peer), placement, shared);
        Ok(Established { connection: Arc::new(connection), peer })
    }

    /// A connection over a socket on which HELLO was exchanged.
    fn new(
        stream: impl Stream,
        path: Path,
        (local, peer): (&Hello, &Hello),
        placement: Arc<dyn PlacementHook>,
        shared: &Shared,
    ) -> Self {
        let certificates = stream.certificates();
        let (read, write, closed) = stream.into_halves();
        let written = Written::default();
        let outbound = Outbound::new(OutboundLimits::new(local, peer, &shared.config));
        let decoder =
            FrameDecoder::new(InboundLimits::new(local, peer), Arc::clone(&shared.landing));
        Self {
            queue: SendQueue::new(outbound, Poster::new(write, written.clone())),
            inbound: Mutex::new(Some(Inbound {
                receiver: Receiver::new(read, decoder, placement),
                stall: Stall::new(shared.config.stall_timeout),
                written,
                write: WriteState::Idle,
            })),
            driver: DriverSignal::default(),
            closed,
            path,
            certificates,
        }
    }

    /// Writes what is staged, unless another task does.
    fn post(&self) -> Posted {
        self.queue.post(|poster, queue| poster.hand_over(queue, &self.driver))
    }

    /// Ends the connection and lets go of what no other task is using at this moment.
    fn end(&self, cause: Error) {
        let waiting = self.queue.with_staged(|staged| staged.end(EndKind::Closed, cause));
        self.release();
        waiting.into_iter().for_each(|waker| waker.wake());
        self.driver.wake();
    }

    /// Lets go of the socket if the connection has ended. See "Ending" above.
    fn release(&self) {
        let how = self.queue.with_staged(|staged| staged.ended().map(|(how, _)| how));
        let Some(how) = how else { return };
        self.post();
        if how == EndKind::Broken {
            return;
        }
        let mut inbound = match self.inbound.try_lock() {
            Ok(inbound) => inbound,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let released = inbound.take();
        drop(inbound);
        drop(released);
    }

    fn cause(&self) -> Error {
        self.queue
            .with_staged(|staged| staged.ended().map(|(_, cause)| cause.clone()))
            .unwrap_or_else(|| Error::new(ErrorKind::Closed, "the connection is closed"))
    }

    /// One poll of the driver, under the inbound lock.
    fn drive(
        &self,
        inbound: &mut Inbound,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<(), Error>> {
        if let Poll::Ready(cause) = self.drive_writes(inbound, cx) {
            self.mark_ended(EndKind::Closed, cause);
        }
        let ended = self
            .queue
            .with_staged(|staged| staged.ended().map(|(how, cause)| (how, cause.clone())));
        if let Some((EndKind::Closed, cause)) = ended {
            return Poll::Ready(Err(cause));
        }
        match (inbound.receiver.poll_read(cx, received), ended) {
            (Poll::Pending, Some((_, cause))) => Poll::Ready(Err(cause)),
            (Poll::Ready(Err(error)), _) if !error.is_peer_fault() => {
                self.mark_ended(EndKind::Closed, error);
                Poll::Ready(Err(self.cause()))
            }
            // After a violation the stage stays open: the core says GOAWAY before it closes.
            (polled, _) => polled,
        }
    }

    /// Writes if that is the driver's turn; ready if the connection has to end.
    fn drive_writes(&self, inbound: &mut Inbound, cx: &mut Context<'_>) -> Poll<Error> {
        if !self.driver.is_due() {
            inbound.write = WriteState::Idle;
            return Poll::Pending;
        }
        if inbound.write == WriteState::Idle {
            // The runtime tends to run a woken task next. Going behind the tasks that are ready lets
            // them stage their messages first, and one write carries all.
            inbound.write = WriteState::Yielded;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.driver.begin_write();
        if self.post() == Posted::All {
            inbound.write = WriteState::Idle;
            inbound.stall.clear();
            return Poll::Pending;
        }
        self.driver.stay_due();
        match inbound.receiver.poll_write_ready(cx) {
            Poll::Ready(Ok(())) => {
                inbound.write = WriteState::Yielded;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Err(error)) => Poll::Ready(error::lost("sending", error)),
            Poll::Pending => {
                inbound.write = WriteState::Blocked;
                inbound.stall.poll_stalled(cx, inbound.written.total())
            }
        }
    }

    fn mark_ended(&self, how: EndKind, cause: Error) {
        let waiting = self.queue.with_staged(|staged| staged.end(how, cause));
        waiting.into_iter().for_each(|waker| waker.wake());
    }
}

impl Connection for StreamConnection {
    fn try_send(&self, outgoing: Outgoing) -> Result<(), SendError> {
        let flush = outgoing.hints.flush;
        self.queue.with_staged(|staged| staged.push(outgoing))?;
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
            let mut inbound = self.inbound.lock().unwrap_or_else(PoisonError::into_inner);
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
        if self.queue.with_staged(|staged| staged.revoke(call)) == Revoked::Aborted {
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
        let mut closed = self.closed.clone();
        Box::pin(async move { while closed.changed().await.is_ok() {} })
    }

    fn path(&self) -> Path {
        self.path.clone()
    }

    fn capability(&self, id: TypeId) -> Option<&(dyn Any + Send + Sync)> {
        let certificates = self.certificates.as_ref()?;
        (id == TypeId::of::<PeerCertificates>()).then_some(certificates)
    }
}
