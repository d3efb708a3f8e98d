//! The caller's side of every call on one connection.
//!
//! ```text
//!            begin                 RESPONSE, CANCELLED, deadline, end of connection
//!   (none) ────────► Waiting ──────────────────────────────────────────► Done ──poll──► (none)
//!                      │ abandon (the future was dropped)
//!                      ▼
//!                  Abandoned ──CANCEL taken by the transport──► (none)
//! ```
//!
//! A call may have streams: `streams` says when those change its state. `ends` has the ends that are not the peer's answer.
//!
//! Owns which calls wait, for how long, and what the callee has learned of method numbers. It sends
//! nothing: what must go out is returned by [`begin`](ClientCalls::begin) and
//! [`poll_cancel`](ClientCalls::poll_cancel).

mod ends;
mod streams;

use std::collections::VecDeque;
use std::mem;
use std::task::{Poll, Waker};

use bytes::Bytes;
use tokio::time::Instant;

use super::calls::Slots;
use super::deadlines::{Deadlines, Timer};
use crate::buf::Body;
use crate::error::{Error, ErrorKind};
use crate::message::{CallId, Head, Message, MethodId};
use crate::request::Response;
use crate::status::{Code, Executed, Status};
use crate::wire::metadata::Block;
use crate::wire::{self, WireError};

use ends::{End, refused};
use streams::{Finished, Streams};
pub use streams::{Reply, ReplyBegun};

/// How a call ended: a reply, or a status.
pub type Outcome = Result<Response<Body>, Status>;

/// All calls of one connection, seen from the caller.
#[derive(Debug, Default)]
pub struct ClientCalls {
    calls: Slots<Caller>,
    /// By method number: whether the callee has answered a call that carried the number with its path.
    known: Vec<bool>,
    deadlines: Deadlines,
    /// Calls whose CANCEL has not been handed to the transport yet. Bounded by the slots: each holds one.
    cancels: VecDeque<CallId>,
    ended: Option<End>,
}

#[derive(Debug)]
struct Caller {
    method: MethodId,
    deadline: Instant,
    state: State,
    /// Boxed, so that calls without any stay short.
    streams: Option<Box<Streams>>,
}

#[derive(Debug)]
enum State {
    Waiting { waker: Option<Waker>, cancel: Cancel },
    Done(Outcome),
    Abandoned,
}

#[derive(Debug)]
enum Cancel {
    NotAsked,
    Asked,
    /// Asked, because the call cannot go on: this is how it ends then.
    Failed(Status),
}

/// A call that has begun: its REQUEST is to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Begun {
    /// The call.
    pub call: CallId,
    /// Whether the REQUEST must carry the method's path.
    pub path: PathNeeded,
    /// Whether the driver must wake for this call's deadline.
    pub timer: Timer,
    /// Calls on this connection, this one included.
    pub in_flight: usize,
}

/// Whether a REQUEST carries the path of its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathNeeded {
    /// The callee may not have seen the number yet.
    Yes,
    /// The callee has answered a call of this number.
    No,
}

impl ClientCalls {
    /// Begins a call; `waker` is woken when it is done. The caller has made sure that fewer calls run than the peer allows.
    ///
    /// # Errors
    ///
    /// The connection takes no new calls; `executed` is `No`.
    pub fn begin(
        &mut self,
        method: MethodId,
        deadline: Instant,
        waker: Waker,
    ) -> Result<Begun, Status> {
        match &self.ended {
            None => {}
            Some(End::GoAway { why, .. }) => return Err(refused(why)),
            Some(End::Closed(error)) => return Err(error.to_status(Executed::No)),
        }
        let state = State::Waiting { waker: Some(waker), cancel: Cancel::NotAsked };
        let call = self.calls.insert(Caller { method, deadline, state, streams: None });
        Ok(Begun {
            call,
            path: self.path_needed(method),
            timer: self.deadlines.handle_begin(deadline),
            in_flight: self.calls.len(),
        })
    }

