//! One message as a stream, and a stream as one message.
//!
//! Where one side of a call does not know the other's form, a message stands for a stream of one.

use std::task::{Context, Poll, ready};

use super::Messages;
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::status::{Executed, Status};

/// A stream of one message.
pub(crate) struct One(Option<Body>);

impl One {
    pub(crate) fn new(body: Body) -> Self {
        Self(Some(body))
    }
}

impl Messages for One {
    fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        Poll::Ready(self.0.take().map(Ok))
    }

    fn poll_len(&mut self, _: &mut Context<'_>) -> Poll<Option<usize>> {
        Poll::Ready(self.0.as_ref().map(Body::decompressed_len))
    }
}

/// A stream that is to have one message.
pub(crate) struct Single {
    messages: Box<dyn Messages>,
    first: Option<Body>,
}

/// Why a stream is not one message.
#[derive(Debug)]
pub(crate) enum NotSingle {
    /// It had none.
    None,
    /// It goes on behind the first.
    More,
    /// It failed.
    Failed(Status),
}

impl Single {
    pub(crate) fn new(messages: Box<dyn Messages>) -> Self {
        Self { messages, first: None }
    }

    /// Ready with the message when the stream has ended, or as soon as it is not one message. Not to be polled again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Body, NotSingle>> {
        loop {
            let item = ready!(self.messages.poll_message(cx));
            return Poll::Ready(match (item, self.first.take()) {
                (Some(Ok(body)), None) => {
                    self.first = Some(body);
                    continue;
                }
                (Some(Ok(_)), Some(_)) => Err(NotSingle::More),
                (None, first) => first.ok_or(NotSingle::None),
                (Some(Err(status)), _) => Err(NotSingle::Failed(status)),
            });
        }
    }

    /// What was said with the end.
    pub(crate) fn take_trailers(&mut self) -> MetadataMap {
        self.messages.take_trailers()
    }
}

impl NotSingle {
    /// The status of a call whose request this was; its handler was not entered. The code is gRPC's for such calls.
    pub(crate) fn of_request(self) -> Status {
        let found = match self {
            Self::None => "none",
            Self::More => "more",
            Self::Failed(status) => return status.with_executed(Executed::No),
        };
        let message = format!("the method takes one request, and the client sent {found}");
        Status::unimplemented(message).with_executed(Executed::No)
    }

    /// The status of a call whose reply this was.
    pub(crate) fn of_reply(self) -> Status {
        let found = match self {
            Self::None => "none",
            Self::More => "more",
            Self::Failed(status) => return status,
        };
        let message = format!(
            "the client expects one reply, and the handler gave {found}; do both sides use the same .proto?"
        );
        Status::internal(message).with_executed(Executed::Yes)
    }
}
