//! Hands staged frames to the socket. Runs under the post lock, in whichever task has it.
//!
//! Owns the writing half of the socket and the batch that is being written. The last thing it does is to
//! write what can be written without waiting and to let the half go, which tells the peer that nothing
//! follows.

use std::io::{self, IoSlice};

use verbwire_core::transport::driver::DriverSignal;
use verbwire_core::transport::post::{PostQueue, Posted};

use crate::error;
use crate::outbound::{Batch, EndKind, Next, Outbound, SLICES};
use crate::stream::WriteHalf;
use crate::written::Written;

/// Staged frames and who writes them.
pub(crate) type SendQueue = PostQueue<Outbound, Poster>;

/// Batches that one call of [`Poster::hand_over`] writes. 8: a calling task must not become the writer of
/// everyone's long bodies; what is left then is the driver's.
const BATCHES: usize = 8;

/// What writes.
#[derive(Debug)]
pub(crate) struct Poster {
    /// `None` once the connection has ended.
    half: Option<WriteHalf>,
    batch: Batch,
    written: Written,
}

impl Poster {
    pub(crate) fn new(half: WriteHalf, written: Written) -> Self {
        Self { half: Some(half), batch: Batch::default(), written }
    }

    /// Writes until nothing is staged (`All`), or the socket takes no more or it is someone else's turn
    /// (`Blocked`).
    pub(crate) fn hand_over(&mut self, queue: &SendQueue, driver: &DriverSignal) -> Posted {
        for _ in 0..BATCHES {
            let (next, waiting) = queue.with_staged(|staged| staged.next(&mut self.batch));
            waiting.into_iter().for_each(|waker| waker.wake());
            match next {
                Next::Idle => return Posted::All,
                Next::End(how) => {
                    self.finish(how, queue);
                    return Posted::All;
                }
                Next::Write => {}
            }
            match self.write() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Posted::Blocked,
                Err(error) => {
                    let cause = error::lost("sending", error);
                    let waiting = queue.with_staged(|staged| staged.end(EndKind::Broken, cause));
                    waiting.into_iter().for_each(|waker| waker.wake());
                    driver.wake();
                }
            }
        }
        Posted::Blocked
    }

    /// Writes the batch.
    fn write(&mut self) -> io::Result<()> {
        let Some(half) = &mut self.half else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        while !self.batch.is_written() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = self.batch.slices(&mut slices);
            match half.try_write_vectored(&slices[..filled]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.batch.advance(count);
                    self.written.add(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes what can be written without waiting, long bodies apart, and lets the socket go.
    fn finish(&mut self, how: EndKind, queue: &SendQueue) {
        if how == EndKind::Closed && self.write().is_ok() {
            queue.with_staged(|staged| staged.take_frames(&mut self.batch));
            if let Err(error) = self.write() {
                tracing::debug!(%error, "queued frames are not sent: the connection is closed");
            }
        }
        queue.with_staged(Outbound::discard);
        self.batch = Batch::default();
        self.half = None;
    }
}