    /// The REQUEST was not taken by the transport: the call is as if it had not begun.
    pub fn handle_not_sent(&mut self, call: CallId) {
        self.calls.remove(call);
    }

    /// The outcome of a call, or a place to wake its task at.
    ///
    /// # Panics
    ///
    /// If the call has been taken already.
    pub fn poll_outcome(&mut self, call: CallId, waker: &Waker) -> Poll<Outcome> {
        let caller =
            self.calls.find(call).expect("a call is polled until it is ready, and not after");
        match &mut caller.state {
            State::Waiting { waker: slot, .. } => {
                match slot {
                    Some(known) => known.clone_from(waker),
                    None => *slot = Some(waker.clone()),
                }
                return Poll::Pending;
            }
            State::Done(_) => {}
            State::Abandoned => unreachable!("an abandoned call has no future"),
        }
        match self.calls.remove(call).map(|caller| caller.state) {
            Some(State::Done(outcome)) => Poll::Ready(outcome),
            _ => unreachable!("looked at above"),
        }
    }

    /// The caller asks for the end of the call and goes on waiting for it.
    pub fn cancel(&mut self, call: CallId) {
        if let Some(Caller { state: State::Waiting { cancel, .. }, .. }) = self.calls.find(call)
            && let Cancel::NotAsked = cancel
        {
            *cancel = Cancel::Asked;
            self.cancels.push_back(call);
        }
    }

    /// Nobody waits for the call any more: its future was dropped.
    pub fn abandon(&mut self, call: CallId) -> Slot {
        let Some(caller) = self.calls.find(call) else {
            return Slot::Freed;
        };
        let was = mem::replace(&mut caller.state, State::Abandoned);
        if let State::Waiting { cancel: Cancel::NotAsked, .. } = was {
            self.cancels.push_back(call);
        }
        if self.cancels.contains(&call) {
            return Slot::Held;
        }
        self.calls.remove(call);
        Slot::Freed
    }

    /// The next call whose CANCEL must be sent.
    pub fn poll_cancel(&self) -> Option<CallId> {
        self.cancels.front().copied()
    }

    /// The transport took the CANCEL that [`poll_cancel`](Self::poll_cancel) named.
    pub fn handle_cancel_sent(&mut self) -> Slot {
        let sent = self.cancels.pop_front().and_then(|call| {
            let caller = self.calls.find(call)?;
            matches!(caller.state, State::Abandoned).then_some(call)
        });
        match sent {
            Some(call) => {
                self.calls.remove(call);
                Slot::Freed
            }
            None => Slot::Held,
        }
    }

    /// A message came in.
    ///
    /// Messages about calls that have ended are late and ignored.
    ///
    /// # Errors
    ///
    /// Why the connection must end: a message that a callee does not send, or the callee's word that this
    /// side broke the protocol.
    pub fn handle_message(&mut self, message: Message) -> Result<Delivered, Error> {
        match message.head {
            Head::Response { call, code, executed, messages } => {
                let streams = self.learn(call);
                let block = block(message.metadata)?;
                let outcome = match code {
                    Code::Ok => Ok(Response::with_block(message.body, block)),
                    _ => Err(failed(wire::status::decode(code, executed, message.body), block)),
                };
                if streams == HasStreams::Yes || messages.is_some() {
                    return self.handle_stream_response(call, messages, executed, outcome);
                }
                // A handler runs once the whole request is there, so only a refusal can overtake it.
                let revoke = (executed == Executed::No).then_some(call);
                let Finished { waker, others } = self.finish(call, outcome);
                Ok(Delivered { waker, others, revoke })
            }
            Head::Cancelled { call, executed } => {
                let status = self.cancelled(call).with_executed(executed);
                let Finished { waker, others } = self.finish(call, Err(status));
                Ok(Delivered { waker, others, revoke: None })
            }
            Head::Message { call, number } => {
                self.handle_stream_message(call, number, message.body)
            }
            Head::Headers { call } => {
                let block = block(message.metadata)?;
                self.handle_headers(call, block)
            }
            Head::Window { call, granted } => Ok(self.handle_window(call, granted)),
            Head::GoAway { reason } => {
                let words = message.body.into_bytes();
                self.go_away(reason, &String::from_utf8_lossy(&words))?;
                Ok(Delivered::default())
            }
            // The driver has answered.
            Head::Ping | Head::Pong => Ok(Delivered::default()),
            Head::Request { call, .. } | Head::Cancel { call } | Head::End { call, .. } => {
                let message =
                    format!("the server sent a message that only clients send, for call {call}");
                Err(Error::new(ErrorKind::PeerFault, message))
            }
        }
    }

