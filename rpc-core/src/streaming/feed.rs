//! Sends a stream of messages: one after the other, as the peer lets them come.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use super::Messages;
use crate::buf::Body;
use crate::message::{Head, Message};
use crate::proto::stream::{Next, Over};
use crate::status::Status;
use crate::transport::{Connection, Flush, Outgoing, SendError, SendHints};

/// Messages that one poll sends before other tasks have their turn.
const MESSAGES_PER_POLL: usize = 128;

/// Where the messages of a stream go: one side of one call.
pub(crate) trait Outlet: Send + Sync {
    /// Ready when the next message may be sent, or when none need be sent any more; the task is woken for either.
    fn poll_window(&self, cx: &mut Context<'_>) -> Poll<Result<(), Over>>;

    /// The head of the next message, with a body of `len` bytes; it is going to be sent. And what is known of the one behind it.
    fn number(&self, len: usize) -> Result<(Head, Next), Over>;

    /// A message as it is sent, compressed where that is wanted. Refuses one that the peer would refuse.
    fn outgoing(&self, body: Body) -> Result<Body, Status>;

    /// What carries them.
    fn connection(&self) -> &dyn Connection;
}

/// How feeding ended.
#[derive(Debug)]
pub(crate) enum Fed {
    /// The stream ended, and all of it is with the transport.
    Whole,
    /// The stream failed, or a message cannot be sent.
    Failed(Status),
    /// Nobody needs the rest.
    Over,
}

type Item = Option<Result<Body, Status>>;

/// Sends what `source` gives, until it ends or nobody needs it.
///
/// The source is polled only when the peer lets a message come, and once more before that one is sent: if another is
/// there already, both go out together.
pub(crate) async fn feed(source: &mut dyn Messages, outlet: &impl Outlet) -> Fed {
    let mut feeder = Feeder { source, outlet, next: Next::MayWait, ahead: None, unsent: None };
    poll_fn(|cx| feeder.poll(cx)).await
}

struct Feeder<'a, O> {
    source: &'a mut dyn Messages,
    outlet: &'a O,
    next: Next,
    /// What the source gave before it may be sent.
    ahead: Option<Item>,
    /// A message for which the transport has no room.
    unsent: Option<Box<Outgoing>>,
}

impl<O: Outlet> Feeder<'_, O> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Fed> {
        for _ in 0..MESSAGES_PER_POLL {
            if let Err(fed) = ready!(self.poll_message(cx)) {
                return Poll::Ready(fed);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes a message from the source and sends it; `Err` when there is none to come.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fed>> {
        while let Some(outgoing) = self.unsent.take() {
            if self.outlet.connection().poll_ready(cx).is_pending() {
                self.unsent = Some(outgoing);
                return Poll::Pending;
            }
            self.send(*outgoing)?;
        }
        let body = match ready!(self.poll_item(cx)) {
            Ok(Some(Ok(body))) => body,
            Ok(Some(Err(status))) => return Poll::Ready(Err(Fed::Failed(status))),
            Ok(None) => return Poll::Ready(Err(Fed::Whole)),
            Err(Over) => return Poll::Ready(Err(Fed::Over)),
        };
        let body = self.outlet.outgoing(body).map_err(Fed::Failed)?;
        let (head, next) = self.outlet.number(body.len()).map_err(|Over| Fed::Over)?;
        self.next = next;
        self.ahead = match self.source.poll_message(cx) {
            Poll::Ready(item) => Some(item),
            Poll::Pending => None,
        };
        let flush = if matches!(self.ahead, Some(Some(Ok(_)))) { Flush::Batch } else { Flush::Now };
        let hints = SendHints::flush(flush);
        Poll::Ready(self.send(Outgoing { message: Message::with_body(head, body), hints }))
    }

    /// The next item of the source, once it may be sent.
    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Result<Item, Over>> {
        // The end needs no window.
        if let Some(None | Some(Err(_))) = self.ahead {
            return Poll::Ready(Ok(self.ahead.take().flatten()));
        }
        if self.next == Next::MayWait {
            ready!(self.outlet.poll_window(cx))?;
        }
        let polled = match self.ahead.take() {
            Some(item) => return Poll::Ready(Ok(item)),
            None => self.source.poll_message(cx),
        };
        if polled.is_pending() && self.next == Next::MayGo {
            // The end of the call is to wake this task.
            self.next = Next::MayWait;
            if let Poll::Ready(Err(over)) = self.outlet.poll_window(cx) {
                return Poll::Ready(Err(over));
            }
        }
        polled.map(Ok)
    }

    fn send(&mut self, outgoing: Outgoing) -> Result<(), Fed> {
        match self.outlet.connection().try_send(outgoing) {
            Ok(()) => Ok(()),
            Err(SendError::Full(back)) => {
                self.unsent = Some(back);
                Ok(())
            }
            Err(SendError::Closed(_)) => Err(Fed::Over),
        }
    }
}

/// Hands a message to the transport, which may have no room for it for a while.
///
/// # Errors
///
/// The connection has ended.
pub(crate) async fn send(
    connection: &dyn Connection,
    message: Message,
    flush: Flush,
) -> Result<(), Over> {
    let mut outgoing = Outgoing { message, hints: SendHints::flush(flush) };
    loop {
        match connection.try_send(outgoing) {
            Ok(()) => return Ok(()),
            Err(SendError::Full(back)) => outgoing = *back,
            Err(SendError::Closed(_)) => return Err(Over),
        }
        poll_fn(|cx| connection.poll_ready(cx)).await;
    }
}
