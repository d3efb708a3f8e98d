//! Reliable connected queue pairs, and the states they go through.
//!
//! ```text
//!   RESET ── create ──► INIT ── init(id) ──► INIT ── ready(id) ──► RTR ──► RTS
//!                        receives can be posted        any ── fail ──► ERR ── destroy
//! ```
//!
//! A queue pair is made with `ibv_create_qp` and moved with what `rdma_init_qp_attr` returns, exactly with its
//! mask. So the connection manager's library does not know it, and never touches one that is being destroyed.

mod post;

use std::any::Any;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use rdma_sys::{
    ibv_access_flags, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask as Mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_query_qp, ibv_transport_type,
};

use super::cm::CmId;
use super::context::Context;
use super::cq::{RawCq, VerbsCq};
use super::fate::{Fates, PortNumber, Watch};
use super::pd::Pd;
use super::reaper::reap;
use super::ret::{CallError, non_null, zero_or_errno};
use super::siw::SHORT;
use super::srq::RawSrq;
use crate::nic::{Cq, Cqs, Depths, NicError, Qp, QpNumber, RecvWr, SendWr, WrId};

pub(super) use post::for_each_recv_chain;

/// How long a queue pair waits before it says again that the peer has no receive: 1 is 10 us. What the
/// connection manager leaves in place is 0, and that is 655 ms.
const MIN_RNR_TIMER: u8 = 1;

/// How long a queue pair waits for an acknowledgement: 4.096 us times two to this power, 268 ms. With the retries of
/// `cm::id` a silent peer is given up after 1.9 s: a machine that is only busy answers before that.
pub(super) const ACK_TIMEOUT: u8 = 16;

/// Work requests of the send queue that the transport does not count: [`VerbsQp::nudge`]'s.
pub(super) const NUDGES: u32 = 3;

/// A queue pair as the device has it.
///
/// # Invariants
///
/// `raw` is a queue pair in `pd` until `self` drops, which destroys it. The completion queues that it was made
/// with live longer: whoever owns `self` holds them.
pub(super) struct RawQp {
    raw: NonNull<ibv_qp>,
    pd: Arc<Pd>,
    /// Outlives `raw`, which is destroyed by `Drop`.
    srq: Option<Arc<RawSrq>>,
    /// Payloads up to so many bytes are always sent inline; see [`siw`](super::siw).
    always_inline: u32,
}

// SAFETY: libibverbs is thread safe; see `Context`.
unsafe impl Send for RawQp {}
// SAFETY: as for `Send`; posts to one queue pair from several threads are serialised by the library.
unsafe impl Sync for RawQp {}

/// What a queue pair was made with.
#[derive(Debug, Clone, Copy)]
pub(super) struct QpSizes {
    pub(super) depths: Depths,
    pub(super) send_sges: u32,
    pub(super) inline: u32,
}

impl RawQp {
    /// A queue pair in the state RESET; and the bytes that it takes inline.
    pub(super) fn create(
        pd: &Arc<Pd>,
        [send_cq, recv_cq]: [&RawCq; 2],
        srq: Option<&Arc<RawSrq>>,
        sizes: QpSizes,
    ) -> Result<(Self, u32), CallError> {
        let mut attributes = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: srq.map_or(null_mut(), |srq| srq.raw()),
            cap: ibv_qp_cap {
                max_send_wr: sizes.depths.send,
                max_recv_wr: sizes.depths.recv,
                max_send_sge: sizes.send_sges,
                max_recv_sge: 1,
                max_inline_data: sizes.inline,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the protection domain and the queues exist while they are borrowed; the caller keeps the
        // queues longer than what this makes (invariant), and what this makes holds the shared receive queue.
        let raw = unsafe { ibv_create_qp(pd.raw(), &raw mut attributes) };
        let raw = non_null("ibv_create_qp", raw)?;
        let granted = attributes.cap.max_inline_data;
        let always_inline = match pd.context().transport() {
            Some(ibv_transport_type::IBV_TRANSPORT_IWARP) => SHORT.min(granted),
            _ => 0,
        };
        Ok((Self { raw, pd: Arc::clone(pd), srq: srq.cloned(), always_inline }, granted))
    }

    fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    fn number(&self) -> QpNumber {
        // SAFETY: the queue pair exists (invariant), and nothing writes to its number.
        QpNumber(unsafe { (*self.raw()).qp_num })
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: Mask) -> Result<(), CallError> {
        // SAFETY: the queue pair exists (invariant); `attributes` is a whole struct.
        let returned = unsafe { ibv_modify_qp(self.raw(), attributes, mask.0.cast_signed()) };
        zero_or_errno("ibv_modify_qp", returned)
    }

    fn state(&self) -> Result<ibv_qp_state::Type, CallError> {
        let mut attributes = zeroed_attributes();
        // SAFETY: the struct is plain numbers and pointers, for which zeros are a value.
        let mut made_with: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let wanted = Mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair exists (invariant); both places are this call's to write.
        let returned =
            unsafe { ibv_query_qp(self.raw(), &raw mut attributes, wanted, &raw mut made_with) };
        zero_or_errno("ibv_query_qp", returned)?;
        Ok(attributes.qp_state)
    }
}

impl Drop for RawQp {
    fn drop(&mut self) {
        // SAFETY: the queue pair exists, and is destroyed once (invariant).
        let returned = unsafe { ibv_destroy_qp(self.raw()) };
        if let Err(error) = zero_or_errno("ibv_destroy_qp", returned) {
            tracing::error!(%error, "a queue pair stays");
        }
    }
}

/// A queue pair of the seam.
pub(super) struct VerbsQp {
    /// `None` once it is destroyed. Posts share the lock, so that none waits for another's system call; only
    /// destruction takes it alone.
    raw: RwLock<Option<RawQp>>,
    number: QpNumber,
    /// Outlive `raw`, which is dropped by `destroy` or by `Drop`.
    cqs: Cqs,
    pd: Arc<Pd>,
    fates: Arc<Fates>,
    failed: OnceLock<()>,
    /// Known once it is connected, where there are packets.
    mtu: OnceLock<u32>,
}

/// Numbers that a connection's two queue pairs agree on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Agreed {
    /// How often the peer is asked again when it has no receive; 7 is for ever.
    pub(super) rnr_retry: u8,
}

