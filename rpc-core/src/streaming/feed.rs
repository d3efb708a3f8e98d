//! Sends a stream of messages: one after the other, as the peer lets them come.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::Messages;
use crate::buf::Body;
use crate::message::{Head, Message};
use crate::proto::stream::Over;
use crate::status::Status;
use crate::transport::{Connection, Flush, Outgoing, SendError, SendHints};

/// Where the messages of a stream go: one side of one call.
pub(crate) trait Outlet: Send + Sync {
    /// Ready when the next message may be sent, or when none need be sent any more; the task is woken for either.
    fn poll_window(&self, cx: &mut Context<'_>) -> Poll<Result<(), Over>>;

    /// The head of the next message, with a body of `len` bytes; it is going to be sent.
    fn number(&self, len: usize) -> Result<Head, Over>;

    /// Refuses a message that the peer would refuse.
    fn check_size(&self, len: usize) -> Result<(), Status>;

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
    let mut ahead = None;
    loop {
        let next = poll_fn(|cx| poll_next(source, &mut ahead, outlet, cx)).await;
        let body = match next {
            Ok(Some(Ok(body))) => body,
            Ok(Some(Err(status))) => return Fed::Failed(status),
            Ok(None) => return Fed::Whole,
            Err(Over) => return Fed::Over,
        };
        if let Err(status) = outlet.check_size(body.len()) {
            return Fed::Failed(status);
        }
        let Ok(head) = outlet.number(body.len()) else { return Fed::Over };
        ahead = poll_fn(|cx| Poll::Ready(look_ahead(source, cx))).await;
        let flush = if matches!(ahead, Some(Some(Ok(_)))) { Flush::Batch } else { Flush::Now };
        if send(outlet.connection(), Message::with_body(head, body), flush).await.is_err() {
            return Fed::Over;
        }
        tokio::task::consume_budget().await;
    }
}

fn poll_next(
    source: &mut dyn Messages,
    ahead: &mut Option<Item>,
    outlet: &impl Outlet,
    cx: &mut Context<'_>,
) -> Poll<Result<Item, Over>> {
    // The end needs no window.
    if let Some(None | Some(Err(_))) = ahead {
        return Poll::Ready(Ok(ahead.take().flatten()));
    }
    std::task::ready!(outlet.poll_window(cx))?;
    match ahead.take() {
        Some(item) => Poll::Ready(Ok(item)),
        None => source.poll_message(cx).map(Ok),
    }
}

fn look_ahead(source: &mut dyn Messages, cx: &mut Context<'_>) -> Option<Item> {
    match source.poll_message(cx) {
        Poll::Ready(item) => Some(item),
        Poll::Pending => None,
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
