//! Services that answer for methods which nobody has described: bridges, proxies, and what answers for all the rest.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;

use crate::buf::Body;
use crate::message::ReplyForm;
use crate::request::{Request, Response};
use crate::service::{
    HandlerFuture, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput, StreamOutput,
    no_path,
};
use crate::status::{Executed, Status};
use crate::streaming::{Messages, One, Single};

/// Handles calls by their paths, with encoded messages. Implemented by functions of a path and a request, for methods that
/// take one request and give one reply.
pub trait Open: Send + Sync + 'static {
    /// Handles a call of the method at `path`, `/package.Service/Method`.
    ///
    /// The request is in the form in which the caller sent it. `reply` says in which form the caller takes the reply: either,
    /// if the caller does not know the method's form. The reply need not have that form. One message is a stream of one to
    /// a caller that expects a stream; to one that expects one reply a stream must have one message, else its call fails with
    /// `Internal`.
    ///
    /// What it does belongs into the future, as for [`Service::call`]. The status of a call that fails says whether the handler
    /// ran: one that another server gave may be handed on as it is.
    fn call(
        self: Arc<Self>,
        path: Arc<str>,
        reply: ReplyForm,
        request: Request<StreamInput>,
    ) -> StreamHandlerFuture;
}

impl<F, Fut> Open for F
where
    F: Fn(Arc<str>, Request<Body>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Response<Body>, Status>> + Send + 'static,
{
    /// A stream of requests is refused where its caller knows that the method takes one, and is else its only message.
    fn call(
        self: Arc<Self>,
        path: Arc<str>,
        reply: ReplyForm,
        request: Request<StreamInput>,
    ) -> StreamHandlerFuture {
        Box::pin(async move {
            let (options, input) = request.split();
            let body = match input {
                StreamInput::Whole(body) => body,
                StreamInput::Stream(_) if reply != ReplyForm::Either => {
                    return Err(takes_no_streams(&path));
                }
                StreamInput::Stream(messages) => {
                    let mut single = Single::new(messages);
                    poll_fn(|cx| single.poll(cx)).await.map_err(|not| not.of_request())?
                }
            };
            match self(path, options.map(|()| body)).await {
                Ok(response) => Ok(response.map(StreamOutput::Whole)),
                Err(status) => Err(status.with_executed(Executed::Yes)),
            }
        })
    }
}

fn takes_no_streams(path: &str) -> Status {
    let message = format!(
        "{path} is not served here, and what answers for other methods takes no streams of requests"
    );
    Status::unimplemented(message).with_executed(Executed::No)
}

/// A service of which only the name is known: an [`Open`] answers for every method of it. It is added to a server as any other,
/// with [`Limited`](super::Limited) and [`Intercepted`](crate::interceptor::Intercepted) around it where that is wanted.
pub struct OpenService<O> {
    descriptor: ServiceDescriptor,
    open: Arc<O>,
}

impl<O: Open> OpenService<O> {
    /// The service `name`, for example `helloworld.Greeter`, whose methods `open` answers for.
    pub fn new(name: &'static str, open: O) -> Self {
        Self { descriptor: ServiceDescriptor::open(name), open: Arc::new(open) }
    }

    /// What answers for all paths that no service has.
    pub(super) fn fallback(open: O) -> Self {
        Self::new("(fallback)", open)
    }

    fn run(
        &self,
        method: usize,
        request: Request<StreamInput>,
    ) -> impl Future<Output = Result<Response<StreamOutput>, Status>> + Send + use<O> {
        let reply = self.descriptor.methods.get(method).map(|method| method.reply);
        let open = Arc::clone(&self.open);
        async move {
            let path = request.called_path().cloned();
            let (Some(path), Some(reply)) = (path, reply) else { return Err(no_path()) };
            let response = open.call(path, reply, request).await?;
            in_form(reply, response).await
        }
    }
}

/// A reply in the form in which its caller takes it.
async fn in_form(
    reply: ReplyForm,
    response: Response<StreamOutput>,
) -> Result<Response<StreamOutput>, Status> {
    let (output, block) = response.into_parts();
    match (output, reply) {
        (StreamOutput::Stream(messages), ReplyForm::Whole) => {
            let mut single = Single::new(messages);
            let mut response = Response::with_block((), block);
            match poll_fn(|cx| single.poll(cx)).await {
                Ok(body) => {
                    response.trailers_mut().extend(single.take_trailers());
                    Ok(response.map(|()| StreamOutput::Whole(body)))
                }
                Err(not) => {
                    let trailers = std::mem::take(response.trailers_mut());
                    Err(not.of_reply().after_trailers(trailers))
                }
            }
        }
        (StreamOutput::Whole(body), ReplyForm::Stream) => {
            let one = Box::new(One::new(body)) as Box<dyn Messages>;
            Ok(Response::with_block(StreamOutput::Stream(one), block))
        }
        (output, _) => Ok(Response::with_block(output, block)),
    }
}

impl<O: Open> Service for OpenService<O> {
    fn descriptor(&self) -> &ServiceDescriptor {
        &self.descriptor
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        let running = self.run(method, request.map(StreamInput::Whole));
        Box::pin(async move {
            let (output, block) = running.await?.into_parts();
            match output {
                StreamOutput::Whole(body) => Ok(Response::with_block(body, block)),
                StreamOutput::Stream(_) => Err(crate::service::wrong_output()),
            }
        })
    }

    fn call_streaming(&self, method: usize, request: Request<StreamInput>) -> StreamHandlerFuture {
        Box::pin(self.run(method, request))
    }
}

impl<O> fmt::Debug for OpenService<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenService").field(&self.descriptor.name).finish()
    }
}
