//! Calls that have streams, within bounds.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::gate::{Gate, Held, NoRoom, Taken};
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::status::Status;
use crate::streaming::Messages;
use crate::transport::BoxFuture;

/// Replies of a call that runs until they have ended, or nobody needs them.
pub(super) struct Holding {
    replies: Box<dyn Messages>,
    held: Option<Held>,
}

impl Holding {
    pub(super) fn new(replies: Box<dyn Messages>, held: Held) -> Self {
        Self { replies, held: Some(held) }
    }
}

impl Messages for Holding {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let item = ready!(self.replies.poll_message(cx));
        if !matches!(item, Some(Ok(_))) {
            self.held = None;
        }
        Poll::Ready(item)
    }

    fn take_trailers(&mut self) -> MetadataMap {
        self.replies.take_trailers()
    }
}

/// Requests of which a handler gets one at a time, as there is room for its bytes. Until then it stays in its stream where that
/// knows its length, so that its sender is not told to go on.
pub(super) struct Admitted {
    requests: Box<dyn Messages>,
    gate: Arc<Gate>,
    /// Of the message that the handler has. It is done with that when it asks for the next.
    held: Option<Taken>,
    next: Next,
    /// The next message, if it had to be taken for its length.
    taken: Option<Body>,
}

/// What the next message has.
enum Next {
    /// Not been asked for.
    Unknown,
    /// No room yet.
    Waits(BoxFuture<'static, Option<Taken>>),
    /// Its room, which is held.
    MayGo,
}

impl Admitted {
    pub(super) fn new(requests: Box<dyn Messages>, gate: Arc<Gate>) -> Self {
        Self { requests, gate, held: None, next: Next::Unknown, taken: None }
    }

    /// Asks for room for `len` bytes.
    fn ask(&mut self, len: usize) {
        self.next = match self.gate.room_now(len) {
            Ok(held) => {
                self.held = held;
                Next::MayGo
            }
            Err(NoRoom) => {
                let gate = Arc::clone(&self.gate);
                Next::Waits(Box::pin(async move { gate.room(len).await }))
            }
        };
    }
}

impl Messages for Admitted {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        if !self.gate.bounds_bytes() {
            return self.requests.poll_message(cx);
        }
        if let Next::Unknown = self.next {
            self.held = None;
            let len = match ready!(self.requests.poll_len(cx)) {
                Some(len) => len,
                None => match ready!(self.requests.poll_message(cx)) {
                    Some(Ok(body)) => self.taken.insert(body).decompressed_len(),
                    end => return Poll::Ready(end),
                },
            };
            self.ask(len);
        }
        if let Next::Waits(room) = &mut self.next {
            self.held = ready!(room.as_mut().poll(cx));
            self.next = Next::MayGo;
        }
        let item = match self.taken.take() {
            Some(body) => Some(Ok(body)),
            None => ready!(self.requests.poll_message(cx)),
        };
        self.next = Next::Unknown;
        Poll::Ready(item)
    }

    fn poll_len(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        match &self.taken {
            Some(body) => Poll::Ready(Some(body.decompressed_len())),
            None => self.requests.poll_len(cx),
        }
    }

    fn take_trailers(&mut self) -> MetadataMap {
        self.requests.take_trailers()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use bytes::Bytes;

    use super::super::LoadLimits;
    use super::*;

    /// Messages of 6 bytes, and how many were taken.
    struct Sixes {
        taken: Arc<AtomicUsize>,
        /// Whether it says how long they are.
        tells: bool,
    }

    impl Messages for Sixes {
        fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
            self.taken.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Bytes::from_static(b"sixsix").into())))
        }

        fn poll_len(&mut self, _: &mut Context<'_>) -> Poll<Option<usize>> {
            Poll::Ready(self.tells.then_some(6))
        }
    }

    fn poll(messages: &mut impl Messages) -> Option<usize> {
        match messages.poll_message(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(body))) => Some(body.len()),
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_message_that_waits_for_room_is_not_taken_from_its_stream_where_that_knows_its_length() {
        for (tells, gates, taken_early) in [(true, 1, 0), (true, 2, 0), (false, 1, 1)] {
            let gate = Arc::new(Gate::new(&LoadLimits::new().max_running_bytes(10), "the server"));
            let taken = Arc::new(AtomicUsize::new(0));
            let sixes = Sixes { taken: Arc::clone(&taken), tells };
            let mut messages = Admitted::new(Box::new(sixes), Arc::clone(&gate));
            if gates == 2 {
                let wide = Gate::new(&LoadLimits::new().max_running_bytes(100), "a service");
                messages = Admitted::new(Box::new(messages), Arc::new(wide));
            }
            let held = gate.enter(5).expect("room");
            for _ in 0..3 {
                assert_eq!(poll(&mut messages), None, "5 and 6 are more than 10");
                assert_eq!(taken.load(Ordering::Relaxed), taken_early, "{tells} {gates}");
            }
            drop(held);
            assert_eq!(poll(&mut messages), Some(6));
            assert_eq!(taken.load(Ordering::Relaxed), 1);
            assert!(gate.enter(5).is_err(), "it holds its room");
            assert_eq!(poll(&mut messages), Some(6), "instead of the one before");
            drop(messages);
            assert!(gate.enter(10).is_ok());
        }
    }
}