impl VerbsQp {
    /// A queue pair on `cqs`, ready for receives if they are not those of `srq`.
    pub(super) fn create(
        pd: &Arc<Pd>,
        cqs: &Cqs,
        srq: Option<&Arc<RawSrq>>,
        sizes: QpSizes,
        fates: &Arc<Fates>,
    ) -> Result<Self, NicError> {
        let queues = [own_queue(&*cqs.send, pd)?, own_queue(&*cqs.recv, pd)?];
        let (raw, _inline) = RawQp::create(pd, queues, srq, sizes).map_err(|error| {
            let Depths { send, recv } = sizes.depths;
            error.advise(&format!(
                "{send} sends and {recv} receives were asked for: close connections, or ask for less"
            ))
        })?;
        let number = raw.number();
        let qp = Self {
            raw: RwLock::new(Some(raw)),
            number,
            cqs: cqs.clone(),
            pd: Arc::clone(pd),
            fates: Arc::clone(fates),
            failed: OnceLock::new(),
            mtu: OnceLock::new(),
        };
        qp.init_unconnected()?;
        Ok(qp)
    }

    /// Bytes of payload in a packet.
    pub(super) fn mtu(&self) -> Option<u32> {
        self.mtu.get().copied()
    }

    /// Whether it is one of this device, in whatever protection domain.
    pub(super) fn is_on(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(self.pd.context(), context)
    }

    /// Where a connection over it, by this port, hears of the device's events.
    pub(super) fn watch(&self, port: PortNumber) -> Option<Watch> {
        let key = |cq: &Arc<dyn Cq>| Some(cq.as_any().downcast_ref::<VerbsCq>()?.queue().key());
        let keys = [key(&self.cqs.send)?, key(&self.cqs.recv)?];
        Some(self.fates.watch(self.number, keys, port))
    }

    /// To INIT before there is a connection, so that receives can be posted. [`init`](Self::init) sets the port
    /// and the rights again.
    fn init_unconnected(&self) -> Result<(), CallError> {
        let mut attributes = zeroed_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = 1;
        attributes.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_PKEY_INDEX
            | Mask::IBV_QP_PORT
            | Mask::IBV_QP_ACCESS_FLAGS;
        self.with("ibv_modify_qp", |raw| raw.modify(&mut attributes, mask))
    }

    /// To INIT on the port that the connection manager found.
    pub(super) fn init(&self, id: &CmId) -> Result<(), CallError> {
        self.step(id, ibv_qp_state::IBV_QPS_INIT, |attributes, mask| {
            // On the connecting side the kernel has no connection yet, and gives no rights.
            if has(mask, Mask::IBV_QP_ACCESS_FLAGS) {
                attributes.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
            }
        })
    }

