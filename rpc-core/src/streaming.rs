//! Streams of messages, as handlers and callers have them.
//!
//! * [`Streaming`]: messages that come in, decoded.
//! * [`IntoStreamingRequest`]: what client methods take whose request is a stream.
//!
//! Inside, `feed` sends a user's stream of messages, on either side, and `guarded` catches its panics. Order and
//! windows are [`proto::stream`](crate::proto::stream)'s, and which connection is under it that of `client` and
//! `server`.

mod feed;
mod guarded;
mod single;
mod window;

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::buf::Body;
use crate::codec::{Codec, Prost};
use crate::metadata::MetadataMap;
use crate::request::Request;
use crate::status::{Executed, Status};

pub(crate) use feed::{Fed, Outlet, feed, send};
pub(crate) use guarded::Guarded;
pub(crate) use single::{One, Single};
pub(crate) use window::WindowPost;

/// Encoded messages: those that a side sends, or those that it receives. Not polled again after the end or an error;
/// dropping them says that nobody needs the rest.
pub trait Messages: Send {
    /// The next message, the end, or the status that ends the call.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>>;

    /// How long the next message is, in bytes, which stays where it is; of one that is compressed, when it is decompressed. `None` at the end, and where messages are not there
    /// before they are taken.
    fn poll_len(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        let _unknown = cx;
        Poll::Ready(None)
    }

    /// After the end: what is said with it besides. Of a call that fails, its status says that.
    fn take_trailers(&mut self) -> MetadataMap {
        MetadataMap::new()
    }
}

/// Replies of a handler, or the status that ends them, where their stream has no type of its own.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Messages that come in one after the other: in a handler the request, at a caller the reply.
///
/// They come in the order in which they were sent. The sender is told to go on only as they are taken: what waits
/// here is bounded by the `stream_window` that this side announces, and one message.
///
/// # Errors
///
/// The item that is an error is the last one: at a caller the status of the call; in a handler `Cancelled`, where
/// the stream outlives its call; on both sides `Internal` for a message that does not decode.
///
/// # Cancel safety
///
/// At a caller, dropping the stream before its end cancels the call. In a handler, dropping it throws away what
/// still comes, and the call goes on.
#[must_use = "messages come only as they are taken"]
pub struct Streaming<T> {
    /// `None` after the end.
    messages: Option<Box<dyn Messages>>,
    /// What came with the end.
    trailers: Option<MetadataMap>,
    /// Of an error that this side finds in a message.
    executed: Executed,
    decoded: PhantomData<fn() -> T>,
}

impl<T> Streaming<T> {
    /// Of requests, in a handler.
    pub(crate) fn of_requests(messages: Box<dyn Messages>) -> Self {
        Self::new(messages, Executed::Maybe)
    }

    /// Of replies, at a caller.
    pub(crate) fn of_replies(messages: Box<dyn Messages>) -> Self {
        Self::new(messages, Executed::Yes)
    }

    fn new(messages: Box<dyn Messages>, executed: Executed) -> Self {
        Self { messages: Some(messages), trailers: None, executed, decoded: PhantomData }
    }
}

impl<T> Streaming<T>
where
    Prost: Codec<T>,
{
    /// The next message; `None` at the end.
    ///
    /// # Errors
    ///
    /// See [`Streaming`]. After one, the stream is at its end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn message(&mut self) -> Result<Option<T>, Status> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await.transpose()
    }

    /// At a caller: what the handler said when its replies ended; `None` if that was nothing, and when it has been
    /// taken. Messages that have not been taken are dropped. Requests have no trailers.
    ///
    /// # Errors
    ///
    /// The status of a call that fails; its trailers are the status's [`metadata`](Status::metadata).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the messages that it has dropped so far, and no trailers.
    pub async fn trailers(&mut self) -> Result<Option<MetadataMap>, Status> {
        while self.message().await?.is_some() {}
        Ok(self.trailers.take())
    }
}

impl<T> Stream for Streaming<T>
where
    Prost: Codec<T>,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let executed = self.executed;
        let Some(messages) = &mut self.messages else { return Poll::Ready(None) };
        let item = std::task::ready!(messages.poll_message(cx)).map(|body| {
            body.and_then(|body| Prost.decode(body).map_err(|bad| bad.with_executed(executed)))
        });
        if item.is_none() {
            let trailers = messages.take_trailers();
            self.trailers = (!trailers.is_empty()).then_some(trailers);
        }
        if !matches!(item, Some(Ok(_))) {
            self.messages = None;
        }
        Poll::Ready(item)
    }
}

impl<T> fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.messages.is_some() { "Streaming(open)" } else { "Streaming(ended)" })
    }
}

/// What client methods take whose request is a stream: a stream of messages, or a [`Request`] of one with options.
///
/// A task on the channel's runtime polls the stream. It ends with its call, however that ends, and drops the stream.
pub trait IntoStreamingRequest {
    /// The stream.
    type Stream: Stream<Item = Self::Message> + Send + 'static;
    /// Its messages.
    type Message;

    /// The request.
    fn into_streaming_request(self) -> Request<Self::Stream>;
}

impl<S> IntoStreamingRequest for S
where
    S: Stream + Send + 'static,
{
    type Stream = S;
    type Message = S::Item;

    fn into_streaming_request(self) -> Request<S> {
        Request::new(self)
    }
}

impl<S> IntoStreamingRequest for Request<S>
where
    S: Stream + Send + 'static,
{
    type Stream = S;
    type Message = S::Item;

    fn into_streaming_request(self) -> Self {
        self
    }
}

/// A user's stream with its messages encoded. `encode` gives the status that ends it.
pub(crate) fn encoded<S, F>(stream: S, encode: F) -> Box<dyn Messages>
where
    S: Stream + Send + 'static,
    F: FnMut(S::Item) -> Result<Body, Status> + Send + 'static,
{
    Box::new(Encoded { stream: Box::pin(stream), encode })
}

struct Encoded<S, F> {
    stream: Pin<Box<S>>,
    encode: F,
}

impl<S, F> Messages for Encoded<S, F>
where
    S: Stream + Send,
    F: FnMut(S::Item) -> Result<Body, Status> + Send,
{
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let item = std::task::ready!(self.stream.as_mut().poll_next(cx));
        Poll::Ready(item.map(|message| (self.encode)(message)))
    }
}
