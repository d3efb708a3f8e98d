//! A connection's completions, between who polls the queue and who drives the connection.

use std::mem;
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

use crate::nic::{NicError, Wc};

/// See the module. Never holds more than the connection's share of the queue.
#[derive(Default)]
pub(super) struct Mailbox {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    ready: Vec<Wc>,
    waker: Option<Waker>,
    /// Why nothing more comes.
    lost: Option<NicError>,
}

impl Mailbox {
    /// Puts a completion in. Returns who is to be woken, only by the first since the mailbox was empty, and how many wait.
    pub(super) fn push(&self, wc: Wc) -> (Option<Waker>, usize) {
        let mut inner = self.inner();
        inner.ready.push(wc);
        let waiting = inner.ready.len();
        (inner.waker.as_ref().filter(|_| waiting == 1).cloned(), waiting)
    }

    /// All that nobody took.
    pub(super) fn take(&self) -> Vec<Wc> {
        mem::take(&mut self.inner().ready)
    }

    /// Nothing more comes. Returns who is to be woken.
    pub(super) fn lose(&self, cause: &NicError) -> Option<Waker> {
        let mut inner = self.inner();
        inner.lost.get_or_insert_with(|| cause.clone());
        inner.waker.clone()
    }

    /// See [`Share::poll`](super::Share::poll).
    pub(super) fn poll(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<Wc>,
        max: usize,
    ) -> Poll<Result<(), NicError>> {
        let mut inner = self.inner();
        if !inner.ready.is_empty() {
            if out.is_empty() && inner.ready.len() <= max {
                mem::swap(out, &mut inner.ready);
            } else {
                let count = max.min(inner.ready.len());
                out.extend(inner.ready.drain(..count));
            }
            return Poll::Ready(Ok(()));
        }
        if let Some(lost) = &inner.lost {
            return Poll::Ready(Err(lost.clone()));
        }
        let stale = match &inner.waker {
            Some(known) if known.will_wake(cx.waker()) => None,
            _ => inner.waker.replace(cx.waker().clone()),
        };
        drop(inner);
        // A waker's own drop may run anything: not under the lock.
        drop(stale);
        Poll::Pending
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}
