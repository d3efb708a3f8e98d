//! Calls of methods that have streams: decoding and encoding around a handler.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use futures_core::Stream;

use crate::buf::Body;
use crate::codec::{Codec, Prost};
use crate::request::{Request, Response};
use crate::status::{Executed, Status};
use crate::streaming::{Messages, Streaming, encoded};

/// What a method that has streams is called with.
pub enum StreamInput {
    /// The request.
    Whole(Body),
    /// The requests.
    Stream(Box<dyn Messages>),
}

/// What a method that has streams returns.
pub enum StreamOutput {
    /// The reply.
    Whole(Body),
    /// The replies.
    Stream(Box<dyn Messages>),
}

impl fmt::Debug for StreamInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(body) => write!(f, "StreamInput({} bytes)", body.len()),
            Self::Stream(_) => f.write_str("StreamInput(stream)"),
        }
    }
}

impl fmt::Debug for StreamOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(body) => write!(f, "StreamOutput({} bytes)", body.len()),
            Self::Stream(_) => f.write_str("StreamOutput(stream)"),
        }
    }
}

/// A running handler of a method that has streams.
pub type StreamHandlerFuture =
    Pin<Box<dyn Future<Output = Result<Response<StreamOutput>, Status>> + Send>>;

/// Runs a handler that takes a stream and gives one reply.
pub fn client_streaming<Req, Rep, F, Fut>(
    request: Request<StreamInput>,
    handler: F,
) -> StreamHandlerFuture
where
    Req: Send + 'static,
    Prost: Codec<Req> + Codec<Rep>,
    F: FnOnce(Request<Streaming<Req>>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<Rep>, Status>> + Send,
{
    Box::pin(async move {
        let request = request.try_map(requests)?;
        match handler(request).await {
            Ok(response) => Ok(response.map(|reply| StreamOutput::Whole(Prost.encode(&reply)))),
            Err(status) => Err(status.with_executed(Executed::Yes)),
        }
    })
}

/// Runs a handler that takes one request and gives a stream.
pub fn server_streaming<Req, Rep, S, F, Fut>(
    request: Request<StreamInput>,
    handler: F,
) -> StreamHandlerFuture
where
    Req: Send + 'static,
    Prost: Codec<Req> + Codec<Rep>,
    S: Stream<Item = Result<Rep, Status>> + Send + 'static,
    F: FnOnce(Request<Req>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<S>, Status>> + Send,
{
    Box::pin(async move {
        let request = request.try_map(|input| match input {
            StreamInput::Whole(body) => {
                Prost.decode(body).map_err(|bad: Status| bad.with_executed(Executed::No))
            }
            StreamInput::Stream(_) => Err(wrong_shape()),
        })?;
        replies(handler(request).await)
    })
}

/// Runs a handler that takes a stream and gives one.
pub fn bidi_streaming<Req, Rep, S, F, Fut>(
    request: Request<StreamInput>,
    handler: F,
) -> StreamHandlerFuture
where
    Req: Send + 'static,
    Prost: Codec<Req> + Codec<Rep>,
    S: Stream<Item = Result<Rep, Status>> + Send + 'static,
    F: FnOnce(Request<Streaming<Req>>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<S>, Status>> + Send,
{
    Box::pin(async move {
        let request = request.try_map(requests)?;
        replies(handler(request).await)
    })
}

fn requests<Req>(input: StreamInput) -> Result<Streaming<Req>, Status> {
    match input {
        StreamInput::Stream(messages) => Ok(Streaming::of_requests(messages)),
        StreamInput::Whole(_) => Err(wrong_shape()),
    }
}

fn replies<Rep, S>(returned: Result<Response<S>, Status>) -> Result<Response<StreamOutput>, Status>
where
    Prost: Codec<Rep>,
    S: Stream<Item = Result<Rep, Status>> + Send + 'static,
{
    let encode = |reply: Result<Rep, Status>| match reply {
        Ok(reply) => Ok(Prost.encode(&reply)),
        Err(status) => Err(status.with_executed(Executed::Yes)),
    };
    match returned {
        Ok(response) => Ok(response.map(|stream| StreamOutput::Stream(encoded(stream, encode)))),
        Err(status) => Err(status.with_executed(Executed::Yes)),
    }
}

/// The server compares shapes before it calls, so that this is about a service that was written by hand.
fn wrong_shape() -> Status {
    Status::internal("the method's descriptor does not say what its handler takes")
        .with_executed(Executed::No)
}

/// The same of what a handler has returned.
pub(crate) fn wrong_output() -> Status {
    Status::internal("the method's descriptor does not say what its handler returns")
        .with_executed(Executed::Yes)
}
