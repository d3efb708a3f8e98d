//! Memory windows of type 2.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys::{ibv_alloc_mw, ibv_dealloc_mw, ibv_mw, ibv_mw_type};

use super::pd::Pd;
use super::ret::{CallError, Errno, non_null, zero_or_errno};
use crate::memory::Rkey;
use crate::nic::Window;

/// A memory window. Its key stays known when it is freed.
///
/// # Invariants
///
/// `held` has a window and its protection domain until it is taken; nothing else frees it.
pub(super) struct Mw {
    held: Mutex<Option<(NonNull<ibv_mw>, Arc<Pd>)>>,
    key: Rkey,
}

// SAFETY: libibverbs is thread safe; see `Context`. The pointer is used under the lock, or by whoever takes it, once.
unsafe impl Send for Mw {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mw {}

impl Mw {
    /// A window that is not bound.
    pub(super) fn alloc(pd: &Arc<Pd>) -> Result<Self, CallError> {
        const CALL: &str = "ibv_alloc_mw";
        // SAFETY: the protection domain exists while it is borrowed.
        let raw = unsafe { ibv_alloc_mw(pd.raw(), ibv_mw_type::IBV_MW_TYPE_2) };
        let none = CallError { call: CALL, errno: Errno(libc::EOPNOTSUPP) };
        let raw = non_null(CALL, raw.ok_or(none)?)?;
        // SAFETY: `ibv_alloc_mw` has returned it; nothing writes to its fields.
        let key = Rkey(unsafe { (*raw.as_ptr()).rkey });
        Ok(Self { held: Mutex::new(Some((raw, Arc::clone(pd)))), key })
    }

    pub(super) fn key(&self) -> Rkey {
        self.key
    }

    /// What `use_it` makes of the window, which is not freed meanwhile; `None` if it was freed before.
    pub(super) fn with<T>(&self, use_it: impl FnOnce(*mut ibv_mw) -> T) -> Option<T> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|(raw, _)| use_it(raw.as_ptr()))
    }

    /// Frees it, if that has not been done. In place: what it gave rights to is used again after that.
    pub(super) fn free(&self) {
        let taken = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((raw, _pd)) = taken else { return };
        // SAFETY: it was a window until now, and is taken once (invariant); its protection domain is held meanwhile.
        let returned = unsafe { ibv_dealloc_mw(raw.as_ptr()) };
        if let Err(error) = zero_or_errno("ibv_dealloc_mw", returned) {
            tracing::error!(%error, "a memory window stays");
        }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.free();
    }
}

/// A user's hold on a window, which the device also knows: it frees it when the device goes away.
pub(super) struct HeldMw(pub(super) Arc<Mw>);

impl Window for HeldMw {
    fn key(&self) -> Rkey {
        self.0.key()
    }
}

impl Drop for HeldMw {
    fn drop(&mut self) {
        self.0.free();
    }
}
