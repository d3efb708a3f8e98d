//! Ids of the connection manager, each with an event channel of its own.
//!
//! A channel per id costs a descriptor and buys that a connection's events are read by its own task, on its own
//! runtime, and wait for nobody else's. An id that a connect request made begins on its listener's
//! channel and is moved to one of its own at once.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};

use rdma_sys::{
    ibv_qp_attr, ibv_qp_attr_mask, rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_cm_id,
    rdma_conn_param, rdma_connect, rdma_create_event_channel, rdma_create_id,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_disconnect, rdma_establish,
    rdma_event_channel, rdma_free_devices, rdma_get_cm_event, rdma_get_devices, rdma_init_qp_attr,
    rdma_listen, rdma_migrate_id, rdma_port_space, rdma_reject, rdma_resolve_addr,
    rdma_resolve_route, rdma_set_option,
};

use super::address::RawAddress;
use super::event::CmEvent;
use crate::nic::MAX_PRIVATE_DATA;
use crate::verbs::abi::{OPTION_ID_ACK_TIMEOUT, OPTION_LEVEL_ID};
use crate::verbs::channel::{Descriptor, Read, Readable, emptiness};
use crate::verbs::context;
use crate::verbs::fate::PortNumber;
use crate::verbs::reaper::reap;
use crate::verbs::ret::{CallError, minus_one, non_null};

/// The library changes its table of ids without a lock on one path, so creating and destroying are serialised.
static IDS: Mutex<()> = Mutex::new(());

fn ids() -> MutexGuard<'static, ()> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the library look which devices there are. It keeps a context of each that it ever used, and only by
/// this lets go of one that was removed, for which the kernel waits.
pub(in crate::verbs) fn refresh_devices() {
    let _serialised = ids();
    // SAFETY: the place for the count may be null.
    let list = unsafe { rdma_get_devices(null_mut()) };
    if let Ok(list) = non_null("rdma_get_devices", list) {
        // SAFETY: the list was returned by the call above and is freed once.
        unsafe { rdma_free_devices(list.as_ptr()) }
    }
}

/// An event channel.
///
/// # Invariants
///
/// `raw` is an event channel until `self` drops; nothing else destroys it. Ids on it are destroyed or moved
/// away before.
struct EventChannel {
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: nothing in librdmacm is bound to a thread. Its tables and ids have locks of its own (its manual pages are
// silent about it, its source is not), but for the one path that `IDS` serialises; a channel's only state is
// its descriptor.
unsafe impl Send for EventChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    fn create() -> Result<Self, CallError> {
        // SAFETY: takes nothing.
        let raw = unsafe { rdma_create_event_channel() };
        Ok(Self { raw: non_null("rdma_create_event_channel", raw)? })
    }

    /// Takes an event, copies and acknowledges it.
    fn read(&self) -> Result<Read<CmEvent>, CallError> {
        const CALL: &str = "rdma_get_cm_event";
        let mut event = null_mut();
        // SAFETY: the channel exists (invariant), and `event` is this call's to write.
        let returned = unsafe { rdma_get_cm_event(self.raw.as_ptr(), &raw mut event) };
        if let Read::Empty = emptiness(minus_one(CALL, returned))? {
            return Ok(Read::Empty);
        }
        let event = non_null(CALL, event)?;
        // SAFETY: the library gave it and nobody else has it until it is acknowledged.
        let copied = CmEvent::copy(unsafe { event.as_ref() });
        // SAFETY: taken above and acknowledged once.
        let returned = unsafe { rdma_ack_cm_event(event.as_ptr()) };
        if let Err(error) = minus_one("rdma_ack_cm_event", returned) {
            tracing::error!(%error, "an event of the connection manager stays");
        }
        Ok(Read::Something(copied))
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel exists (invariant); nothing writes to its descriptor.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

// SAFETY: a channel has one descriptor, from its creation to its destruction, which is by `Drop`.
unsafe impl Descriptor for EventChannel {}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: the channel exists, no id is on it any more, and it is destroyed once (invariant).
        unsafe { rdma_destroy_event_channel(self.raw.as_ptr()) }
    }
}

/// An id as the library has it.
///
/// # Invariants
///
/// `raw` is an id until `self` drops, which destroys it. All its events were acknowledged when they were
/// read, so that its destruction waits for none. Its channel lives longer: whoever owns `self` holds it.
struct RawId {
    raw: NonNull<rdma_cm_id>,
}

// SAFETY: as for `EventChannel`.
unsafe impl Send for RawId {}
// SAFETY: as for `EventChannel`.
unsafe impl Sync for RawId {}

impl RawId {
    fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }
}

