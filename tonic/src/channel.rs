//! A channel for clients that tonic generated.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use tonic::body::Body;
use verbwire::metadata::MetadataMap;
use verbwire::open::{StreamInput, StreamOutput};
use verbwire::{Executed, Origin, Request, Response, Status};

use crate::attachment::{self, Attachment, Detach};
use crate::encoding;
use crate::incoming::{Incoming, Side, Start};
use crate::metadata::{self, Reserved};
use crate::outgoing::Outgoing;
use crate::{MAX_MESSAGE_SIZE, only, status, timeout};

/// What is in a head of gRPC, both ways.
pub(crate) const CONTENT: HeaderValue = HeaderValue::from_static("application/grpc");

/// A channel for clients that tonic generated: `GreeterClient::new(Channel::new(channel))`, in the place of
/// `tonic::transport::Channel`. A clone is the same channel.
///
/// # Deadlines
///
/// `Request::set_timeout` of tonic is kept on both sides, to the last message of a stream, with the code `DeadlineExceeded`. A
/// call without it has the native channel's default, 60 s unless set, or what is left of the call that its handler serves. A
/// stream that is to stay open longer must say so.
///
/// # Errors
///
/// What the other side answered is a response with a `grpc-status`, as over HTTP/2. What happened on this side, a deadline or a
/// lost connection, is an error: a status of tonic's, in which [`native`](crate::native) finds the native one.
#[derive(Clone)]
pub struct Channel {
    channel: verbwire::Channel,
    limit: usize,
}

impl Channel {
    /// A channel for tonic's clients over a native one, with its interceptors. They find the extensions of tonic's request in
    /// theirs, as an `http::Extensions`.
    pub fn new(channel: verbwire::Channel) -> Self {
        Self { channel, limit: MAX_MESSAGE_SIZE }
    }

    /// Longest message that a client may send, in bytes. 64 MiB, as servers take by default: what would be
    /// refused there is refused here before it is collected.
    #[must_use]
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// The native channel.
    pub fn channel(&self) -> &verbwire::Channel {
        &self.channel
    }
}

impl From<verbwire::Channel> for Channel {
    fn from(channel: verbwire::Channel) -> Self {
        Self::new(channel)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.channel).finish()
    }
}

/// A call of one of tonic's clients.
///
/// # Cancel safety
///
/// Dropping it, or the body of its response before that has ended, cancels the call.
#[must_use = "a call does nothing until it is awaited or polled"]
pub struct ResponseFuture(Pin<Box<dyn Future<Output = Outcome> + Send>>);

type Outcome = Result<http::Response<Body>, tonic::Status>;

impl Future for ResponseFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

/// Always ready: a call waits by itself where its connection has no place.
impl tower_service::Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = tonic::Status;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), tonic::Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        let this = self.clone();
        ResponseFuture(Box::pin(async move { this.run(request).await.or_else(answer) }))
    }
}

impl Channel {
    async fn run(self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let attachment = parts.extensions.remove::<Attachment>();
        let detach = parts.extensions.remove::<Detach>();
        let named = encoding::named(&parts.headers);
        let body = Incoming::new(body, Side::Request, self.limit, named);
        let request = options(parts).map_err(|status| status.with_executed(Executed::No))?;
        // A request that is there at once goes out whole; that of a stream is polled beside the reply.
        let input = match body.start().await {
            Start::Whole(mut message, _) => {
                attachment
                    .map_or(Ok(()), |attached| attachment::attach(&mut message, attached))
                    .map_err(|status| status.with_executed(Executed::No))?;
                StreamInput::Whole(message)
            }
            Start::Stream(_) if attachment.is_some() => {
                return Err(attachment::not_in_a_stream().with_executed(Executed::No));
            }
            Start::Stream(messages) => StreamInput::Stream(Box::new(messages)),
            Start::Failed(status) => return Err(status.with_executed(Executed::No)),
        };
        let reply = self.channel.call(path, request.map(|()| input)).await?;
        response(reply, detach).await
    }
}

/// What a request says besides its messages.
fn options(parts: Parts) -> Result<Request<()>, Status> {
    let mut request = Request::new(());
    if let Some(value) = parts.headers.get(timeout::GRPC_TIMEOUT) {
        let time = timeout::parse(value).ok_or_else(|| {
            let message = format!("the header grpc-timeout is no timeout of gRPC: {value:?}");
            Status::invalid_argument(message)
        })?;
        request.set_timeout(time);
    }
    let entries = metadata::from_headers(parts.headers);
    let entries = entries.map_err(|bad| Status::invalid_argument(bad.to_string()))?;
    if !entries.is_empty() {
        *request.metadata_mut() = entries;
    }
    if !parts.extensions.is_empty() {
        request.extensions_mut().insert(parts.extensions);
    }
    Ok(request)
}

async fn response(
    mut reply: Response<StreamOutput>,
    detach: Option<Detach>,
) -> Result<http::Response<Body>, Status> {
    let mut trailers = match reply.trailers().is_empty() {
        true => MetadataMap::new(),
        false => std::mem::take(reply.trailers_mut()),
    };
    let mut headers = metadata::to_headers(reply.metadata(), Reserved::Refused)
        .map_err(|bad| status::internal(format!("headers of the reply: {bad}")))?;
    headers.insert(CONTENT_TYPE, CONTENT);
    let (output, attachment) = match (reply.into_inner(), detach) {
        (output, Some(Detach(field))) => {
            let (message, own) = only::reply(output).await?;
            trailers = own.unwrap_or(trailers);
            let (message, attachment) = attachment::detach(message, field)
                .map_err(|status| status.with_executed(Executed::Yes))?;
            (StreamOutput::Whole(message), attachment)
        }
        (output, None) => (output, None),
    };
    let body = Body::new(Outgoing::of_response(output, trailers));
    let mut response = http::Response::new(body);
    *response.version_mut() = http::Version::HTTP_2;
    *response.headers_mut() = headers;
    attachment.map(|attachment| response.extensions_mut().insert(attachment));
    Ok(response)
}

/// The other side's status as a response without a body; what happened on this side as an error.
fn answer(failed: Status) -> Outcome {
    if failed.origin() != Origin::Peer {
        return Err(status::to_tonic(failed));
    }
    Ok(status::to_tonic(failed).into_http())
}
