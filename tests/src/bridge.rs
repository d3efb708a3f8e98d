//! The suite's services as tonic has them: stubs that it generated, and what handlers do that use nothing but tonic.
//!
//! What tonic's handlers cannot say, the trailers of a reply that is `Ok`, a service around them says, as in tonic's
//! own interoperability server: [`Trailers`].

mod trailers;

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::Instant;
use tonic::codegen::BoxStream;
use verbwire::codegen::Stream;
use verbwire::open::OpenService;
use verbwire_tonic::{Bridge, from_tonic, to_tonic};

use crate::context::TRAILING;
use crate::proto::conformance::{
    Blob, DigestReply, FailRequest, Nothing, ProduceRequest, ScanRequest, Step, Ticket,
};
use crate::proto::context::{MirrorReply, MirrorRequest};
use crate::service::streaming::{self, BlobStream};
use crate::service::{Desk, Visit};
use crate::streams::steps;
use crate::tonic_proto::conformance::conformance_server::{Conformance, ConformanceServer};
use crate::tonic_proto::context::context_server::{self, ContextServer};
use crate::{pattern, proto};

pub use trailers::Trailers;

/// The service `conformance.Conformance` of `desk`, by tonic.
pub fn conformance(desk: &Desk) -> OpenService<Bridge<ConformanceServer<TonicDesk>>> {
    let server = ConformanceServer::new(TonicDesk::new(desk));
    verbwire_tonic::service(server.max_decoding_message_size(64 << 20))
}

/// The service `context.Context`, by tonic, as far as it says metadata back.
pub fn context() -> OpenService<Bridge<Trailers<ContextServer<TonicMirror>>>> {
    verbwire_tonic::service(Trailers::new(ContextServer::new(TonicMirror)))
}

/// A stream with other errors.
struct Mapped<S, F>(S, F);

impl<S, F, T, E1, E2> Stream for Mapped<S, F>
where
    S: Stream<Item = Result<T, E1>> + Unpin,
    F: FnMut(E1) -> E2 + Unpin,
{
    type Item = Result<T, E2>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        Pin::new(&mut this.0).poll_next(cx).map(|item| item.map(|item| item.map_err(&mut this.1)))
    }
}

type Answer<T> = Result<tonic::Response<T>, tonic::Status>;

/// Replies, with tonic's statuses.
fn blobs(replies: BlobStream) -> tonic::Response<BoxStream<Blob>> {
    let mapped = Mapped(replies, to_tonic as fn(_) -> _);
    tonic::Response::new(Box::pin(mapped))
}

/// The handlers of a [`Desk`], by tonic.
#[derive(Debug, Clone)]
pub struct TonicDesk(Desk);

impl TonicDesk {
    /// Those of `desk`.
    pub fn new(desk: &Desk) -> Self {
        Self(desk.clone())
    }
}

#[tonic::async_trait]
impl Conformance for TonicDesk {
    async fn echo(&self, request: tonic::Request<Blob>) -> Answer<Blob> {
        Ok(tonic::Response::new(request.into_inner()))
    }

    async fn fail(&self, request: tonic::Request<FailRequest>) -> Answer<Nothing> {
        let FailRequest { code, message, details } = request.into_inner();
        Err(tonic::Status::with_details(tonic::Code::from(code), message, details))
    }

    async fn gate(&self, request: tonic::Request<Ticket>) -> Answer<Ticket> {
        let ticket = request.into_inner();
        let visit = Visit::enter(self.0.witness(), ticket.number);
        self.0.witness().pass(ticket.number).await;
        visit.finish();
        Ok(tonic::Response::new(ticket))
    }

    async fn hang(&self, request: tonic::Request<Ticket>) -> Answer<Nothing> {
        let _visit = Visit::enter(self.0.witness(), request.get_ref().number);
        std::future::pending().await
    }

    async fn produce(&self, request: tonic::Request<ProduceRequest>) -> Answer<Blob> {
        let ProduceRequest { len, seed } = *request.get_ref();
        let len =
            usize::try_from(len).map_err(|_| tonic::Status::out_of_range("no such length"))?;
        Ok(tonic::Response::new(Blob { payload: pattern::payload(len, seed) }))
    }

