//! Replies in a stream, around the interceptor before their call.
//!
//! ```text
//!                    opened: metadata, messages
//!   rest of the call ─────────────────────────► whoever reads the replies
//!     (awaited by    ◄─────────────────────────   (polls the interceptor too)
//!    the interceptor)   ended: trailers, status
//! ```
//!
//! The interceptor awaits the rest of the call to its end, as it does for one reply, so that it sees the call as a whole.
//! The replies meanwhile go to their reader without it. What the interceptor then returns is how they end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::{Begun, Count, Outcome, Payload, Progress};
use crate::buf::Body;
use crate::metadata::MetadataMap;
use crate::request::Response;
use crate::status::{Executed, Status};
use crate::streaming::Messages;
use crate::transport::BoxFuture;
use crate::wire::metadata::Block;

/// Where the rest of a call hands its replies over: once, however often it runs.
#[derive(Clone)]
pub(crate) struct Handover(Arc<Mutex<Option<oneshot::Sender<Begins>>>>);

/// Replies that have begun.
struct Begins {
    replies: Response<Box<dyn Messages>>,
    ended: oneshot::Sender<Ended>,
}

/// How they ended: how many there were and what was said with the end, or why.
type Ended = Result<(Count, MetadataMap), Status>;

/// A call with an interceptor whose replies have not begun.
pub(crate) struct Opening {
    running: Option<BoxFuture<'static, Outcome>>,
    /// `None` when nobody is left to open them.
    opened: Option<oneshot::Receiver<Begins>>,
    progress: Arc<Progress>,
}

/// The replies of a call with an interceptor. Dropped before their end, they cancel the call.
pub(crate) struct Intercepted {
    running: Option<BoxFuture<'static, Outcome>>,
    stage: Stage,
    progress: Arc<Progress>,
    trailers: MetadataMap,
}

enum Stage {
    Open(Box<dyn Messages>, oneshot::Sender<Ended>),
    /// The interceptor dropped the rest of the call.
    Dropped,
    Ended,
}

impl Handover {
    pub(crate) fn new() -> (Self, OpenedReplies) {
        let (opened, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(opened)))), OpenedReplies(receiver))
    }

    /// Hands over replies that have begun, as `begun` lets them begin, and waits for their end.
    pub(crate) async fn pass(
        &self,
        mut replies: Response<Box<dyn Messages>>,
        begun: Option<Begun>,
    ) -> Outcome {
        // Of runs at the same time one can be the first.
        let opened = self.sender().take().ok_or_else(replies_have_begun)?;
        if let Some(begun) = begun {
            begun(replies.metadata_mut());
        }
        let (messages, mut block) = replies.into_parts();
        // What a handler says at the end, it may say at the beginning: the interceptor is to see it first.
        let said = block.as_mut().map(|block| std::mem::take(&mut block.trailers));
        let mut trailers = said.unwrap_or_default();
        let headers = block.as_ref().map(|block| block.headers.clone()).unwrap_or_default();
        let (ended, end) = oneshot::channel();
        let unread = || Status::cancelled("nobody reads the replies").with_executed(Executed::Yes);
        opened
            .send(Begins { replies: Response::with_block(messages, block), ended })
            .map_err(|_unread| unread())?;
        let (count, rest) = match end.await.map_err(|_dropped| unread())? {
            Ok(end) => end,
            Err(status) => return Err(status.after_trailers(trailers)),
        };
        trailers.extend(rest);
        let block = Box::new(Block { headers, trailers });
        Ok(Response::with_block(Payload::passed(count), Some(block)))
    }

    /// Whether no replies have been handed over.
    pub(crate) fn is_free(&self) -> bool {
        self.sender().is_some()
    }

    fn sender(&self) -> MutexGuard<'_, Option<oneshot::Sender<Begins>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The status of a run that comes too late.
pub(super) fn replies_have_begun() -> Status {
    let message = "the replies of an earlier run of this call have begun: it cannot run again";
    Status::internal(message).with_executed(Executed::Yes)
}

/// The other end of a [`Handover`].
pub(crate) struct OpenedReplies(oneshot::Receiver<Begins>);

/// A reply in the form in which it came.
pub(crate) enum Opened {
    Whole(Body),
    Stream(Intercepted),
}

