//! The protection domain, and memory that is registered in it.

use std::collections::BTreeMap;
use std::os::raw::c_int;
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_sys::{
    ibv_access_flags, ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_mr, ibv_pd, ibv_reg_mr,
};

use super::context::Context;
use super::mw::Mw;
use super::reaper::reap;
use super::ret::{CallError, non_null, zero_or_errno};
use crate::memory::{Lkey, Region, Rkey, Slab};
use crate::nic::{Access, NicError};

/// A protection domain.
///
/// # Invariants
///
/// `raw` is a protection domain of `context` until `self` drops; nothing else frees it. Objects made in it hold
/// an `Arc` of `self`, so they are destroyed first.
pub(super) struct Pd {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
    known: Mutex<Known>,
}

/// What work requests name by numbers.
#[derive(Default)]
struct Known {
    /// By local key.
    mrs: BTreeMap<u32, Weak<Mr>>,
    /// By number.
    windows: BTreeMap<u32, Weak<Mw>>,
}

// SAFETY: libibverbs is thread safe; see `Context`.
unsafe impl Send for Pd {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pd {}

impl Pd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, CallError> {
        // SAFETY: the context is open while it is borrowed.
        let raw = unsafe { ibv_alloc_pd(context.raw()) };
        let raw = non_null("ibv_alloc_pd", raw)?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context), known: Mutex::default() }))
    }

    /// Allocates a memory window.
    pub(super) fn alloc_window(self: &Arc<Self>) -> Result<Arc<Mw>, CallError> {
        let window = Arc::new(Mw::alloc(self)?);
        let mut known = self.known();
        known.windows.retain(|_, window| window.strong_count() > 0);
        known.windows.insert(window.key().window(), Arc::downgrade(&window));
        Ok(window)
    }

    /// The memory and the window that a bind names.
    pub(super) fn bindable(&self, lkey: Lkey, key: Rkey) -> Option<(Arc<Mr>, Arc<Mw>)> {
        let known = self.known();
        let mr = known.mrs.get(&lkey.0)?.upgrade()?;
        // Not dropped under the lock should it be the last one.
        let window = known.windows.get(&key.window()).and_then(Weak::upgrade);
        drop(known);
        Some((mr, window?))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        let closing = Closing(self.raw, Arc::clone(&self.context));
        reap(move || closing.dealloc());
    }
}

/// A protection domain on its way to the reaper.
struct Closing(NonNull<ibv_pd>, Arc<Context>);

// SAFETY: as for `Pd`.
unsafe impl Send for Closing {}

impl Closing {
    fn dealloc(self) {
        // SAFETY: `Pd` has dropped, so that nothing uses it (its invariant); its context is held here.
        let returned = unsafe { ibv_dealloc_pd(self.0.as_ptr()) };
        if let Err(error) = zero_or_errno("ibv_dealloc_pd", returned) {
            tracing::error!(%error, "a protection domain stays");
        }
        drop(self.1);
    }
}

/// A slab's registration. The keys stay known when the registration is gone.
///
/// # Invariants
///
/// `held` has a registration and its protection domain until it is taken; nothing else deregisters it.
pub(super) struct Mr {
    held: Mutex<Option<(NonNull<ibv_mr>, Arc<Pd>)>>,
    lkey: Lkey,
    rkey: Rkey,
}

