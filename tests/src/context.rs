//! The service of cases about what surrounds a call: metadata, deadlines that are handed on, interceptors.

use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use verbwire::codegen::Stream;
use verbwire::metadata::{KeyAndValueRef, MetadataMap};
use verbwire::{Channel, Code, Request, Response, Server, Status, Streaming, shield, spawn};

use crate::backends::Place;
use crate::bridge;
use crate::fixture::{Fixture, LONG};
use crate::proto::context::context_client::ContextClient;
use crate::proto::context::context_server::{Context, ContextServer};
use crate::proto::context::relay_request::Way;
use crate::proto::context::{
    LeaveRequest, LeftReply, LeftRequest, MirrorReply, MirrorRequest, RelayRequest,
};
use crate::streams::steps;

/// The implementation.
#[derive(Debug, Default, Clone)]
pub struct Surroundings {
    /// The server behind this one.
    behind: Option<ContextClient>,
    events: Events,
}

/// Who calls, as an interceptor found out; `Mirror` says it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who(pub String);

/// What handlers and those whom they left behind have seen.
#[derive(Debug, Default, Clone)]
pub struct Events(Arc<watch::Sender<BTreeSet<&'static str>>>);

impl Events {
    fn note(&self, event: &'static str) {
        self.0.send_modify(|seen| {
            seen.insert(event);
        });
    }

    /// Whether this has happened.
    pub fn has(&self, event: &'static str) -> bool {
        self.0.borrow().contains(event)
    }

    /// Waits until this has happened.
    ///
    /// # Panics
    ///
    /// If it does not in a long time.
    pub async fn until(&self, event: &'static str) {
        let mut seen = self.0.subscribe();
        let is_seen = timeout(LONG, seen.wait_for(|seen| seen.contains(event))).await.is_ok();
        assert!(is_seen, "{event} was not seen within {LONG:?}");
    }
}

/// Notes the end of a handler that does not come to its own.
struct Drops(Events);

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.note("handler dropped");
    }
}

impl Surroundings {
    /// A service that relays to `behind`.
    pub fn before(behind: ContextClient) -> Self {
        Self { behind: Some(behind), events: Events::default() }
    }

    /// What its handlers have seen.
    pub fn events(&self) -> &Events {
        &self.events
    }
}

/// Part of the names of entries that `Mirror` says back as trailers.
pub(crate) const TRAILING: &str = "trailing";

/// What a handler says back of a request's metadata: headers and trailers.
fn mirrored<T>(request: &Request<T>) -> Result<(MetadataMap, MetadataMap), Status> {
    let (mut headers, mut trailers) = (MetadataMap::new(), MetadataMap::new());
    for entry in request.metadata().iter() {
        let is_trailer = entry.key().contains(TRAILING);
        copy(entry, if is_trailer { &mut trailers } else { &mut headers })?;
    }
    if let Some(Who(name)) = request.extensions().get() {
        headers.append("who", name.as_str().try_into()?)?;
    }
    Ok((headers, trailers))
}

/// Replies of `MirrorEach`.
type Mirrored = Pin<Box<dyn Stream<Item = Result<MirrorReply, Status>> + Send>>;

impl Context for Surroundings {
    async fn mirror_all(
        &self,
        request: Request<Streaming<MirrorRequest>>,
    ) -> Result<Response<MirrorReply>, Status> {
        let (headers, trailers) = mirrored(&request)?;
        let (mut requests, mut all) = (request.into_inner(), Vec::new());
        while let Some(MirrorRequest { payload, .. }) = requests.message().await? {
            all.extend_from_slice(&payload);
        }
        let mut response = Response::new(MirrorReply { payload: all.into() });
        *response.metadata_mut() = headers;
        *response.trailers_mut() = trailers;
        Ok(response)
    }

    type MirrorEachStream = Mirrored;

    async fn mirror_each(
        &self,
        request: Request<Streaming<MirrorRequest>>,
    ) -> Result<Response<Mirrored>, Status> {
        let (headers, trailers) = mirrored(&request)?;
        let replies = steps(request.into_inner(), |mut requests| async {
            let reply = match requests.message().await.transpose()? {
                Ok(MirrorRequest { code: 0, payload, .. }) => Ok(MirrorReply { payload }),
                Ok(MirrorRequest { code, message, .. }) => {
                    Err(Status::new(Code::from(code), message))
                }
                Err(status) => Err(status),
            };
            Some((reply, requests))
        });
        let mut response = Response::new(Box::pin(replies) as Mirrored);
        *response.metadata_mut() = headers;
        *response.trailers_mut() = trailers;
        Ok(response)
    }

