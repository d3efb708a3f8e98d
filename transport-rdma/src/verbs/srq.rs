//! Shared receive queues.

use std::any::Any;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, PoisonError, RwLock};

use rdma_sys::{
    ibv_create_srq, ibv_destroy_srq, ibv_post_srq_recv, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

use super::pd::Pd;
use super::qp::for_each_recv_chain;
use super::reaper::reap;
use super::ret::{CallError, Errno, non_null, posted, zero_or_errno};
use crate::nic::{NicError, RecvWr, Srq};

/// A shared receive queue as the device has it.
///
/// # Invariants
///
/// `raw` is a shared receive queue in `pd` until `self` drops, which destroys it. Queue pairs on it hold an `Arc` of
/// `self`, so they are destroyed first.
pub(super) struct RawSrq {
    raw: NonNull<ibv_srq>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs is thread safe; see `Context`.
unsafe impl Send for RawSrq {}
// SAFETY: as for `Send`; posts from several threads are serialised by the library.
unsafe impl Sync for RawSrq {}

impl RawSrq {
    fn create(pd: &Arc<Pd>, depth: u32) -> Result<Self, CallError> {
        let attr = ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the protection domain exists while it is borrowed, and the attributes during the call.
        let raw = unsafe { ibv_create_srq(pd.raw(), &raw mut attributes) };
        Ok(Self { raw: non_null("ibv_create_srq", raw)?, pd: Arc::clone(pd) })
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Posts in order, by as few calls as chains are needed.
    fn post_recv(&self, batch: &[RecvWr]) -> Result<(), CallError> {
        for_each_recv_chain(batch, |first| {
            let mut bad = null_mut();
            // SAFETY: the queue exists (invariant); `first` begins a chain that lives in the caller's frame. The memory
            // that it names follows the contract of `nic`: it belongs to the NIC until a completion or the
            // destruction proves otherwise.
            let returned = unsafe { ibv_post_srq_recv(self.raw(), first, &raw mut bad) };
            posted("ibv_post_srq_recv", returned, bad)
        })
    }
}

impl Drop for RawSrq {
    fn drop(&mut self) {
        // SAFETY: the queue exists, is destroyed once, and no queue pair is on it any more (invariant).
        let returned = unsafe { ibv_destroy_srq(self.raw()) };
        if let Err(error) = zero_or_errno("ibv_destroy_srq", returned) {
            tracing::error!(%error, "a shared receive queue stays");
        }
    }
}

/// A shared receive queue of the seam.
pub(super) struct VerbsSrq {
    /// `None` once it is destroyed, or its device gone.
    raw: RwLock<Option<Arc<RawSrq>>>,
}

impl VerbsSrq {
    pub(super) fn create(pd: &Arc<Pd>, depth: u32) -> Result<Self, NicError> {
        let raw = RawSrq::create(pd, depth).map_err(|error| {
            error.advise(&format!("{depth} receives were asked for: lower shared_receives"))
        })?;
        Ok(Self { raw: RwLock::new(Some(Arc::new(raw))) })
    }

    /// What queue pairs are made on.
    pub(super) fn raw(&self) -> Option<Arc<RawSrq>> {
        self.raw.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self) -> Option<Arc<RawSrq>> {
        self.raw.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Srq for VerbsSrq {
    fn post_recv(&self, batch: &[RecvWr]) -> Result<(), NicError> {
        // Posts share the lock, so that none waits for another's system call.
        let raw = self.raw.read().unwrap_or_else(PoisonError::into_inner);
        let gone = CallError { call: "ibv_post_srq_recv", errno: Errno(libc::ENOTCONN) };
        Ok(raw.as_ref().ok_or(gone)?.post_recv(batch)?)
    }

    fn destroy(&self) {
        drop(self.take());
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for VerbsSrq {
    fn drop(&mut self) {
        if let Some(raw) = self.take() {
            reap(move || drop(raw));
        }
    }
}
