//! What answers calls of methods that no service has.

use std::future::Future;
use std::sync::Arc;

use crate::buf::Body;
use crate::request::{Request, Response};
use crate::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor};
use crate::status::{Executed, Status};

/// Handles calls by their paths, with messages as they came. Implemented by functions of a path and a request.
pub trait Fallback: Send + Sync + 'static {
    /// Handles a call of the method at `path`.
    fn call(&self, path: Arc<str>, request: Request<Body>) -> HandlerFuture;
}

impl<F, Fut> Fallback for F
where
    F: Fn(Arc<str>, Request<Body>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Response<Body>, Status>> + Send + 'static,
{
    fn call(&self, path: Arc<str>, request: Request<Body>) -> HandlerFuture {
        let handling = self(path, request);
        Box::pin(
            async move { handling.await.map_err(|status| status.with_executed(Executed::Yes)) },
        )
    }
}

/// The service of one path that no other service has.
pub(super) struct At {
    pub(super) path: Arc<str>,
    pub(super) fallback: Arc<dyn Fallback>,
}

static DESCRIPTOR: ServiceDescriptor =
    ServiceDescriptor::new("(fallback)", &[MethodDescriptor::new("(any)", "(fallback)")]);

impl Service for At {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &DESCRIPTOR
    }

    fn fallback_path(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.path))
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        let (fallback, path) = (Arc::clone(&self.fallback), Arc::clone(&self.path));
        Box::pin(async move { fallback.call(path, request).await })
    }
}
