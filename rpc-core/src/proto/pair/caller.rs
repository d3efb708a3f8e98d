//! What happens at the side that makes calls.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::task::{Task, Waiting};
use super::{FORMS, PATHS, Pair, WINDOW, arrive, body, key, pick};
use crate::message::{CallId, Form, Head, Message, MethodId, ReplyForm};
use crate::proto::client::{Delivered, Reply, ReplyBegun, Slot};
use crate::proto::server::Forms;
use crate::proto::stream::{CallStreams, Over, RecvStream, SendStream};

/// A call at the side that makes it.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) forms: Forms,
    /// Whether the replies have begun.
    pub(super) begun: bool,
    pub(super) feeder: Task,
    pub(super) reader: Task,
    pub(super) waiting: Waiting,
}

impl Pair {
    pub(super) fn begin(&mut self, number: usize, forms: Forms, timeout: Duration) {
        if self.free == 0 {
            return;
        }
        let caller = Caller {
            forms,
            begun: false,
            feeder: Task::default(),
            reader: Task::default(),
            waiting: Waiting::default(),
        };
        let (method, deadline) =
            (MethodId(u32::try_from(number).expect("five") + 1), self.now + timeout);
        let waker = Waker::from(Arc::clone(&caller.reader.woken));
        let begun = if forms == FORMS[0] {
            self.client.begin(method, deadline, waker)
        } else {
            let outgoing = (forms.request == Form::Stream).then(|| SendStream::new(WINDOW));
            let incoming = (forms.reply != ReplyForm::Whole).then(|| RecvStream::new(WINDOW));
            let streams = CallStreams::new(outgoing, incoming);
            self.client.begin_streaming(method, deadline, waker, streams, forms.reply)
        };
        let call = begun.expect("the connection is open").call;
        self.free -= 1;
        let Forms { request: form, reply } = forms;
        let path = Some(PATHS[number].into());
        self.to_server.push(Message::bare(Head::Request {
            call,
            method,
            path,
            timeout,
            form,
            reply,
            slot: None,
        }));
        self.callers.insert(key(call), caller);
    }

    pub(super) fn feed(&mut self, number: usize, len: usize) {
        let Some(call) = pick(&self.callers, number) else { return };
        let (client, caller) =
            (&mut self.client, self.callers.get_mut(&key(call)).expect("picked"));
        if let Poll::Ready(Ok(())) = caller.feeder.poll(|waker| client.poll_window(call, waker)) {
            let (number, _) = client.number(call, len).expect("its window was open");
            self.to_server.push(Message::with_body(Head::Message { call, number }, body(len)));
        }
    }

    pub(super) fn end_requests(&mut self, number: usize) {
        let Some(call) = pick(&self.callers, number) else { return };
        if let Some(messages) = self.client.end_requests(call) {
            // Who ends them is who feeds them.
            self.callers.get_mut(&key(call)).expect("picked").feeder.waits = false;
            self.to_server.push(Message::bare(Head::End { call, messages }));
        }
    }

    pub(super) fn read(&mut self, number: usize) {
        let Some(call) = pick(&self.callers, number) else { return };
        let (client, caller) =
            (&mut self.client, self.callers.get_mut(&key(call)).expect("picked"));
        if caller.forms.reply == ReplyForm::Whole {
            if caller.reader.poll(|waker| client.poll_outcome(call, waker)).is_ready() {
                self.ended(call);
            }
            return;
        }
        if !caller.begun {
            match caller.reader.poll(|waker| client.poll_reply(call, waker)) {
                Poll::Pending => return,
                Poll::Ready(Ok(ReplyBegun::Stream(_))) => caller.begun = true,
                Poll::Ready(Ok(ReplyBegun::Whole(_))) => {
                    assert_eq!(caller.forms.reply, ReplyForm::Either, "it expects a stream");
                    return self.ended(call);
                }
                Poll::Ready(Err(_)) => return self.ended(call),
            }
        }
        match caller.reader.poll(|waker| client.poll_message(call, waker)) {
            Poll::Pending => {}
            Poll::Ready(Ok(Reply::Message(taken))) => {
                caller.waiting.taken(taken.message.len());
                let window = |granted| Message::bare(Head::Window { call, granted });
                self.to_server.extend(taken.granted.map(window));
            }
            Poll::Ready(Ok(Reply::End(_)) | Err(_)) => self.ended(call),
        }
    }

    pub(super) fn ended(&mut self, call: CallId) {
        self.callers.remove(&key(call)).expect("a call ends once");
        self.free += 1;
    }

    pub(super) fn cancel_sent(&mut self) {
        let Some(call) = self.client.poll_cancel() else { return };
        self.to_server.push(Message::bare(Head::Cancel { call }));
        self.free += u32::from(self.client.handle_cancel_sent() == Slot::Freed);
    }

    pub(super) fn drop_call(&mut self, number: usize) {
        let Some(call) = pick(&self.callers, number) else { return };
        let streams = self.client.take_streams(call);
        self.free += u32::from(self.client.abandon(call) == Slot::Freed);
        let mut caller = self.callers.remove(&key(call)).expect("picked");
        streams.and_then(|mut streams| streams.take_feeder()).into_iter().for_each(Waker::wake);
        if caller.forms.request == Form::Stream {
            let over = caller.feeder.poll(|waker| self.client.poll_window(call, waker));
            assert_eq!(over, Poll::Ready(Err(Over)));
        }
    }

    pub(super) fn arrive_at_client(&mut self, number: usize) {
        let Some(message) = arrive(&mut self.to_client, number) else { return };
        if let Head::Message { call, .. } = message.head
            && let Some(caller) = self.callers.get_mut(&key(call))
            && self.client.is_waiting(call)
        {
            caller.waiting.arrives(message.body.len());
        }
        let delivered = self.client.handle_message(message).expect("the server keeps the rules");
        let Delivered { waker, others, .. } = delivered;
        waker.into_iter().chain(others).for_each(Waker::wake);
    }
}
