//! How a call begins: a slot, an entry in the call table, its REQUEST in the send queue.
//!
//! Owns who gets a slot next, and what is undone where one of the three cannot be had.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::super::replies::feed_request;
use super::super::sending::NewStreams;
use super::super::turn::Turn;
use super::{Link, Shared};
use crate::buf::Body;
use crate::message::{CallId, Form, Head, Message, MethodId, ReplyForm, SlotUse};
use crate::proto::client::PathNeeded;
use crate::proto::deadlines::Timer;
use crate::status::{Executed, Status};
use crate::transport::{Flush, Outgoing, SendError, SendHints};

/// A request that has not been handed to the transport.
pub(in crate::client) struct Unsent {
    pub(in crate::client) method: MethodId,
    /// Of a method that is known. Else `streams` has it.
    pub(in crate::client) path: Option<&'static str>,
    pub(in crate::client) body: Body,
    /// Encoded; empty if there is none.
    pub(in crate::client) metadata: Bytes,
    pub(in crate::client) deadline: Instant,
    /// See [`SendHints`].
    pub(in crate::client) expected_reply: Option<u64>,
    /// Boxed, so that calls without any stay short.
    pub(in crate::client) streams: Option<Box<NewStreams>>,
    /// See [`Head::Request`].
    pub(in crate::client) slot: Option<Box<SlotUse>>,
    /// Taken before.
    pub(in crate::client) turn: Option<Turn>,
}

/// Why a call did not begin at once.
pub(in crate::client) enum NotStarted {
    /// It has to wait for a slot or for room in the send queue.
    Wait(Box<Unsent>),
    /// It cannot begin.
    Failed(Status),
}

impl Link {
    /// Begins a call and hands its REQUEST to the transport, if that needs no waiting.
    pub(in crate::client) fn start(
        &self,
        unsent: Unsent,
        waker: &Waker,
    ) -> Result<CallId, NotStarted> {
        self.shared.start(unsent, waker)
    }

    /// Begins a call as soon as there is a slot and room.
    ///
    /// Dropping the future before it is ready leaves nothing behind: it owns the request.
    pub(in crate::client) async fn start_later(
        self: Arc<Self>,
        unsent: Unsent,
    ) -> Result<CallId, Status> {
        let deadline = unsent.deadline;
        timeout_at(deadline, self.shared.start_waiting(unsent)).await.unwrap_or_else(|_elapsed| {
            Err(Status::deadline_exceeded(
                "the deadline passed while the call waited for its turn on the connection",
            )
            .with_executed(Executed::No))
        })
    }
}

impl Shared {
    fn start(self: &Arc<Self>, mut unsent: Unsent, waker: &Waker) -> Result<CallId, NotStarted> {
        let has_slot = unsent.turn.take().is_some_and(|turn| turn.take_slot(self));
        if !has_slot {
            match self.free_slots.try_acquire() {
                Ok(slot) => slot.forget(),
                Err(_) => return Err(NotStarted::Wait(Box::new(unsent))),
            }
        }
        let started = self.start_in_slot(unsent, waker);
        if started.is_err() {
            self.free_slots.add_permits(1);
        }
        started
    }

    fn start_in_slot(
        self: &Arc<Self>,
        unsent: Unsent,
        waker: &Waker,
    ) -> Result<CallId, NotStarted> {
        let Unsent {
            method,
            path,
            body,
            metadata,
            deadline,
            expected_reply,
            streams,
            slot,
            turn: _,
        } = unsent;
        let method = self.known(method);
        let timeout = deadline.saturating_duration_since(Instant::now());
        if timeout.is_zero() {
            return Err(NotStarted::Failed(expired_before_sending()));
        }
        let begun = self
            .table
            .with(|calls| match &streams {
                None => calls.begin(method, deadline, waker.clone()),
                Some(new) => {
                    let streams = new.open(self.windows);
                    calls.begin_streaming(method, deadline, waker.clone(), streams, new.replies)
                }
            })
            .map_err(NotStarted::Failed)?;
        let call = begun.call;
        let head = Head::Request {
            call,
            method,
            path: (begun.path == PathNeeded::Yes).then(|| on_the_wire(path, streams.as_deref())),
            timeout,
            form: streams.as_ref().map_or(Form::Whole, |new| new.request_form()),
            reply: streams.as_ref().map_or(ReplyForm::Whole, |new| new.replies),
            slot,
        };
        let flush = if begun.in_flight == 1 { Flush::Now } else { Flush::Batch };
        let hints = SendHints::flush(flush).expecting(expected_reply);
        let message = Message::with_body(head, body).with_metadata(metadata);
        let outgoing = Outgoing { message, hints };
        match self.connection.try_send(outgoing) {
            Ok(()) => {
                if begun.timer == Timer::Rearm {
                    self.table.with_driver_work(|_calls| {});
                }
                if let Some((requests, compression)) = streams.and_then(|new| new.into_feed()) {
                    let shared = Arc::clone(self);
                    self.runtime.spawn(feed_request(shared, call, requests, compression));
                }
                Ok(call)
            }
            Err(error) => {
                self.table.with(|calls| calls.handle_not_sent(call));
                Err(match error {
                    SendError::Full(outgoing) => NotStarted::Wait(Box::new(Unsent {
                        slot: outgoing.message.head.slot(),
                        method,
                        path,
                        body: outgoing.message.body,
                        metadata: outgoing.message.metadata,
                        deadline,
                        expected_reply,
                        streams,
                        turn: None,
                    })),
                    SendError::Closed(cause) => NotStarted::Failed(cause.to_status(Executed::No)),
                })
            }
        }
    }

    async fn start_waiting(self: &Arc<Self>, mut unsent: Unsent) -> Result<CallId, Status> {
        // A closed semaphore means a closed connection, which `begin` reports with its cause.
        if let Ok(slot) = self.free_slots.acquire().await {
            slot.forget();
        }
        let slot = SlotGuard(&self.free_slots);
        loop {
            poll_fn(|cx| self.connection.poll_ready(cx)).await;
            let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            match self.start_in_slot(unsent, &waker) {
                Ok(call) => {
                    std::mem::forget(slot);
                    return Ok(call);
                }
                Err(NotStarted::Wait(again)) => unsent = *again,
                Err(NotStarted::Failed(status)) => return Err(status),
            }
        }
    }
}

/// The path of a method that is known, or of one that was given by its path.
fn on_the_wire(known: Option<&'static str>, streams: Option<&NewStreams>) -> Cow<'static, str> {
    let given = || streams.and_then(|new| new.path.as_deref()).unwrap_or_default().to_owned();
    known.map_or_else(|| Cow::Owned(given()), Cow::Borrowed)
}

/// Gives a slot back unless the call that holds it has begun.
struct SlotGuard<'a>(&'a Semaphore);

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

/// The status of a call that had no time left when it was to begin.
pub(in crate::client) fn expired_before_sending() -> Status {
    Status::deadline_exceeded("the deadline passed before the request was sent")
        .with_executed(Executed::No)
}
