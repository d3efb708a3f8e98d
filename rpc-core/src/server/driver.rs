//! The task of a server's connection.
//!
//! Receives requests and starts their handlers, stops them on CANCEL and at their deadline, and says
//! GOAWAY. Its end, whatever the reason, drops every handler of the connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use tracing::debug;

use super::connection::{Job, Peer};
use super::intake::{Calls, Notes};
use super::outbox::Outbox;
use super::workers::Workers;
use crate::alarm::Alarm;
use crate::buf::Body;
use crate::error::{Error, ErrorKind};
use crate::message::{CallId, Form, GoAway, Head, Message, SlotUse};
use crate::metadata::MetadataMap;
use crate::proto::server::{Admitted, Refusal, Stopped};
use crate::pulse::Pulse;
use crate::status::{Executed, Status};
use crate::transport::news::News;
use crate::transport::{BoxFuture, Flush, Incoming, Outgoing, SendError, SendHints};
use crate::wire;

/// Batches received in one poll before other tasks get their turn.
const BATCHES_PER_POLL: usize = 16;

/// Longest explanation in a GOAWAY, in bytes: it may quote what the peer sent.
const MAX_WORDS: usize = 1024;

/// Drives one connection until it ends.
pub(super) struct Driver {
    peer: Arc<Peer>,
    received: Vec<Incoming>,
    outbox: Outbox,
    alarm: Alarm,
    pulse: Pulse,
    streams: Streams,
    /// Ready when the server shuts down; then gone.
    shutdown: Option<BoxFuture<'static, ()>>,
    shutdown_news: News,
}

/// Whether there were calls with streams on this connection: only then is there anything to do for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Streams {
    None,
    Some,
}

/// Whether the driver goes on with what it has received.
type Step = Result<(), String>;

impl Driver {
    pub(super) fn new(peer: Arc<Peer>, pulse: Pulse, shutdown: BoxFuture<'static, ()>) -> Self {
        Self {
            peer,
            received: Vec::new(),
            outbox: Outbox::default(),
            alarm: Alarm::default(),
            pulse,
            streams: Streams::None,
            shutdown: Some(shutdown),
            shutdown_news: News::default(),
        }
    }

