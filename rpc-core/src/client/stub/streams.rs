//! Calls of methods that have streams.

use std::sync::Arc;

use futures_core::Stream;

use super::{Client, refuse_slot};
use crate::buf::Body;
use crate::client::call::{self, Call};
use crate::client::cancel::Flag;
use crate::client::channel::{IN_PROCESS_TIMEOUT, Way};
use crate::client::in_process::InProcessStreaming;
use crate::client::remote::RemoteCall;
use crate::client::sending::{NewStreams, Unpolled};
use crate::client::streaming_call::{self, StreamingCall};
use crate::codec::{Codec, Prost};
use crate::interceptor::Payload;
use crate::message::ReplyForm;
use crate::request::Request;
use crate::service::{Service, StreamInput};
use crate::status::Status;
use crate::streaming::encoded;

impl Client {
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
        self.collecting(method, request.map(encode_all), None)
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
        let request = request.map(|message| StreamInput::Whole(Prost.encode(&message)));
        self.replying(method, request, None)
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
        self.replying(method, request.map(encode_all), None)
    }

    /// As [`raw`](Self::raw), of a method that takes a stream and gives one reply.
    pub(in crate::client) fn raw_client_streaming(
        &self,
        method: usize,
        request: Request<StreamInput>,
        cancel: Arc<Flag>,
    ) -> Call<()> {
        self.collecting(method, request, Some(cancel))
    }

    /// The same of a method that gives a stream.
    pub(in crate::client) fn raw_replying(
        &self,
        method: usize,
        request: Request<StreamInput>,
        cancel: Arc<Flag>,
    ) -> StreamingCall<()> {
        self.replying(method, request, Some(cancel))
    }

    fn collecting<Rep>(
        &self,
        method: usize,
        request: Request<StreamInput>,
        cancel: Option<Arc<Flag>>,
    ) -> Call<Rep> {
        let started = match &self.channel.0 {
            Way::Link(_) | Way::Managed(_) => {
                self.streaming(method, request, ReplyForm::Whole).map(call::Kind::Remote)
            }
            Way::InProcess(service) => self
                .in_process_streaming(service, method, request)
                .map(call::Kind::InProcessStreaming),
            Way::Intercepted(layer) => {
                let cancel = cancel.unwrap_or_default();
                let through = self.through(layer, method, Arc::clone(&cancel));
                let call = layer.call(through, request.map(Payload::from));
                return Call::new(call::Kind::Intercepted(call)).cancelled_by(Some(cancel));
            }
        };
        let failed = |status| call::Kind::Failed(Some(status));
        Call::new(started.unwrap_or_else(failed)).cancelled_by(cancel)
    }

    fn replying<Rep>(
        &self,
        method: usize,
        request: Request<StreamInput>,
        cancel: Option<Arc<Flag>>,
    ) -> StreamingCall<Rep> {
        let started = match &self.channel.0 {
            Way::Link(_) | Way::Managed(_) => {
                self.streaming(method, request, ReplyForm::Stream).map(streaming_call::Kind::Remote)
            }
            Way::InProcess(service) => self
                .in_process_streaming(service, method, request)
                .map(streaming_call::Kind::InProcess),
            Way::Intercepted(layer) => {
                let cancel = cancel.unwrap_or_default();
                let through = self.through(layer, method, Arc::clone(&cancel));
                let call = layer.streaming(through, request.map(Payload::from));
                let kind = streaming_call::Kind::Intercepted(call);
                return StreamingCall::new(kind).cancelled_by(Some(cancel));
            }
        };
        let failed = |status| streaming_call::Kind::Failed(Some(status));
        StreamingCall::new(started.unwrap_or_else(failed)).cancelled_by(cancel)
    }

    fn streaming(
        &self,
        method: usize,
        request: Request<StreamInput>,
        replies: ReplyForm,
    ) -> Result<RemoteCall, Status> {
        let (mut options, input) = request.split();
        refuse_slot(&options, "a method that has streams")?;
        let (body, streams) = sent_as(input, replies);
        self.remote(method, &mut options, body, Some(streams))
    }

    fn in_process_streaming(
        &self,
        service: &Arc<dyn Service>,
        method: usize,
        request: Request<StreamInput>,
    ) -> Result<InProcessStreaming, Status> {
        let target = self.target(service, method)?;
        let (mut options, input) = request.split();
        refuse_slot(&options, "a method that has streams")?;
        let deadline = options.due(IN_PROCESS_TIMEOUT);
        Ok(InProcessStreaming::new(target, input, options.take_metadata(), deadline))
    }
}

/// What of a request goes with its REQUEST, and what behind it.
pub(in crate::client) fn sent_as(
    input: StreamInput,
    replies: ReplyForm,
) -> (Body, Box<NewStreams>) {
    let (body, requests) = match input {
        StreamInput::Whole(body) => (body, None),
        StreamInput::Stream(requests) => (Body::new(), Some(Arc::new(Unpolled::new(requests)))),
    };
    (body, Box::new(NewStreams { requests, replies, path: None, compression: None }))
}

fn encode_all<S>(requests: S) -> StreamInput
where
    S: Stream + Send + 'static,
    Prost: Codec<S::Item>,
{
    StreamInput::Stream(encoded(requests, |request| Ok(Prost.encode(&request))))
}
