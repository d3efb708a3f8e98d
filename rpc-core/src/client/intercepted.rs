//! A call through a channel with an interceptor.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cancel::Flag;
use super::channel::Channel;
use super::due::Due;
use super::stub::Client;
use crate::interceptor::{self, Dynamic, Next, Payload, Ran, Rest, Side};
use crate::proto::client::Outcome;
use crate::request::Request;
use crate::service::MethodDescriptor;
use crate::status::Status;
use crate::transport::BoxFuture;

/// A channel and the interceptor before it.
pub(super) struct Layer {
    pub(super) channel: Channel,
    interceptor: Arc<dyn Dynamic>,
}

/// A call that goes through an interceptor: a future of a reply, its body not decoded.
pub(super) struct InterceptedCall {
    running: Option<BoxFuture<'static, interceptor::Outcome>>,
    ran: Arc<Ran>,
    due: Due,
}

/// The call behind the interceptor.
pub(super) struct Behind {
    pub(super) client: Client,
    pub(super) method: usize,
    pub(super) cancel: Arc<Flag>,
}

impl Layer {
    pub(super) fn new(channel: Channel, interceptor: Arc<dyn Dynamic>) -> Self {
        Self { channel, interceptor }
    }

    /// A call that `client`, of this layer's channel, makes; whoever raises `cancel` cancels it.
    pub(super) fn call(
        &self,
        client: Client,
        (method, descriptor): (usize, &'static MethodDescriptor),
        request: Request<Payload>,
        cancel: Arc<Flag>,
    ) -> InterceptedCall {
        let deadline = request.due(self.channel.default_timeout());
        let request = request.with_due(deadline);
        let rest = Arc::new(Behind { client, method, cancel });
        let (next, ran) = Next::new(descriptor, Side::Client, rest);
        let running = Some(Arc::clone(&self.interceptor).run(request, next));
        InterceptedCall { running, ran, due: Due::new(deadline) }
    }
}

impl Rest for Behind {
    fn run(&self, request: Request<Payload>) -> BoxFuture<'static, interceptor::Outcome> {
        let request = request.map(Payload::into_body);
        let mut call = self.client.raw(self.method, request, Arc::clone(&self.cancel));
        Box::pin(async move {
            match poll_fn(|cx| call.poll_outcome(cx)).await {
                Ok(response) => Ok(response.map(Payload::from)),
                Err(status) => Err(call.named(status)),
            }
        })
    }
}

impl InterceptedCall {
    /// The end of the call was asked for. The call behind the interceptor sees that by itself, so that its
    /// outcome is exact; where there is none yet, here is the outcome.
    pub(super) fn cancel(&mut self) -> Option<Status> {
        if self.ran.has_begun() {
            return None;
        }
        self.running = None;
        Some(self.ran.status(Status::cancelled("the call was cancelled before it was sent")))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let running = self.running.as_mut().expect("a call is not polled after it has ended");
        let outcome = match running.as_mut().poll(cx) {
            Poll::Ready(Ok(response)) => Ok(response.map(Payload::into_body)),
            Poll::Ready(Err(status)) => Err(self.ran.status(status)),
            Poll::Pending => {
                std::task::ready!(self.due.poll(cx));
                // Its end says whether the call behind was sent.
                self.running = None;
                let message = "the deadline passed before the call and its interceptors were done";
                Err(self.ran.status(Status::deadline_exceeded(message)))
            }
        };
        self.running = None;
        Poll::Ready(outcome)
    }
}
