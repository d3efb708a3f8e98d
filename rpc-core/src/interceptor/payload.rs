//! What an interceptor holds of a call's messages.

use std::fmt;
use std::sync::Arc;

use crate::buf::Body;
use crate::message::Form;
use crate::service::StreamInput;
use crate::status::{Executed, Status};
use crate::streaming::Messages;

use super::progress::{Count, CountedRequests, Progress};

/// What a request or reply carries, encoded: one message, or a stream of them.
///
/// The messages of a stream go by, and are not to be had here. [`Traffic`](super::Traffic) counts them.
pub struct Payload(Content);

enum Content {
    Whole(Body),
    /// Requests that have not been sent, or not been taken.
    Stream(Box<dyn Messages>),
    /// Replies that have all gone by.
    Passed(Count),
}

impl Payload {
    /// Length in bytes: of the message, or of all replies of a stream; of what came compressed as it came, see
    /// [`Body::encoding`]. 0 for a stream of requests, which is still to come.
    pub fn len(&self) -> usize {
        match &self.0 {
            Content::Whole(body) => body.len(),
            Content::Stream(_) => 0,
            Content::Passed(count) => usize::try_from(count.bytes).unwrap_or(usize::MAX),
        }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this stands for a stream.
    pub fn is_stream(&self) -> bool {
        !matches!(self.0, Content::Whole(_))
    }

    /// The encoded message, which may have come compressed; `None` of a stream.
    pub fn body(&self) -> Option<&Body> {
        match &self.0 {
            Content::Whole(body) => Some(body),
            Content::Stream(_) | Content::Passed(_) => None,
        }
    }

    /// The same, counted as it goes by.
    pub(super) fn counted(self, progress: &Arc<Progress>) -> Self {
        Self(match self.0 {
            Content::Stream(messages) => {
                let progress = Arc::clone(progress);
                Content::Stream(Box::new(CountedRequests { messages, progress }))
            }
            Content::Whole(body) => {
                progress.requests.add(body.len());
                Content::Whole(body)
            }
            passed @ Content::Passed(_) => passed,
        })
    }

    pub(crate) fn passed(count: Count) -> Self {
        Self(Content::Passed(count))
    }

    pub(crate) fn copy(&self) -> Option<Self> {
        Some(Self(Content::Whole(self.body()?.clone())))
    }

    /// The message, where there is one.
    ///
    /// # Errors
    ///
    /// An interceptor put something else in its place.
    pub(crate) fn into_whole(self) -> Result<Body, Status> {
        match self.0 {
            Content::Whole(body) => Ok(body),
            Content::Stream(_) | Content::Passed(_) => Err(misplaced()),
        }
    }

    /// What a method that has streams is called with, whose requests have this form.
    ///
    /// # Errors
    ///
    /// An interceptor put something else in its place.
    pub(crate) fn into_input(self, form: Form) -> Result<StreamInput, Status> {
        match (self.0, form) {
            (Content::Whole(body), Form::Whole) => Ok(StreamInput::Whole(body)),
            (Content::Stream(messages), Form::Stream) => Ok(StreamInput::Stream(messages)),
            _ => Err(misplaced()),
        }
    }
}

impl From<Body> for Payload {
    fn from(body: Body) -> Self {
        Self(Content::Whole(body))
    }
}

impl From<StreamInput> for Payload {
    fn from(input: StreamInput) -> Self {
        Self(match input {
            StreamInput::Whole(body) => Content::Whole(body),
            StreamInput::Stream(messages) => Content::Stream(messages),
        })
    }
}

fn misplaced() -> Status {
    let message = "an interceptor put a payload where it does not belong: hand on the one that came, or one message for one";
    Status::internal(message).with_executed(Executed::No)
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Content::Whole(body) => write!(f, "Payload({} bytes)", body.len()),
            Content::Stream(_) => f.write_str("Payload(stream)"),
            Content::Passed(count) => write!(f, "Payload({count:?})"),
        }
    }
}
