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
                // A peer that reads nothing makes no room: the end of the call has to wake this task as well.
                if let Poll::Ready(Err(Over)) = self.outlet.poll_window(cx) {
                    return Poll::Ready(Err(Fed::Over));
                }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::any::{Any, TypeId};
    use std::sync::Mutex;
    use std::task::Waker;
    use std::time::Duration;

    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;
    use crate::error::Error;
    use crate::message::CallId;
    use crate::metadata::MetadataMap;
    use crate::transport::{BoxFuture, Incoming, Path};

    /// A connection to a peer that reads nothing.
    struct Stuck;

    impl Connection for Stuck {
        fn try_send(&self, outgoing: Outgoing) -> Result<(), SendError> {
            Err(SendError::Full(Box::new(outgoing)))
        }

        fn poll_ready(&self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }

        fn poll_recv(&self, _: &mut Context<'_>, _: &mut Vec<Incoming>) -> Poll<Result<(), Error>> {
            Poll::Pending
        }

        fn revoke(&self, _: CallId) {}

        fn close(&self, _: Error) {}

        fn retire(&self) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }

        fn path(&self) -> Path {
            Path { transport: "stuck", local: String::new(), peer: String::new() }
        }

        fn capability(&self, _: TypeId) -> Option<&(dyn Any + Send + Sync)> {
            None
        }
    }

    /// A call that ends at some time.
    #[derive(Default)]
    struct Call(Mutex<(bool, Option<Waker>)>);

    impl Call {
        fn end(&self) {
            let mut call = self.0.lock().expect("no panic");
            call.0 = true;
            call.1.take().into_iter().for_each(Waker::wake);
        }
    }

    impl Outlet for Call {
        fn poll_window(&self, cx: &mut Context<'_>) -> Poll<Result<(), Over>> {
            let mut call = self.0.lock().expect("no panic");
            call.1 = Some(cx.waker().clone());
            Poll::Ready(if call.0 { Err(Over) } else { Ok(()) })
        }

        fn number(&self, _: usize) -> Result<(Head, Next), Over> {
            Ok((Head::Message { call: CallId { slot: 0, generation: 1 }, number: 0 }, Next::MayGo))
        }

        fn outgoing(&self, body: Body) -> Result<Body, Status> {
            Ok(body)
        }

        fn connection(&self) -> &dyn Connection {
            &Stuck
        }
    }

    struct Endless(u32);

    impl Messages for Endless {
        fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
            self.0 += 1;
            Poll::Ready(Some(Ok(Body::default())))
        }

        fn take_trailers(&mut self) -> MetadataMap {
            MetadataMap::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_call_ends_its_stream_also_where_the_transport_makes_no_room() {
        let (call, mut source) = (Call::default(), Endless(0));
        let feeding = timeout(Duration::from_secs(1), feed(&mut source, &call));
        let (fed, ()) = tokio::join!(feeding, async {
            yield_now().await;
            call.end();
        });
        let fed = fed.expect("it is told");
        assert!(matches!(fed, Fed::Over), "{fed:?}");
        assert_eq!(source.0, 2, "one that waits, and the one behind it");
    }
}
