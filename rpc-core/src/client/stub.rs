//! What generated clients are made of.

use futures_core::Stream;
use std::sync::Arc;

use super::call::{Call, Kind};
use super::cancel::Flag;
use super::channel::{Channel, IN_PROCESS_TIMEOUT, Way};
use super::in_process::{InProcessCall, InProcessStreaming};
use super::intercepted::{Behind, Layer};
use super::link::{Link, NewStreams, Unsent};
use super::methods::ServiceNumbers;
use super::remote::RemoteCall;
use super::streaming_call::{self, StreamingCall};
use crate::buf::Body;
use crate::codec::{Codec, Prost};
use crate::interceptor::{Next, Payload, Side};
use crate::message::Form;
use crate::metadata::MetadataMap;
use crate::request::Request;
use crate::service::{Service, ServiceDescriptor, StreamInput};
use crate::status::{Executed, Status};
use crate::streaming::{Messages, encoded};
use crate::wire::head::MAX_PATH;
use crate::wire::metadata;

/// A channel with the methods of one service.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
    service: &'static ServiceDescriptor,
    /// Unused in process.
    numbers: ServiceNumbers,
}

impl Client {
    /// A client of `service` over `channel`.
    pub fn new(channel: Channel, service: &'static ServiceDescriptor) -> Self {
        let numbers = numbers(&channel, service);
        Self { channel, service, numbers }
    }

    /// The channel.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// A call of a unary method, by its index in the descriptor.
    ///
    /// # Panics
    ///
    /// If the service has no such method.
    pub fn unary<Req, Rep>(&self, method: usize, request: Request<Req>) -> Call<Rep>
    where
        Prost: Codec<Req>,
    {
        let body = Prost.encode(request.get_ref());
        self.begin(method, request, body, None)
    }

    /// A call with an encoded request, whose reply stays encoded; whoever raises `cancel` cancels it.
    pub(super) fn raw(&self, method: usize, request: Request<Body>, cancel: Arc<Flag>) -> Call<()> {
        let (request, body) = request.split();
        self.begin(method, request, body, Some(cancel))
    }

    /// A call of a unary method, by its index in the descriptor, as interceptors see it: its messages stay encoded.
    ///
    /// # Panics
    ///
    /// If the service has no such method.
    pub fn next(&self, method: usize) -> Next {
        let rest = Arc::new(Behind { client: self.clone(), method, cancel: Arc::default() });
        Next::new(&self.service.methods[method], Side::Client, rest).0
    }

    fn begin<Req, Rep>(
        &self,
        method: usize,
        mut request: Request<Req>,
        body: Body,
        cancel: Option<Arc<Flag>>,
    ) -> Call<Rep> {
        let started = match &self.channel.0 {
            Way::Link(link) => {
                let started = self.remote(link, method, &mut request, body);
                started.map_err(|status| status.with_peer(link.path().peer))
            }
            Way::InProcess(service) => self.in_process(service, method, &mut request, body),
            Way::Intercepted(layer) => {
                let request = request.map(|_| Payload::from(body));
                return self.intercepted(layer, method, request, cancel.unwrap_or_default());
            }
        };
        let kind = started.unwrap_or_else(|status| Kind::Failed(Some(status)));
        Call::new(kind).cancelled_by(cancel)
    }

    fn intercepted<Rep>(
        &self,
        layer: &Layer,
        method: usize,
        request: Request<Payload>,
        cancel: Arc<Flag>,
    ) -> Call<Rep> {
        let behind = Self { channel: layer.channel.clone(), ..*self };
        let descriptor = &self.service.methods[method];
        let call = layer.call(behind, (method, descriptor), request, Arc::clone(&cancel));
        Call::new(Kind::Intercepted(call)).cancelled_by(Some(cancel))
    }

    /// A call of a method that takes a stream and gives one reply.
    ///
    /// # Panics
    ///
    /// If the service has no such method.
    pub fn client_streaming<Req, Rep, S>(&self, method: usize, request: Request<S>) -> Call<Rep>
    where
        S: Stream<Item = Req> + Send + 'static,
        Prost: Codec<Req>,
    {
        let (mut options, requests) = split(request);
        let new = StreamInput::Stream(encode_all(requests));
        let started = match &self.channel.0 {
            Way::Link(link) => {
                self.streaming(link, method, &mut options, new, Form::Whole).map(Kind::Remote)
            }
            Way::InProcess(service) => self
                .in_process_streaming(service, method, &mut options, new)
                .map(Kind::InProcessStreaming),
            Way::Intercepted(_) => Err(not_intercepted()),
        };
        Call::new(started.unwrap_or_else(|status| Kind::Failed(Some(status))))
    }

    /// A call of a method that takes one request and gives a stream.
    ///
    /// # Panics
    ///
    /// If the service has no such method.
    pub fn server_streaming<Req, Rep>(
        &self,
        method: usize,
        request: Request<Req>,
    ) -> StreamingCall<Rep>
    where
        Prost: Codec<Req>,
    {
        let (options, message) = split(request);
        self.replying(method, options, StreamInput::Whole(Prost.encode(&message)))
    }

    /// A call of a method that takes a stream and gives one.
    ///
    /// # Panics
    ///
    /// If the service has no such method.
    pub fn bidi_streaming<Req, Rep, S>(
        &self,
        method: usize,
        request: Request<S>,
    ) -> StreamingCall<Rep>
    where
        S: Stream<Item = Req> + Send + 'static,
        Prost: Codec<Req>,
    {
        let (options, requests) = split(request);
        self.replying(method, options, StreamInput::Stream(encode_all(requests)))
    }

