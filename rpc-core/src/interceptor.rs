//! Code around calls, on either side: authentication, tracing, retries, measuring.
//!
//! * [`Interceptor`]: sees a call as a whole, and calls the [`Next`] one. The same trait for clients and servers.
//! * [`from_fn`]: an interceptor from a function that only looks at requests.
//! * [`Intercepted`]: a service behind an interceptor. A channel's is in [`crate::client`].
//!
//! An interceptor sees encoded messages, of any method, and calls that have streams as a whole: their request
//! and its options, how they end, and how many messages went by. A call without interceptors knows nothing of them.

mod closure;
mod next;
mod payload;
mod progress;
mod replies;
mod service;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;

use crate::request::{Request, Response};
use crate::status::Status;
use crate::transport::BoxFuture;

pub use crate::message::{Form, ReplyForm};
pub use crate::service::MethodDescriptor;
pub use closure::{FromFn, from_fn};
pub use next::{Next, Side};
pub use payload::Payload;
pub use progress::{Count, Traffic};
pub use service::Intercepted;

pub(crate) use next::{Begun, Called, Rest};
pub(crate) use progress::Progress;
pub(crate) use replies::{Handover, Intercepted as InterceptedReplies, Opened, Opening};

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
///         let (path, traffic) = (next.path().to_owned(), next.traffic());
///         let outcome = next.run(request).await;
///         if let Err(status) = &outcome {
///             eprintln!("{path}: {status}, after {} replies", traffic.replies().messages);
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
    /// Where replies are a stream, [`Next::run`] is ready when they have ended, and what is returned is their end: its
    /// status or its trailers. The caller has had the reply's metadata and messages by then: [`Next::run_with`] is how to
    /// change the metadata. So such a call cannot be answered
    /// here, only refused; and it cannot run again once its replies have begun, nor can a stream of requests
    /// ([`Request::copy`] says so).
    ///
    /// The returned future is dropped when the call is cancelled or its deadline passes.
    fn intercept(
        &self,
        request: Request<Payload>,
        next: Next,
    ) -> impl Future<Output = Outcome> + Send;
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
