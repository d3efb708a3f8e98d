//! The only message of a stream. What goes beside a message is known once that is known to be the only one.

use std::future::poll_fn;

use verbwire::metadata::MetadataMap;
use verbwire::open::{Messages, StreamInput, StreamOutput};
use verbwire::{Body, Status};

use crate::status;

/// Why it is not the only one.
pub(crate) enum NotOnly {
    None,
    Several,
    Failed(Status),
}

/// Waits until the messages have ended, or are several: the message, and what was said at the end.
async fn only(messages: &mut dyn Messages) -> Result<(Body, MetadataMap), NotOnly> {
    let first = next(messages).await?.ok_or(NotOnly::None)?;
    match next(messages).await? {
        Some(_) => Err(NotOnly::Several),
        None => Ok((first, messages.take_trailers())),
    }
}

async fn next(messages: &mut dyn Messages) -> Result<Option<Body>, NotOnly> {
    poll_fn(|cx| messages.poll_message(cx)).await.transpose().map_err(NotOnly::Failed)
}

/// The message of a request.
///
/// # Errors
///
/// It is not one: with gRPC's code for such calls.
pub(crate) async fn request(input: StreamInput) -> Result<Body, Status> {
    let mut messages = match input {
        StreamInput::Whole(message) => return Ok(message),
        StreamInput::Stream(messages) => messages,
    };
    let only = only(&mut *messages).await;
    only.map(|(message, _)| message).map_err(|not| not.with(Status::unimplemented))
}

/// The message of a reply, and its trailers if it comes with its own.
///
/// # Errors
///
/// It is not one, or it failed.
pub(crate) async fn reply(output: StreamOutput) -> Result<(Body, Option<MetadataMap>), Status> {
    let mut messages = match output {
        StreamOutput::Whole(message) => return Ok((message, None)),
        StreamOutput::Stream(messages) => messages,
    };
    let only = only(&mut *messages).await;
    only.map(|(message, trailers)| (message, Some(trailers)))
        .map_err(|not| not.with(status::internal))
}

impl NotOnly {
    fn with(self, code: impl FnOnce(String) -> Status) -> Status {
        let found = match self {
            Self::None => "none",
            Self::Several => "several",
            Self::Failed(status) => return status,
        };
        code(format!("a field goes beside the one message of a call, and {found} came"))
    }
}
