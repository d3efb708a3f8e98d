//! Event channels, each with one id on it, and ids with their channel in a runtime's reactor.
//!
//! A channel per id costs a descriptor and buys that a connection's events are read by its own task, on its own
//! runtime, and wait for nobody else's. An id that a connect request made begins on its listener's channel and
//! is moved to one of its own at once.

use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use rdma_sys::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_event_channel,
    rdma_get_cm_event,
};

use super::event::{CmEvent, CmEventKind};
use super::id::CmId;
use crate::verbs::channel::{Descriptor, Read, Readable, emptiness, set_nonblocking};
use crate::verbs::ret::{CallError, minus_one, non_null};

/// An event channel.
///
/// # Invariants
///
/// `raw` is an event channel until `self` drops; nothing else destroys it. Each id on it holds an `Arc` of
/// `self`, so it is destroyed or moved away before.
#[derive(Debug)]
pub(super) struct RawChannel {
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: nothing in librdmacm is bound to a thread (its manual pages are silent about it, its source is not); a
// channel's only state is its descriptor.
unsafe impl Send for RawChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawChannel {}

impl RawChannel {
    /// A channel that does not block.
    pub(super) fn create() -> Result<Arc<Self>, CallError> {
        // SAFETY: takes nothing.
        let raw = unsafe { rdma_create_event_channel() };
        let channel = Self { raw: non_null("rdma_create_event_channel", raw)? };
        set_nonblocking(channel.as_raw_fd())?;
        Ok(Arc::new(channel))
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_event_channel {
        self.raw.as_ptr()
    }

    /// Takes an event, copies and acknowledges it.
    pub(super) fn read(self: &Arc<Self>) -> Result<Read<CmEvent>, CallError> {
        const CALL: &str = "rdma_get_cm_event";
        let mut event = null_mut();
        // SAFETY: the channel exists (invariant), and `event` is this call's to write.
        let returned = unsafe { rdma_get_cm_event(self.as_ptr(), &raw mut event) };
        if let Read::Empty = emptiness(minus_one(CALL, returned))? {
            return Ok(Read::Empty);
        }
        let event = non_null(CALL, event)?;
        // SAFETY: the library gave it and nobody else has it until it is acknowledged.
        let raw = unsafe { event.as_ref() };
        let mut copied = CmEvent::copy(raw);
        if copied.kind == CmEventKind::CONNECT_REQUEST {
            // SAFETY: the library has made the id on this channel for this event, and nobody else has it.
            copied.request = NonNull::new(raw.id).map(|id| unsafe { CmId::own(id, self) });
        }
        // SAFETY: taken above and acknowledged once.
        let returned = unsafe { rdma_ack_cm_event(event.as_ptr()) };
        if let Err(error) = minus_one("rdma_ack_cm_event", returned) {
            tracing::error!(%error, "an event of the connection manager stays");
        }
        Ok(Read::Something(copied))
    }
}

impl AsRawFd for RawChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel exists (invariant); nothing writes to its descriptor.
        unsafe { (*self.as_ptr()).fd }
    }
}

impl Drop for RawChannel {
    fn drop(&mut self) {
        // SAFETY: the channel exists, no id is on it any more, and it is destroyed once (invariant).
        unsafe { rdma_destroy_event_channel(self.as_ptr()) }
    }
}

/// A hold on a channel, for the reactor.
struct EventChannel(Arc<RawChannel>);

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

// SAFETY: a channel has one descriptor, from its creation to its destruction, and the hold outlives neither.
unsafe impl Descriptor for EventChannel {}

/// An id whose events come to tasks, on the runtime that it was made on. Dropped, it is destroyed, off the
/// caller's thread.
pub(super) struct EventedId {
    id: CmId,
    events: Readable<EventChannel>,
}

impl EventedId {
    /// An id for a connection or a listener.
    pub(super) fn create() -> Result<Self, CallError> {
        let channel = RawChannel::create()?;
        let events = Readable::new(EventChannel(Arc::clone(&channel)))?;
        Ok(Self { id: CmId::create(&channel)?, events })
    }

    /// Moves the id of a connect request to a channel of its own. If that fails, the request is refused.
    pub(super) fn adopt(mut id: CmId) -> Result<Self, CallError> {
        let channel = RawChannel::create()?;
        let events = Readable::new(EventChannel(Arc::clone(&channel)))?;
        id.migrate(&channel)?;
        Ok(Self { id, events })
    }

    pub(super) fn id(&self) -> &CmId {
        &self.id
    }

    /// The id without the reactor.
    pub(super) fn into_id(self) -> CmId {
        self.id
    }

    /// The next event.
    pub(super) fn poll_event(&self, cx: &mut TaskContext<'_>) -> Poll<Result<CmEvent, CallError>> {
        self.events.poll(cx, |channel| channel.0.read())
    }
}
