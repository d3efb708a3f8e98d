//! Calls that may block, off the runtime's workers.
//!
//! Destroying a queue pair, a completion queue or a connection manager's id waits for events that are still
//! being handled, for the peer, or for the kernel. A `Drop` must do none of that, so it hands the object to
//! the reaper: one plain thread of the process, which works in order and outlives every runtime. Connecting
//! may take as long as a TCP connect, and would keep the reaper from its work; it gets a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use tokio::sync::oneshot;
use verbwire_core::{Error, ErrorKind};

use crate::reaper::Reaper;

type Work = Box<dyn FnOnce() + Send>;

/// The process's thread for destruction.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReaperThread;

impl Reaper for ReaperThread {
    fn run(&self, work: Work) {
        let Some(queue) = queue() else { return work() };
        if let Err(refused) = queue.send(work) {
            (refused.0)();
        }
    }
}

/// Hands `work` to the reaper.
pub(super) fn reap(work: impl FnOnce() + Send + 'static) {
    ReaperThread.run(Box::new(work));
}

/// The thread's queue; `None` where the machine starts no thread, so that work has to be done in place.
fn queue() -> Option<&'static Sender<Work>> {
    static QUEUE: OnceLock<Option<Sender<Work>>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = channel();
        let thread = thread::Builder::new().name("verbs-reaper".into());
        match thread.spawn(move || run(&receiver)) {
            Ok(_detached) => Some(sender),
            Err(error) => {
                tracing::warn!(%error, "no thread for destroying queue pairs: it is done in place");
                None
            }
        }
    });
    queue.as_ref()
}

fn run(receiver: &Receiver<Work>) {
    while let Ok(work) = receiver.recv() {
        // One object that fails must not keep all others alive.
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!("destroying an object of a device panicked");
        }
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
    use super::*;

    #[test]
    fn work_is_done_in_order_and_survives_a_panic() {
        let (sender, receiver) = channel();
        for number in 0..3 {
            let sender = sender.clone();
            reap(move || {
                sender.send(number).expect("the test waits");
                assert_ne!(number, 1, "this panic is part of the test");
            });
        }
        let seen: Vec<i32> = (0..3).filter_map(|_| receiver.recv().ok()).collect();
        assert_eq!(seen, [0, 1, 2]);
    }

    #[tokio::test]
    async fn a_blocking_call_gives_its_result() {
        assert_eq!(on_thread(|| 7).await.expect("a thread"), 7);
        let panicked = on_thread(|| -> i32 { std::panic::resume_unwind(Box::new(())) }).await;
        assert_eq!(panicked.expect_err("panicked").kind(), ErrorKind::LocalResource);
    }
}
