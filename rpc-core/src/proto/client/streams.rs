//! The rules of calls that have streams, on the caller's side.
//!
//! A stream of replies ends with a RESPONSE that counts its messages. The call is done once they are all here, in
//! order; then they are still there to be taken. Every other end is at once, and drops what has not been taken.

use std::task::{Poll, Waker};

use tokio::time::Instant;

use super::{Begun, Cancel, ClientCalls, Delivered, Outcome, State};
use crate::buf::Body;
use crate::error::{Error, ErrorKind};
use crate::message::{CallId, MethodId, ReplyForm};
use crate::proto::stream::{CallStreams, Next, Over, Taken, Violation};
use crate::request::Response;
use crate::status::{Executed, Status};
use crate::wire::metadata::Block;

/// What a reader of replies gets next.
#[derive(Debug)]
pub enum Reply {
    /// A message.
    Message(Taken<Body>),
    /// The end, and what was said with it.
    End(Option<Box<Block>>),
}

/// How a reply begins that may have either form.
#[derive(Debug)]
pub enum ReplyBegun {
    /// It is one message. The call is taken with it.
    Whole(Response<Body>),
    /// It is a stream, and what was said with its beginning.
    Stream(Option<Box<Block>>),
}

/// What a caller knows of the streams of a call.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) streams: CallStreams,
    /// In what form the reply may still come.
    reply: ReplyForm,
    /// Whether HEADERS has come.
    begun: bool,
    /// The metadata that came with it, until it is taken.
    metadata: Option<Box<Block>>,
    /// How the call ended, while messages that were sent before are still missing.
    outcome: Option<Outcome>,
}

impl ClientCalls {
    /// Begins a call with streams, as [`begin`](Self::begin) does.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin).
    pub fn begin_streaming(
        &mut self,
        method: MethodId,
        deadline: Instant,
        waker: Waker,
        streams: CallStreams,
        reply: ReplyForm,
    ) -> Result<Begun, Status> {
        let begun = self.begin(method, deadline, waker)?;
        if let Some(caller) = self.calls.find(begun.call) {
            let streams = Streams { streams, reply, begun: false, metadata: None, outcome: None };
            caller.streams = Some(Box::new(streams));
        }
        Ok(begun)
    }

    /// Ready when the next message of the request may be sent, or when it need not be any more.
    pub fn poll_window(&mut self, call: CallId, waker: &Waker) -> Poll<Result<(), Over>> {
        match self.streams(call) {
            Some(streams) => streams.streams.poll_window(waker),
            None => Poll::Ready(Err(Over)),
        }
    }

    /// The number of the next message of the request, if the call goes on, and whether one may follow at once.
    pub fn number(&mut self, call: CallId, len: usize) -> Option<(u32, Next)> {
        self.streams(call)?.streams.number(len)
    }

    /// The request has ended; how many messages it had, if the call goes on.
    pub fn end_requests(&mut self, call: CallId) -> Option<u32> {
        self.streams(call)?.streams.end_outgoing()
    }

    /// Ready when the replies begin, or with the status of a call that ended before.
    ///
    /// # Panics
    ///
    /// If the call has been taken already.
    pub(crate) fn poll_headers(
        &mut self,
        call: CallId,
        waker: &Waker,
    ) -> Poll<Result<Option<Box<Block>>, Status>> {
        let caller = self.calls.find(call).expect("a call is polled until it has ended");
        match (&caller.state, &mut caller.streams) {
            (_, Some(streams)) if streams.begun => Poll::Ready(Ok(streams.metadata.take())),
            (State::Waiting { .. }, Some(streams)) => {
                streams.streams.await_news(waker);
                Poll::Pending
            }
            (State::Done(Err(_)), _) => match self.calls.remove(call).map(|gone| gone.state) {
                Some(State::Done(Err(status))) => Poll::Ready(Err(status)),
                _ => unreachable!("looked at above"),
            },
            _ => Poll::Ready(Ok(None)),
        }
    }

