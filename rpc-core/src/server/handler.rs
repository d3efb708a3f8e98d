//! A running handler, with its panics caught.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::time::Instant;
use tracing::error;

use crate::buf::Body;
use crate::context::Scope;
use crate::request::{Request, Response};
use crate::service::{Service, StreamInput, StreamOutput};
use crate::status::{Code, Executed, Status};
use crate::streaming::{BodyStream, Guarded, panic_message};

/// A handler from its entry to its return.
///
/// A panic ends this call with `Internal` and nothing else: the handler's future is not polled again, and
/// what it shares with other calls is the service's own business (a poisoned lock, for example).
pub(crate) struct Handler<T = Body> {
    path: &'static str,
    scope: Scope,
    entered: Result<Returning<T>, Option<Status>>,
}

type Returning<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

impl Handler {
    /// Enters the method's handler; it runs as it is polled.
    pub(crate) fn enter(
        service: &dyn Service,
        method: usize,
        request: Request<Body>,
        deadline: Instant,
    ) -> Self {
        Self::guard(path_of(service, method), deadline, || service.call(method, request))
    }

    /// Polls the handler. Not to be called after it was ready.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Body>, Status>> {
        let outcome = std::task::ready!(self.poll_outcome(cx));
        self.scope.finish();
        Poll::Ready(outcome)
    }
}

impl Handler<StreamOutput> {
    /// The same for a method that has streams.
    pub(crate) fn enter_streaming(
        service: &dyn Service,
        method: usize,
        request: Request<StreamInput>,
        deadline: Instant,
    ) -> Self {
        Self::guard(path_of(service, method), deadline, || service.call_streaming(method, request))
    }

    /// Polls the handler. Not to be called after it was ready. The replies that it returns know the call as it does, and
    /// end with a status if they panic.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<StreamOutput>, Status>> {
        let outcome = std::task::ready!(self.poll_outcome(cx));
        let (path, mut scope) = (self.path, self.scope.take());
        Poll::Ready(outcome.map(|response| {
            response.map(|output| match output {
                StreamOutput::Stream(replies) => guard_replies(path, scope, replies),
                whole @ StreamOutput::Whole(_) => {
                    scope.finish();
                    whole
                }
            })
        }))
    }
}

impl<T> Handler<T> {
    fn guard(path: &'static str, deadline: Instant, enter: impl FnOnce() -> Returning<T>) -> Self {
        let entered =
            catch_unwind(AssertUnwindSafe(enter)).map_err(|panic| Some(panicked(path, &*panic)));
        Self { path, scope: Scope::new(deadline), entered }
    }

    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<T>, Status>> {
        let future = match &mut self.entered {
            Ok(future) => future,
            Err(status) => {
                let status = status.take().expect("a handler is not polled after it has ended");
                return Poll::Ready(Err(status));
            }
        };
        let scope = &mut self.scope;
        let polled = catch_unwind(AssertUnwindSafe(|| scope.enter(|| future.as_mut().poll(cx))));
        let outcome = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(outcome)) => outcome.map_err(not_ok),
            Err(panic) => Err(panicked(self.path, &*panic)),
        };
        Poll::Ready(outcome)
    }
}

fn path_of(service: &dyn Service, method: usize) -> &'static str {
    service.descriptor().methods.get(method).map_or("", |method| method.path)
}

fn guard_replies(path: &'static str, scope: Scope, replies: BodyStream) -> StreamOutput {
    let panicked = move |panic: &(dyn Any + Send)| panicked(path, panic);
    let replies = Replies { replies: Guarded::new(replies, panicked), scope };
    StreamOutput::Stream(Box::pin(replies))
}

/// The replies of a call, which know it.
struct Replies<F> {
    replies: Guarded<F>,
    scope: Scope,
}

impl<F> Stream for Replies<F>
where
    F: Fn(&(dyn Any + Send)) -> Status + Unpin,
{
    type Item = Result<Body, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { replies, scope } = &mut *self;
        let item = std::task::ready!(scope.enter(|| Pin::new(replies).poll_next(cx)));
        if !matches!(item, Some(Ok(_))) {
            scope.finish();
        }
        Poll::Ready(item.map(|reply| reply.map_err(not_ok)))
    }
}

/// A handler that fails with `Ok` has no reply to send, so that cannot be what it meant.
fn not_ok(status: Status) -> Status {
    if status.code() == Code::Ok { status.with_code(Code::Unknown) } else { status }
}

fn panicked(path: &str, panic: &(dyn Any + Send)) -> Status {
    let message = panic_message(panic);
    error!(method = path, panic = message, "handler panicked");
    // The panic's own words stay here: they may hold what the caller must not see.
    Status::internal(format!("the handler of {path} panicked; the server's log says why"))
        .with_executed(Executed::Yes)
}
