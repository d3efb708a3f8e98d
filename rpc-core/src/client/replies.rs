//! The replies of a call over a connection, and how its request is fed.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use tracing::error;

use super::cancel::Flag;
use super::in_process::InProcessReplies;
use super::intercepted;
use super::link::{Link, Shared};
use super::sending::Unpolled;
use crate::buf::Body;
use crate::compression::Compression;
use crate::message::{CallId, Head, Message};
use crate::metadata::MetadataMap;
use crate::panics::{caught, panic_message};
use crate::proto::client::Reply;
use crate::proto::stream::{Next, Over};
use crate::status::Status;
use crate::streaming::{Fed, Guarded, Messages, Outlet, WindowPost, feed, send};
use crate::transport::{Connection, Flush};

/// Replies that can be cancelled by a handle.
pub(super) struct Replies {
    pub(super) way: ReplyWay,
    pub(super) cancel: Option<Arc<Flag>>,
}

/// Where replies come from.
pub(super) enum ReplyWay {
    Remote(RemoteReplies),
    InProcess(InProcessReplies),
    Intercepted(Box<intercepted::Replies>),
}

impl Messages for Replies {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let cancelled = self.cancel.as_ref().is_some_and(|flag| flag.is_asked(cx.waker()));
        match &mut self.way {
            ReplyWay::Remote(replies) => {
                if cancelled {
                    replies.link.cancel(replies.call);
                }
                replies.poll_message(cx)
            }
            ReplyWay::InProcess(replies) if cancelled => Poll::Ready(Some(Err(replies.cancel()))),
            ReplyWay::InProcess(replies) => replies.poll_message(cx),
            ReplyWay::Intercepted(replies) => {
                if cancelled && let Some(status) = replies.cancel() {
                    return Poll::Ready(Some(Err(status)));
                }
                replies.poll_message(cx)
            }
        }
    }

    fn take_trailers(&mut self) -> MetadataMap {
        match &mut self.way {
            ReplyWay::Remote(replies) => replies.take_trailers(),
            ReplyWay::InProcess(replies) => replies.take_trailers(),
            ReplyWay::Intercepted(replies) => replies.take_trailers(),
        }
    }
}

/// Replies over a connection. Dropped before their end, they cancel the call.
pub(super) struct RemoteReplies {
    link: Arc<Link>,
    call: CallId,
    window: WindowPost,
    state: State,
}

enum State {
    Open,
    /// What was said with the end.
    Ended(MetadataMap),
}

impl RemoteReplies {
    /// The replies of a call whose HEADERS have come, or its end.
    pub(super) fn new(link: Arc<Link>, call: CallId) -> Self {
        Self { link, call, window: WindowPost::default(), state: State::Open }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Body, Status>>> {
        let polled = self.link.poll_message(self.call, cx);
        if let Poll::Ready(Ok(Reply::Message(taken))) = &polled {
            self.window.grant(taken.granted);
        }
        if let Poll::Pending | Poll::Ready(Ok(Reply::Message(_))) = polled {
            self.window.post(&*self.link.shared().connection, self.call, cx);
        }
        Poll::Ready(match std::task::ready!(polled) {
            Ok(Reply::Message(taken)) => Some(Ok(taken.message)),
            Ok(Reply::End(block)) => {
                let trailers = block.map(|block| block.trailers);
                self.state = State::Ended(trailers.unwrap_or_default());
                None
            }
            Err(status) => {
                self.state = State::Ended(MetadataMap::new());
                Some(Err(status.with_peer(self.link.path().peer)))
            }
        })
    }

    fn take_trailers(&mut self) -> MetadataMap {
        match &mut self.state {
            State::Open => MetadataMap::new(),
            State::Ended(trailers) => std::mem::take(trailers),
        }
    }
}

impl Drop for RemoteReplies {
    fn drop(&mut self) {
        if let State::Open = self.state {
            self.link.abandon(self.call);
        }
    }
}

/// Feeds the request of a call, and says when it has ended. Ends with the call.
pub(super) async fn feed_request(
    shared: Arc<Shared>,
    call: CallId,
    requests: Arc<Unpolled>,
    compression: Option<Compression>,
) {
    let Some(requests) = requests.take() else { return };
    let mut requests = Guarded::new(requests, panicked);
    let outlet = Requests { shared: &shared, call, compression };
    // Also a message may panic, as it is dropped unsent.
    let fed = caught(feed(&mut requests, &outlet)).await;
    match fed.unwrap_or_else(|panic| Fed::Failed(panicked(&*panic))) {
        Fed::Whole => outlet.end().await,
        Fed::Failed(status) => shared.table.with_driver_work(|calls| calls.fail(call, status)),
        Fed::Over => {}
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Status {
    error!(panic = panic_message(panic), "a stream of requests panicked");
    Status::internal("the stream of requests panicked, in the task of this client that polls it")
}

/// The request of a call.
struct Requests<'a> {
    shared: &'a Shared,
    call: CallId,
    compression: Option<Compression>,
}

impl Requests<'_> {
    fn end(&self) -> impl Future<Output = ()> {
        let messages = self.shared.table.with(|calls| calls.end_requests(self.call));
        async move {
            if let Some(messages) = messages {
                let message = Message::bare(Head::End { call: self.call, messages });
                // An ended connection has ended the call.
                let _sent = send(&*self.shared.connection, message, Flush::Now).await;
            }
        }
    }
}

impl Outlet for Requests<'_> {
    fn poll_window(&self, cx: &mut Context<'_>) -> Poll<Result<(), Over>> {
        self.shared.table.with(|calls| calls.poll_window(self.call, cx.waker()))
    }

    fn number(&self, len: usize) -> Result<(Head, Next), Over> {
        let numbered = self.shared.table.with(|calls| calls.number(self.call, len));
        let (number, next) = numbered.ok_or(Over)?;
        Ok((Head::Message { call: self.call, number }, next))
    }

    fn outgoing(&self, body: Body) -> Result<Body, Status> {
        self.shared.outgoing(body, self.compression)
    }

    fn connection(&self) -> &dyn Connection {
        &*self.shared.connection
    }
}
