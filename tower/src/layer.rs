//! A channel behind a tower layer.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};

use tower_layer::Layer;
use tower_service::Service;
use verbwire_core::interceptor::{Interceptor, Next, Outcome, Payload};
use verbwire_core::{Channel, Request, Response};

use crate::channel::TowerChannel;
use crate::error::{BoxError, status};
use crate::request::TowerRequest;

/// The same channel behind a tower layer, which every call through what is returned goes through; interceptors that
/// were there before come after it. A `tower::ServiceBuilder` is a layer, too.
///
/// Each call has a clone of the layer's service, which it waits for and drops when the call was made. What all calls share
/// is what the clones share: tower's concurrency limit is one, its rate limit has no clones, and goes behind a `buffer`.
///
/// # Errors of calls
///
/// A [`Status`](verbwire_core::Status) that passes through stays what it is, also where a layer wrapped it. Of tower's
/// own errors, a timeout becomes `DeadlineExceeded`, a call that was shed `ResourceExhausted`, a buffer that is gone
/// `Unavailable`; any other error becomes `Unknown`. The error is the status's `source`. `executed` is always that of
/// the call itself.
///
/// # Panics
///
/// Outside of a tokio runtime, if the layer needs one, as `buffer` does.
pub fn layer<L>(channel: Channel, layer: L) -> Channel
where
    L: Layer<TowerChannel>,
    L::Service: Service<TowerRequest, Response = Response<Payload>> + Clone + Send + 'static,
    <L::Service as Service<TowerRequest>>::Error: Into<BoxError>,
    <L::Service as Service<TowerRequest>>::Future: Send,
{
    let service = layer.layer(TowerChannel::new(channel.clone()));
    channel.intercepted(Stack(Mutex::new(service)))
}

/// What each call has a clone of. The lock is for services that are not `Sync`.
struct Stack<S>(Mutex<S>);

impl<S> Interceptor for Stack<S>
where
    S: Service<TowerRequest, Response = Response<Payload>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        let call = TowerRequest::of(request, next);
        let running = {
            // A service that panicked when it was cloned fails the calls that it does that to, and those alone.
            let mut service = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let ready = poll_fn(|cx| service.poll_ready(cx)).await;
            ready.map_err(|error| status(error.into()))?;
            service.call(call)
        };
        running.await.map_err(|error| status(error.into()))
    }
}
