//! Tells the sender of a stream that it may go on.

use std::task::Context;

use crate::message::{CallId, Head, Message};
use crate::transport::{Connection, Flush, Outgoing, SendError, SendHints};

/// The WINDOW of a stream that has not been handed to the transport. What it says adds up, so that a newer one takes
/// an older one's place.
#[derive(Debug, Default)]
pub(crate) struct WindowPost(Option<u64>);

impl WindowPost {
    /// So much may have been sent since the beginning of the stream.
    pub(crate) fn grant(&mut self, granted: Option<u64>) {
        self.0 = granted.or(self.0);
    }

    /// Sends what is to be said, or has the task woken when there is room for it. Whoever waits for more of the stream
    /// polls again, so that nothing is lost by not waiting here.
    pub(crate) fn post(&mut self, connection: &dyn Connection, call: CallId, cx: &mut Context<'_>) {
        while let Some(granted) = self.0 {
            let message = Message::bare(Head::Window { call, granted });
            let hints = SendHints::flush(Flush::Batch);
            match connection.try_send(Outgoing { message, hints }) {
                Ok(()) | Err(SendError::Closed(_)) => self.0 = None,
                Err(SendError::Full(_)) if connection.poll_ready(cx).is_pending() => return,
                Err(SendError::Full(_)) => {}
            }
        }
    }
}
