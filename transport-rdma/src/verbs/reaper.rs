//! Calls that may block, off the runtime's workers.
//!
//! Destroying a queue pair, a completion queue or a connection manager's id waits for events that are still being
//! handled, for the peer, or for the kernel. A `Drop` must do none of that, so it hands the object to the reaper:
//! plain threads of the process, which outlive every runtime. One that waits keeps nobody else waiting, since
//! there are as many as there is work, up to [`MOST`]. No order is kept; an object goes after those that are made of
//! it because each of them holds it.
//!
//! What waits on Linux 6.1: a queue pair of soft-iWARP that connects, 5 s for an answer of the peer's, or as long as
//! TCP connects if its machine is gone, two minutes; one of soft-RoCE that something in the kernel still uses, 50 s.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use verbwire_core::{Error, ErrorKind};

use crate::reaper::Reaper;

type Work = Box<dyn FnOnce() + Send>;

/// Threads for destruction, at most. 64: twice the connects that may wait at a time.
const MOST: usize = 64;

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

/// The process's threads for destruction.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReaperThread;

impl Reaper for ReaperThread {
    fn run(&self, work: Work) {
        POOL.run(work);
    }
}

/// Hands `work` to the reaper.
pub(super) fn reap(work: impl FnOnce() + Send + 'static) {
    POOL.run(Box::new(work));
}

static POOL: Pool = Pool::new();

/// Threads that are started when all others are busy.
struct Pool {
    queue: Mutex<Queue>,
    more: Condvar,
}

struct Queue {
    waiting: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

impl Pool {
    const fn new() -> Self {
        let queue = Queue { waiting: VecDeque::new(), threads: 0, idle: 0 };
        Self { queue: Mutex::new(queue), more: Condvar::new() }
    }

    fn run(&'static self, work: Work) {
        let mut queue = self.lock();
        queue.waiting.push_back(work);
        if queue.waiting.len() <= queue.idle || queue.threads == MOST {
            self.more.notify_one();
            return;
        }
        let thread = thread::Builder::new().name("verbs-reaper".into());
        match thread.spawn(|| self.serve()) {
            Ok(_detached) => queue.threads += 1,
            // Another thread will come to it.
            Err(_) if queue.threads > 0 => {}
            Err(error) => {
                tracing::warn!(%error, "no thread for destroying queue pairs: it is done in place");
                let waiting = std::mem::take(&mut queue.waiting);
                drop(queue);
                waiting.into_iter().for_each(do_one);
            }
        }
    }

    fn serve(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                drop(queue);
                do_one(work);
                queue = self.lock();
                continue;
            }
            queue.idle += 1;
            let (woken, waited) =
                self.more.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.waiting.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn do_one(work: Work) {
    // One object that fails must not keep all others alive.
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("destroying an object of a device panicked");
    }
}

/// Runs `call` on a thread of its own and waits for it. Dropped before, the call still runs to its end.
///
/// # Errors
///
/// The machine starts no thread.
pub(super) async fn on_thread<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = oneshot::channel();
    let thread = thread::Builder::new().name("verbs-call".into());
    let started = thread.spawn(move || {
        // Nobody listens any more if the future was dropped.
        let _unheard = sender.send(call());
    });
    if let Err(error) = started {
        let message = "no thread for a call that may block: raise the limit on processes";
        return Err(Error::with_source(ErrorKind::LocalResource, message, error));
    }
    receiver.await.map_err(|_| Error::new(ErrorKind::LocalResource, "a call into verbs panicked"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn work_that_blocks_or_panics_keeps_no_other_waiting() {
        let (block, blocked) = channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let (sender, receiver) = channel();
        for _ in 1..MOST {
            let (blocked, sender) = (Arc::clone(&blocked), sender.clone());
            reap(move || {
                let ended = blocked.lock().expect("no panic").recv();
                sender.send(ended.map_or(-1, |()| -2)).expect("the test waits");
            });
        }
        for number in 0..100 {
            let sender = sender.clone();
            reap(move || {
                sender.send(number).expect("the test waits");
                assert_ne!(number, 1, "this panic is part of the test");
            });
        }
        let seen: Vec<i32> = (0..100).filter_map(|_| receiver.recv_timeout(SOON).ok()).collect();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        drop(block);
        for _ in 1..MOST {
            assert_eq!(receiver.recv_timeout(SOON), Ok(-1), "it was blocked until now");
        }
    }

    #[tokio::test]
    async fn a_blocking_call_gives_its_result() {
        assert_eq!(on_thread(|| 7).await.expect("a thread"), 7);
        let panicked = on_thread(|| -> i32 { std::panic::resume_unwind(Box::new(())) }).await;
        assert_eq!(panicked.expect_err("panicked").kind(), ErrorKind::LocalResource);
    }
}
