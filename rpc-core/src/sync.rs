//! The locks of the hand-made concurrent parts, so that loom can take their place in tests.
//!
//! Only the post queue and the client's side of calls use this module; everything else names its locks itself.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

/// Locks `mutex`, also when a panic elsewhere came while it was locked.
///
/// Every critical section of this crate leaves its data consistent at each point that can panic, so
/// such a panic is no reason to take the other calls of a connection down.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(loom)]
    return mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    #[cfg(not(loom))]
    mutex.lock()
}

/// The same if it is free.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(loom)]
    return mutex.try_lock().ok();
    #[cfg(not(loom))]
    mutex.try_lock()
}
