//! Noticing a peer that takes nothing.
//!
//! Owns a timer that runs while something waits to be sent. What is waiting, how progress is counted, and what
//! follows from a stall, is the connection's business.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::error::{Error, ErrorKind};
use crate::proto::deadlines::deadline_after;

/// Notices a peer that takes no byte for too long while there are some for it.
#[derive(Debug)]
pub struct Stall {
    timeout: Duration,
    /// The count of progress when it last changed, and when that was seen; `None` while nothing waits.
    last: Option<(u64, Instant)>,
    /// Made when first needed: most connections never wait.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    /// Nothing waits yet.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, last: None, sleep: None }
    }

    /// Nothing waits for the peer any more.
    pub fn clear(&mut self) {
        self.last = None;
    }

    /// Something waits for the peer; `progress` counts what it has taken so far. Ready when it is stalled.
    pub fn poll_stalled(&mut self, cx: &mut Context<'_>, progress: u64) -> Poll<Error> {
        let since = match self.last {
            Some((count, since)) if count == progress => since,
            _ => {
                let now = Instant::now();
                self.last = Some((progress, now));
                now
            }
        };
        let deadline = deadline_after(since, self.timeout);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        // The timer is moved only when it fires, not at every byte.
        while sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(self.error());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }

    fn error(&self) -> Error {
        Error::new(
            ErrorKind::Lost,
            format!(
                "the peer took no byte for {:?} while some were queued for it; it hangs, or the network \
                 does",
                self.timeout
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn stalled_after(stall: &mut Stall, progress: u64) -> Duration {
        let start = Instant::now();
        let error = poll_fn(|cx| stall.poll_stalled(cx, progress)).await;
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("no byte for 30s"), "{error}");
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_some_bytes_is_given_the_whole_time_again() {
        let mut stall = Stall::new(Duration::from_secs(30));
        let mut polled = |written| {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            stall.poll_stalled(&mut cx, written).is_ready()
        };
        assert!(!polled(1));
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(!polled(2));
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(!polled(2));
        let rest = stalled_after(&mut stall, 2).await;
        assert!(rest <= Duration::from_millis(1010), "{rest:?}");
        stall.clear();
        assert!(stalled_after(&mut stall, 2).await >= Duration::from_secs(30));
    }
}