    async fn digest(&self, request: tonic::Request<Blob>) -> Answer<DigestReply> {
        let payload = &request.get_ref().payload;
        Ok(tonic::Response::new(DigestReply {
            len: payload.len() as u64,
            checksum: pattern::checksum(payload),
            address: payload.as_ptr().addr() as u64,
            messages: 1,
        }))
    }

    async fn inspect(
        &self,
        request: tonic::Request<Nothing>,
    ) -> Answer<proto::conformance::InspectReply> {
        let native = verbwire_tonic::received(&request).expect("the bridge serves it");
        let deadline = native.deadline().expect("a received request has one");
        let left = deadline.saturating_duration_since(Instant::now());
        let left_us = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
        let transport = native.path().map_or_else(String::new, |path| path.transport.to_owned());
        Ok(tonic::Response::new(proto::conformance::InspectReply { left_us, transport }))
    }

    async fn collect(
        &self,
        request: tonic::Request<tonic::Streaming<Step>>,
    ) -> Answer<DigestReply> {
        let requests = Mapped(request.into_inner(), from_tonic);
        self.0.collected(requests).await.map(tonic::Response::new).map_err(to_tonic)
    }

    async fn scan(&self, request: tonic::Request<ScanRequest>) -> Answer<BoxStream<Blob>> {
        Ok(blobs(streaming::scan(self.0.witness(), request.into_inner())))
    }

    async fn talk(
        &self,
        request: tonic::Request<tonic::Streaming<Step>>,
    ) -> Answer<BoxStream<Blob>> {
        let requests = Mapped(request.into_inner(), from_tonic);
        Ok(blobs(streaming::talk(self.0.witness(), requests)))
    }
}

/// Says metadata back.
#[derive(Debug, Clone)]
pub struct TonicMirror;

/// What is said back in the headers; the trailers are [`Trailers`]' business.
fn mirrored<T>(metadata: &tonic::metadata::MetadataMap, message: T) -> tonic::Response<T> {
    use tonic::metadata::KeyAndValueRef;
    let mut response = tonic::Response::new(message);
    let back = response.metadata_mut();
    for entry in metadata.iter() {
        match entry {
            KeyAndValueRef::Ascii(key, value) if is_said_back(key.as_str()) => {
                back.append(key, value.clone());
            }
            KeyAndValueRef::Binary(key, value) if is_said_back(key.as_str()) => {
                back.append_bin(key, value.clone());
            }
            _ => {}
        }
    }
    response
}

fn is_said_back(key: &str) -> bool {
    !key.contains(TRAILING) && !["te", "content-type", "grpc-timeout"].contains(&key)
}

#[tonic::async_trait]
impl context_server::Context for TonicMirror {
    async fn mirror(&self, request: tonic::Request<MirrorRequest>) -> Answer<MirrorReply> {
        let (metadata, _, MirrorRequest { code, message, payload, .. }) = request.into_parts();
        if code != 0 {
            return Err(tonic::Status::with_metadata(tonic::Code::from(code), message, metadata));
        }
        Ok(mirrored(&metadata, MirrorReply { payload }))
    }

    async fn mirror_each(
        &self,
        request: tonic::Request<tonic::Streaming<MirrorRequest>>,
    ) -> Answer<BoxStream<MirrorReply>> {
        let (metadata, _, requests) = request.into_parts();
        let replies = steps(requests, |mut requests| async {
            let reply = match requests.message().await.transpose()? {
                Ok(MirrorRequest { code: 0, payload, .. }) => Ok(MirrorReply { payload }),
                Ok(MirrorRequest { code, message, .. }) => {
                    Err(tonic::Status::new(tonic::Code::from(code), message))
                }
                Err(status) => Err(status),
            };
            Some((reply, requests))
        });
        Ok(mirrored(&metadata, Box::pin(replies) as BoxStream<MirrorReply>))
    }
}

/// tonic's client of the service behind a native channel.
pub type Client =
    crate::tonic_proto::conformance::conformance_client::ConformanceClient<verbwire_tonic::Channel>;

/// The same of `context.Context`.
pub type ContextClient =
    crate::tonic_proto::context::context_client::ContextClient<verbwire_tonic::Channel>;

/// tonic's client over this channel.
pub fn client(channel: &verbwire::Channel) -> Client {
    let client = Client::new(verbwire_tonic::Channel::new(channel.clone()));
    client.max_decoding_message_size(64 << 20)
}
