//! A running handler, with its panics caught.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use tokio::time::Instant;
use tracing::error;

use crate::buf::Body;
use crate::context::Scope;
use crate::request::{Request, Response};
use crate::service::{HandlerFuture, Service};
use crate::status::{Code, Executed, Status};

/// A handler from its entry to its return.
///
/// A panic ends this call with `Internal` and nothing else: the handler's future is not polled again, and
/// what it shares with other calls is the service's own business (a poisoned lock, for example).
pub(crate) struct Handler {
    path: &'static str,
    scope: Scope,
    entered: Result<HandlerFuture, Option<Status>>,
}

impl Handler {
    /// Enters the method's handler; it runs as it is polled.
    pub(crate) fn enter(
        service: &dyn Service,
        method: usize,
        request: Request<Body>,
        deadline: Instant,
    ) -> Self {
        let path = service.descriptor().methods.get(method).map_or("", |method| method.path);
        let mut scope = Scope::new(deadline);
        let enter = || scope.enter(|| service.call(method, request));
        let entered =
            catch_unwind(AssertUnwindSafe(enter)).map_err(|panic| Some(panicked(path, &*panic)));
        Self { path, scope, entered }
    }

    /// Polls the handler. Not to be called after it was ready.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Body>, Status>> {
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
        self.scope.finish();
        Poll::Ready(outcome)
    }
}

/// A handler that fails with `Ok` has no reply to send, so that cannot be what it meant.
fn not_ok(status: Status) -> Status {
    if status.code() == Code::Ok { status.with_code(Code::Unknown) } else { status }
}

fn panicked(path: &str, panic: &(dyn Any + Send)) -> Status {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)");
    error!(method = path, panic = message, "handler panicked");
    // The panic's own words stay here: they may hold what the caller must not see.
    Status::internal(format!("the handler of {path} panicked; the server's log says why"))
        .with_executed(Executed::Yes)
}