impl Drop for RawId {
    fn drop(&mut self) {
        let _serialised = ids();
        // SAFETY: the id exists and is destroyed once (invariant).
        let returned = unsafe { rdma_destroy_id(self.as_ptr()) };
        if let Err(error) = minus_one("rdma_destroy_id", returned) {
            tracing::error!(%error, "an id of the connection manager stays");
        }
    }
}

/// In the order in which they go: the id is destroyed, the channel leaves the reactor and is closed.
struct Parts {
    id: RawId,
    channel: Readable<EventChannel>,
}

/// An id on a channel in a runtime's reactor. Dropped, it lets go of its connection, off the caller's thread.
pub(in crate::verbs) struct CmId {
    /// `None` only when `self` is about to drop.
    parts: Option<Parts>,
}

/// What a side says when it connects or accepts.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) rnr_retry: u8,
    pub(super) qp: crate::nic::QpNumber,
}

/// How often a packet is sent again before the peer is given up: the most that there is.
const RETRIES: u8 = 7;

impl Offer {
    /// The library's form, which borrows the private data.
    fn raw(&self) -> rdma_conn_param {
        let data = &self.private_data[..self.private_data.len().min(MAX_PRIVATE_DATA)];
        rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: u8::try_from(data.len()).unwrap_or(0),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: self.rnr_retry,
            srq: 0,
            qp_num: self.qp.0,
        }
    }
}

impl CmId {
    /// An id for a connection or a listener, in the reactor of the current runtime.
    pub(super) fn create() -> Result<Self, CallError> {
        let channel = Readable::new(EventChannel::create()?)?;
        let mut raw = null_mut();
        let on = channel.get().raw.as_ptr();
        let returned = {
            let _serialised = ids();
            // SAFETY: the channel exists and is kept longer than the id; `raw` is this call's to write.
            unsafe { rdma_create_id(on, &raw mut raw, null_mut(), rdma_port_space::RDMA_PS_TCP) }
        };
        minus_one("rdma_create_id", returned)?;
        let id = RawId { raw: non_null("rdma_create_id", raw)? };
        Ok(Self { parts: Some(Parts { id, channel }) })
    }

    /// Takes the id of a connect request over, to a channel of its own.
    pub(super) fn adopt(raw: NonNull<rdma_cm_id>) -> Result<Self, CallError> {
        // Owned from here on: whatever fails, it is destroyed, which refuses the request.
        let id = RawId { raw };
        let channel = EventChannel::create().and_then(Readable::new);
        let moved = channel.and_then(|channel| {
            // SAFETY: the id exists and so does the channel. None of its events is unacknowledged, so this
            // does not wait.
            let returned = unsafe { rdma_migrate_id(id.as_ptr(), channel.get().raw.as_ptr()) };
            minus_one("rdma_migrate_id", returned).map(|()| channel)
        });
        match moved {
            Ok(channel) => Ok(Self { parts: Some(Parts { id, channel }) }),
            Err(error) => {
                reap(move || drop(id));
                Err(error)
            }
        }
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("the parts are taken only by drop")
    }

    fn raw(&self) -> *mut rdma_cm_id {
        self.parts().id.as_ptr()
    }

    fn get(&self) -> &rdma_cm_id {
        // SAFETY: the id exists. The library writes to it only within calls that change its addresses or its
        // device, which are over when those are read: callers wait for each step's event.
        unsafe { self.parts().id.raw.as_ref() }
    }

    /// The next event.
    pub(super) fn poll_event(&self, cx: &mut TaskContext<'_>) -> Poll<Result<CmEvent, CallError>> {
        self.parts().channel.poll(cx, EventChannel::read)
    }

    /// The name of the device that it is bound to.
    pub(super) fn device(&self) -> Option<String> {
        NonNull::new(self.get().verbs).and_then(context::name_of)
    }

    /// The device's port that it is bound to; 0 if to none.
    pub(super) fn port(&self) -> PortNumber {
        PortNumber(self.get().port_num)
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: all parts of the union are plain bytes, and the storage covers them all.
        let storage = unsafe { &self.get().route.addr.src_addr_union.src_storage };
        RawAddress::from_storage(storage).get()
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as for the local address.
        let storage = unsafe { &self.get().route.addr.dst_addr_union.dst_storage };
        RawAddress::from_storage(storage).get()
    }

