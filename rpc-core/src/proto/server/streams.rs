//! The rules of calls that have streams, on the callee's side.

use std::task::{Poll, Waker};

use tokio::time::Instant;

use super::{Announcement, ServerCalls, Slot, State, Streaming, deadline, is_older};
use crate::buf::Body;
use crate::message::{CallId, Form, ReplyForm};
use crate::proto::stream::{CallStreams, Next, Over, RecvStream, SendStream, StreamWindows, Taken};
use crate::status::{Executed, Status};

/// In what forms a method takes its request and gives its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// In these, whatever form a caller uses who does not know them.
    Known {
        /// The request.
        request: Form,
        /// The reply.
        reply: Form,
    },
    /// In those that it is called with.
    Open,
}

/// In what forms a call has its request and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms {
    /// The request, as it comes: not always that of the method.
    pub request: Form,
    /// The reply, as it may be given.
    pub reply: ReplyForm,
}

/// What becomes of a long message that is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// It is received. Whether it is allowed shows when it is here: its call may still wait to be admitted.
    Yes,
    /// Its call is over.
    No,
}

impl Forms {
    /// The streams of a call in these forms, if it has any.
    pub(super) fn streams(self, windows: StreamWindows) -> Option<Box<CallStreams>> {
        let outgoing = (self.reply != ReplyForm::Whole).then(|| SendStream::new(windows.peer));
        let incoming = (self.request == Form::Stream).then(|| RecvStream::new(windows.local));
        if outgoing.is_none() && incoming.is_none() {
            return None;
        }
        Some(Box::new(CallStreams::new(outgoing, incoming)))
    }
}

impl Shape {
    /// In what forms a request runs; why not, if it cannot.
    pub(super) fn forms(
        self,
        called: Announcement<'_>,
        windows: StreamWindows,
    ) -> Result<Forms, Status> {
        let mismatch = |words: &str| {
            let message = format!("the method {words}; do both sides use the same .proto?");
            Err(Status::unimplemented(message))
        };
        let reply = match self {
            Self::Known { request, reply } => {
                match (request, called.form, called.reply) {
                    (_, _, ReplyForm::Either) => {}
                    (Form::Whole, Form::Stream, _) => {
                        return mismatch("takes one request, and the client sends a stream");
                    }
                    (Form::Stream, Form::Whole, _) => {
                        return mismatch("takes a stream of requests, and the client sends one");
                    }
                    (_, _, expected) if expected != reply.into() => {
                        return mismatch(match reply {
                            Form::Whole => "gives one reply, and the client expects a stream",
                            Form::Stream => {
                                "answers with a stream, and the client expects one reply"
                            }
                        });
                    }
                    _ => {}
                }
                reply.into()
            }
            Self::Open => called.reply,
        };
        let reply = match reply {
            ReplyForm::Stream if windows.peer == 0 => {
                return mismatch("answers with a stream, which the client does not take");
            }
            ReplyForm::Either if windows.peer == 0 => ReplyForm::Whole,
            reply => reply,
        };
        Ok(Forms { request: called.form, reply })
    }
}

impl<R: Streaming + Clone, H> ServerCalls<R, H> {
    /// The peer has announced its window.
    pub fn set_peer_window(&mut self, window: u32) {
        self.windows.peer = window;
    }

    /// A stream REQUEST was refused: its messages, which come all the same, are late.
    pub fn handle_refused(&mut self, call: CallId) -> Option<H> {
        self.check_range(call).ok()?;
        self.occupy(call, State::Finished(Executed::No))
    }

    /// A message of a request came in. Returns whom that wakes.
    ///
    /// # Errors
    ///
    /// The caller broke the protocol.
    pub fn handle_message(
        &mut self,
        call: CallId,
        number: u32,
        body: Body,
    ) -> Result<Option<Waker>, String> {
        match self.reading(call)? {
            Some(streams) => streams.handle_message(number, body).map_err(broken(call)),
            None => Ok(None),
        }
    }

    /// The end of a request came in. Returns whom that wakes.
    ///
    /// # Errors
    ///
    /// The caller broke the protocol.
    pub fn handle_end(&mut self, call: CallId, messages: u32) -> Result<Option<Waker>, String> {
        match self.reading(call)? {
            Some(streams) => streams.handle_end(messages).map_err(broken(call)),
            None => Ok(None),
        }
    }