    /// As [`poll_headers`](Self::poll_headers), of a call whose reply may be one message: then that.
    ///
    /// # Panics
    ///
    /// If the call has been taken already.
    pub(crate) fn poll_reply(
        &mut self,
        call: CallId,
        waker: &Waker,
    ) -> Poll<Result<ReplyBegun, Status>> {
        let caller = self.calls.find(call).expect("a call is polled until it has ended");
        let is_whole = caller.streams.as_ref().is_some_and(|one| one.reply == ReplyForm::Whole);
        match caller.state {
            State::Done(Ok(_)) if is_whole => {}
            _ => return self.poll_headers(call, waker).map_ok(ReplyBegun::Stream),
        }
        match self.calls.remove(call).map(|gone| gone.state) {
            Some(State::Done(outcome)) => Poll::Ready(outcome.map(ReplyBegun::Whole)),
            _ => unreachable!("looked at above"),
        }
    }

    /// The next reply, or the end of the call, which is taken with it.
    ///
    /// # Panics
    ///
    /// If the call has been taken already.
    pub fn poll_message(&mut self, call: CallId, waker: &Waker) -> Poll<Result<Reply, Status>> {
        let caller = self.calls.find(call).expect("a call is polled until it has ended");
        if let Some(streams) = &mut caller.streams {
            if let Some(taken) = streams.streams.take() {
                return Poll::Ready(Ok(Reply::Message(taken)));
            }
            if let State::Waiting { .. } = caller.state {
                streams.streams.await_news(waker);
                return Poll::Pending;
            }
        }
        match self.calls.remove(call).map(|caller| caller.state) {
            Some(State::Done(outcome)) => {
                Poll::Ready(outcome.map(|end| Reply::End(end.into_parts().1)))
            }
            _ => Poll::Ready(Ok(Reply::End(None))),
        }
    }

    /// The call cannot go on: the peer is asked to stop it, and when it has, it ends with `status`.
    pub fn fail(&mut self, call: CallId, status: Status) {
        let Some(caller) = self.calls.find(call) else { return };
        let State::Waiting { cancel, .. } = &mut caller.state else { return };
        let first = match std::mem::replace(cancel, Cancel::Failed(status)) {
            Cancel::NotAsked => true,
            Cancel::Asked => false,
            earlier @ Cancel::Failed(_) => {
                *cancel = earlier;
                false
            }
        };
        if first {
            self.cancels.push_back(call);
        }
    }

    /// Takes the streams out of a call that nobody waits for any more. Dropped and woken without the lock.
    pub fn take_streams(&mut self, call: CallId) -> Option<CallStreams> {
        self.calls.find(call)?.streams.take().map(|streams| streams.streams)
    }

    /// The handler took the call.
    pub(super) fn handle_headers(
        &mut self,
        call: CallId,
        metadata: Option<Box<Block>>,
    ) -> Result<Delivered, Error> {
        if metadata.as_ref().is_some_and(|block| !block.trailers.is_empty()) {
            return Err(misuse(call, "trailers came before the end, in HEADERS"));
        }
        let Some(caller) = self.calls.find(call) else { return Ok(Delivered::default()) };
        let State::Waiting { .. } = caller.state else { return Ok(Delivered::default()) };
        match &mut caller.streams {
            Some(streams) if streams.streams.has_incoming() => {
                if std::mem::replace(&mut streams.begun, true) {
                    return Err(misuse(call, "the replies began twice"));
                }
                streams.reply = ReplyForm::Stream;
                streams.metadata = metadata;
                Ok(Delivered { others: streams.streams.wakers().collect(), ..Delivered::default() })
            }
            _ => {
                self.fail(call, unasked_stream(Executed::Yes));
                Ok(Delivered::default())
            }
        }
    }

