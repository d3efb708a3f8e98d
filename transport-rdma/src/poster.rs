//! Hands staged frames to the queue pair. Runs under the post lock, in whichever task has it.
//!
//! Encodes frames straight into registered memory and posts many with one call. The last thing it does is to
//! post what can go out without waiting and to let the endpoint go.

use std::sync::Arc;

use verbwire_core::Error;
use verbwire_core::transport::driver::DriverSignal;
use verbwire_core::transport::post::{PostQueue, Posted};

use crate::endpoint::Endpoint;
use crate::error;
use crate::memory::NicAccess;
use crate::nic::SendWr;
use crate::outbound::{BATCH, EndKind, Frame, Next, Outbound};

/// Staged frames and who posts them.
pub(crate) type SendQueue = PostQueue<Outbound, Poster>;

/// Batches that one call of [`Poster::hand_over`] posts. 8: more than a send queue holds, unless the driver
/// frees it meanwhile; a calling task must not become the sender of everyone's long bodies.
const BATCHES: usize = 8;

/// What posts.
pub(crate) struct Poster {
    /// `None` once the connection has ended.
    endpoint: Option<Arc<Endpoint>>,
    /// Memory for batches.
    frames: Vec<Frame>,
    requests: Vec<SendWr>,
}

impl Poster {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        let (frames, requests) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        Self { endpoint: Some(endpoint), frames, requests }
    }

    /// Posts until nothing is staged (`All`), or until there is no credit or slot, or it is someone else's
    /// turn (`Blocked`).
    pub(crate) fn hand_over(&mut self, queue: &SendQueue, driver: &DriverSignal) -> Posted {
        for _ in 0..BATCHES {
            let (next, waiting) = queue.with_staged(|staged| staged.next(&mut self.frames));
            waiting.into_iter().for_each(|waker| waker.wake());
            match next {
                Next::Idle => return Posted::All,
                Next::Blocked => return Posted::Blocked,
                Next::End(how) => {
                    self.finish(how, queue);
                    return Posted::All;
                }
                Next::Post | Next::PostLast => {}
            }
            if let Err(cause) = self.post() {
                let waiting = queue.with_staged(|staged| staged.end(EndKind::Broken, cause));
                waiting.into_iter().for_each(|waker| waker.wake());
                driver.wake();
            } else if next == Next::PostLast {
                // What was staged since is seen by the queue, which looks once more.
                return Posted::All;
            }
        }
        Posted::Blocked
    }

    /// Posts the frames, in order.
    fn post(&mut self) -> Result<(), Error> {
        let Some(endpoint) = &self.endpoint else {
            self.frames.clear();
            return Ok(());
        };
        self.requests.clear();
        for frame in self.frames.drain(..) {
            let mut buf = endpoint.take()?;
            let len = frame.encode(&mut buf);
            let buf = buf.into_nic(NicAccess::Read);
            self.requests.push(endpoint.work().send(buf, len, frame.signal));
        }
        // A failure ends the connection and wakes its driver, which polls for the end again.
        let failed = |error| endpoint.explain(error::lost("sending", error));
        endpoint.qp().post_send(&self.requests).map_err(failed)
    }

    /// Posts what can go out without waiting, and lets the endpoint go.
    fn finish(&mut self, how: EndKind, queue: &SendQueue) {
        if how == EndKind::Closed {
            queue.with_staged(|staged| staged.last(&mut self.frames));
            if let Err(error) = self.post() {
                tracing::debug!(%error, "the last frames of a closed connection are not sent");
            }
        }
        queue.with_staged(Outbound::discard);
        self.frames.clear();
        self.endpoint = None;
    }
}
