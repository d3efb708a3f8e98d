//! A call over a connection, from its request to the body of its reply.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::link::{Link, NotStarted, Unsent};
use super::replies::RemoteReplies;
use crate::buf::Body;
use crate::message::CallId;
use crate::proto::client::{Outcome, ReplyBegun};
use crate::request::Response;
use crate::status::{Executed, Status};
use crate::transport::BoxFuture;

/// A future of a reply, its body not decoded. Dropped while it runs, it cancels the call.
pub(super) struct RemoteCall {
    link: Arc<Link>,
    stage: Stage,
}

enum Stage {
    /// Not polled yet.
    Unsent(Unsent),
    /// Waits for its turn on the connection; the future owns the request.
    Queued(BoxFuture<'static, Result<CallId, Status>>),
    /// The REQUEST is with the transport.
    Begun(CallId, Cancel),
    Over,
}

/// A reply in the form in which it came.
pub(super) enum RemoteReply {
    Whole(Body),
    Stream(RemoteReplies),
}

/// Whether the end of the call was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancel {
    NotAsked,
    Asked,
}

impl RemoteCall {
    pub(super) fn new(link: Arc<Link>, unsent: Unsent) -> Self {
        Self { link, stage: Stage::Unsent(unsent) }
    }

    /// The address that the call goes to.
    pub(super) fn peer(&self) -> String {
        self.link.path().peer
    }

    /// Asks for the end of the call. `Err` with the outcome where it had not begun.
    pub(super) fn cancel(&mut self) -> Result<(), Status> {
        match &mut self.stage {
            Stage::Unsent(_) | Stage::Queued(_) => {
                self.stage = Stage::Over;
                let status = Status::cancelled("the call was cancelled before it was sent");
                Err(status.with_executed(Executed::No))
            }
            Stage::Begun(call, cancel) => {
                if mem::replace(cancel, Cancel::Asked) == Cancel::NotAsked {
                    self.link.cancel(*call);
                }
                Ok(())
            }
            Stage::Over => Ok(()),
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let call = std::task::ready!(self.poll_begun(cx))?;
        let outcome = std::task::ready!(self.link.poll_outcome(call, cx));
        self.stage = Stage::Over;
        Poll::Ready(outcome)
    }

    /// Ready when the replies begin; from then on the call is theirs.
    pub(super) fn poll_replies(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<RemoteReplies>, Status>> {
        let call = std::task::ready!(self.poll_begun(cx))?;
        let headers = std::task::ready!(self.link.poll_headers(call, cx));
        self.stage = Stage::Over;
        Poll::Ready(headers.map(|metadata| {
            Response::with_block(RemoteReplies::new(Arc::clone(&self.link), call), metadata)
        }))
    }

    /// The same where the reply may be one message.
    pub(super) fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<RemoteReply>, Status>> {
        let call = std::task::ready!(self.poll_begun(cx))?;
        let begun = std::task::ready!(self.link.poll_reply(call, cx));
        self.stage = Stage::Over;
        Poll::Ready(begun.map(|begun| match begun {
            ReplyBegun::Whole(response) => response.map(RemoteReply::Whole),
            ReplyBegun::Stream(metadata) => {
                let replies = RemoteReplies::new(Arc::clone(&self.link), call);
                Response::with_block(RemoteReply::Stream(replies), metadata)
            }
        }))
    }

    /// Ready when the REQUEST is with the transport.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<CallId, Status>> {
        loop {
            let begun = match &mut self.stage {
                Stage::Begun(call, _) => return Poll::Ready(Ok(*call)),
                Stage::Queued(waiting) => std::task::ready!(waiting.as_mut().poll(cx)),
                Stage::Unsent(_) => match self.start(cx) {
                    Ok(call) => Ok(call),
                    Err(NotStarted::Failed(status)) => Err(status),
                    Err(NotStarted::Wait(unsent)) => {
                        let waiting = Arc::clone(&self.link).start_later(*unsent);
                        self.stage = Stage::Queued(Box::pin(waiting));
                        continue;
                    }
                },
                Stage::Over => unreachable!("a call is not polled after it has ended"),
            };
            match begun {
                Ok(call) => self.stage = Stage::Begun(call, Cancel::NotAsked),
                Err(status) => {
                    self.stage = Stage::Over;
                    return Poll::Ready(Err(status));
                }
            }
        }
    }

    fn start(&mut self, cx: &mut Context<'_>) -> Result<CallId, NotStarted> {
        match mem::replace(&mut self.stage, Stage::Over) {
            Stage::Unsent(unsent) => self.link.start(unsent, cx.waker()),
            _ => unreachable!("looked at by the caller"),
        }
    }
}

impl Drop for RemoteCall {
    fn drop(&mut self) {
        if let Stage::Begun(call, _) = self.stage {
            self.link.abandon(call);
        }
    }
}
