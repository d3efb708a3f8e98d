//! What happens at the side that serves them.

use std::task::{Poll, Waker};

use super::task::{Task, Waiting};
use super::{PATHS, Pair, SHAPES, arrive, body, key, pick};
use crate::message::{CallId, Form, Head, Message, ReplyForm};
use crate::proto::server::{Announcement, Answer, Entry, Forms, Refusal, Shape};
use crate::status::{Code, Executed};

/// The same at the other side.
#[derive(Debug)]
pub(super) struct Callee {
    pub(super) forms: Forms,
    /// Messages that were taken of a stream that has to be one, until it has ended.
    pub(super) collecting: Option<usize>,
    pub(super) entered: bool,
    pub(super) begun: bool,
    pub(super) reads: bool,
    pub(super) feeder: Task,
    pub(super) reader: Task,
    pub(super) waiting: Waiting,
}

impl Pair {
    pub(super) fn arrive_at_server(&mut self, number: usize) {
        let Some(Message { head, body, .. }) = arrive(&mut self.to_server, number) else { return };
        let woken = match head {
            Head::Request { call, method, path, timeout, form, reply, slot: _ } => {
                let request = Announcement { call, method, path: path.as_deref(), form, reply };
                let shape = |path: &str| {
                    let number = PATHS.iter().position(|known| *known == path)?;
                    Some(SHAPES[number])
                };
                match self.server.admit(self.now, request, timeout, shape) {
                    Ok(admitted) => {
                        let Forms { request, .. } = admitted.forms;
                        let takes = match admitted.route {
                            Shape::Known { request, .. } => request,
                            Shape::Open => request,
                        };
                        let collects = (takes, request) == (Form::Whole, Form::Stream);
                        let callee = Callee {
                            forms: admitted.forms,
                            collecting: collects.then_some(0),
                            entered: false,
                            begun: false,
                            reads: true,
                            feeder: Task::default(),
                            reader: Task::default(),
                            waiting: Waiting::default(),
                        };
                        let superseded = admitted.superseded.into_iter();
                        superseded.for_each(|call| drop(self.callees.remove(&key(call))));
                        assert_eq!(self.server.attach(call, call), None, "it was just admitted");
                        self.callees.insert(key(call), callee);
                    }
                    Err(Refusal::Answer(status)) => {
                        if form == Form::Stream {
                            let superseded = self.server.handle_refused(call).into_iter();
                            superseded.for_each(|call| drop(self.callees.remove(&key(call))));
                        }
                        self.refuse(call, status.executed());
                    }
                    Err(Refusal::Late) => {}
                    Err(Refusal::Violation(words)) => unreachable!("{words}"),
                }
                None
            }
            Head::Message { call, number } => {
                if let Some(callee) = self.callees.get_mut(&key(call)).filter(|one| one.reads) {
                    callee.waiting.arrives(body.len());
                }
                self.server.handle_message(call, number, body).expect("the client keeps the rules")
            }
            Head::End { call, messages } => {
                self.server.handle_end(call, messages).expect("the client keeps the rules")
            }
            Head::Window { call, granted } => self.server.handle_window(call, granted),
            Head::Cancel { call } => {
                let cancelled = self.server.handle_cancel(call).expect("a slot within the limit");
                let handle = cancelled.handle;
                handle.into_iter().for_each(|call| drop(self.callees.remove(&key(call))));
                let head = Head::Cancelled { call, executed: cancelled.executed };
                self.to_client.push(Message::bare(head));
                None
            }
            other => unreachable!("the client sent {other:?}"),
        };
        woken.into_iter().for_each(Waker::wake);
    }

    pub(super) fn enter(&mut self, number: usize) {
        let Some(call) = pick(&self.callees, number) else { return };
        let callee = self.callees.get_mut(&key(call)).expect("picked");
        if callee.entered || callee.collecting.is_some() {
            return;
        }
        match self.server.enter(self.now, call, None) {
            Entry::Go => callee.entered = true,
            Entry::Stop => drop(self.callees.remove(&key(call))),
        }
    }

    pub(super) fn answer(&mut self, number: usize, len: usize) {
        let Some(call) = pick(&self.callees, number) else { return };
        let (server, callee) =
            (&mut self.server, self.callees.get_mut(&key(call)).expect("picked"));
        if !callee.entered || callee.forms.reply == ReplyForm::Whole {
            return;
        }
        if !std::mem::replace(&mut callee.begun, true) {
            self.to_client.push(Message::bare(Head::Headers { call }));
        }
        if let Poll::Ready(Ok(())) = callee.feeder.poll(|waker| server.poll_window(call, waker)) {
            let (number, _) = server.number(call, len).expect("its window was open");
            self.to_client.push(Message::with_body(Head::Message { call, number }, body(len)));
        }
    }

    pub(super) fn take(&mut self, number: usize) {
        let Some(call) = pick(&self.callees, number) else { return };
        let (server, callee) =
            (&mut self.server, self.callees.get_mut(&key(call)).expect("picked"));
        let takes = callee.entered || callee.collecting.is_some();
        if !takes || !callee.reads || callee.forms.request == Form::Whole {
            return;
        }
        match callee.reader.poll(|waker| server.poll_message(call, waker)) {
            Poll::Ready(Some(Ok(taken))) => {
                callee.waiting.taken(taken.message.len());
                let window = |granted| Message::bare(Head::Window { call, granted });
                self.to_client.extend(taken.granted.map(window));
                callee.collecting = callee.collecting.map(|count| count + 1);
                if callee.collecting == Some(2) {
                    self.not_collected(call);
                }
            }
            Poll::Ready(None) if callee.collecting == Some(1) => callee.collecting = None,
            Poll::Ready(None) if callee.collecting.is_some() => self.not_collected(call),
            _ => {}
        }
    }

    /// A stream that was to be one message is none, or more.
    fn not_collected(&mut self, call: CallId) {
        self.callees.remove(&key(call));
        let stopped = self.server.stop(call).expect("it runs");
        assert_eq!(stopped.executed, Executed::No);
        self.refuse(call, Executed::No);
    }

    fn refuse(&mut self, call: CallId, executed: Executed) {
        let head = Head::Response { call, code: Code::Unimplemented, executed, messages: None };
        self.to_client.push(Message::bare(head));
    }

    pub(super) fn returns(&mut self, number: usize, is_ok: bool) {
        let Some(call) = pick(&self.callees, number) else { return };
        let callee = &self.callees[&key(call)];
        if !callee.entered {
            return;
        }
        // A handler that returns a stream says so before it ends; one that fails need not have.
        let is_ok = is_ok && (callee.begun || callee.forms.reply != ReplyForm::Stream);
        if is_ok && !callee.begun {
            self.server.reply_whole(call);
        }
        self.callees.remove(&key(call));
        if let Answer::Send { messages, .. } = self.server.handle_returned(call) {
            let code = if is_ok { Code::Ok } else { Code::NotFound };
            let executed = Executed::Yes;
            let head = Head::Response { call, code, executed, messages };
            self.to_client.push(Message::bare(head));
        }
    }
}
