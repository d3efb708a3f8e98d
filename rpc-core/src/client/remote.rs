//! A call over a connection, from its request to the body of its reply.
//!
//! On a channel that connects by itself the call first finds its connection, and may be made again on another one: what it is
//! made of is kept for that until its reply begins. [`proto::resend`](crate::proto::resend) says when.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep};

use super::link::{Link, NotStarted};
use super::managed::{Found, Managed, Member, Picked, Reason};
use super::replies::RemoteReplies;
use super::retrying::History;
use super::sending::Sending;
use crate::buf::Body;
use crate::message::CallId;
use crate::proto::client::{Outcome, ReplyBegun};
use crate::proto::resend::{Connection, Repeatable, Resend};
use crate::proto::retry::{RetryBudget, RetryPolicy};
use crate::request::Response;
use crate::status::{Executed, Status};
use crate::transport::BoxFuture;

/// A future of a reply, its body not decoded. Dropped while it runs, it cancels the call.
pub(super) struct RemoteCall {
    /// Where connections come from; `None` on a channel of one connection.
    managed: Option<Arc<Managed>>,
    /// The connection of the attempt that is made.
    link: Option<Arc<Link>>,
    /// Whose it is, where the channel has several endpoints.
    member: Option<Arc<Member>>,
    /// `None` once there is nothing more to send.
    sending: Option<Sending>,
    stage: Stage,
    /// `None` until it is needed.
    history: Option<Box<History>>,
}

