//! A service behind an interceptor.

use std::fmt;
use std::sync::Arc;

use super::{Dynamic, Interceptor, Next, Outcome, Payload, Rest, Side};
use crate::buf::Body;
use crate::request::Request;
use crate::service::{
    HandlerFuture, NamedService, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput,
    no_streams_through, unknown_method,
};
use crate::transport::BoxFuture;

/// A service whose calls go through an interceptor first.
pub struct Intercepted<S: ?Sized> {
    service: Arc<S>,
    interceptor: Arc<dyn Dynamic>,
}

impl<S: Service> Intercepted<S> {
    /// Puts `interceptor` before `service`.
    pub fn new(service: S, interceptor: impl Interceptor) -> Self {
        Self { service: Arc::new(service), interceptor: Arc::new(interceptor) }
    }
}

impl<S: Service + ?Sized> Intercepted<S> {
    pub(crate) fn from_arcs(service: Arc<S>, interceptor: Arc<dyn Dynamic>) -> Self {
        Self { service, interceptor }
    }
}

impl<S: Service + ?Sized> Service for Intercepted<S> {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.service.descriptor()
    }

    fn call_streaming(&self, _: usize, _: Request<StreamInput>) -> StreamHandlerFuture {
        no_streams_through("interceptors")
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        let Some(descriptor) = self.descriptor().methods.get(method) else {
            return unknown_method(self.descriptor(), method);
        };
        let rest = Arc::new(Method { service: Arc::clone(&self.service), index: method });
        let (next, ran) = Next::new(descriptor, Side::Server, rest);
        let interceptor = Arc::clone(&self.interceptor);
        Box::pin(async move {
            let outcome = interceptor.run(request.map(Payload::from), next).await;
            match outcome {
                Ok(response) => Ok(response.map(Payload::into_body)),
                Err(status) => Err(ran.status(status)),
            }
        })
    }
}

struct Method<S: ?Sized> {
    service: Arc<S>,
    index: usize,
}

impl<S: Service + ?Sized> Rest for Method<S> {
    fn run(&self, request: Request<Payload>) -> BoxFuture<'static, Outcome> {
        let running = self.service.call(self.index, request.map(Payload::into_body));
        Box::pin(async move { Ok(running.await?.map(Payload::from)) })
    }
}

impl<S: NamedService> NamedService for Intercepted<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: ?Sized> Clone for Intercepted<S> {
    fn clone(&self) -> Self {
        let (service, interceptor) = (Arc::clone(&self.service), Arc::clone(&self.interceptor));
        Self { service, interceptor }
    }
}

impl<S: fmt::Debug> fmt::Debug for Intercepted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Intercepted").field(&self.service).finish()
    }
}
