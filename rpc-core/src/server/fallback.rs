//! What answers calls of methods that no service has.

use std::future::Future;
use std::sync::Arc;

use crate::buf::Body;
use crate::message::Form;
use crate::request::{Request, Response};
use crate::service::{
    HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput,
};
use crate::status::{Executed, Status};

/// Handles calls by their paths, with messages as they came. Implemented by functions of a path and a request.
pub trait Fallback: Send + Sync + 'static {
    /// Handles a call of the method at `path`. Where its caller expects a stream of replies, a reply fails there with
    /// `Internal`, and a status arrives as it is.
    fn call(&self, path: Arc<str>, request: Request<Body>) -> HandlerFuture;

    /// Says why a call of the method at `path` whose request is a stream fails. Nothing of the stream is read, and the status
    /// says *not executed*.
    fn refuse_stream(&self, path: &str, _request: &Request<()>) -> Status {
        Status::unimplemented(format!(
            "{path} is not served here, and what answers for other methods takes no streams of requests"
        ))
    }
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

static DESCRIPTOR: ServiceDescriptor = ServiceDescriptor::new(
    "(fallback)",
    &[
        MethodDescriptor::new("(any)", "(fallback)"),
        MethodDescriptor::new("(any of a stream)", "(fallback)").client_streaming(),
    ],
);

/// Which method of [`At`] takes requests of this form.
pub(super) fn method(request: Form) -> usize {
    match request {
        Form::Whole => 0,
        Form::Stream => 1,
    }
}

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

    fn call_streaming(&self, _: usize, request: Request<StreamInput>) -> StreamHandlerFuture {
        let (fallback, path) = (Arc::clone(&self.fallback), Arc::clone(&self.path));
        Box::pin(async move {
            let status = fallback.refuse_stream(&path, &request.map(drop));
            Err(status.with_executed(Executed::No))
        })
    }
}
