//! The task of a client's connection.
//!
//! Receives and wakes callers, sends CANCELs, ends calls at their deadline, and ends them all when the
//! connection ends, or the runtime that this task runs on.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tracing::debug;

use super::link::Shared;
use crate::alarm::Alarm;
use crate::error::{Error, ErrorKind};
use crate::message::{CallId, Head, Message};
use crate::pulse::Pulse;
use crate::transport::{Incoming, Outgoing, SendError, SendHints};

/// Batches received in one poll before other tasks get their turn.
const BATCHES_PER_POLL: usize = 16;

/// Drives one connection until it ends.
pub(super) struct Driver {
    shared: Arc<Shared>,
    received: Vec<Incoming>,
    wakers: Vec<Waker>,
    revoked: Vec<CallId>,
    alarm: Alarm,
    pulse: Pulse,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, pulse: Pulse) -> Self {
        Self {
            shared,
            received: Vec::new(),
            wakers: Vec::new(),
            revoked: Vec::new(),
            alarm: Alarm::default(),
            pulse,
        }
    }

    /// Receives what is there. Ready with the cause when the connection has ended.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        for _ in 0..BATCHES_PER_POLL {
            let polled = self.shared.connection.poll_recv(cx, &mut self.received);
            if !self.received.is_empty() {
                self.deliver();
            }
            match polled {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(cause)) => return Poll::Ready(cause),
                Poll::Ready(Ok(())) => {}
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Hands a batch to its callers: the table is locked once, and they are woken afterwards.
    fn deliver(&mut self) {
        let Self { shared, received, wakers, revoked, pulse, .. } = self;
        pulse.handle_heard();
        let delivered: Result<(), Error> = shared.table.with(|calls| {
            for incoming in received.drain(..) {
                let mut message = incoming.message;
                if pulse.handle_message(&message.head) {
                    continue;
                }
                message.body = shared.compressed.receive(message.encoding, message.body);
                let delivered = calls.handle_message(message)?;
                wakers.extend(delivered.waker);
                wakers.extend(delivered.others);
                revoked.extend(delivered.revoke);
            }
            Ok(())
        });
        revoked.drain(..).for_each(|call| shared.connection.revoke(call));
        wakers.drain(..).for_each(Waker::wake);
        if let Err(cause) = delivered {
            shared.connection.close(cause);
        }
    }

    fn poll_deadlines(&mut self, cx: &mut Context<'_>) {
        loop {
            let next = self.shared.table.with(|calls| calls.next_timeout());
            let Poll::Ready(now) = self.alarm.poll(next, cx) else {
                return;
            };
            let why = || self.shared.pressure.excess();
            let expired = self.shared.table.with(|calls| calls.handle_timeout(now, why));
            for (call, waker) in expired {
                self.shared.connection.revoke(call);
                waker.into_iter().for_each(Waker::wake);
            }
        }
    }

    fn poll_cancels(&mut self, cx: &mut Context<'_>) {
        let connection = &self.shared.connection;
        while let Some(call) = self.shared.table.with(|calls| calls.poll_cancel()) {
            let message = Message::bare(Head::Cancel { call });
            match connection.try_send(Outgoing { message, hints: SendHints::default() }) {
                Ok(()) => {
                    // Only now: revoking wakes this task, which would spin while the queue is full.
                    connection.revoke(call);
                    let slot = self.shared.table.with(|calls| calls.handle_cancel_sent());
                    self.shared.release(slot);
                }
                Err(SendError::Full(_)) => {
                    if connection.poll_ready(cx).is_pending() {
                        return;
                    }
                }
                Err(SendError::Closed(_)) => return,
            }
        }
    }

    /// After GOAWAY: whoever waits for a slot is refused at once, and without calls the connection ends, here and on a second
    /// path.
    fn wind_down(&self) {
        let (leaving, is_drained) = self
            .shared
            .table
            .with(|calls| (calls.leaving().map(str::to_owned), calls.is_drained()));
        if let Some(why) = leaving {
            self.shared.refuse_waiting(why);
        }
        if is_drained && !self.shared.is_held() {
            let cause = "the server went away and no call needs the connection any more";
            self.shared.connection.close(Error::new(ErrorKind::Closed, cause));
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Before anything is looked at, so that work which comes up meanwhile wakes this task again.
        self.shared.table.set_driver(cx.waker());
        let received = self.poll_receive(cx);
        self.poll_deadlines(cx);
        self.poll_cancels(cx);
        self.wind_down();
        let Self { shared, pulse, .. } = &mut *self;
        pulse.poll(&*shared.connection, cx);
        received.map(|cause| {
            let path = self.shared.connection.path();
            debug!(%path, %cause, "connection ended");
            let message = format!("the connection to {} ended", path.peer);
            self.shared.end(&Error::with_source(cause.kind(), message, cause));
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let cause = match std::thread::panicking() {
            true => {
                "the connection's task panicked, in what a transport or a user's message did; connect anew"
            }
            false => {
                "the runtime on which the channel was connected has shut down; connect on one that lives"
            }
        };
        let cause = Error::new(ErrorKind::Closed, cause);
        self.shared.connection.close(cause.clone());
        // Changes nothing where the connection has ended before.
        self.shared.end(&cause);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
