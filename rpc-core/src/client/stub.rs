//! What generated clients are made of.

mod streams;

pub(super) use streams::sent_as;

use std::sync::Arc;

use super::call::{Call, Kind};
use super::cancel::Flag;
use super::channel::{Channel, IN_PROCESS_TIMEOUT, Way};
use super::in_process::{InProcessCall, Target};
use super::intercepted::{Behind, Layer, Through};
use super::methods::ServiceNumbers;
use super::remote::RemoteCall;
use super::sending::{Method, NewStreams, Sending};
use crate::buf::Body;
use crate::codec::{Codec, Prost};
use crate::interceptor::{Called, Next, Payload, Side};
use crate::request::Request;
use crate::service::{Service, ServiceDescriptor, open_index};
use crate::status::{Executed, Status};
use crate::wire::head::MAX_PATH;

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
        let descriptor = &self.service.methods[method];
        let client = self.clone();
        let through = Through { client, index: method, method: descriptor, cancel: Arc::default() };
        let called = Called { method: descriptor, path: None };
        Next::new(called, Side::Client, Arc::new(Behind { through, replies: None })).0
    }

    fn begin<Req, Rep>(
        &self,
        method: usize,
        mut request: Request<Req>,
        body: Body,
        cancel: Option<Arc<Flag>>,
    ) -> Call<Rep> {
        let started = match &self.channel.0 {
            Way::Link(_) | Way::Managed(_) => {
                self.remote(method, &mut request, body, None).map(Kind::Remote)
            }
            Way::InProcess(service) => self.in_process(service, method, &mut request, body),
            Way::Intercepted(layer) => {
                let request = request.map(|_| Payload::from(body));
                let cancel = cancel.unwrap_or_default();
                let through = self.through(layer, method, Arc::clone(&cancel));
                let call = layer.call(through, request);
                return Call::new(Kind::Intercepted(call)).cancelled_by(Some(cancel));
            }
        };
        let kind = started.unwrap_or_else(|status| Kind::Failed(Some(status)));
        Call::new(kind).cancelled_by(cancel)
    }

    /// A call of this client's as it goes on behind `layer`.
    fn through(&self, layer: &Layer, index: usize, cancel: Arc<Flag>) -> Through {
        let client = Self { channel: layer.channel.clone(), ..*self };
        Through { client, index, method: &self.service.methods[index], cancel }
    }

    fn remote<Req>(
        &self,
        method: usize,
        request: &mut Request<Req>,
        body: Body,
        streams: Option<Box<NewStreams>>,
    ) -> Result<RemoteCall, Status> {
        let descriptor = &self.service.methods[method];
        let number = self.numbers.method(method);
        check_server(&self.channel, request)?;
        check_path(descriptor.path).map_err(|status| status.with_peer(self.channel.peer()))?;
        if let (None, Some(bytes)) = (request.expected_reply(), descriptor.expected_reply_size) {
            request.expect_reply(bytes);
        }
        let path = Some(descriptor.path);
        let method = Method { number, path, idempotent: descriptor.idempotent };
        Ok(remote(&self.channel, method, request, body, streams))
    }

    fn in_process<Req>(
        &self,
        service: &Arc<dyn Service>,
        method: usize,
        request: &mut Request<Req>,
        body: Body,
    ) -> Result<Kind, Status> {
        refuse_slot(request, "a service in this process, which keeps no sessions")?;
        let target = self.target(service, method)?;
        let deadline = request.due(IN_PROCESS_TIMEOUT);
        Ok(Kind::InProcess(InProcessCall::new(target, body, request.take_metadata(), deadline)))
    }

    /// What a method is in a service in this process.
    fn target(&self, service: &Arc<dyn Service>, method: usize) -> Result<Target, Status> {
        let (offered, called) = (service.descriptor(), &self.service.methods[method]);
        if offered.is_named_in(called.path) {
            let (method, path) = (open_index(called.request, called.reply), called.path.into());
            return Ok(Target { service: Arc::clone(service), method, path: Some(path) });
        }
        if offered.methods.get(method).is_none_or(|offered| offered.path != called.path) {
            return Err(not_offered(service, called.path));
        }
        Ok(Target { service: Arc::clone(service), method, path: None })
    }
}

/// A call over a connection of `channel`, which is no other. Where its path is not known it is in `streams`.
pub(super) fn remote<Req>(
    channel: &Channel,
    method: Method,
    request: &mut Request<Req>,
    body: Body,
    streams: Option<Box<NewStreams>>,
) -> RemoteCall {
    let deadline = request.due(channel.default_timeout());
    let sending = Sending::new(method, request, body, streams, deadline);
    match &channel.0 {
        Way::Link(link) => RemoteCall::over(Arc::clone(link), sending),
        Way::Managed(managed) => {
            RemoteCall::through(Arc::clone(managed), sending, request.take_retry())
        }
        Way::InProcess(_) | Way::Intercepted(_) => {
            unreachable!("such a channel has no connection")
        }
    }
}

pub(super) fn not_offered(service: &Arc<dyn Service>, path: &str) -> Status {
    let message = format!(
        "{path} is not offered by the {} in this process: was it generated from another .proto?",
        service.descriptor().name
    );
    Status::unimplemented(message).with_executed(Executed::No)
}

/// The numbers of a service's methods on the connections behind `channel`; unused in process.
fn numbers(channel: &Channel, service: &'static ServiceDescriptor) -> ServiceNumbers {
    match &channel.0 {
        Way::Link(link) => link.register(service),
        Way::Managed(managed) => managed.register(service),
        Way::Intercepted(layer) => numbers(&layer.channel, service),
        Way::InProcess(_) => ServiceNumbers::None,
    }
}

/// Refuses a slot where the call would run each time that it is repeated.
pub(super) fn refuse_slot<T>(request: &Request<T>, what: &str) -> Result<(), Status> {
    if request.slot().is_none() {
        return Ok(());
    }
    let message = format!("a slot means nothing to {what}; make the call without one");
    Err(Status::invalid_argument(message).with_executed(Executed::No))
}

/// Refuses a slot where nobody knows which server the call goes to.
pub(super) fn check_server<T>(channel: &Channel, request: &Request<T>) -> Result<(), Status> {
    match &channel.0 {
        Way::Managed(managed) if request.slot().is_some() && !managed.is_to_one_server() => {
            refuse_slot(request, "a channel to several servers, since one knows its session")
        }
        _ => Ok(()),
    }
}

pub(super) fn check_path(path: &str) -> Result<(), Status> {
    if path.len() <= MAX_PATH {
        return Ok(());
    }
    let message =
        format!("a method path of {} bytes cannot be sent, at most {MAX_PATH} can", path.len());
    Err(Status::invalid_argument(message).with_executed(Executed::No))
}
