//! Ids of the connection manager: the file that calls the library for them.

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rdma_sys::{
    ibv_qp_attr, ibv_qp_attr_mask, rdma_accept, rdma_bind_addr, rdma_cm_id, rdma_conn_param,
    rdma_connect, rdma_create_id, rdma_destroy_id, rdma_disconnect, rdma_establish,
    rdma_init_qp_attr, rdma_listen, rdma_migrate_id, rdma_port_space, rdma_reject,
    rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};

use super::address::RawAddress;
use super::channel::RawChannel;
use super::event::CmEvent;
use crate::nic::MAX_PRIVATE_DATA;
use crate::verbs::abi::{OPTION_ID_ACK_TIMEOUT, OPTION_LEVEL_ID};
use crate::verbs::channel::Read;
use crate::verbs::context;
use crate::verbs::fate::PortNumber;
use crate::verbs::reaper::reap;
use crate::verbs::ret::{CallError, minus_one, non_null};

/// An id. Dropped, it is destroyed, off the caller's thread; the library lets go of its connection or refuses its
/// request.
///
/// Creating and destroying run side by side: destroying may wait for a peer, and nobody else shall. The library's
/// table of ids allows it. It grows under a lock of its own and never shrinks, and destroying writes one entry. That
/// can be the entry of an id that was made since, with the number that the kernel has just given free; but it is
/// only looked up for events of a request that was not taken yet, and the library drops those.
///
/// # Invariants
///
/// `raw` is an id on `channel` until `self` drops; nothing else destroys it. All its events were acknowledged when
/// they were read, so that its destruction waits for none.
#[derive(Debug)]
pub(in crate::verbs) struct CmId {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<RawChannel>,
}

// SAFETY: nothing in librdmacm is bound to a thread, and it locks what ids share; see above for its table.
unsafe impl Send for CmId {}
// SAFETY: as for `Send`.
unsafe impl Sync for CmId {}

/// What a side says when it connects or accepts.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) rnr_retry: u8,
    pub(super) qp: crate::nic::QpNumber,
    /// Whether the queue pair's receives are those of a shared receive queue.
    pub(super) shares_receives: bool,
}

/// How often a packet is sent again before the peer is given up. One less than the most that there is, because
/// soft-RoCE takes 7 for "for ever" and would never find that a peer is dead.
const RETRIES: u8 = 6;

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
            srq: u8::from(self.shares_receives),
            qp_num: self.qp.0,
        }
    }
}

impl CmId {
    pub(super) fn create(channel: &Arc<RawChannel>) -> Result<Self, CallError> {
        const CALL: &str = "rdma_create_id";
        let (mut raw, on) = (null_mut(), channel.as_ptr());
        // SAFETY: the channel exists and is kept longer than the id; `raw` is this call's to write.
        let returned =
            unsafe { rdma_create_id(on, &raw mut raw, null_mut(), rdma_port_space::RDMA_PS_TCP) };
        minus_one(CALL, returned)?;
        Ok(Self { raw: non_null(CALL, raw)?, channel: Arc::clone(channel) })
    }

    /// An id that only waits to hear of the removal of the device with this local address. On no reactor.
    pub(in crate::verbs) fn watch(address: SocketAddr) -> Result<Self, CallError> {
        let id = Self::create(&RawChannel::create()?)?;
        let mut anywhere = address;
        anywhere.set_port(0);
        id.bind(anywhere)?;
        Ok(id)
    }

    /// # Safety
    ///
    /// `raw` is an id on `channel` that nobody else will destroy.
    pub(super) unsafe fn own(raw: NonNull<rdma_cm_id>, channel: &Arc<RawChannel>) -> Self {
        Self { raw, channel: Arc::clone(channel) }
    }

