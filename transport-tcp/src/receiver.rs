//! The driver's state: reading, and waiting until the socket takes more.
//!
//! Guarded by a lock that only the driver takes, and closing, which tries it. Owns the reading half of
//! the socket, the decoder and the timer of a peer that takes nothing.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, Sleep, sleep_until};
use verbwire_core::message::CallId;
use verbwire_core::transport::{Incoming, PlacementHook};
use verbwire_core::{Error, ErrorKind};

use crate::decoder::{Cut, FrameDecoder};
use crate::error;
use crate::stream::ReadHalf;

/// Reads of one poll. 16: a megabyte of small frames; then other tasks have their turn.
const READS: usize = 16;

/// What reads.
pub(crate) struct Receiver {
    half: ReadHalf,
    decoder: FrameDecoder,
    placement: Arc<dyn PlacementHook>,
    /// Why nothing more is read. Found behind messages, it is reported by the poll after theirs.
    failed: Option<Error>,
}

impl Receiver {
    pub(crate) fn new(
        half: ReadHalf,
        decoder: FrameDecoder,
        placement: Arc<dyn PlacementHook>,
    ) -> Self {
        Self {
            half,
            decoder,
            placement,
            failed: None,
        }
    }

    /// See [`FrameDecoder::revoke`].
    pub(crate) fn revoke(&mut self, call: CallId) {
        self.decoder.revoke(call);
    }

    /// See [`ReadHalf::poll_write_ready`].
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half.poll_write_ready(cx)
    }

    /// Appends at least one message to `received`, or waits, or says why nothing more comes.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<(), Error>> {
        let before = received.len();
        for _ in 0..READS {
            if self.failed.is_none() {
                let mut space = self.decoder.space();
                let read = ready!(pin!(self.half.read_buf(&mut space)).poll(cx));
                self.failed = self.take_read(read, received).err();
            }
            if received.len() > before {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(error.clone()));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn take_read(
        &mut self,
        read: io::Result<usize>,
        received: &mut Vec<Incoming>,
    ) -> Result<(), Error> {
        match read {
            Ok(0) => Err(end_of_stream(self.decoder.cut())),
            Ok(_) => Ok(self.decoder.decode(&*self.placement, received)?),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error::lost("receiving", error)),
        }
    }
}

fn end_of_stream(cut: Cut) -> Error {
    let message = match cut {
        Cut::Clean => "the peer closed the connection".to_owned(),
        Cut::InFrame => "the peer closed the connection within a frame".to_owned(),
        Cut::BeforeBodies(1) => "the peer closed the connection within a body".to_owned(),
        Cut::BeforeBodies(count) => {
            format!("the peer closed the connection within {count} bodies")
        }
    };
    Error::new(ErrorKind::Lost, message)
}

/// Notices a peer that takes no byte for too long while there are some for it.
pub(crate) struct Stall {
    timeout: Duration,
    /// The count of written bytes when it last changed, and when that was seen; `None` while nothing waits.
    last: Option<(u64, Instant)>,
    /// Made when first needed: most connections never wait.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            last: None,
            sleep: None,
        }
    }

    /// Nothing waits for the peer any more.
    pub(crate) fn clear(&mut self) {
        self.last = None;
    }

    /// Something waits for the peer, which has taken `written` bytes so far. Ready when it is stalled.
    pub(crate) fn poll_stalled(&mut self, cx: &mut Context<'_>, written: u64) -> Poll<Error> {
        let since = match self.last {
            Some((count, since)) if count == written => since,
            _ => {
                let now = Instant::now();
                self.last = Some((written, now));
                now
            }
        };
        let deadline = since + self.timeout;
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
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

    async fn stalled_after(stall: &mut Stall, written: u64) -> Duration {
        let start = Instant::now();
        let error = poll_fn(|cx| stall.poll_stalled(cx, written)).await;
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
