//! Asking seldom: a driver looks with every message at what hardly ever happens, a shutdown or the end of a
//! connection, and each look takes locks and registers wakers. [`News`] looks only when something may have changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::sleeper::Sleeper;

/// Whether to ask something for news, and whom to wake when there is some.
#[derive(Debug)]
pub struct News {
    shared: Arc<Shared>,
}

/// Woken by what has news.
#[derive(Debug)]
struct Shared {
    is_due: AtomicBool,
    driver: Sleeper,
}

impl Default for News {
    fn default() -> Self {
        let shared = Shared { is_due: AtomicBool::new(true), driver: Sleeper::default() };
        Self { shared: Arc::new(shared) }
    }
}

impl News {
    /// Asks, unless it has asked before and was not woken since. `ask` gets a context of its own: it wakes this,
    /// which wakes the task of `cx`. What is ready is asked again each time.
    pub fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        ask: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if !self.shared.take(cx.waker()) {
            return Poll::Pending;
        }
        let answer = ask(&mut Context::from_waker(&Waker::from(Arc::clone(&self.shared))));
        if answer.is_ready() {
            self.shared.is_due.store(true, Ordering::Release);
        }
        answer
    }

    /// What is asked has changed: the next poll asks again.
    pub fn renew(&self) {
        self.shared.is_due.store(true, Ordering::Release);
    }
}

impl Shared {
    /// Whether to ask. If not, `waker` is woken when that changes.
    fn take(&self, waker: &Waker) -> bool {
        self.driver.register(waker);
        self.is_due.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.is_due.store(true, Ordering::Release);
        self.driver.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn it_asks_once_and_again_when_it_was_woken() {
        let (news, count) = (News::default(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let (mut asked, mut source) = (0, None);
        for round in 1..4 {
            for _ in 0..3 {
                let polled = news.poll(&mut cx, |cx| {
                    asked += 1;
                    source = Some(cx.waker().clone());
                    Poll::<()>::Pending
                });
                assert!(polled.is_pending());
            }
            assert_eq!((asked, count.0.load(Ordering::Relaxed)), (round, round - 1));
            source.take().expect("asked").wake();
            assert_eq!(count.0.load(Ordering::Relaxed), round);
        }
        news.renew();
        assert!(news.poll(&mut cx, |_cx| Poll::Ready(())).is_ready());
        assert!(news.poll(&mut cx, |_cx| Poll::Ready(())).is_ready(), "what is ready stays ready");
    }
}
