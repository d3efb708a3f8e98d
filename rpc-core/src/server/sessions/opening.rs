//! How clients open sessions: a service that servers with sessions have besides.

use super::Sessions;
use crate::buf::Body;
use crate::request::{Request, Response};
use crate::service::{HandlerFuture, Service, ServiceDescriptor, unary};
use crate::wire::session::{OpenReply, SERVICE};

/// The service.
pub(in crate::server) struct Opening(pub(in crate::server) Sessions);

impl Service for Opening {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SERVICE
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        let sessions = self.0.clone();
        unary(request, |request: Request<()>| async move {
            let now = tokio::time::Instant::now();
            let opened =
                sessions.table().open(now, request.connection(), || sessions.draw_name())?;
            Ok(Response::new(OpenReply::of(&opened)))
        })
    }
}