impl Opening {
    pub(crate) fn new(
        running: BoxFuture<'static, Outcome>,
        opened: OpenedReplies,
        progress: Arc<Progress>,
    ) -> Self {
        Self { running: Some(running), opened: Some(opened.0), progress }
    }

    /// Ready when the replies begin, or with the status of a call that ended before.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Intercepted>, Status>> {
        let begun = ready!(self.poll_begun(cx));
        Poll::Ready(match begun {
            Ok(replies) => Ok(replies),
            Err(Ok(_)) => Err(self.progress.status(no_replies())),
            Err(Err(status)) => Err(self.progress.status(status)),
        })
    }

    /// The same where the reply may be one message: ready with that when the interceptor is done with it.
    pub(crate) fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Opened>, Status>> {
        let reply = match ready!(self.poll_begun(cx)) {
            Ok(replies) => Ok(replies.map(Opened::Stream)),
            Err(outcome) => outcome.and_then(|response| {
                let (payload, block) = response.into_parts();
                Ok(Response::with_block(Opened::Whole(payload.into_whole()?), block))
            }),
        };
        Poll::Ready(reply.map_err(|status| self.progress.status(status)))
    }

    /// Ready when the replies begin, or with the outcome of a call where none did.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Intercepted>, Outcome>> {
        let running = self.running.as_mut().expect("a call is not polled after it has ended");
        if let Poll::Ready(outcome) = running.as_mut().poll(cx) {
            self.running = None;
            return Poll::Ready(Err(outcome));
        }
        let Some(opened) = &mut self.opened else { return Poll::Pending };
        let opened = ready!(std::pin::Pin::new(opened).poll(cx));
        self.opened = None;
        let Ok(Begins { replies, ended }) = opened else { return Poll::Pending };
        let (running, progress) = (self.running.take(), Arc::clone(&self.progress));
        Poll::Ready(Ok(replies.map(|messages| Intercepted {
            running,
            stage: Stage::Open(messages, ended),
            progress,
            trailers: MetadataMap::new(),
        })))
    }
}

impl Intercepted {
    /// Whether the replies go on behind the interceptor.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(..))
    }

    /// What the interceptor makes of the call, as far as it is done.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        let Some(running) = &mut self.running else { return Poll::Ready(None) };
        let outcome = ready!(running.as_mut().poll(cx));
        self.running = None;
        let has_ended = matches!(self.stage, Stage::Ended);
        self.stage = Stage::Ended;
        Poll::Ready(match outcome {
            Err(status) => Some(self.progress.status(status)),
            Ok(response) => {
                let (payload, block) = response.into_parts();
                if !has_ended || !payload.is_stream() {
                    return Poll::Ready(Some(self.progress.status(no_replies())));
                }
                self.trailers = block.map(|block| block.trailers).unwrap_or_default();
                None
            }
        })
    }
}

impl Messages for Intercepted {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        // First: it may end the call while replies go on.
        if let Poll::Ready(end) = self.poll_end(cx) {
            return Poll::Ready(end.map(Err));
        }
        let Stage::Open(messages, ended) = &mut self.stage else { return Poll::Pending };
        if ended.poll_closed(cx).is_ready() {
            self.stage = Stage::Dropped;
            return Poll::Pending;
        }
        let end = match ready!(messages.poll_message(cx)) {
            Some(Ok(body)) => {
                self.progress.replies.add(body.len());
                return Poll::Ready(Some(Ok(body)));
            }
            Some(Err(status)) => Err(status),
            None => Ok((self.progress.replies.count(), messages.take_trailers())),
        };
        if let Stage::Open(_, ended) = std::mem::replace(&mut self.stage, Stage::Ended) {
            // Where the rest has just been dropped, the interceptor still says how the call ends.
            let _told = ended.send(end);
        }
        self.poll_end(cx).map(|end| end.map(Err))
    }

    fn take_trailers(&mut self) -> MetadataMap {
        std::mem::take(&mut self.trailers)
    }
}

/// An interceptor returned a reply of its own.
fn no_replies() -> Status {
    Status::internal(
        "an interceptor answered by itself where replies are a stream, or before they had ended: it can only refuse \
         such a call, or hand it on and return what became of it",
    )
}
