//! A connection's completions, between who polls the queue and who drives the connection.

use std::mem;
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

use super::Left;
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

impl Inner {
    /// Appends up to `max` to `out`. Whether there were any.
    fn take(&mut self, out: &mut Vec<Wc>, max: usize) -> bool {
        if self.ready.is_empty() {
            return false;
        }
        if out.is_empty() && self.ready.len() <= max {
            mem::swap(out, &mut self.ready);
        } else {
            let count = max.min(self.ready.len());
            out.extend(self.ready.drain(..count));
        }
        true
    }
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
    ) -> Poll<Result<Left, NicError>> {
        let mut inner = self.inner();
        let taken = inner.take(out, max);
        match &inner.lost {
            Some(_) if taken => return Poll::Ready(Ok(Left::Some)),
            Some(lost) => return Poll::Ready(Err(lost.clone())),
            None if !inner.ready.is_empty() => return Poll::Ready(Ok(Left::Some)),
            None => {}
        }
        let stale = match &inner.waker {
            Some(known) if known.will_wake(cx.waker()) => None,
            _ => inner.waker.replace(cx.waker().clone()),
        };
        drop(inner);
        // A waker's own drop may run anything: not under the lock.
        drop(stale);
        if taken { Poll::Ready(Ok(Left::Nothing)) } else { Poll::Pending }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::{QpNumber, WrId};

    fn wc(id: u64) -> Wc {
        Wc { id: WrId(id), qp: QpNumber(1), result: Ok(0) }
    }

    fn poll(mailbox: &Mailbox, max: usize) -> (Poll<Result<Left, NicError>>, usize) {
        let mut out = Vec::new();
        let polled = mailbox.poll(&mut Context::from_waker(Waker::noop()), &mut out, max);
        (polled, out.len())
    }

    #[test]
    fn who_has_taken_all_is_woken_by_the_next_one_without_polling_again() {
        let mailbox = Mailbox::default();
        (0..3).for_each(|id| drop(mailbox.push(wc(id))));
        assert_eq!(poll(&mailbox, 2), (Poll::Ready(Ok(Left::Some)), 2));
        assert_eq!(poll(&mailbox, 2), (Poll::Ready(Ok(Left::Nothing)), 1));
        let (waker, _waiting) = mailbox.push(wc(3));
        assert!(waker.is_some());
        assert_eq!(poll(&mailbox, 2), (Poll::Ready(Ok(Left::Nothing)), 1));
        assert_eq!(poll(&mailbox, 2), (Poll::Pending, 0));
    }

    #[test]
    fn behind_the_last_one_of_a_lost_queue_there_is_its_loss() {
        let mailbox = Mailbox::default();
        drop(mailbox.push(wc(0)));
        let lost = NicError { verb: "ibv_poll_cq", reason: "gone".into() };
        drop(mailbox.lose(&lost));
        assert_eq!(poll(&mailbox, 2), (Poll::Ready(Ok(Left::Some)), 1));
        assert_eq!(poll(&mailbox, 2), (Poll::Ready(Err(lost)), 0));
    }
}