    /// Receives what is there. Ready with the cause when the connection has ended.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        for _ in 0..BATCHES_PER_POLL {
            let polled = self.peer.connection.poll_recv(cx, &mut self.received);
            let step = self.handle_received(cx);
            match (polled, step) {
                (Poll::Ready(Err(cause)), _) => {
                    if cause.is_peer_fault() {
                        self.go_away(&cause.to_string());
                    }
                    return Poll::Ready(cause);
                }
                (_, Err(violation)) => self.go_away(&violation),
                (Poll::Pending, Ok(())) => return Poll::Pending,
                (Poll::Ready(Ok(())), Ok(())) => {}
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn handle_received(&mut self, cx: &mut Context<'_>) -> Step {
        let Notes { refused, failed } = self.peer.intake.take_notes();
        for (call, refused) in refused {
            self.refuse(call, refused)?;
        }
        let handled = self.handle_messages(cx);
        // Behind the messages: the request of such a call may be among them.
        for (call, status) in failed {
            if let Some(stopped) = self.peer.intake.with_calls(|calls| calls.stop(call)) {
                self.handle_stopped(stopped, status);
            }
        }
        if self.streams == Streams::Some {
            self.peer.let_go();
        }
        handled
    }

    fn handle_messages(&mut self, cx: &mut Context<'_>) -> Step {
        if self.received.is_empty() {
            return Ok(());
        }
        self.pulse.handle_heard();
        let now = Instant::now();
        let mut received = std::mem::take(&mut self.received);
        let handled = received
            .drain(..)
            .try_for_each(|incoming| self.handle_message(now, incoming.message, cx));
        self.received = received;
        handled
    }

    fn handle_stopped(&mut self, stopped: Stopped<AbortHandle>, status: Status) {
        let Stopped { call, handle, executed } = stopped;
        handle.into_iter().for_each(|handle| handle.abort());
        self.peer.connection.revoke(call);
        self.outbox.push(call, self.peer.refusal(call, &status.with_executed(executed)));
    }

    fn handle_message(&mut self, now: Instant, message: Message, cx: &mut Context<'_>) -> Step {
        if self.pulse.handle_message(&message.head) {
            return Ok(());
        }
        let Message { head, encoding, metadata, body } = message;
        let body = self.peer.intake.receive(encoding, body);
        match head {
            Head::Request { call, form, .. } => match self.peer.intake.admit(now, &head) {
                Ok(admitted) => {
                    let metadata = request_metadata(metadata)?;
                    let slot = head.slot();
                    self.start(admitted, Said { call, body, metadata, slot }, cx);
                    Ok(())
                }
                Err(refused) => {
                    if form == Form::Stream {
                        let superseded =
                            self.peer.intake.with_calls(|calls| calls.handle_refused(call));
                        superseded.into_iter().for_each(|handle| handle.abort());
                    }
                    self.refuse(call, refused)
                }
            },
            Head::Message { call, number } => {
                self.wake(|calls| calls.handle_message(call, number, body))
            }
            Head::End { call, messages } => self.wake(|calls| calls.handle_end(call, messages)),
            Head::Window { call, granted } => {
                self.wake(|calls| Ok(calls.handle_window(call, granted)))
            }
            Head::Cancel { call } => self.cancel(call),
            // The client takes no calls, so that it will take no more changes nothing. The others are seen above.
            Head::GoAway { .. } | Head::Ping | Head::Pong => Ok(()),
            Head::Response { call, .. } | Head::Cancelled { call, .. } | Head::Headers { call } => {
                Err(format!("the client sent a message that only servers send, for call {call}"))
            }
        }
    }

    fn wake(&self, change: impl FnOnce(&mut Calls) -> Result<Option<Waker>, String>) -> Step {
        let waker = self.peer.intake.with_calls(change)?;
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn start(
        &mut self,
        admitted: Admitted<super::router::Route, AbortHandle>,
        said: Said,
        cx: &mut Context<'_>,
    ) {
        let Admitted { route, forms, deadline, superseded, .. } = admitted;
        let Said { call, body, metadata, slot } = said;
        superseded.into_iter().for_each(|handle| handle.abort());
        let method = route.method(forms);
        let has_streams = method.has_streams() || forms.request == Form::Stream;
        // Neither is to decompress or compress here.
        let inline_safe =
            method.inline_safe && body.coded().is_none() && self.peer.compression.is_none();
        let job = Job { call, route, forms, deadline, body, metadata, slot };
        let peer = Arc::clone(&self.peer);
        if has_streams {
            self.streams = Streams::Some;
            return self.attach(call, &tokio::spawn(peer.run_streaming(job)));
        }
        if !inline_safe {
            return Workers::start(peer, job);
        }
        // Most such handlers are ready at once and need no task.
        let mut run = Box::pin(async move { peer.run(job).await });
        if run.as_mut().poll(cx).is_pending() {
            self.attach(call, &tokio::spawn(run));
        }
    }

    fn attach(&self, call: CallId, task: &JoinHandle<()>) {
        let stopped = self.peer.intake.with_calls(|calls| calls.attach(call, task.abort_handle()));
        stopped.into_iter().for_each(|handle| handle.abort());
    }

    fn refuse(&mut self, call: CallId, refused: Refusal) -> Step {
        match refused {
            Refusal::Answer(status) => self.outbox.push(call, self.peer.refusal(call, &status)),
            Refusal::Late => {}
            Refusal::Violation(violation) => return Err(violation),
        }
        Ok(())
    }

    fn cancel(&mut self, call: CallId) -> Step {
        let cancelled = self.peer.intake.with_calls(|calls| calls.handle_cancel(call))?;
        cancelled.handle.into_iter().for_each(|handle| handle.abort());
        self.peer.connection.revoke(call);
        let head = Head::Cancelled { call, executed: cancelled.executed };
        self.outbox.push(call, Message::bare(head));
        Ok(())
    }

    fn poll_deadlines(&mut self, cx: &mut Context<'_>) {
        loop {
            let next = self.peer.intake.with_calls(|calls| calls.next_timeout());
            let Poll::Ready(now) = self.alarm.poll(next, cx) else {
                return;
            };
            for stopped in self.peer.intake.with_calls(|calls| calls.handle_timeout(now)) {
                let status = Status::deadline_exceeded(match stopped.executed {
                    Executed::Yes => "the deadline passed while the handler ran",
                    Executed::Maybe => "the deadline passed while the call ran",
                    Executed::No => "the deadline passed before the handler was entered",
                });
                self.handle_stopped(stopped, status);
            }
            self.peer.let_go();
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) {
        let Some(shutdown) = &mut self.shutdown else {
            return;
        };
        if self.shutdown_news.poll(cx, |cx| shutdown.as_mut().poll(cx)).is_ready() {
            self.shutdown = None;
            let why =
                Status::unavailable("the server is shutting down; connect again for new calls");
            self.peer.intake.with_calls(|calls| calls.drain(why));
            let head = Head::GoAway { reason: GoAway::Draining };
            self.outbox.push_go_away(Message::bare(head));
        }
    }

    fn poll_outbox(&mut self, cx: &mut Context<'_>) {
        let connection = &self.peer.connection;
        while let Some(message) = self.outbox.pop() {
            let hints = SendHints::flush(Flush::Batch);
            match connection.try_send(Outgoing { message, hints }) {
                Ok(()) => {}
                Err(SendError::Full(back)) => {
                    self.outbox.put_back(back.message);
                    if connection.poll_ready(cx).is_pending() {
                        return;
                    }
                }
                Err(SendError::Closed(_)) => return self.outbox.clear(),
            }
        }
    }

    /// Serves no call of a connection that is one too many. The client is told so, and closes it.
    pub(super) fn turn_away(&mut self, max_connections: usize) {
        let words = format!(
            "max_connections of {max_connections} are served already; try again later, or raise it"
        );
        let head = Head::GoAway { reason: GoAway::Overloaded };
        let body = Bytes::copy_from_slice(words.as_bytes()).into();
        self.outbox.push_go_away(Message::with_body(head, body));
        self.refuse_all(Status::unavailable(format!("the server is overloaded: {words}")));
    }

    /// Serves no call of a connection: each is answered with this status.
    pub(super) fn refuse_all(&self, why: Status) {
        self.peer.intake.with_calls(|calls| calls.drain(why));
    }

    /// Ends the connection and tells the client why.
    fn go_away(&self, violation: &str) {
        let head = Head::GoAway { reason: GoAway::ProtocolViolation };
        let words = wire::cut(violation, MAX_WORDS);
        let message = Message::with_body(head, Bytes::copy_from_slice(words.as_bytes()).into());
        // Whether it arrives is up to the peer; the connection ends either way.
        let _sent =
            self.peer.connection.try_send(Outgoing { message, hints: SendHints::default() });
        self.peer.connection.close(Error::new(ErrorKind::PeerFault, violation));
    }
}

/// What a REQUEST brings for its handler.
struct Said {
    call: CallId,
    body: Body,
    metadata: Option<Box<MetadataMap>>,
    slot: Option<Box<SlotUse>>,
}

/// What a REQUEST says besides its message; a block that does not decode, or has trailers, is a violation.
fn request_metadata(block: Bytes) -> Result<Option<Box<MetadataMap>>, String> {
    if block.is_empty() {
        return Ok(None);
    }
    let block = wire::metadata::decode(block).map_err(|error| error.to_string())?;
    if !block.trailers.is_empty() {
        return Err("the client sent trailers, which only servers send".to_owned());
    }
    Ok(Some(Box::new(block.headers)))
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let received = self.poll_receive(cx);
        self.poll_shutdown(cx);
        self.poll_deadlines(cx);
        self.poll_outbox(cx);
        let Self { peer, pulse, .. } = &mut *self;
        pulse.poll(&*peer.connection, cx);
        received.map(|cause| debug!(path = %self.peer.origin.path, %cause, "connection ended"))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let cause = "the server stopped serving this connection";
        self.peer.connection.close(Error::new(ErrorKind::Closed, cause));
        let handles = self.peer.intake.with_calls(|calls| calls.take_handles());
        handles.into_iter().for_each(|handle| handle.abort());
        self.peer.workers.close();
        self.peer.let_go();
    }
}
