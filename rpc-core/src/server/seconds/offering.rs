//! How clients ask for a second path: a service that servers have besides.

use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::debug;

use super::connections::{Connections, Entry};
use super::{Second, Upgrade};
use crate::buf::Body;
use crate::proto::offers::in_order;
use crate::request::{Request, Response};
use crate::service::{HandlerFuture, Service, ServiceDescriptor, unary};
use crate::status::{Executed, Status};
use crate::transport::Ticket;
use crate::wire::paths::{OfferReply, OfferRequest, SERVICE};

/// Longest request that is looked at: those of clients have some dozen bytes, and what is decoded is longer than what was sent.
const MAX_REQUEST: usize = 4096;

/// The service. No interceptor and no bound of the server stands before it: a client that was let in may have all its paths.
pub(in crate::server) struct Offering(pub(in crate::server) Connections);

impl Service for Offering {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SERVICE
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        let len = request.get_ref().len();
        if len > MAX_REQUEST {
            let message = format!(
                "a request for a second path has {len} bytes, {MAX_REQUEST} at most are looked at"
            );
            let refused = Status::invalid_argument(message).with_executed(Executed::No);
            return Box::pin(ready(Err(refused)));
        }
        let connections = self.0.clone();
        unary(request, |request: Request<OfferRequest>| async move {
            let entry = request.connection().and_then(|number| connections.find(number));
            let entry = entry.ok_or_else(|| {
                let message = "second paths are offered over first ones, and this is none";
                Status::failed_precondition(message).with_executed(Executed::Yes)
            })?;
            let offer = offer(&connections, &entry, request.get_ref()).await;
            let offer = offer.map_err(|status| status.with_executed(Executed::Yes));
            if let Err(status) = &offer {
                debug!(path = %entry.path(), why = status.message(), "no second path was offered");
                entry.note_why_not(status.message());
            }
            Ok(Response::new(offer?))
        })
    }
}

async fn offer(
    connections: &Connections,
    entry: &Arc<Entry>,
    asked: &OfferRequest,
) -> Result<OfferReply, Status> {
    let second = match entry.upgrade() {
        Upgrade::Never(why) => return Err(Status::failed_precondition(&**why)),
        Upgrade::To(second) => second,
    };
    check_taken(second, asked)?;
    let targets = second.targets().await.map_err(|error| {
        Status::unavailable(format!("the server has no second path to offer now: {error}"))
    })?;
    let targets = in_order(targets, &entry.path().local);
    let mut token = [0; 16];
    getrandom::fill(&mut token).map_err(|error| {
        let message =
            format!("the system has no random bytes for a ticket: {error}; see getrandom(2)");
        Status::internal(message)
    })?;
    let ticket = Ticket { token, connection: entry.number(), incarnation: entry.incarnation() };
    let lifetime = connections
        .issue(Instant::now(), ticket)
        .map_err(|full| Status::resource_exhausted(full.to_string()))?;
    Ok(OfferReply {
        targets: targets.iter().map(ToString::to_string).collect(),
        token: Bytes::copy_from_slice(&token),
        connection: ticket.connection,
        lifetime_ms: u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX),
    })
}

/// Refuses a client that could not take what there is.
fn check_taken(second: &Second, asked: &OfferRequest) -> Result<(), Status> {
    let ours = second.scheme();
    if asked.transports.iter().any(|theirs| theirs == ours) {
        return Ok(());
    }
    let theirs = asked.transports.iter().take(8).map(|scheme| crate::wire::cut(scheme, 16));
    let theirs: Vec<_> = theirs.collect();
    Err(Status::failed_precondition(format!(
        "the server's second paths are {ours}://, and the client takes [{}]",
        theirs.join(", ")
    )))
}
