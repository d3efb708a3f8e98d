//! What a service is to the core: descriptors of its methods, and a way to call them with bodies.
//!
//! Generated code implements [`Service`] and describes itself with constants; nobody else has to. Routing
//! by path is [`crate::server`]'s business, numbering of methods [`crate::client`]'s.

mod open;
mod streaming;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::buf::Body;
use crate::codec::{Codec, Prost};
use crate::message::{Form, ReplyForm};
use crate::proto::entrance::Entrance;
use crate::request::{Request, Response};
use crate::status::{Executed, Status};

pub(crate) use open::{no_path, open_index, open_method, service_of};
pub(crate) use streaming::wrong_output;
pub use streaming::{
    StreamHandlerFuture, StreamInput, StreamOutput, bidi_streaming, client_streaming,
    server_streaming,
};

/// A service that a server can offer.
pub trait Service: Send + Sync + 'static {
    /// Its name and methods.
    fn descriptor(&self) -> &ServiceDescriptor;

    /// Runs a method, by its index in the descriptor.
    ///
    /// What it does belongs into the future: only while that is polled does its task serve the call, so that calls
    /// which it makes inherit the deadline.
    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture;

    /// Runs a method whose descriptor says that it has streams, by its index there.
    fn call_streaming(&self, method: usize, request: Request<StreamInput>) -> StreamHandlerFuture {
        drop(request);
        let status = no_such_method(self.descriptor(), method);
        Box::pin(std::future::ready(Err(status)))
    }

    /// Whether it only stands before another service, and enters that by itself, later or not at all.
    #[doc(hidden)]
    fn is_layer(&self) -> bool {
        false
    }
}

/// A place to note that the handler of a call of `service` was entered; `None` where to call it is that.
pub(crate) fn entrance_of(service: &(impl Service + ?Sized)) -> Option<Arc<Entrance>> {
    service.is_layer().then(Arc::default)
}

/// Calls `service`, which enters the handler unless it is one more layer.
pub(crate) fn enter(
    service: &(impl Service + ?Sized),
    method: usize,
    request: Request<Body>,
) -> HandlerFuture {
    match check_in(service, &request) {
        Ok(()) => service.call(method, request),
        Err(status) => Box::pin(std::future::ready(Err(status))),
    }
}

/// The same for a method that has streams.
pub(crate) fn enter_streaming(
    service: &(impl Service + ?Sized),
    method: usize,
    request: Request<StreamInput>,
) -> StreamHandlerFuture {
    match check_in(service, &request) {
        Ok(()) => service.call_streaming(method, request),
        Err(status) => Box::pin(std::future::ready(Err(status))),
    }
}

fn check_in<T>(service: &(impl Service + ?Sized), request: &Request<T>) -> Result<(), Status> {
    match request.entrance() {
        Some(entrance) if !service.is_layer() => entrance.enter(),
        _ => Ok(()),
    }
}

/// The name of a service as a constant.
pub trait NamedService {
    /// The service's full name, for example `helloworld.Greeter`.
    const NAME: &'static str;
}

/// A running handler: the reply's body, or a status whose `executed` is true of this call.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

/// A service's name and methods.
#[derive(Debug)]
pub struct ServiceDescriptor {
    /// Full name with the package.
    pub name: &'static str,
    /// Methods, in the order of the `.proto` file.
    pub methods: &'static [MethodDescriptor],
    /// Whether any method is taken that the name goes before.
    is_open: bool,
}

impl ServiceDescriptor {
    /// A descriptor, as a constant.
    pub const fn new(name: &'static str, methods: &'static [MethodDescriptor]) -> Self {
        Self { name, methods, is_open: false }
    }

    /// Whether the same index names the same method in both. A name alone does not say so: two builds
    /// of a service may differ.
    pub(crate) fn has_same_paths(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || self.methods.iter().map(|one| one.path).eq(other.methods.iter().map(|one| one.path))
    }
}

/// What is known of a method before it is called.
#[derive(Debug)]
#[non_exhaustive]
pub struct MethodDescriptor {
    /// Name as in the `.proto` file.
    pub name: &'static str,
    /// `/package.Service/Method`.
    pub path: &'static str,
    /// Whether a call may be repeated although it may have been executed (`idempotency_level`).
    pub idempotent: bool,
    /// Whether the handler never waits long between two awaits and may be polled by the connection's own
    /// task (`(verbwire.method).inline_safe`).
    pub inline_safe: bool,
    /// Expected length of a reply in bytes (`(verbwire.method).expected_reply_size`).
    pub expected_reply_size: Option<u64>,
    /// Whether the request is a stream.
    pub request: Form,
    /// Whether the reply is one; either, where who calls does not know it and neither does the service.
    pub reply: ReplyForm,
}

impl MethodDescriptor {
    /// A method without options.
    pub const fn new(name: &'static str, path: &'static str) -> Self {
        Self {
            name,
            path,
            idempotent: false,
            inline_safe: false,
            expected_reply_size: None,
            request: Form::Whole,
            reply: ReplyForm::Whole,
        }
    }

    /// The request is a stream.
    #[must_use]
    pub const fn client_streaming(mut self) -> Self {
        self.request = Form::Stream;
        self
    }

    /// The reply is a stream.
    #[must_use]
    pub const fn server_streaming(mut self) -> Self {
        self.reply = ReplyForm::Stream;
        self
    }

    /// The reply is one message or a stream, which shows when it comes.
    pub(crate) const fn either(mut self) -> Self {
        self.reply = ReplyForm::Either;
        self
    }

    /// Whether the method has streams, or may have.
    pub fn has_streams(&self) -> bool {
        self.request == Form::Stream || self.reply != ReplyForm::Whole
    }

    /// The method may be repeated.
    #[must_use]
    pub const fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// The handler may be polled by the connection's own task.
    #[must_use]
    pub const fn inline_safe(mut self) -> Self {
        self.inline_safe = true;
        self
    }

    /// Replies are expected to have this many bytes.
    #[must_use]
    pub const fn expected_reply_size(mut self, bytes: u64) -> Self {
        self.expected_reply_size = Some(bytes);
        self
    }
}

/// Runs a unary handler: decodes the request, calls, encodes the reply.
pub fn unary<Req, Rep, F, Fut>(request: Request<Body>, handler: F) -> HandlerFuture
where
    Req: Send + 'static,
    Prost: Codec<Req> + Codec<Rep>,
    F: FnOnce(Request<Req>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<Rep>, Status>> + Send,
{
    Box::pin(async move {
        let request = request
            .try_map(|body| Prost.decode(body))
            .map_err(|status: Status| status.with_executed(Executed::No))?;
        match handler(request).await {
            Ok(response) => Ok(response.map(|reply| Prost.encode(&reply))),
            Err(status) => Err(status.with_executed(Executed::Yes)),
        }
    })
}

/// The answer to a method index that the service does not have.
pub fn unknown_method(service: &ServiceDescriptor, method: usize) -> HandlerFuture {
    Box::pin(std::future::ready(Err(no_such_method(service, method))))
}

/// The same for a method that has streams.
pub fn unknown_streaming_method(service: &ServiceDescriptor, method: usize) -> StreamHandlerFuture {
    Box::pin(std::future::ready(Err(no_such_method(service, method))))
}

fn no_such_method(service: &ServiceDescriptor, method: usize) -> Status {
    let message = format!(
        "{} has {} methods, none with index {method}; was it generated from the same .proto?",
        service.name,
        service.methods.len()
    );
    Status::unimplemented(message).with_executed(Executed::No)
}
