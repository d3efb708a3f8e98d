//! What cases do with an end of a connection: the product's side, at the transport's seam.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use verbwire_core::buf::Body;
use verbwire_core::message::{CallId, Form, Head, Message, MethodId, ReplyForm};
use verbwire_core::transport::{
    Announced, Connection, Flush, Incoming, LocalSide, Outgoing, Placement, PlacementHook,
    SendError, SendHints,
};
use verbwire_core::wire::Hello;
use verbwire_core::{Code, Error, Executed};
use verbwire_tests::fixture::LONG;
use verbwire_tests::raw::hello;

pub(crate) type End = Arc<dyn Connection>;

/// Places every body.
struct Everything;

impl PlacementHook for Everything {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

pub(crate) fn side(hello: Hello) -> LocalSide {
    LocalSide {
        hello,
        placement: Arc::new(Everything),
        deadline: Instant::now() + LONG,
        ticket: None,
    }
}

/// A side with default limits.
pub(crate) fn plain() -> LocalSide {
    side(hello())
}

pub(crate) fn call(slot: u32) -> CallId {
    CallId { slot, generation: 1 }
}

pub(crate) fn slot(message: &Message) -> u32 {
    message.head.call().expect("about a call").slot
}

pub(crate) fn request(slot: u32, body: impl Into<Body>) -> Message {
    let head = Head::Request {
        call: call(slot),
        method: MethodId(1),
        path: None,
        // Longer than a case takes: a long body that comes later is thrown away.
        timeout: Duration::from_secs(3600),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    };
    Message::with_body(head, body.into())
}

pub(crate) fn response(slot: u32, body: impl Into<Body>) -> Message {
    let head = Head::Response {
        call: call(slot),
        code: Code::Ok,
        executed: Executed::Yes,
        messages: None,
    };
    Message::with_body(head, body.into())
}

/// Sends a REQUEST that says how long its reply will be.
pub(crate) async fn ask(end: &End, slot: u32, reply: u64) {
    let hints = SendHints::flush(Flush::Now).expecting(Some(reply));
    send_with(end, request(slot, Bytes::from_static(b"how long?")), hints).await.expect("open");
}

/// Sends, waiting for room.
pub(crate) async fn send(end: &End, message: Message) -> Result<(), Error> {
    send_with(end, message, SendHints::flush(Flush::Now)).await
}

pub(crate) async fn send_with(end: &End, message: Message, hints: SendHints) -> Result<(), Error> {
    let mut outgoing = Outgoing { message, hints };
    loop {
        match end.try_send(outgoing) {
            Ok(()) => return Ok(()),
            Err(SendError::Closed(error)) => return Err(error),
            Err(SendError::Full(back)) => outgoing = *back,
        }
        poll_fn(|cx| end.poll_ready(cx)).await;
    }
}

/// One poll of the driver's that brought something.
pub(crate) async fn receive(end: &End) -> Result<Vec<Message>, Error> {
    timeout(3 * LONG, receive_for_ever(end)).await.expect("a message, or the end")
}

/// The same, however long it takes.
pub(crate) async fn receive_for_ever(end: &End) -> Result<Vec<Message>, Error> {
    let mut received: Vec<Incoming> = Vec::new();
    poll_fn(|cx| match end.poll_recv(cx, &mut received) {
        // It would be polled again for more.
        Poll::Pending if !received.is_empty() => Poll::Ready(Ok(())),
        polled => polled,
    })
    .await?;
    Ok(received.into_iter().map(|incoming| incoming.message).collect())
}

/// The next message.
pub(crate) async fn receive_one(end: &End) -> Message {
    let mut received = receive(end).await.expect("open");
    assert_eq!(received.len(), 1);
    received.remove(0)
}

/// Drives an end, and drops what it receives, until it ends.
pub(crate) async fn drive(end: &End) -> Error {
    loop {
        if let Err(error) = receive_for_ever(end).await {
            return error;
        }
    }
}

/// Drives an end while something else goes on.
pub(crate) async fn while_driven<T>(end: &End, work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        error = drive(end) => panic!("the end ended: {error}"),
    }
}