    async fn mirror(
        &self,
        request: Request<MirrorRequest>,
    ) -> Result<Response<MirrorReply>, Status> {
        let (mut headers, trailers) = mirrored(&request)?;
        let MirrorRequest { code, filling, payload, message } = request.into_inner();
        if filling > 0 {
            let filling = "f".repeat(usize::try_from(filling).unwrap_or(usize::MAX));
            headers.append("filling", filling.try_into()?)?;
        }
        if code != 0 {
            headers.extend(trailers);
            return Err(Status::new(Code::from(code), message).with_metadata(headers));
        }
        let mut response = Response::new(MirrorReply { payload });
        *response.metadata_mut() = headers;
        *response.trailers_mut() = trailers;
        Ok(response)
    }

    async fn relay(&self, request: Request<RelayRequest>) -> Result<Response<LeftReply>, Status> {
        let _drops = Drops(self.events.clone());
        let asked = *request.get_ref();
        let Some(behind) = self.behind.clone() else {
            return Err(Status::failed_precondition("there is no server behind this one"));
        };
        let mut relayed = Request::new(LeftRequest {});
        if asked.timeout_us > 0 {
            relayed.set_timeout(Duration::from_micros(asked.timeout_us));
        }
        if asked.way() == Way::Detached {
            relayed = relayed.detached();
        }
        let call = async move {
            if asked.hangs { behind.hang(relayed).await } else { behind.left(relayed).await }
        };
        let aborted = |_error| Status::internal("the task failed");
        match asked.way() {
            Way::Direct | Way::Detached => call.await,
            Way::Spawned => spawn(call).await.map_err(aborted)?,
            Way::Shielded => shield(call).await,
            Way::PlainTask => tokio::spawn(call).await.map_err(aborted)?,
        }
    }

    async fn left(&self, request: Request<LeftRequest>) -> Result<Response<LeftReply>, Status> {
        let deadline = request.deadline().expect("a received request has one");
        let left = deadline.saturating_duration_since(Instant::now());
        let left_us = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
        Ok(Response::new(LeftReply { left_us }))
    }

    async fn hang(&self, _: Request<LeftRequest>) -> Result<Response<LeftReply>, Status> {
        let _drops = Drops(self.events.clone());
        self.events.note("hangs");
        pending().await
    }

    async fn leave_behind(
        &self,
        request: Request<LeaveRequest>,
    ) -> Result<Response<LeftReply>, Status> {
        let cancelled = request.cancelled();
        let events = self.events.clone();
        spawn(async move {
            cancelled.await;
            events.note("told by the future");
        });
        let events = self.events.clone();
        let returns = request.get_ref().returns;
        spawn(async move {
            request.cancelled().await;
            events.note("told in a task");
        });
        self.events.note("left behind");
        if !returns {
            pending::<()>().await;
        }
        Ok(Response::new(LeftReply::default()))
    }
}

fn copy(entry: KeyAndValueRef<'_>, into: &mut MetadataMap) -> Result<(), Status> {
    match entry {
        KeyAndValueRef::Ascii(key, value) => into.append(key, value.clone())?,
        KeyAndValueRef::Binary(key, value) => into.append_bin(key, value.clone())?,
    }
    Ok(())
}

/// A client of the service over the fixture's transport, with default settings; the server, where there is one,
/// serves until the runtime ends.
pub fn client(fixture: &Fixture) -> impl Future<Output = ContextClient> + use<> {
    client_of(fixture, Surroundings::default())
}

/// The same of this service.
pub fn client_of(
    fixture: &Fixture,
    service: Surroundings,
) -> impl Future<Output = ContextClient> + use<> {
    let is_in_process = fixture.backend().place == Place::InProcess;
    let (site, is_bridged) = (fixture.site(), fixture.is_bridged());
    let in_process = is_in_process.then(|| {
        let channel = match is_bridged {
            true => Channel::in_process(bridge::context()),
            false => ContextClient::in_process(service.clone()).channel().clone(),
        };
        ContextClient::new(fixture.in_process("context.Context", channel))
    });
    async move {
        if let Some(client) = in_process {
            return client;
        }
        let builder = Server::builder();
        let builder = match is_bridged {
            true => builder.add_service(bridge::context()),
            false => builder.add_service(ContextServer::new(service)),
        };
        ContextClient::new(site.serve(builder).await.connect().await)
    }
}

/// A server that offers the service.
pub fn offering() -> verbwire::Builder {
    Server::builder().add_service(ContextServer::new(Surroundings::default()))
}
