//! The rules of calls that have streams, on the callee's side.

use std::task::{Poll, Waker};

use super::{ServerCalls, Slot, State, Streaming, deadline, is_older};
use crate::buf::Body;
use crate::message::{CallId, Form};
use crate::proto::stream::{CallStreams, Next, Over, RecvStream, SendStream, StreamWindows, Taken};
use crate::status::{Executed, Status};

/// In what forms a method takes its request and gives its reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// The request.
    pub request: Form,
    /// The reply.
    pub reply: Form,
}

/// What becomes of a long message that is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// It is received. Whether it is allowed shows when it is here: its call may still wait to be admitted.
    Yes,
    /// Its call is over.
    No,
}

impl Shape {
    /// The streams of a call of this shape, if it has any.
    pub(super) fn streams(self, windows: StreamWindows) -> Option<Box<CallStreams>> {
        let outgoing = (self.reply == Form::Stream).then(|| SendStream::new(windows.peer));
        let incoming = (self.request == Form::Stream).then(|| RecvStream::new(windows.local));
        if outgoing.is_none() && incoming.is_none() {
            return None;
        }
        Some(Box::new(CallStreams::new(outgoing, incoming)))
    }

    /// Why a request of this form cannot be run, if it cannot.
    pub(super) fn refuses(self, request: Form, windows: StreamWindows) -> Option<Status> {
        let words = match (self.request, request) {
            (Form::Whole, Form::Stream) => "takes one request, and the client sends a stream",
            (Form::Stream, Form::Whole) => "takes a stream of requests, and the client sends one",
            _ if self.reply == Form::Stream && windows.peer == 0 => {
                "answers with a stream, which the client does not take"
            }
            _ => return None,
        };
        Some(Status::unimplemented(format!(
            "the method {words}; do both sides use the same .proto?"
        )))
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