enum Stage {
    /// Not begun, or to be begun again.
    Unsent,
    /// Waits before the next attempt.
    Sleeping(Pin<Box<Sleep>>),
    /// Waits for a connection.
    Connecting(BoxFuture<'static, Result<Found, Status>>),
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
    /// A call over this connection.
    pub(super) fn over(link: Arc<Link>, sending: Sending) -> Self {
        Self::new(None, Some(link), sending, None)
    }

    /// A call over whichever connection there is, with a policy of its own.
    pub(super) fn through(
        managed: Arc<Managed>,
        sending: Sending,
        policy: Option<Arc<RetryPolicy>>,
    ) -> Self {
        Self::new(Some(managed), None, sending, policy.map(|policy| Box::new(History::of(policy))))
    }

    fn new(
        managed: Option<Arc<Managed>>,
        link: Option<Arc<Link>>,
        sending: Sending,
        history: Option<Box<History>>,
    ) -> Self {
        let sending = Some(sending);
        Self { managed, link, member: None, sending, stage: Stage::Unsent, history }
    }

    /// The address that the call goes to.
    pub(super) fn peer(&self) -> String {
        match (&self.link, &self.managed) {
            (Some(link), _) => link.path().peer,
            (None, Some(managed)) => managed.peer(),
            (None, None) => unreachable!("a call has one or the other"),
        }
    }

    /// Asks for the end of the call. `Err` with the outcome where it had not begun.
    pub(super) fn cancel(&mut self) -> Result<(), Status> {
        match &mut self.stage {
            Stage::Unsent | Stage::Sleeping(_) | Stage::Connecting(_) | Stage::Queued(_) => {
                self.stage = Stage::Over;
                let status = Status::cancelled("the call was cancelled before it was sent");
                let status = status.with_executed(Executed::No);
                Err(match &self.history {
                    Some(history) => history.attempts.overall(status),
                    None => status,
                })
            }
            Stage::Begun(call, cancel) => {
                if mem::replace(cancel, Cancel::Asked) == Cancel::NotAsked {
                    link(&self.link).cancel(*call);
                }
                Ok(())
            }
            Stage::Over => Ok(()),
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.poll_with(cx, Link::poll_outcome).map_ok(|(_, reply)| reply)
    }

    /// Ready when the replies begin; from then on the call is theirs.
    pub(super) fn poll_replies(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<RemoteReplies>, Status>> {
        let (call, metadata) = ready!(self.poll_with(cx, Link::poll_headers))?;
        let replies = RemoteReplies::new(Arc::clone(link(&self.link)), call);
        Poll::Ready(Ok(Response::with_block(replies, metadata)))
    }

    /// The same where the reply may be one message.
    pub(super) fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<RemoteReply>, Status>> {
        let (call, begun) = ready!(self.poll_with(cx, Link::poll_reply))?;
        Poll::Ready(Ok(match begun {
            ReplyBegun::Whole(response) => response.map(RemoteReply::Whole),
            ReplyBegun::Stream(metadata) => {
                let replies = RemoteReplies::new(Arc::clone(link(&self.link)), call);
                Response::with_block(RemoteReply::Stream(replies), metadata)
            }
        }))
    }

    /// Polls the attempt, and makes another one if that is called for.
    fn poll_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl Fn(&Link, CallId, &mut Context<'_>) -> Poll<Result<T, Status>>,
    ) -> Poll<Result<(CallId, T), Status>> {
        loop {
            let ended = match ready!(self.poll_begun(cx)) {
                Ok(call) => match ready!(poll(link(&self.link), call, cx)) {
                    Ok(reply) => {
                        if self.managed.is_some() {
                            link(&self.link).shared().handle_served();
                        }
                        self.report(None);
                        self.stage = Stage::Over;
                        self.sending = None;
                        return Poll::Ready(Ok((call, reply)));
                    }
                    Err(status) => status,
                },
                Err(status) => status,
            };
            if let Err(status) = self.handle_end(ended) {
                return Poll::Ready(Err(status));
            }
        }
    }

    /// The attempt has failed. Fails with the outcome of the call if there is to be no other.
    fn handle_end(&mut self, status: Status) -> Result<(), Status> {
        let stage = mem::replace(&mut self.stage, Stage::Over);
        let Some(managed) = self.managed.as_ref().map(Arc::clone) else { return Err(status) };
        let failed = self.link.take();
        let status = match &failed {
            Some(link) => status.with_peer(link.path().peer),
            None => status,
        };
        let repeatable = self.repeatable(&stage);
        let mut history = self.history.take().unwrap_or_default();
        let (again, status) = match &failed {
            None => (None, Some(history.attempts.handle_none(status))),
            Some(link) => {
                self.report(Some(&status));
                let connection = match link.shared().is_open() {
                    true => Connection::Stays,
                    false => Connection::Leaves,
                };
                let over = history.over(link);
                match history.attempts.handle_end(status, connection, over, repeatable) {
                    Ok(again) => (Some(again), None),
                    Err(status) => (None, Some(status)),
                }
            }
        };
        if let Some(link) = failed.filter(|link| again.is_some() || !link.shared().is_open()) {
            managed.leave(&link, self.member.as_deref());
        }
        if let (Some(Resend::SameAddress), Some(sending)) = (again, &mut self.sending) {
            sending.stay();
        }
        self.stage = Stage::Unsent;
        if let Some(status) = status {
            let due = self.sending.as_ref().map_or_else(Instant::now, Sending::deadline);
            let Some(wait) = history.retry_after(&managed, &status, repeatable, due) else {
                self.stage = Stage::Over;
                return Err(status);
            };
            history.attempts.handle_retry(status);
            self.link = None;
            self.stage = Stage::Sleeping(Box::pin(sleep(wait)));
        }
        self.history = Some(history);
        Ok(())
    }

    /// What another attempt may do, after one that got so far.
    fn repeatable(&mut self, stage: &Stage) -> Repeatable {
        let is_over = |sending: &Sending| sending.deadline() <= Instant::now();
        match (stage, &mut self.sending) {
            (Stage::Begun(_, Cancel::Asked), _) | (_, None) => Repeatable::Never,
            (_, Some(sending)) if is_over(sending) => Repeatable::Never,
            (_, Some(sending)) => sending.repeatable(),
        }
    }

    /// The attempt has ended, with a failure or without.
    fn report(&self, failure: Option<&Status>) {
        if let (Some(managed), None) = (&self.managed, failure) {
            let has_own = self.history.as_ref().is_some_and(|history| history.has_policy());
            if has_own || managed.retry().is_some() {
                managed.with_retries(RetryBudget::handle_success);
            }
        }
        if let (Some(managed), Some(member)) = (&self.managed, &self.member) {
            managed.handle_end(member, failure);
        }
    }

    /// Ready when the REQUEST is with the transport.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<CallId, Status>> {
        loop {
            let begun = match &mut self.stage {
                Stage::Begun(call, _) => return Poll::Ready(Ok(*call)),
                Stage::Queued(waiting) => ready!(waiting.as_mut().poll(cx)),
                Stage::Sleeping(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    self.stage = Stage::Unsent;
                    continue;
                }
                Stage::Connecting(waiting) => {
                    let Found { link, member } = ready!(waiting.as_mut().poll(cx))?;
                    (self.link, self.member) = (Some(link), member);
                    self.stage = Stage::Unsent;
                    continue;
                }
                Stage::Unsent if self.link.is_none() => {
                    self.find_link()?;
                    continue;
                }
                Stage::Unsent => match self.start(cx) {
                    Ok(call) => Ok(call),
                    Err(NotStarted::Failed(status)) => Err(status),
                    Err(NotStarted::Wait(unsent)) => {
                        let waiting = Arc::clone(link(&self.link)).start_later(*unsent);
                        self.stage = Stage::Queued(Box::pin(waiting));
                        continue;
                    }
                },
                Stage::Over => unreachable!("a call is not polled after it has ended"),
            };
            if let Ok(call) = begun {
                self.stage = Stage::Begun(call, Cancel::NotAsked);
            }
            return Poll::Ready(begun);
        }
    }

    /// Takes a connection, or begins to wait for one.
    fn find_link(&mut self) -> Result<(), Status> {
        let (managed, sending) = match (&self.managed, &self.sending) {
            (Some(managed), Some(sending)) => (managed, sending),
            _ => unreachable!("only such a call loses its connection, and only to be sent"),
        };
        let waits = sending.wait_for_ready();
        let only = self.member.as_ref().filter(|_| sending.stays());
        match managed.pick(sending.turn(), only) {
            Picked::Link(Found { link, member }) => {
                let link = link.with_room(sending.metadata_len());
                (self.link, self.member) = (Some(link), member);
            }
            Picked::Failed(Reason::Shutdown(status)) => return Err(status),
            Picked::Failed(Reason::Failing(status)) if !managed.waits_for_ready(waits) => {
                return Err(status);
            }
            Picked::Wait(_) | Picked::Failed(Reason::Failing(_)) => {
                let only = only.map(Arc::clone);
                let waiting = Arc::clone(managed).wait(sending.deadline(), waits, only);
                self.stage = Stage::Connecting(Box::pin(waiting));
            }
        }
        Ok(())
    }

    fn start(&mut self, cx: &mut Context<'_>) -> Result<CallId, NotStarted> {
        let sending = match (&self.managed, &mut self.sending) {
            (None, sending) => sending.take(),
            (Some(_), sending) => sending.as_mut().map(Sending::share),
        };
        let sending = sending.expect("a call is sent once, or keeps what it sends");
        let link = link(&self.link);
        let unsent = sending.over(link).map_err(NotStarted::Failed)?;
        link.start(unsent, cx.waker())
    }
}

/// The connection of the attempt that is made.
fn link(link: &Option<Arc<Link>>) -> &Arc<Link> {
    link.as_ref().expect("an attempt has a connection")
}

impl Drop for RemoteCall {
    fn drop(&mut self) {
        if let (Stage::Begun(call, _), Some(link)) = (&self.stage, &self.link) {
            link.abandon(*call);
        }
    }
}
