//! A running handler, with its panics caught.

use std::any::Any;
use std::borrow::Cow;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;
use tracing::error;

use crate::buf::Body;
use crate::context::Scope;
use crate::metadata::MetadataMap;
use crate::panics::{dropped, panic_message};
use crate::proto::entrance::{Entrance, stop};
use crate::request::{Request, Response};
use crate::service::{Service, StreamInput, StreamOutput, enter, enter_streaming};
use crate::status::{Executed, Status};
use crate::streaming::{Guarded, Messages};

/// A handler from its entry to its return.
///
/// A panic ends this call with `Internal` and nothing else: the handler's future is not polled again, and
/// what it shares with other calls is the service's own business (a poisoned lock, for example).
pub(crate) struct Handler<T = Body> {
    path: Cow<'static, str>,
    scope: Scope,
    /// `None` where to call the service is to enter the handler.
    entrance: Option<Arc<Entrance>>,
    entered: Result<Returning<T>, Option<Status>>,
}

type Returning<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

impl Handler {
    /// Calls the method of the service, and by that enters its handler if nothing stands before it; it runs as it is
    /// polled.
    pub(crate) fn enter(
        service: &dyn Service,
        method: usize,
        request: Request<Body>,
        deadline: Instant,
    ) -> Self {
        let path = path_of(service, method, &request);
        let entrance = request.entrance().cloned();
        Self::guard(path, deadline, entrance, || enter(service, method, request))
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
        let path = path_of(service, method, &request);
        let entrance = request.entrance().cloned();
        Self::guard(path, deadline, entrance, || enter_streaming(service, method, request))
    }

    /// Polls the handler. Not to be called after it was ready. The replies that it returns know the call as it does,
    /// end with a status if they panic, and have the trailers that the handler returned.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<StreamOutput>, Status>> {
        let outcome = std::task::ready!(self.poll_outcome(cx));
        let (path, mut scope) = (std::mem::take(&mut self.path), self.scope.take());
        Poll::Ready(outcome.map(|response| {
            let (output, mut block) = response.into_parts();
            let output = match output {
                StreamOutput::Stream(replies) => {
                    let trailers = block.as_mut().map(|block| std::mem::take(&mut block.trailers));
                    guard_replies(path, scope, replies, trailers.unwrap_or_default())
                }
                whole @ StreamOutput::Whole(_) => {
                    scope.finish();
                    whole
                }
            };
            Response::with_block(output, block)
        }))
    }
}

impl<T> Handler<T> {
    fn guard(
        path: Cow<'static, str>,
        deadline: Instant,
        entrance: Option<Arc<Entrance>>,
        enter: impl FnOnce() -> Returning<T>,
    ) -> Self {
        let entered = catch_unwind(AssertUnwindSafe(enter))
            .map_err(|panic| Some(panicked(&path, &*panic, stop(entrance.as_deref()))));
        Self { path, scope: Scope::new(deadline), entrance, entered }
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
            Ok(Poll::Ready(outcome)) => outcome.map_err(Status::not_ok),
            Err(panic) => Err(panicked(&self.path, &*panic, stop(self.entrance.as_deref()))),
        };
        // Here and not with the handler, since what it drops at its end may panic as well.
        let ended = std::mem::replace(&mut self.entered, Err(None));
        Poll::Ready(match dropped(ended) {
            Err(panic) if outcome.is_ok() => {
                Err(panicked(&self.path, &*panic, stop(self.entrance.as_deref())))
            }
            _ => outcome,
        })
    }
}

fn path_of<T>(service: &dyn Service, method: usize, request: &Request<T>) -> Cow<'static, str> {
    match request.called_path() {
        Some(path) => Cow::Owned(path.to_string()),
        None => {
            let method = service.descriptor().methods.get(method);
            Cow::Borrowed(method.map_or("", |method| method.path))
        }
    }
}

fn guard_replies(
    path: Cow<'static, str>,
    scope: Scope,
    replies: Box<dyn Messages>,
    trailers: MetadataMap,
) -> StreamOutput {
    // There are replies, so that the handler was entered.
    let panicked = move |panic: &(dyn Any + Send)| panicked(&path, panic, Executed::Yes);
    let replies = Replies { replies: Guarded::new(replies, panicked), scope, trailers };
    StreamOutput::Stream(Box::new(replies))
}

/// The replies of a call, which know it.
struct Replies<F> {
    replies: Guarded<F>,
    scope: Scope,
    /// What the handler says at the end, however that comes.
    trailers: MetadataMap,
}

impl<F> Messages for Replies<F>
where
    F: Fn(&(dyn Any + Send)) -> Status + Send,
{
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let Self { replies, scope, .. } = self;
        let item = std::task::ready!(scope.enter(|| replies.poll_message(cx)));
        if !matches!(item, Some(Ok(_))) {
            scope.finish();
        }
        Poll::Ready(item.map(|reply| reply.map_err(|status| self.failed(status))))
    }

    fn take_trailers(&mut self) -> MetadataMap {
        let mut trailers = std::mem::take(&mut self.trailers);
        trailers.extend(self.replies.take_trailers());
        trailers
    }
}

impl<F> Replies<F> {
    /// The status with which the replies fail: trailers are the metadata of one.
    fn failed(&mut self, status: Status) -> Status {
        status.after_trailers(std::mem::take(&mut self.trailers)).not_ok()
    }
}

fn panicked(path: &str, panic: &(dyn Any + Send), executed: Executed) -> Status {
    let message = panic_message(panic);
    let what = match executed {
        Executed::Yes => "the handler",
        Executed::Maybe => "an interceptor",
        Executed::No => "what stands before the handler",
    };
    error!(method = path, panic = message, "{what} panicked");
    // The panic's own words stay here: they may hold what the caller must not see.
    Status::internal(format!("{what} of {path} panicked; the server's log says why"))
        .with_executed(executed)
}
