//! A service behind an interceptor.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;

use super::replies::{Handover, Opened, Opening};
use super::{Begun, Called, Dynamic, Interceptor, Next, Outcome, Payload, Rest, Side};
use crate::buf::Body;
use crate::message::{Form, ReplyForm};
use crate::proto::entrance::Entrance;
use crate::request::{Request, Response};
use crate::service::{
    HandlerFuture, NamedService, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput,
    StreamOutput, enter, enter_streaming, unknown_method, unknown_streaming_method, wrong_output,
};
use crate::status::Status;
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
    fn descriptor(&self) -> &ServiceDescriptor {
        self.service.descriptor()
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        let Some(called) = self.called(method, &request) else {
            return unknown_method(self.descriptor(), method);
        };
        let (service, path) = (Arc::clone(&self.service), called.path.clone());
        let entrance = request.entrance().cloned();
        let rest = Arc::new(Unary { service, index: method, path, entrance });
        let (next, progress) = Next::new(called, Side::Server, rest);
        let interceptor = Arc::clone(&self.interceptor);
        Box::pin(async move {
            let outcome = interceptor.run(request.map(Payload::from), next).await;
            let reply = outcome.and_then(into_reply);
            reply.map_err(|status| progress.status(status))
        })
    }

    fn call_streaming(&self, method: usize, request: Request<StreamInput>) -> StreamHandlerFuture {
        let Some(called) = self.called(method, &request) else {
            return unknown_streaming_method(self.descriptor(), method);
        };
        let (form, reply) = (called.method.request, called.method.reply);
        let (handover, opened) = Handover::new();
        let (service, path) = (Arc::clone(&self.service), called.path.clone());
        let entrance = request.entrance().cloned();
        let forms = (form, reply);
        let rest = Streams { service, index: method, path, forms, handover, entrance };
        let (next, progress) = Next::new(called, Side::Server, Arc::new(rest));
        let interceptor = Arc::clone(&self.interceptor);
        Box::pin(async move {
            // In here, so that whatever the interceptor does at once is part of the call.
            let running = interceptor.run(request.map(Payload::from), next);
            match reply {
                ReplyForm::Whole => {
                    let reply = running.await.and_then(into_reply);
                    let reply = reply.map_err(|status| progress.status(status))?;
                    Ok(reply.map(StreamOutput::Whole))
                }
                ReplyForm::Stream => {
                    let mut opening = Opening::new(running, opened, progress);
                    let replies = poll_fn(|cx| opening.poll(cx)).await?;
                    Ok(replies.map(|replies| StreamOutput::Stream(Box::new(replies))))
                }
                ReplyForm::Either => {
                    let mut opening = Opening::new(running, opened, progress);
                    let reply = poll_fn(|cx| opening.poll_reply(cx)).await?;
                    Ok(reply.map(|reply| match reply {
                        Opened::Whole(body) => StreamOutput::Whole(body),
                        Opened::Stream(replies) => StreamOutput::Stream(Box::new(replies)),
                    }))
                }
            }
        })
    }

    fn is_layer(&self) -> bool {
        true
    }
}

impl<S: Service + ?Sized> Intercepted<S> {
    fn called<T>(&self, method: usize, request: &Request<T>) -> Option<Called> {
        let method = self.descriptor().methods.get(method)?;
        Some(Called { method, path: request.called_path().cloned() })
    }
}

fn into_reply(response: Response<Payload>) -> Result<Response<Body>, Status> {
    let (payload, block) = response.into_parts();
    Ok(Response::with_block(payload.into_whole()?, block))
}

/// A method without streams, behind the interceptor.
struct Unary<S: ?Sized> {
    service: Arc<S>,
    index: usize,
    /// Of a service that answers for many; the interceptor may have lost it.
    path: Option<Arc<str>>,
    /// The same of it: the handler is not to be entered unnoticed.
    entrance: Option<Arc<Entrance>>,
}

impl<S: Service + ?Sized> Rest for Unary<S> {
    fn run(&self, request: Request<Payload>, _: Option<Begun>) -> BoxFuture<'static, Outcome> {
        // The interceptor may have taken its time.
        let in_time = request.check_deadline().map(|()| request);
        let running = in_time.and_then(|request| request.try_map(Payload::into_whole));
        let running = running.map(|mut request| {
            request.set_called_path(self.path.clone());
            request.set_entrance(self.entrance.clone());
            enter(&*self.service, self.index, request)
        });
        Box::pin(async move { Ok(running?.await?.map(Payload::from)) })
    }

    fn can_run(&self) -> bool {
        true
    }
}

/// One that has streams.
struct Streams<S: ?Sized> {
    service: Arc<S>,
    index: usize,
    path: Option<Arc<str>>,
    forms: (Form, ReplyForm),
    handover: Handover,
    entrance: Option<Arc<Entrance>>,
}

impl<S: Service + ?Sized> Rest for Streams<S> {
    fn run(&self, request: Request<Payload>, begun: Option<Begun>) -> BoxFuture<'static, Outcome> {
        let in_time = request.check_deadline().map(|()| request);
        let (form, reply) = self.forms;
        let running = in_time.and_then(|request| request.try_map(|it| it.into_input(form)));
        let running = running.map(|mut request| {
            request.set_called_path(self.path.clone());
            request.set_entrance(self.entrance.clone());
            enter_streaming(&*self.service, self.index, request)
        });
        let handover = self.handover.clone();
        Box::pin(async move {
            let (output, block) = running?.await?.into_parts();
            match (reply, output) {
                (ReplyForm::Whole | ReplyForm::Either, StreamOutput::Whole(body)) => {
                    Ok(Response::with_block(Payload::from(body), block))
                }
                (ReplyForm::Stream | ReplyForm::Either, StreamOutput::Stream(replies)) => {
                    handover.pass(Response::with_block(replies, block), begun).await
                }
                _ => Err(wrong_output()),
            }
        })
    }

    fn can_run(&self) -> bool {
        self.forms.1 == ReplyForm::Whole || self.handover.is_free()
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