    /// Sets how long queue pairs wait for an acknowledgement; before the route is resolved.
    pub(super) fn set_ack_timeout(&self, mut timeout: u8) -> Result<(), CallError> {
        let (level, option) = (OPTION_LEVEL_ID, OPTION_ID_ACK_TIMEOUT);
        let value = (&raw mut timeout).cast();
        // SAFETY: the id exists; the option takes one byte.
        let returned = unsafe { rdma_set_option(self.raw(), level, option, value, 1) };
        minus_one("rdma_set_option", returned)
    }

    /// Begins to find the device that leads to `address`; ends with an event.
    pub(super) fn resolve_addr(&self, address: SocketAddr, limit_ms: i32) -> Result<(), CallError> {
        let mut address = RawAddress::new(address);
        // SAFETY: the id exists; the address is copied within the call.
        let returned =
            unsafe { rdma_resolve_addr(self.raw(), null_mut(), address.as_mut_ptr(), limit_ms) };
        minus_one("rdma_resolve_addr", returned)
    }

    /// Begins to find the way there; ends with an event.
    pub(super) fn resolve_route(&self, limit_ms: i32) -> Result<(), CallError> {
        // SAFETY: the id exists.
        let returned = unsafe { rdma_resolve_route(self.raw(), limit_ms) };
        minus_one("rdma_resolve_route", returned)
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<(), CallError> {
        let mut address = RawAddress::new(address);
        // SAFETY: the id exists; the address is copied within the call.
        let returned = unsafe { rdma_bind_addr(self.raw(), address.as_mut_ptr()) };
        minus_one("rdma_bind_addr", returned)
    }

    pub(super) fn listen(&self, backlog: i32) -> Result<(), CallError> {
        // SAFETY: the id exists.
        let returned = unsafe { rdma_listen(self.raw(), backlog) };
        minus_one("rdma_listen", returned)
    }

    /// Connects; ends with an event. May block for as long as TCP connects: not for a runtime's worker.
    pub(super) fn connect(&self, offer: &Offer) -> Result<(), CallError> {
        let mut parameters = offer.raw();
        // SAFETY: the id exists; the parameters and what they borrow are copied within the call.
        let returned = unsafe { rdma_connect(self.raw(), &raw mut parameters) };
        minus_one("rdma_connect", returned)
    }

    /// Says that the queue pair is ready, which the manager cannot know.
    pub(super) fn establish(&self) -> Result<(), CallError> {
        // SAFETY: the id exists.
        let returned = unsafe { rdma_establish(self.raw()) };
        minus_one("rdma_establish", returned)
    }

    /// Accepts a request; ends with an event.
    pub(super) fn accept(&self, offer: &Offer) -> Result<(), CallError> {
        let mut parameters = offer.raw();
        // SAFETY: as for `connect`.
        let returned = unsafe { rdma_accept(self.raw(), &raw mut parameters) };
        minus_one("rdma_accept", returned)
    }

    /// Refuses a request.
    pub(super) fn reject(&self, private_data: &[u8]) -> Result<(), CallError> {
        let data = &private_data[..private_data.len().min(MAX_PRIVATE_DATA)];
        let len = u8::try_from(data.len()).unwrap_or(0);
        // SAFETY: the id exists; the data is copied within the call.
        let returned = unsafe { rdma_reject(self.raw(), data.as_ptr().cast(), len) };
        minus_one("rdma_reject", returned)
    }

    pub(super) fn disconnect(&self) -> Result<(), CallError> {
        // SAFETY: the id exists.
        let returned = unsafe { rdma_disconnect(self.raw()) };
        minus_one("rdma_disconnect", returned)
    }

    /// Fills in the attributes for the state that is set in them; returns which ones.
    pub(in crate::verbs) fn init_qp_attributes(
        &self,
        attributes: &mut ibv_qp_attr,
    ) -> Result<ibv_qp_attr_mask, CallError> {
        let mut mask = 0;
        // SAFETY: the id exists; both places are this call's to write.
        let returned = unsafe { rdma_init_qp_attr(self.raw(), attributes, &raw mut mask) };
        minus_one("rdma_init_qp_attr", returned)?;
        Ok(ibv_qp_attr_mask(mask.cast_unsigned()))
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            reap(move || drop(parts));
        }
    }
}
