//! Code around calls, on either side: authentication, tracing, retries, measuring.
//!
//! * [`Interceptor`]: sees a call as a whole, and calls the [`Next`] one. The same trait for clients and servers.
//! * [`from_fn`]: an interceptor from a function that only looks at requests.
//! * [`Intercepted`]: a service behind an interceptor. A channel's is in [`crate::client`].
//!
//! An interceptor sees encoded messages, of any method. A call without interceptors knows nothing of them.

mod closure;
mod next;
mod service;

use std::future::Future;
use std::sync::Arc;

use crate::buf::Body;
use crate::request::{Request, Response};
use crate::status::Status;
use crate::transport::BoxFuture;

pub use closure::{FromFn, from_fn};
pub use next::{Next, Side};
pub use service::Intercepted;

pub(crate) use next::{Ran, Rest};

/// The outcome of a call as interceptors see it.
pub type Outcome = Result<Response<Payload>, Status>;

/// Code around calls.
///
/// ```
/// # use verbwire_core as verbwire;
/// use verbwire::interceptor::{Interceptor, Next, Outcome, Payload};
/// use verbwire::Request;
///
/// /// Prints every call that fails.
/// struct Log;
///
/// impl Interceptor for Log {
///     async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
///         let path = next.method().path;
///         let outcome = next.run(request).await;
///         if let Err(status) = &outcome {
///             eprintln!("{path}: {status}");
///         }
///         outcome
///     }
/// }
/// ```
pub trait Interceptor: Send + Sync + 'static {
    /// Runs a call: changes the request, hands it on with [`Next::run`] or does not, and looks at the outcome.
    ///
    /// [`Request::metadata`], [`Request::deadline`] and [`Payload::len`] say what is known of the call. On a client
    /// this is polled by the task that awaits the call, on a server by the handler's; there it serves the call as
    /// the handler does, so that its own calls inherit the deadline.
    ///
    /// The returned future is dropped when the call is cancelled or its deadline passes.
    fn intercept(
        &self,
        request: Request<Payload>,
        next: Next,
    ) -> impl Future<Output = Outcome> + Send;
}

/// What a request or reply carries: an encoded message.
#[derive(Debug)]
pub struct Payload(Body);

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The encoded message.
    pub fn body(&self) -> &Body {
        &self.0
    }

    pub(crate) fn copy(&self) -> Self {
        Self(self.0.clone())
    }

    pub(crate) fn into_body(self) -> Body {
        self.0
    }
}

impl From<Body> for Payload {
    fn from(body: Body) -> Self {
        Self(body)
    }
}

/// An [`Interceptor`] behind a pointer.
pub(crate) trait Dynamic: Send + Sync + 'static {
    fn run(self: Arc<Self>, request: Request<Payload>, next: Next) -> BoxFuture<'static, Outcome>;
}

impl<I: Interceptor> Dynamic for I {
    fn run(self: Arc<Self>, request: Request<Payload>, next: Next) -> BoxFuture<'static, Outcome> {
        Box::pin(async move { self.intercept(request, next).await })
    }
}