// SAFETY: libibverbs is thread safe; see `Context`. The pointer is used under the lock, or by whoever takes it, once.
unsafe impl Send for Mr {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers a slab's memory.
    pub(super) fn register(
        pd: &Arc<Pd>,
        slab: &Slab,
        access: Access,
    ) -> Result<Arc<Self>, NicError> {
        let rights = match access {
            Access::Local => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteWrite => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
            Access::Windows => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_MW_BIND
            }
        };
        let address = usize::try_from(slab.address()).map_err(|_| NicError {
            verb: "ibv_reg_mr",
            reason: "the slab's address is no address of this machine".into(),
        })?;
        // SAFETY: the protection domain exists while it is borrowed, and the slab's memory while its
        // registration does: a slab drops its `Region` before it frees its memory. What a NIC does with
        // the memory follows the contract of `memory` and `nic`.
        let raw = unsafe {
            ibv_reg_mr(pd.raw(), without_provenance_mut(address), slab.len(), rights.0 as c_int)
        };
        let raw = non_null("ibv_reg_mr", raw).map_err(|error| explain(error, slab.len()))?;
        // SAFETY: `ibv_reg_mr` has returned it; nothing writes to its fields.
        let mr = unsafe { raw.as_ref() };
        let (lkey, rkey) = (Lkey(mr.lkey), Rkey(mr.rkey));
        let mr = Arc::new(Self { held: Mutex::new(Some((raw, Arc::clone(pd)))), lkey, rkey });
        if access == Access::Windows {
            let mut known = pd.known();
            known.mrs.retain(|_, mr| mr.strong_count() > 0);
            known.mrs.insert(lkey.0, Arc::downgrade(&mr));
        }
        Ok(mr)
    }

    /// What `use_it` makes of the registration, which does not end meanwhile; `None` if it has ended.
    pub(super) fn with<T>(&self, use_it: impl FnOnce(*mut ibv_mr) -> T) -> Option<T> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|(raw, _)| use_it(raw.as_ptr()))
    }

    /// Ends the registration, if it has not ended. In place, also from `Drop`: the memory must not be freed
    /// before. It waits for nothing but the kernel's unpinning.
    pub(super) fn deregister(&self) {
        let Some((raw, _pd)) = self.take() else { return };
        // SAFETY: it was a registration until now, and is taken once (invariant); its protection domain
        // is held meanwhile.
        let returned = unsafe { ibv_dereg_mr(raw.as_ptr()) };
        if let Err(error) = zero_or_errno("ibv_dereg_mr", returned) {
            tracing::error!(%error, "memory stays registered");
        }
    }

    fn take(&self) -> Option<(NonNull<ibv_mr>, Arc<Pd>)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// A slab's hold on its registration, which the device also knows: it ends it when the device goes away.
pub(super) struct SlabMr(pub(super) Arc<Mr>);

impl Region for SlabMr {
    fn lkey(&self) -> Lkey {
        self.0.lkey
    }

    fn rkey(&self) -> Rkey {
        self.0.rkey
    }
}

impl Drop for SlabMr {
    fn drop(&mut self) {
        self.0.deregister();
    }
}

/// Registering fails most often for want of lockable memory, which the system does not say.
fn explain(error: CallError, len: usize) -> NicError {
    let limit = std::fs::read_to_string("/proc/self/limits").ok();
    let limit = limit.as_deref().and_then(locked_memory_limit).unwrap_or("unknown");
    match error.errno.0 {
        libc::EAGAIN => error.advise(&format!(
            "{len} bytes were to be registered and the limit on this process's RDMA objects is reached: raise \
             rdma.max of its control group, or close connections"
        )),
        libc::ENOMEM | libc::EPERM => error.advise(&format!(
            "{len} bytes are to be locked in memory and the limit of this process (RLIMIT_MEMLOCK) is \
             {limit}: raise it with 'ulimit -l unlimited', or LimitMEMLOCK=infinity in a systemd unit"
        )),
        _ => error.advise(&format!("{len} bytes were to be registered")),
    }
}

/// The soft limit in the text of `/proc/self/limits`.
fn locked_memory_limit(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::ret::Errno;

    #[test]
    fn a_refusal_for_want_of_lockable_memory_says_so() {
        let error = CallError { call: "ibv_reg_mr", errno: Errno(libc::ENOMEM) };
        let text = explain(error, 1 << 20).to_string();
        assert!(text.contains("1048576 bytes") && text.contains("ulimit -l unlimited"), "{text}");
    }

    #[test]
    fn a_refusal_by_the_control_group_is_not_put_down_to_memory() {
        let error = CallError { call: "ibv_reg_mr", errno: Errno(libc::EAGAIN) };
        let text = explain(error, 1 << 20).to_string();
        assert!(text.contains("rdma.max") && !text.contains("RLIMIT_MEMLOCK"), "{text}");
    }

    #[test]
    fn the_limit_is_the_soft_one() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max locked memory         8388608              unlimited            bytes     \n";
        assert_eq!(locked_memory_limit(text), Some("8388608"));
        assert_eq!(locked_memory_limit("nothing"), None);
    }
}
