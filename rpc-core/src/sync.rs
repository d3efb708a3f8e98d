//! The locks and atomics of the hand-made concurrent parts, so that loom can take their place in tests.
//!
//! Only the post queue and the client's call table use this module; everything else uses `std`.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks `mutex`, also when a panic elsewhere poisoned it.
///
/// Every critical section of this crate leaves its data consistent at each point that can panic, so
/// a poisoned lock is no reason to take the other calls of a connection down.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