    /// To RTR and RTS, with what the connection manager agreed on.
    pub(super) fn ready(&self, id: &CmId, agreed: Agreed) -> Result<(), CallError> {
        self.step(id, ibv_qp_state::IBV_QPS_RTR, |attributes, mask| {
            if has(mask, Mask::IBV_QP_MIN_RNR_TIMER) {
                attributes.min_rnr_timer = MIN_RNR_TIMER;
            }
            if has(mask, Mask::IBV_QP_PATH_MTU) {
                // 1 is 256 bytes, and each further one the double.
                let mtu = 128_u32.checked_shl(attributes.path_mtu).unwrap_or(0);
                // A queue pair is made ready once.
                let _known = self.mtu.set(mtu);
            }
        })?;
        self.step(id, ibv_qp_state::IBV_QPS_RTS, |attributes, mask| {
            if has(mask, Mask::IBV_QP_TIMEOUT) {
                attributes.timeout = ACK_TIMEOUT;
            }
            if has(mask, Mask::IBV_QP_RNR_RETRY) {
                attributes.rnr_retry = agreed.rnr_retry;
            }
        })
    }

    /// To `state` with the attributes and the mask that the connection manager gives for it.
    fn step(
        &self,
        id: &CmId,
        state: ibv_qp_state::Type,
        change: impl FnOnce(&mut ibv_qp_attr, Mask),
    ) -> Result<(), CallError> {
        let mut attributes = zeroed_attributes();
        attributes.qp_state = state;
        let mask = id.init_qp_attributes(&mut attributes)?;
        change(&mut attributes, mask);
        self.with("ibv_modify_qp", |raw| raw.modify(&mut attributes, mask))
    }

    /// Sends the peer something that it takes no notice of: a Write of no bytes.
    ///
    /// soft-iWARP overlooks a message that arrives in the moment between its accept and the socket's hand-over,
    /// until anything else arrives.
    pub(super) fn nudge(&self) {
        let sent = self.with("ibv_post_send", |raw| raw.post_empty_write(WrId(u64::MAX)));
        if let Err(error) = sent {
            tracing::debug!(%error, "a new connection ended before its first messages");
        }
    }

    /// Whether the device says that it is in the error state; by itself, or moved there. soft-iWARP (6.1) does not
    /// say so.
    pub(super) fn has_failed(&self) -> bool {
        self.with("ibv_query_qp", RawQp::state) == Ok(ibv_qp_state::IBV_QPS_ERR)
    }

    /// Whether its receives are those of a shared receive queue.
    pub(super) fn shares_receives(&self) -> bool {
        self.lock().as_ref().is_some_and(|raw| raw.srq.is_some())
    }

    /// Whether it was moved to the error state, or destroyed.
    pub(super) fn is_over(&self) -> bool {
        self.failed.get().is_some() || self.lock().is_none()
    }

    fn with<T>(
        &self,
        call: &'static str,
        verb: impl FnOnce(&RawQp) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let raw = self.lock();
        let gone = CallError { call, errno: super::ret::Errno(libc::ENOTCONN) };
        verb(raw.as_ref().ok_or(gone)?)
    }

    fn lock(&self) -> RwLockReadGuard<'_, Option<RawQp>> {
        self.raw.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<RawQp> {
        self.raw.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Qp for VerbsQp {
    fn number(&self) -> QpNumber {
        self.number
    }

    fn post_send(&self, batch: &[SendWr]) -> Result<(), NicError> {
        Ok(self.with("ibv_post_send", |raw| raw.post_send(batch))?)
    }

    fn post_recv(&self, batch: &[RecvWr]) -> Result<(), NicError> {
        Ok(self.with("ibv_post_recv", |raw| raw.post_recv(batch))?)
    }

    fn fail(&self) {
        if self.failed.set(()).is_err() {
            return;
        }
        let mut attributes = zeroed_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let moved =
            self.with("ibv_modify_qp", |raw| raw.modify(&mut attributes, Mask::IBV_QP_STATE));
        if let Err(error) = moved {
            // Its destruction ends it all the same.
            tracing::debug!(%error, qp = self.number.0, "a queue pair did not move to the error state");
        }
    }

    fn destroy(&self) {
        drop(self.take());
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        let Some(raw) = self.take() else { return };
        let cqs = self.cqs.clone();
        reap(move || {
            drop(raw);
            // The queue pair's invariant: its completion queues live longer.
            drop(cqs);
        });
    }
}

/// The queue as this fence's own type, if it is of this protection domain's device.
fn own_queue<'a>(cq: &'a dyn Cq, pd: &Arc<Pd>) -> Result<&'a RawCq, NicError> {
    let own = cq.as_any().downcast_ref::<VerbsCq>().map(VerbsCq::queue);
    own.filter(|queue| Arc::ptr_eq(queue.context(), pd.context())).ok_or_else(|| NicError {
        verb: "ibv_create_qp",
        reason: "the completion queue belongs to another device".into(),
    })
}

fn has(mask: Mask, bit: Mask) -> bool {
    (mask & bit) == bit
}

fn zeroed_attributes() -> ibv_qp_attr {
    // SAFETY: the struct is plain numbers, for which zeros are a value.
    unsafe { std::mem::zeroed() }
}
