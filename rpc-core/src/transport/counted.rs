//! A connection whose traffic is counted.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use super::{BoxFuture, Connection, Incoming, Outgoing, Path, SendError};
use crate::error::Error;
use crate::message::{CallId, Head, Message};

/// What went over a connection so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Calls that were begun.
    pub calls: u64,
    /// Bytes of metadata and bodies that were handed to the transport, as they go over the wire.
    pub sent_bytes: u64,
    /// The same that came.
    pub received_bytes: u64,
}

/// Counts what the connection underneath takes and gives, and changes nothing.
pub(crate) struct Counted {
    inner: Arc<dyn Connection>,
    calls: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counted {
    pub(crate) fn new(inner: Arc<dyn Connection>) -> Arc<Self> {
        let (calls, sent, received) = Default::default();
        Arc::new(Self { inner, calls, sent, received })
    }

    pub(crate) fn traffic(&self) -> Traffic {
        // Counts that belong to no moment together: people read them.
        Traffic {
            calls: self.calls.load(Ordering::Relaxed),
            sent_bytes: self.sent.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
        }
    }

    fn count(&self, bytes: &AtomicU64, (calls, len): (u64, u64)) {
        bytes.fetch_add(len, Ordering::Relaxed);
        if calls > 0 {
            self.calls.fetch_add(calls, Ordering::Relaxed);
        }
    }
}

/// Calls that a message begins, and its bytes.
fn size(message: &Message) -> (u64, u64) {
    let calls = u64::from(matches!(message.head, Head::Request { .. }));
    (calls, (message.metadata.len() + message.body.len()) as u64)
}

impl Connection for Counted {
    fn try_send(&self, outgoing: Outgoing) -> Result<(), SendError> {
        let size = size(&outgoing.message);
        self.inner.try_send(outgoing)?;
        self.count(&self.sent, size);
        Ok(())
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_ready(cx)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<(), Error>> {
        let before = received.len();
        let polled = self.inner.poll_recv(cx, received);
        let sizes = received.iter().skip(before).map(|incoming| size(&incoming.message));
        let sum = sizes.fold((0, 0), |(calls, bytes), (call, len)| (calls + call, bytes + len));
        if sum != (0, 0) {
            self.count(&self.received, sum);
        }
        polled
    }

    fn revoke(&self, call: CallId) {
        self.inner.revoke(call);
    }

    fn close(&self, cause: Error) {
        self.inner.close(cause);
    }

    fn retire(&self) -> BoxFuture<'static, ()> {
        self.inner.retire()
    }

    fn path(&self) -> Path {
        self.inner.path()
    }

    fn capability(&self, id: TypeId) -> Option<&(dyn Any + Send + Sync)> {
        self.inner.capability(id)
    }
}
