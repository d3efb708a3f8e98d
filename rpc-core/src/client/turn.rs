//! A call's turn on its connection, taken before there is a call.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;

use super::link::Shared;

/// Room for one call on a channel's connection, for callers that want to know before they make the call:
/// [`Request::set_turn`](crate::Request::set_turn) gives it to one.
///
/// It counts as a call of the connection's `max_concurrent_calls` until then. Dropped, it goes to whoever waits.
#[must_use = "nobody else has the turn while it is kept"]
pub struct Turn(Option<Arc<Shared>>);

impl Turn {
    /// The turn of a call that has nothing to wait for.
    pub(super) fn free() -> Self {
        Self(None)
    }

    /// Waits for a slot and for room in the transport. A connection that has ended keeps nobody waiting: the call learns
    /// of it.
    pub(super) async fn on(shared: Arc<Shared>) -> Self {
        // At once if it can be: `acquire` also waits when the task has used up its budget, and whoever sheds load would
        // turn the call away for that.
        let slot = match shared.free_slots().try_acquire() {
            Ok(slot) => Ok(slot),
            Err(_none) => shared.free_slots().acquire().await,
        };
        let Ok(slot) = slot else {
            return Self::free();
        };
        slot.forget();
        let turn = Self(Some(Arc::clone(&shared)));
        poll_fn(|cx| shared.connection.poll_ready(cx)).await;
        turn
    }

    /// Whether there was nothing to wait for.
    pub(super) fn is_free(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this is a slot of `shared`.
    pub(super) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, shared))
    }

    /// Whether this is a slot of `shared`, which is then the caller's.
    pub(super) fn take_slot(mut self, shared: &Arc<Shared>) -> bool {
        let is_its = self.is_of(shared);
        if is_its {
            self.0 = None;
        }
        is_its
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.free_slots().add_permits(1);
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turn")
    }
}
