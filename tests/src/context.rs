//! The service of cases about what surrounds a call: metadata, deadlines that are handed on, interceptors.

use std::future::Future;

use verbwire::metadata::{KeyAndValueRef, MetadataMap};
use verbwire::{Channel, Code, Request, Response, Server, Status};

use crate::backends::Place;
use crate::fixture::{Fixture, Serving};
use crate::proto::context::context_client::ContextClient;
use crate::proto::context::context_server::{Context, ContextServer};
use crate::proto::context::{MirrorReply, MirrorRequest};

/// The implementation.
#[derive(Debug, Default, Clone)]
pub struct Surroundings {}

/// Part of the names of entries that `Mirror` says back as trailers.
const TRAILING: &str = "trailing";

impl Context for Surroundings {
    async fn mirror(
        &self,
        request: Request<MirrorRequest>,
    ) -> Result<Response<MirrorReply>, Status> {
        let (mut headers, mut trailers) = (MetadataMap::new(), MetadataMap::new());
        for entry in request.metadata().iter() {
            let is_trailer = entry.key().contains(TRAILING);
            copy(entry, if is_trailer { &mut trailers } else { &mut headers })?;
        }
        let MirrorRequest { code, filling, payload } = request.into_inner();
        if filling > 0 {
            let filling = "f".repeat(usize::try_from(filling).unwrap_or(usize::MAX));
            headers.append("filling", filling.try_into()?)?;
        }
        if code != 0 {
            headers.extend(trailers);
            return Err(Status::new(Code::from(code), "told to fail").with_metadata(headers));
        }
        let mut response = Response::new(MirrorReply { payload });
        *response.metadata_mut() = headers;
        *response.trailers_mut() = trailers;
        Ok(response)
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
pub fn client(fixture: &Fixture) -> impl Future<Output = ContextClient> {
    let is_in_process = fixture.backend().place == Place::InProcess;
    let target = fixture.target();
    async move {
        if is_in_process {
            return ContextClient::in_process(Surroundings::default());
        }
        let serving = Serving::start(offering(), &target).await;
        ContextClient::new(connected(&serving).await)
    }
}

/// A server that offers the service.
pub fn offering() -> verbwire::Builder {
    Server::builder().add_service(ContextServer::new(Surroundings::default()))
}

async fn connected(serving: &Serving) -> Channel {
    serving.connect().await
}
