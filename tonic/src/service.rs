//! Services that tonic generated, on a native server.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, TE};
use http::{HeaderMap, StatusCode, Uri};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::server::NamedService;
use verbwire::metadata::MetadataMap;
use verbwire::open::{
    Open, OpenService, ReplyForm, StreamHandlerFuture, StreamInput, StreamOutput,
};
use verbwire::{Builder, Executed, Request, Response, Status};

use crate::attachment::{self, Attachment};
use crate::channel::CONTENT;
use crate::encoding;
use crate::incoming::{Incoming, Side, Start, without_status};
use crate::metadata::{self, Reserved};
use crate::outgoing::Outgoing;
use crate::{MAX_MESSAGE_SIZE, only, status, timeout};

/// As in tower.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What [`AddTonic::add_tonic`] takes: any service of tonic's, with or without interceptors and layers of tower around it.
///
/// Implemented by whatever has this form; there is no need to implement it.
pub trait TonicService:
    tower_service::Service<
        http::Request<Body>,
        Response = http::Response<Self::Body>,
        Error: Into<BoxError>,
        Future: Send,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// Of its responses.
    type Body: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;
}

impl<S, B> TonicService for S
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<B>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Body = B;
}

/// Services of tonic's on a native server.
pub trait AddTonic {
    /// Offers a service that tonic generated, for example `GreeterServer::new(..)`, beside native ones.
    ///
    /// The server's interceptors, limits and deadlines hold for it. For bounds or interceptors of its own, put
    /// [`Limited`](verbwire::Limited) or [`Intercepted`](verbwire::interceptor::Intercepted) around what [`service`] makes of
    /// it.
    fn add_tonic<S: TonicService + NamedService>(self, service: S) -> Self;
}

impl AddTonic for Builder {
    fn add_tonic<S: TonicService + NamedService>(self, service: S) -> Self {
        self.add_service(self::service(service))
    }
}

/// A service that tonic generated as a native one, as [`Bridge`] makes it by default.
pub fn service<S: TonicService + NamedService>(service: S) -> OpenService<Bridge<S>> {
    Bridge::new(service).into_service()
}

/// What answers for the methods of one of tonic's services.
///
/// Its handlers find the native request, without its message, in the extensions of theirs: where it came from, its deadline,
/// what native interceptors have put there. [`received`] is short for that. An `http::Extensions` that an
/// interceptor has put there is where the extensions of tonic's request come from. Of a response's extensions only an
/// [`Attachment`] is handed on.
///
/// A call that is cancelled, or whose deadline passes, drops the handler's future at its next await, and the stream of its
/// replies.
///
/// A call that fails once the service has been called is said to have been executed: the service, with its layers, is its
/// handler. It is said to be so *perhaps* where the service has thrown the request away before its future was polled: an
/// interceptor that refuses does that, and so may a service that has done its work by then.
#[derive(Clone)]
pub struct Bridge<S> {
    service: S,
    limit: usize,
    /// Methods, and fields of their requests.
    detached: Vec<(&'static str, u32)>,
}

impl<S: TonicService> Bridge<S> {
    /// Answers with `service`.
    pub fn new(service: S) -> Self {
        Self { service, limit: MAX_MESSAGE_SIZE, detached: Vec::new() }
    }

    /// Hands the field with this number of each request of `method`, for example `Write`, beside the message, as an
    /// [`Attachment`]. A request without the field has none.
    #[must_use]
    pub fn detach(mut self, method: &'static str, field: u32) -> Self {
        self.detached.push((method, field));
        self
    }

    /// As a native service.
    pub fn into_service(self) -> OpenService<Self>
    where
        S: NamedService,
    {
        OpenService::new(S::NAME, self)
    }

    /// Which field of requests of the method at `path` goes beside them.
    fn detached_of(&self, path: &str) -> Option<u32> {
        let (_, called) = path.rsplit_once('/')?;
        self.detached.iter().find(|(method, _)| *method == called).map(|(_, field)| *field)
    }

    /// Longest message that the service may reply with, in bytes. 64 MiB, as clients take by default: what would be
    /// refused there is refused here before it is collected.
    #[must_use]
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

impl<S> fmt::Debug for Bridge<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bridge")
    }
}

/// In a handler of tonic's that is served here: the native request without its message, for `path()`, `deadline()`,
/// `extensions()` and the others.
pub fn received<T>(request: &tonic::Request<T>) -> Option<&Request<()>> {
    request.extensions().get::<Arc<Request<()>>>().map(|request| &**request)
}

impl<S: TonicService> Open for Bridge<S> {
    fn call(
        self: Arc<Self>,
        path: Arc<str>,
        reply: ReplyForm,
        request: Request<StreamInput>,
    ) -> StreamHandlerFuture {
        Box::pin(async move {
            let held = Arc::new(());
            let detached = self.detached_of(&path);
            let request = http_request(&path, request, detached, Arc::clone(&held))
                .await
                .map_err(|status| status.with_executed(Executed::No))?;
            let mut service = self.service.clone();
            let ready = poll_fn(|cx| service.poll_ready(cx)).await;
            ready.map_err(|failed| said(failed.into()).with_executed(Executed::No))?;
            let answer = service.call(request);
            // Whoever has a handler to run has the body that its request comes from, as a rule. This one has thrown it
            // away: an interceptor that refuses, a service that has no such method, or one that has done its work already.
            let executed = match Arc::strong_count(&held) {
                1 => Executed::Maybe,
                _ => Executed::Yes,
            };
            let answer = answer.await.map_err(|failed| said(failed.into()));
            let replied = match answer {
                Ok(answer) => self.reply(reply, answer).await,
                Err(failed) => Err(failed),
            };
            replied.map_err(|status| status.with_executed(executed))
        })
    }
}