    /// Moves the id, of which no event is unacknowledged, to another channel.
    pub(super) fn migrate(&mut self, channel: &Arc<RawChannel>) -> Result<(), CallError> {
        // SAFETY: the id exists and so does the channel. None of its events is unacknowledged, so this does not
        // wait.
        let returned = unsafe { rdma_migrate_id(self.as_ptr(), channel.as_ptr()) };
        minus_one("rdma_migrate_id", returned)?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    fn get(&self) -> &rdma_cm_id {
        // SAFETY: the id exists (invariant). The library writes to it only within calls that change its addresses
        // or its device, which are over when those are read: callers wait for each step's event.
        unsafe { self.raw.as_ref() }
    }

    /// An event of the id, for who is told by its descriptor that there is one.
    pub(in crate::verbs) fn read_event(&self) -> Result<Read<CmEvent>, CallError> {
        self.channel.read()
    }

    /// The name of the device that it is bound to.
    pub(in crate::verbs) fn device(&self) -> Option<String> {
        NonNull::new(self.get().verbs).and_then(context::name_of)
    }

    /// The device's port that it is bound to; 0 if to none.
    pub(super) fn port(&self) -> PortNumber {
        PortNumber(self.get().port_num)
    }

    /// Closes the library's own hold on a device that was removed, to which the id is bound.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left; the kernel then waits for the end of the process.
    pub(in crate::verbs) fn release_removed_device(&self) -> Result<(), CallError> {
        NonNull::new(self.get().verbs).map_or(Ok(()), context::hang_up)
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: all parts of the union are plain bytes, and the storage covers them all.
        let storage = unsafe { &self.get().route.addr.src_addr_union.src_storage };
        RawAddress::from_storage(storage).get()
    }

    /// The GID that it connects from, which is written as an IPv6 address is; `None` where there is none.
    pub(super) fn gid(&self) -> Option<Ipv6Addr> {
        // SAFETY: the union has one part, whose GIDs are plain bytes.
        let gid = unsafe { self.get().route.addr.addr.ibaddr.sgid };
        // SAFETY: a GID is 16 plain bytes, whichever part of the union was written.
        let raw = unsafe { gid.raw };
        (raw != [0; 16]).then(|| Ipv6Addr::from(raw))
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
        let returned = unsafe { rdma_set_option(self.as_ptr(), level, option, value, 1) };
        minus_one("rdma_set_option", returned)
    }

    /// Begins to find the device that leads to `address`; ends with an event.
    pub(super) fn resolve_addr(&self, address: SocketAddr, limit_ms: i32) -> Result<(), CallError> {
        let mut address = RawAddress::new(address);
        // SAFETY: the id exists; the address is copied within the call.
        let returned =
            unsafe { rdma_resolve_addr(self.as_ptr(), null_mut(), address.as_mut_ptr(), limit_ms) };
        minus_one("rdma_resolve_addr", returned)
    }

    /// Begins to find the way there; ends with an event.
    pub(super) fn resolve_route(&self, limit_ms: i32) -> Result<(), CallError> {
        // SAFETY: the id exists.
        let returned = unsafe { rdma_resolve_route(self.as_ptr(), limit_ms) };
        minus_one("rdma_resolve_route", returned)
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<(), CallError> {
        let mut address = RawAddress::new(address);
        // SAFETY: the id exists; the address is copied within the call.
        let returned = unsafe { rdma_bind_addr(self.as_ptr(), address.as_mut_ptr()) };
        minus_one("rdma_bind_addr", returned)
    }

    pub(super) fn listen(&self, backlog: i32) -> Result<(), CallError> {
        // SAFETY: the id exists.
        let returned = unsafe { rdma_listen(self.as_ptr(), backlog) };
        minus_one("rdma_listen", returned)
    }

    /// Connects; ends with an event. May block for as long as TCP connects: not for a runtime's worker.
    pub(super) fn connect(&self, offer: &Offer) -> Result<(), CallError> {
        let mut parameters = offer.raw();
        // SAFETY: the id exists; the parameters and what they borrow are copied within the call.
        let returned = unsafe { rdma_connect(self.as_ptr(), &raw mut parameters) };
        minus_one("rdma_connect", returned)
    }

    /// Says that the queue pair is ready, which the manager cannot know.
    pub(super) fn establish(&self) -> Result<(), CallError> {
        // SAFETY: the id exists.
        let returned = unsafe { rdma_establish(self.as_ptr()) };
        minus_one("rdma_establish", returned)
    }

    /// Accepts a request; ends with an event.
    pub(super) fn accept(&self, offer: &Offer) -> Result<(), CallError> {
        let mut parameters = offer.raw();
        // SAFETY: as for `connect`.
        let returned = unsafe { rdma_accept(self.as_ptr(), &raw mut parameters) };
        minus_one("rdma_accept", returned)
    }

    /// Refuses a request.
    pub(super) fn reject(&self, private_data: &[u8]) -> Result<(), CallError> {
        let data = &private_data[..private_data.len().min(MAX_PRIVATE_DATA)];
        let len = u8::try_from(data.len()).unwrap_or(0);
        // SAFETY: the id exists; the data is copied within the call.
        let returned = unsafe { rdma_reject(self.as_ptr(), data.as_ptr().cast(), len) };
        minus_one("rdma_reject", returned)
    }

    pub(in crate::verbs) fn disconnect(&self) -> Result<(), CallError> {
        // SAFETY: the id exists.
        let returned = unsafe { rdma_disconnect(self.as_ptr()) };
        minus_one("rdma_disconnect", returned)
    }

    /// Fills in the attributes for the state that is set in them; returns which ones.
    pub(in crate::verbs) fn init_qp_attributes(
        &self,
        attributes: &mut ibv_qp_attr,
    ) -> Result<ibv_qp_attr_mask, CallError> {
        let mut mask = 0;
        // SAFETY: the id exists; both places are this call's to write.
        let returned = unsafe { rdma_init_qp_attr(self.as_ptr(), attributes, &raw mut mask) };
        minus_one("rdma_init_qp_attr", returned)?;
        Ok(ibv_qp_attr_mask(mask.cast_unsigned()))
    }
}

impl AsRawFd for CmId {
    /// Where its events come from.
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        let closing = Closing(self.raw, Arc::clone(&self.channel));
        reap(move || closing.destroy());
    }
}

/// An id on its way to the reaper.
struct Closing(NonNull<rdma_cm_id>, Arc<RawChannel>);

// SAFETY: as for `CmId`.
unsafe impl Send for Closing {}

impl Closing {
    fn destroy(self) {
        // SAFETY: `CmId` has dropped, so that nothing uses it (its invariant); its channel is held here.
        let returned = unsafe { rdma_destroy_id(self.0.as_ptr()) };
        if let Err(error) = minus_one("rdma_destroy_id", returned) {
            tracing::error!(%error, "an id of the connection manager stays");
        }
        drop(self.1);
    }
}
