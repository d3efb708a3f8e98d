//! Reading: from the socket to messages.
//!
//! Owns the reading half of the socket, the decoder, and what was found behind the last messages.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncReadExt;
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
        Self { half, decoder, placement, failed: None }
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