    /// A message of the replies.
    pub(super) fn handle_stream_message(
        &mut self,
        call: CallId,
        number: u32,
        body: Body,
    ) -> Result<Delivered, Error> {
        let Some(caller) = self.calls.find(call) else { return Ok(Delivered::default()) };
        let State::Waiting { .. } = caller.state else { return Ok(Delivered::default()) };
        let Some(streams) = caller.streams.as_mut().filter(|one| one.streams.has_incoming()) else {
            self.fail(call, unasked_stream(Executed::Yes));
            return Ok(Delivered::default());
        };
        if !streams.begun {
            return Err(misuse(call, "a message came before HEADERS"));
        }
        let waker = streams.streams.handle_message(number, body).map_err(broken(call))?;
        if streams.streams.is_complete()
            && let Some(outcome) = streams.outcome.take()
        {
            caller.state = State::Done(outcome);
            return Ok(Delivered { waker, revoke: Some(call), ..Delivered::default() });
        }
        Ok(Delivered { waker, ..Delivered::default() })
    }

    /// More of the request may be sent. Of a call that is over, it comes late.
    pub(super) fn handle_window(&mut self, call: CallId, granted: u64) -> Delivered {
        let waker = self.streams(call).and_then(|one| one.streams.handle_window(granted));
        Delivered { waker, ..Delivered::default() }
    }

    /// The RESPONSE to a call with streams, or one that ends a stream.
    pub(super) fn handle_stream_response(
        &mut self,
        call: CallId,
        messages: Option<u32>,
        executed: Executed,
        outcome: Outcome,
    ) -> Result<Delivered, Error> {
        let Some(caller) = self.calls.find(call) else { return Ok(Delivered::default()) };
        let State::Waiting { .. } = caller.state else { return Ok(Delivered::default()) };
        let replies = caller.streams.as_mut().filter(|one| one.streams.has_incoming());
        // What is left of the request need not be sent. Not yet where replies are still to come.
        let revoke = Some(call);
        let outcome = match (replies, messages) {
            (Some(streams), Some(messages)) => {
                if streams.outcome.is_some() {
                    return Err(misuse(call, "it was answered twice"));
                }
                streams.reply = ReplyForm::Stream;
                streams.streams.end_outgoing();
                let reader = streams.streams.handle_end(messages).map_err(broken(call))?;
                let others = streams.streams.wakers().chain(reader).collect();
                if streams.streams.is_complete() {
                    caller.state = State::Done(outcome);
                    return Ok(Delivered { waker: None, others, revoke });
                }
                streams.outcome = Some(outcome);
                return Ok(Delivered { others, ..Delivered::default() });
            }
            (Some(streams), None) if streams.reply == ReplyForm::Either => {
                streams.reply = ReplyForm::Whole;
                outcome
            }
            (Some(_), None) => outcome.and_then(|_reply| Err(missing_stream(executed))),
            (None, None) => outcome,
            (None, Some(_)) => outcome.and_then(|_end| Err(unasked_stream(executed))),
        };
        let Finished { waker, others } = self.finish(call, outcome);
        Ok(Delivered { waker, others, revoke })
    }

    /// The streams of a call that goes on.
    fn streams(&mut self, call: CallId) -> Option<&mut Streams> {
        let caller = self.calls.find(call)?;
        match caller.state {
            State::Waiting { .. } => caller.streams.as_deref_mut(),
            _ => None,
        }
    }
}

/// Whom the end of a call wakes.
#[derive(Debug, Default)]
pub(super) struct Finished {
    pub(super) waker: Option<Waker>,
    pub(super) others: Vec<Waker>,
}

fn broken(call: CallId) -> impl Fn(Violation) -> Error {
    move |violation| misuse(call, &violation.to_string())
}

fn misuse(call: CallId, what: &str) -> Error {
    Error::new(
        ErrorKind::PeerFault,
        format!("the server broke the protocol for call {call}: {what}"),
    )
}

fn unasked_stream(executed: Executed) -> Status {
    let message = "the server answers with a stream where one reply is expected; do both sides use the same .proto?";
    Status::internal(message).with_executed(executed)
}

fn missing_stream(executed: Executed) -> Status {
    let message = "the server answered with one reply where a stream is expected; do both sides use the same .proto?";
    Status::internal(message).with_executed(executed)
}