    fn replying<Rep>(
        &self,
        method: usize,
        mut options: Request<()>,
        new: StreamInput,
    ) -> StreamingCall<Rep> {
        let started = match &self.channel.0 {
            Way::Link(link) => self
                .streaming(link, method, &mut options, new, Form::Stream)
                .map(streaming_call::Kind::Remote),
            Way::InProcess(service) => self
                .in_process_streaming(service, method, &mut options, new)
                .map(streaming_call::Kind::InProcess),
            Way::Intercepted(_) => Err(not_intercepted()),
        };
        let failed = |status| streaming_call::Kind::Failed(Some(status));
        StreamingCall::new(started.unwrap_or_else(failed))
    }

    fn streaming(
        &self,
        link: &Arc<Link>,
        method: usize,
        options: &mut Request<()>,
        new: StreamInput,
        replies: Form,
    ) -> Result<RemoteCall, Status> {
        let (body, requests) = match new {
            StreamInput::Whole(body) => (body, None),
            StreamInput::Stream(requests) => {
                link.shared().check_streams()?;
                (Body::new(), Some(requests))
            }
        };
        let streams = Some(Box::new(NewStreams { requests, replies }));
        let started = self.unsent(link, method, options, body, streams);
        started.map_err(|status| status.with_peer(link.path().peer))
    }

    fn in_process_streaming(
        &self,
        service: &Arc<dyn Service>,
        method: usize,
        options: &mut Request<()>,
        input: StreamInput,
    ) -> Result<InProcessStreaming, Status> {
        self.check_offered(service, method)?;
        let deadline = options.due(IN_PROCESS_TIMEOUT);
        let (service, metadata) = (Arc::clone(service), options.take_metadata());
        Ok(InProcessStreaming::new(service, method, input, metadata, deadline))
    }

    fn remote<Req>(
        &self,
        link: &Arc<Link>,
        method: usize,
        request: &mut Request<Req>,
        body: Body,
    ) -> Result<Kind, Status> {
        self.unsent(link, method, request, body, None).map(Kind::Remote)
    }

    fn unsent<Req>(
        &self,
        link: &Arc<Link>,
        method: usize,
        request: &mut Request<Req>,
        body: Body,
        streams: Option<Box<NewStreams>>,
    ) -> Result<RemoteCall, Status> {
        let descriptor = &self.service.methods[method];
        let path = descriptor.path;
        check_path(path)?;
        link.shared().check_size(body.len())?;
        let metadata = metadata::encode(request.metadata(), &MetadataMap::new());
        link.shared().check_metadata(metadata.len())?;
        let unsent = Unsent {
            method: self.numbers.method(method),
            path,
            body,
            metadata,
            deadline: request.due(link.default_timeout()),
            expected_reply: request.expected_reply().or(descriptor.expected_reply_size),
            streams,
            turn: request.take_turn(),
        };
        Ok(RemoteCall::new(Arc::clone(link), unsent))
    }

    fn in_process<Req>(
        &self,
        service: &Arc<dyn Service>,
        method: usize,
        request: &mut Request<Req>,
        body: Body,
    ) -> Result<Kind, Status> {
        self.check_offered(service, method)?;
        let deadline = request.due(IN_PROCESS_TIMEOUT);
        let (service, metadata) = (Arc::clone(service), request.take_metadata());
        let call = InProcessCall::new(service, method, body, metadata, deadline);
        Ok(Kind::InProcess(call))
    }

    fn check_offered(&self, service: &Arc<dyn Service>, method: usize) -> Result<(), Status> {
        let (offered, path) = (service.descriptor(), self.service.methods[method].path);
        if offered.methods.get(method).is_none_or(|offered| offered.path != path) {
            let message = format!(
                "{path} is not offered by the {} in this process: was it generated from another .proto?",
                offered.name
            );
            return Err(Status::unimplemented(message).with_executed(Executed::No));
        }
        Ok(())
    }
}

/// The numbers of a service's methods on the connection behind `channel`; unused in process.
fn numbers(channel: &Channel, service: &'static ServiceDescriptor) -> ServiceNumbers {
    match &channel.0 {
        Way::Link(link) => link.register(service),
        Way::Intercepted(layer) => numbers(&layer.channel, service),
        Way::InProcess(_) => ServiceNumbers::None,
    }
}

/// Streams do not go around an interceptor, which may be there to keep calls out.
fn not_intercepted() -> Status {
    let message = "interceptors around methods that have streams are not there yet; call it through a channel without any";
    Status::unimplemented(message).with_executed(Executed::No)
}

/// A request's options and its message.
fn split<T>(request: Request<T>) -> (Request<()>, T) {
    let mut message = None;
    let options = request.map(|taken| message = Some(taken));
    (options, message.expect("the closure runs once"))
}

fn encode_all<S>(requests: S) -> Box<dyn Messages>
where
    S: Stream + Send + 'static,
    Prost: Codec<S::Item>,
{
    encoded(requests, |request| Ok(Prost.encode(&request)))
}

fn check_path(path: &str) -> Result<(), Status> {
    if path.len() <= MAX_PATH {
        return Ok(());
    }
    let message =
        format!("a method path of {} bytes cannot be sent, at most {MAX_PATH} can", path.len());
    Err(Status::invalid_argument(message).with_executed(Executed::No))
}