impl<S: TonicService> Bridge<S> {
    async fn reply(
        &self,
        form: ReplyForm,
        answer: http::Response<S::Body>,
    ) -> Result<Response<StreamOutput>, Status> {
        let (mut head, body) = answer.into_parts();
        let said = status::in_headers(&head.headers)?;
        let is_ended = match said {
            Some(said) if said.code() != tonic::Code::Ok => return Err(status::from_tonic(said)),
            said => said.is_some(),
        };
        if head.status != StatusCode::OK {
            return Err(without_status(head.status));
        }
        let named = encoding::named(&head.headers);
        let entries = metadata::from_headers(head.headers)
            .map_err(|bad| status::internal(format!("headers of a tonic service: {bad}")))?;
        let side = Side::Response { http: head.status, is_ended };
        let messages = Incoming::new(Body::new(body), side, self.limit, named);
        let (mut output, mut trailers) = begin(form, messages).await?;
        if let Some(attachment) = head.extensions.remove::<Attachment>() {
            let (mut message, own) = only::reply(output).await?;
            trailers = own.unwrap_or(trailers);
            attachment::attach(&mut message, attachment)
                .map_err(|bad| status::internal(bad.message()))?;
            output = StreamOutput::Whole(message);
        }
        let mut response = Response::new(output);
        if !entries.is_empty() {
            *response.metadata_mut() = entries;
        }
        if !trailers.is_empty() {
            *response.trailers_mut() = trailers;
        }
        Ok(response)
    }
}

/// A reply that is there at once is whole, unless the caller wants a stream in any case.
async fn begin(form: ReplyForm, messages: Incoming) -> Result<(StreamOutput, MetadataMap), Status> {
    let start = match form {
        ReplyForm::Stream => Start::Stream(messages),
        ReplyForm::Whole | ReplyForm::Either => messages.start().await,
    };
    match start {
        Start::Whole(message, trailers) => Ok((StreamOutput::Whole(message), trailers)),
        Start::Stream(messages) => {
            Ok((StreamOutput::Stream(Box::new(messages)), MetadataMap::new()))
        }
        Start::Failed(status) => Err(status),
    }
}

/// The status that an error of a service or a layer has in it.
fn said(error: BoxError) -> Status {
    status::from_tonic(tonic::Status::from_error(error))
}

async fn http_request(
    path: &Arc<str>,
    request: Request<StreamInput>,
    detached: Option<u32>,
    held: Arc<()>,
) -> Result<http::Request<Body>, Status> {
    let mut input = None;
    let mut native = request.map(|taken| input = Some(taken));
    let (input, attachment) = match (input.expect("the closure runs once"), detached) {
        (input, Some(field)) => {
            let message = only::request(input).await?;
            let (message, attachment) = attachment::detach(message, field)?;
            (StreamInput::Whole(message), attachment)
        }
        (StreamInput::Whole(message), None) => (StreamInput::Whole(message.decompressed()?), None),
        (input, None) => (input, None),
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, CONTENT);
    headers.insert(TE, HeaderValue::from_static("trailers"));
    encoding::accept_all(&mut headers);
    if let Some(deadline) = native.deadline() {
        let left = deadline.saturating_duration_since(Instant::now());
        headers.insert(timeout::GRPC_TIMEOUT, timeout::header(left));
    }
    metadata::append(native.metadata(), Reserved::Refused, &mut headers)
        .map_err(|bad| Status::invalid_argument(bad.to_string()))?;
    let mut extensions = take_extensions(&mut native);
    extensions.insert(Arc::new(native));
    attachment.map(|attachment| extensions.insert(attachment));
    let mut request = http::Request::new(Body::new(Outgoing::of_request(input, held)));
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = uri(path)?;
    *request.headers_mut() = headers;
    *request.extensions_mut() = extensions;
    Ok(request)
}

/// What native interceptors want tonic's handlers to find.
fn take_extensions(native: &mut Request<()>) -> http::Extensions {
    match native.extensions().get::<http::Extensions>() {
        Some(_) => native.extensions_mut().remove().unwrap_or_default(),
        None => http::Extensions::new(),
    }
}

/// The path as a URI that says it again. One that does not would be another method to tonic than it was to interceptors.
fn uri(path: &Arc<str>) -> Result<Uri, Status> {
    match Uri::try_from(&**path) {
        Ok(uri) if uri.path() == &**path => Ok(uri),
        _ => {
            let message = format!("{} is no path of a method", path.escape_debug());
            Err(Status::unimplemented(message))
        }
    }
}