    /// More of the replies may be sent. Of a call that is over, it comes late.
    pub fn handle_window(&mut self, call: CallId, granted: u64) -> Option<Waker> {
        self.streams(call)?.handle_window(granted)
    }

    /// Whether a long message of this call is to be received.
    pub fn wants(&self, call: CallId) -> Wanted {
        match self.slots.get(call.slot as usize).and_then(Option::as_ref) {
            Some(slot) if is_older(call.generation, slot.generation) => Wanted::No,
            Some(slot) if slot.generation != call.generation => Wanted::Yes,
            Some(Slot { state: State::Finished(_), .. }) => Wanted::No,
            Some(slot) => match &slot.streams {
                Some(streams) if streams.has_incoming() && !streams.is_reading() => Wanted::No,
                _ => Wanted::Yes,
            },
            None => Wanted::Yes,
        }
    }

    /// The deadline of a call that runs.
    pub fn stream_deadline(&mut self, call: CallId) -> Option<Instant> {
        deadline(self.slot(call)?.state)
    }

    /// The next message of a request, or its end.
    pub fn poll_message(
        &mut self,
        call: CallId,
        waker: &Waker,
    ) -> Poll<Option<Result<Taken<Body>, Status>>> {
        match self.streams(call) {
            Some(streams) => streams.poll_message(waker).map(|taken| taken.map(Ok)),
            None => Poll::Ready(Some(Err(Status::cancelled("the call is over")))),
        }
    }

    /// The next message of a request, which is not taken; `None` at the end.
    pub fn poll_next(&mut self, call: CallId, waker: &Waker) -> Poll<Option<Body>> {
        self.streams(call).map_or(Poll::Ready(None), |streams| streams.poll_next(waker))
    }

    /// Bytes of all messages that have come and wait to be taken, with what it takes to keep track of them.
    pub fn waiting_bytes(&self) -> usize {
        let streams = self.slots.iter().flatten().filter_map(|slot| slot.streams.as_deref());
        let cost = streams.map(CallStreams::waiting_cost).fold(0, u64::saturating_add);
        usize::try_from(cost).unwrap_or(usize::MAX)
    }

    /// Nobody reads the request any more.
    pub fn close_requests(&mut self, call: CallId) {
        if let Some(streams) = self.streams(call) {
            streams.close_incoming();
        }
    }

    /// Ready when the next reply may be sent, or when it need not be any more.
    pub fn poll_window(&mut self, call: CallId, waker: &Waker) -> Poll<Result<(), Over>> {
        match self.streams(call) {
            Some(streams) => streams.poll_window(waker),
            None => Poll::Ready(Err(Over)),
        }
    }

    /// The number of the next reply, if the call goes on, and whether one may follow at once.
    pub fn number(&mut self, call: CallId, len: usize) -> Option<(u32, Next)> {
        self.streams(call)?.number(len)
    }

    /// The handler gives one reply, where it could have given a stream.
    pub fn reply_whole(&mut self, call: CallId) {
        self.streams(call).and_then(CallStreams::end_outgoing);
    }

    /// The streams of calls that have ended. They are dropped, and who waits on them woken, without the lock.
    pub fn take_over(&mut self) -> Vec<CallStreams> {
        std::mem::take(&mut self.over)
    }

    /// The streams of a call that runs.
    fn streams(&mut self, call: CallId) -> Option<&mut CallStreams> {
        self.slot(call)?.streams.as_deref_mut()
    }

    /// The streams of the call that a client's frame is about; `None` if the frame is late.
    fn reading(&mut self, call: CallId) -> Result<Option<&mut CallStreams>, String> {
        self.check_range(call)?;
        let slot = self.slots.get_mut(call.slot as usize).and_then(Option::as_mut);
        let never = || format!("a message came for call {call}, which was never requested");
        let slot = slot.ok_or_else(never)?;
        if is_older(call.generation, slot.generation) {
            return Ok(None);
        }
        if slot.generation != call.generation {
            return Err(never());
        }
        if deadline(slot.state).is_none() {
            return Ok(None);
        }
        match slot.streams.as_deref_mut() {
            Some(streams) if streams.has_incoming() => Ok(Some(streams)),
            _ => Err(format!("a message came for call {call}, whose request is no stream")),
        }
    }
}

fn broken(call: CallId) -> impl Fn(crate::proto::stream::Violation) -> String {
    move |violation| format!("call {call}: {violation}")
}