    /// Calls that have begun and have not been taken.
    pub fn in_flight(&self) -> usize {
        self.calls.len()
    }

    /// Whether somebody waits for this call.
    pub fn is_waiting(&mut self, call: CallId) -> bool {
        matches!(self.calls.find(call), Some(Caller { state: State::Waiting { .. }, .. }))
    }

    fn path_needed(&self, method: MethodId) -> PathNeeded {
        match self.known.get(method.0 as usize) {
            Some(true) => PathNeeded::No,
            _ => PathNeeded::Yes,
        }
    }

    /// A RESPONSE proves that the callee has read the REQUEST, and with it the method's path.
    fn learn(&mut self, call: CallId) -> HasStreams {
        let Some(caller) = self.calls.find(call) else {
            return HasStreams::No;
        };
        let streams = if caller.streams.is_some() { HasStreams::Yes } else { HasStreams::No };
        let number = caller.method.0 as usize;
        if caller.method == MethodId::NONE {
            return streams;
        }
        if self.known.len() <= number {
            self.known.resize(number + 1, false);
        }
        self.known[number] = true;
        streams
    }

    /// Ends a call at once, whatever has not been taken of its streams.
    fn finish(&mut self, call: CallId, outcome: Outcome) -> Finished {
        let Some(caller) = self.calls.find(call) else { return Finished::default() };
        let State::Waiting { waker, .. } = &mut caller.state else {
            return Finished::default();
        };
        let waker = waker.take();
        caller.state = State::Done(outcome);
        let others = match &mut caller.streams {
            None => Vec::new(),
            Some(streams) => streams.streams.close().collect(),
        };
        Finished { waker, others }
    }

    /// How a call ends that the peer has stopped.
    fn cancelled(&mut self, call: CallId) -> Status {
        if let Some(Caller { state: State::Waiting { cancel, .. }, .. }) = self.calls.find(call)
            && let Cancel::Failed(status) = mem::replace(cancel, Cancel::Asked)
        {
            return status;
        }
        Status::cancelled("the call was cancelled by its caller")
    }
}

/// The metadata of a message, if it has some.
fn block(metadata: Bytes) -> Result<Option<Box<Block>>, Error> {
    match metadata.is_empty() {
        true => Ok(None),
        false => Ok(Some(Box::new(wire::metadata::decode(metadata).map_err(fault)?))),
    }
}

/// What a message leaves to do.
#[derive(Debug, Default)]
pub struct Delivered {
    /// Whom to wake.
    pub waker: Option<Waker>,
    /// Whom to wake besides, of a call with streams.
    pub others: Vec<Waker>,
    /// The call whose request need not be sent to its end: it was refused, or was answered early.
    pub revoke: Option<CallId>,
}

/// Whether a call has streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HasStreams {
    Yes,
    No,
}

/// What became of the slot of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// It is free for another call.
    Freed,
    /// It is not: its call goes on, or its CANCEL must be sent first.
    Held,
}

fn fault(error: WireError) -> Error {
    Error::with_source(ErrorKind::PeerFault, "the peer broke the protocol", error)
}

/// The status of a RESPONSE with what it says besides.
fn failed(status: Status, block: Option<Box<Block>>) -> Status {
    let Some(block) = block else {
        return status;
    };
    let Block { mut headers, trailers } = *block;
    headers.extend(trailers);
    status.with_metadata(headers)
}

#[cfg(test)]
mod tests;
