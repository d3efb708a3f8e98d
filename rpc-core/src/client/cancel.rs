//! Cancelling a call from somewhere else than the task that awaits it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

/// Ends a call from outside. Cheap to clone; does nothing once the call has ended.
///
/// The caller's future then ends with `Cancelled`. Its [`executed`](crate::Status::executed) is exact,
/// since the server says whether the handler ran; the call waits for that word, at most until its deadline.
/// To stop waiting at once, drop the call instead.
#[derive(Debug, Clone)]
pub struct CancelHandle(Arc<Flag>);

/// Whether the end of a call was asked for. One future looks at it; calls behind an interceptor, which may be several at a
/// time, have flags of their own.
#[derive(Debug, Default)]
pub(super) struct Flag(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    asked: bool,
    waker: Option<Waker>,
    children: Vec<Weak<Flag>>,
}

impl CancelHandle {
    pub(super) fn new(flag: Arc<Flag>) -> Self {
        Self(flag)
    }

    /// Asks for the end of the call.
    pub fn cancel(&self) {
        self.0.raise();
    }
}

impl Flag {
    /// A flag that is raised with this one.
    pub(super) fn child(&self) -> Arc<Self> {
        let child = Arc::<Self>::default();
        let mut state = self.lock();
        if state.asked {
            child.lock().asked = true;
        } else {
            state.children.retain(|child| child.strong_count() > 0);
            state.children.push(Arc::downgrade(&child));
        }
        drop(state);
        child
    }

    fn raise(&self) {
        let (waker, children) = {
            let mut state = self.lock();
            state.asked = true;
            (state.waker.take(), std::mem::take(&mut state.children))
        };
        for child in children.iter().filter_map(Weak::upgrade) {
            child.raise();
        }
        waker.into_iter().for_each(Waker::wake);
    }

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
