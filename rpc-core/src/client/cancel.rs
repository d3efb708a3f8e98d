//! Cancelling a call from somewhere else than the task that awaits it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Ends a call from outside. Cheap to clone; does nothing once the call has ended.
///
/// The caller's future then ends with `Cancelled`. Its [`executed`](crate::Status::executed) is exact,
/// since the server says whether the handler ran; the call waits for that word, at most until its deadline.
/// To stop waiting at once, drop the call instead.
#[derive(Debug, Clone)]
pub struct CancelHandle(Arc<Flag>);

#[derive(Debug, Default)]
pub(super) struct Flag(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    asked: bool,
    waker: Option<Waker>,
}

impl CancelHandle {
    pub(super) fn new(flag: Arc<Flag>) -> Self {
        Self(flag)
    }

    /// Asks for the end of the call.
    pub fn cancel(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.asked = true;
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Flag {
    /// Whether the end was asked for; if not yet, `waker` is woken when it is.
    pub(super) fn is_asked(&self, waker: &Waker) -> bool {
        let mut state = self.lock();
        if !state.asked {
            state.waker = Some(waker.clone());
        }
        state.asked
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
