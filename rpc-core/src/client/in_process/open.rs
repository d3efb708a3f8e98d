//! A call by path to a service in the same process: in the form that the method has.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::Instant;

use super::super::due::Due;
use super::{InProcessCall, InProcessReplies, InProcessStreaming, Target, cancelled};
use crate::buf::Body;
use crate::message::{Form, ReplyForm};
use crate::metadata::MetadataMap;
use crate::request::Response;
use crate::service::{
    MethodDescriptor, Service, StreamInput, StreamOutput, open_index, open_method, wrong_output,
};
use crate::status::{Executed, Status};
use crate::streaming::{One, Single};

/// A future of a reply in the form in which the handler gives it.
pub(in crate::client) struct InProcessOpen(Stage);

/// The reply.
pub(in crate::client) enum OpenReply {
    Whole(Body),
    Stream(InProcessReplies),
}

enum Stage {
    /// The caller gives a stream, of which the handler gets one message.
    Collecting {
        single: Single,
        due: Due,
        call: Option<Box<Collected>>,
    },
    /// Of a method without streams.
    Unary(InProcessCall),
    Streaming(InProcessStreaming, ReplyForm),
}

/// A call whose request is being collected.
struct Collected {
    target: Target,
    method: &'static MethodDescriptor,
    metadata: Option<Box<MetadataMap>>,
}

impl InProcessOpen {
    /// A call of the method at `path`; `None` where the service has none there.
    pub(in crate::client) fn new(
        service: &Arc<dyn Service>,
        path: &Arc<str>,
        input: StreamInput,
        metadata: Option<Box<MetadataMap>>,
        deadline: Instant,
    ) -> Option<Self> {
        let form = match input {
            StreamInput::Whole(_) => Form::Whole,
            StreamInput::Stream(_) => Form::Stream,
        };
        let offered = service.descriptor();
        let (method, index, path) = if offered.is_named_in(path) {
            let (request, reply) = (form, ReplyForm::Either);
            (open_method(request, reply), open_index(request, reply), Some(Arc::clone(path)))
        } else {
            let index = offered.methods.iter().position(|one| *one.path == **path)?;
            (&offered.methods[index], index, None)
        };
        let target = Target { service: Arc::clone(service), method: index, path };
        Some(Self(match (method.request, input) {
            (Form::Whole, StreamInput::Stream(messages)) => Stage::Collecting {
                single: Single::new(messages),
                due: Due::new(deadline),
                call: Some(Box::new(Collected { target, method, metadata })),
            },
            (Form::Whole, StreamInput::Whole(body)) => {
                Stage::of_one(Collected { target, method, metadata }, body, deadline)
            }
            (Form::Stream, input) => {
                let input = match input {
                    StreamInput::Whole(body) => StreamInput::Stream(Box::new(One::new(body))),
                    stream @ StreamInput::Stream(_) => stream,
                };
                let call = InProcessStreaming::new(target, input, metadata, deadline);
                Stage::Streaming(call, method.reply)
            }
        }))
    }

    /// Ends the call; its handler is dropped.
    pub(in crate::client) fn cancel(&mut self) -> Status {
        match &mut self.0 {
            Stage::Collecting { .. } => cancelled(Executed::No),
            Stage::Unary(call) => call.cancel(),
            Stage::Streaming(call, _) => call.cancel(),
        }
    }

    pub(in crate::client) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<OpenReply>, Status>> {
        if let Stage::Collecting { single, due, call } = &mut self.0 {
            let Poll::Ready(body) = single.poll(cx) else {
                ready!(due.poll(cx));
                return Poll::Ready(Err(Status::deadline_exceeded(
                    "the deadline passed before the request was there",
                )
                .with_executed(Executed::No)));
            };
            let body = body.map_err(|not| not.of_request())?;
            let call = call.take().expect("a call is not polled after it has ended");
            self.0 = Stage::of_one(*call, body, due.at());
        }
        match &mut self.0 {
            Stage::Collecting { .. } => unreachable!("it goes on with what was collected"),
            Stage::Unary(call) => call.poll(cx).map_ok(|response| response.map(OpenReply::Whole)),
            Stage::Streaming(call, reply) => {
                let (output, metadata) = ready!(call.poll(cx))?.into_parts();
                let reply = match (output, *reply) {
                    (StreamOutput::Whole(body), ReplyForm::Whole | ReplyForm::Either) => {
                        OpenReply::Whole(body)
                    }
                    (StreamOutput::Stream(replies), ReplyForm::Stream | ReplyForm::Either) => {
                        OpenReply::Stream(InProcessReplies::new(replies, call.deadline()))
                    }
                    _ => return Poll::Ready(Err(wrong_output())),
                };
                Poll::Ready(Ok(Response::with_block(reply, metadata)))
            }
        }
    }
}

impl Stage {
    /// A call of a method that takes one request.
    fn of_one(call: Collected, body: Body, deadline: Instant) -> Self {
        let Collected { target, method, metadata } = call;
        if method.has_streams() {
            let input = StreamInput::Whole(body);
            let call = InProcessStreaming::new(target, input, metadata, deadline);
            return Self::Streaming(call, method.reply);
        }
        Self::Unary(InProcessCall::new(target, body, metadata, deadline))
    }
}
