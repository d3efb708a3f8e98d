use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;
use crate::message::{Form, GoAway, ReplyForm};
use crate::proto::stream::{CallStreams, RecvStream};

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn noop() -> Waker {
    Waker::noop().clone()
}

fn begin(calls: &mut ClientCalls, deadline: Instant) -> CallId {
    calls.begin(MethodId(1), deadline, noop()).expect("open").call
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn reply(call: CallId) -> Message {
    let head = Head::Response { call, code: Code::Ok, executed: Executed::Yes, messages: None };
    Message::with_body(head, Bytes::from_static(b"reply").into())
}

fn failure(call: CallId) -> Message {
    let head =
        Head::Response { call, code: Code::NotFound, executed: Executed::Yes, messages: None };
    Message::with_body(head, wire::status::encode(&Status::not_found("no block 7"), 0))
}

fn go_away(reason: GoAway, words: &'static str) -> Message {
    Message::with_body(Head::GoAway { reason }, Bytes::from_static(words.as_bytes()).into())
}

fn outcome(calls: &mut ClientCalls, call: CallId) -> Outcome {
    match calls.poll_outcome(call, Waker::noop()) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("call {call} has no outcome"),
    }
}

fn status(calls: &mut ClientCalls, call: CallId) -> Status {
    outcome(calls, call).expect_err("a status")
}

#[test]
fn a_reply_wakes_its_caller_and_frees_the_slot() {
    let mut calls = ClientCalls::default();
    let counter = Arc::new(Counter::default());
    let begun = calls.begin(MethodId(1), later(), Arc::clone(&counter).into()).expect("open");
    assert!(calls.poll_outcome(begun.call, Waker::noop()).is_pending());
    assert!(calls.poll_outcome(begun.call, &Arc::clone(&counter).into()).is_pending());
    calls.handle_message(reply(begun.call)).expect("valid").waker.expect("a waker").wake();
    assert_eq!(counter.0.load(Ordering::Relaxed), 1);
    assert_eq!(
        outcome(&mut calls, begun.call).expect("a reply").into_inner().into_bytes(),
        "reply"
    );
    assert_eq!(begin(&mut calls, later()).slot, begun.call.slot);
}

#[test]
fn a_failure_carries_the_handlers_status() {
    let mut calls = ClientCalls::default();
    let call = begin(&mut calls, later());
    calls.handle_message(failure(call)).expect("valid");
    let status = status(&mut calls, call);
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no block 7"));
    assert_eq!(status.executed(), Executed::Yes);
}

#[test]
fn late_messages_change_nothing() {
    let mut calls = ClientCalls::default();
    let call = begin(&mut calls, later());
    calls.handle_message(reply(call)).expect("valid");
    calls.handle_message(failure(call)).expect("late");
    outcome(&mut calls, call).expect("the first answer counts");
    assert!(calls.handle_message(reply(call)).expect("late").waker.is_none());
    let reused = begin(&mut calls, later());
    assert_eq!(reused.slot, call.slot);
    calls.handle_message(reply(call)).expect("late");
    assert!(calls.poll_outcome(reused, Waker::noop()).is_pending());
}

#[test]
fn the_path_is_sent_until_a_call_of_its_method_was_answered() {
    let mut calls = ClientCalls::default();
    let path = |calls: &mut ClientCalls, number| {
        let begun = calls.begin(MethodId(number), later(), noop()).expect("open");
        (begun.call, begun.path)
    };
    let (first, needed) = path(&mut calls, 7);
    assert_eq!(needed, PathNeeded::Yes);
    calls.handle_not_sent(first);
    let (second, needed) = path(&mut calls, 7);
    assert_eq!(needed, PathNeeded::Yes, "the first request was never sent");
    calls.handle_message(reply(second)).expect("valid");
    let (_, needed) = path(&mut calls, 7);
    assert_eq!(needed, PathNeeded::No);
    let (other, needed) = path(&mut calls, 0);
    assert_eq!(needed, PathNeeded::Yes);
    calls.handle_message(reply(other)).expect("valid");
    assert_eq!(path(&mut calls, 0).1, PathNeeded::Yes, "0 stands for no number");
}

#[test]
fn deadlines_end_calls_and_leave_the_rest() {
    let mut calls = ClientCalls::default();
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let late = begin(&mut calls, at(90));
    let soon = begin(&mut calls, at(50));
    assert_eq!(calls.next_timeout(), Some(at(50)));
    assert!(calls.handle_timeout(at(49), || None).is_empty());
    let expired: Vec<_> =
        calls.handle_timeout(at(50), || None).into_iter().map(|(call, _)| call).collect();
    assert_eq!(expired, [soon]);
    assert_eq!(calls.next_timeout(), Some(at(90)));
    let status = status(&mut calls, soon);
    assert_eq!((status.code(), status.executed()), (Code::DeadlineExceeded, Executed::Maybe));
    assert!(calls.poll_outcome(late, Waker::noop()).is_pending());
}

#[test]
fn a_dropped_call_holds_its_slot_until_its_cancel_is_sent() {
    let mut calls = ClientCalls::default();
    let call = begin(&mut calls, later());
    assert_eq!(calls.abandon(call), Slot::Held);
    assert_ne!(begin(&mut calls, later()).slot, call.slot);
    assert!(calls.handle_message(reply(call)).expect("late").waker.is_none());
    assert_eq!(calls.poll_cancel(), Some(call));
    assert_eq!(calls.handle_cancel_sent(), Slot::Freed);
    assert_eq!(calls.poll_cancel(), None);
    assert_eq!(begin(&mut calls, later()).slot, call.slot);
}

#[test]
fn a_call_dropped_after_its_end_needs_no_cancel() {
    let mut calls = ClientCalls::default();
    let call = begin(&mut calls, later());
    calls.handle_message(reply(call)).expect("valid");
    assert_eq!(calls.abandon(call), Slot::Freed);
    assert_eq!(calls.poll_cancel(), None);
}

#[test]
fn a_cancelled_call_ends_with_what_the_server_says() {
    let mut calls = ClientCalls::default();
    let call = begin(&mut calls, later());
    calls.cancel(call);
    calls.cancel(call);
    assert_eq!(calls.poll_cancel(), Some(call));
    assert_eq!(calls.handle_cancel_sent(), Slot::Held);
    assert_eq!(calls.poll_cancel(), None, "one CANCEL is enough");
    let head = Head::Cancelled { call, executed: Executed::No };
    calls.handle_message(Message::bare(head)).expect("valid");
    let status = status(&mut calls, call);
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::No));
}

#[test]
fn a_call_cancelled_and_then_dropped_frees_its_slot_once() {
    let mut calls = ClientCalls::default();
    let early = begin(&mut calls, later());
    calls.cancel(early);
    assert_eq!(calls.abandon(early), Slot::Held, "its CANCEL is not out yet");
    assert_eq!(calls.handle_cancel_sent(), Slot::Freed);
    let late = begin(&mut calls, later());
    calls.cancel(late);
    assert_eq!(calls.handle_cancel_sent(), Slot::Held);
    assert_eq!(calls.abandon(late), Slot::Freed);
    assert_eq!(calls.poll_cancel(), None);
}

#[test]
fn the_end_of_the_connection_ends_every_call_with_the_first_cause() {
    let mut calls = ClientCalls::default();
    let (waiting, dropped) = (begin(&mut calls, later()), begin(&mut calls, later()));
    calls.abandon(dropped);
    let wakers = calls.handle_closed(Error::new(ErrorKind::Lost, "the peer closed"));
    assert_eq!(wakers.len(), 1);
    assert!(calls.handle_closed(Error::new(ErrorKind::Closed, "later")).is_empty());
    let ended = status(&mut calls, waiting);
    assert_eq!((ended.code(), ended.executed()), (Code::Unavailable, Executed::Maybe));
    assert_eq!(ended.message(), "the peer closed");
    let refused = calls.begin(MethodId(1), later(), noop()).expect_err("ended");
    assert_eq!(refused.executed(), Executed::No);
    assert_eq!(refused.message(), "the peer closed");
    assert_eq!(calls.poll_cancel(), None);
}

#[test]
fn after_go_away_running_calls_finish_and_none_begins() {
    let mut calls = ClientCalls::default();
    let call = begin(&mut calls, later());
    calls.handle_message(go_away(GoAway::Draining, "")).expect("valid");
    let refused = calls.begin(MethodId(1), later(), noop()).expect_err("draining");
    assert_eq!((refused.code(), refused.executed()), (Code::Unavailable, Executed::No));
    assert!(!calls.is_drained());
    calls.handle_message(reply(call)).expect("valid");
    assert!(calls.is_drained(), "a reply that was not taken needs no connection");
    outcome(&mut calls, call).expect("a reply");
}

#[test]
fn calls_that_a_shutdown_cuts_off_are_told_so_and_later_ones_to_connect_again() {
    let mut calls = ClientCalls::default();
    let call = begin(&mut calls, later());
    calls.handle_message(go_away(GoAway::Draining, "")).expect("valid");
    calls.handle_closed(Error::new(ErrorKind::Lost, "the peer closed"));
    let cut = status(&mut calls, call);
    assert_eq!((cut.code(), cut.executed()), (Code::Unavailable, Executed::Maybe));
    assert_eq!(
        cut.message(),
        "the server is shutting down, and its end cut this call off, which may have run: the peer closed"
    );
    let refused = calls.begin(MethodId(1), later(), noop()).expect_err("ended");
    assert_eq!(refused.executed(), Executed::No);
    assert_eq!(
        refused.message(),
        "the server is shutting down; connect again for new calls: the peer closed"
    );
}

#[test]
fn the_servers_words_about_a_violation_end_the_connection() {
    let mut calls = ClientCalls::default();
    let message = go_away(GoAway::ProtocolViolation, "call 1.0 was requested twice");
    let cause = calls.handle_message(message).expect_err("the end");
    assert!(cause.is_peer_fault());
    assert!(cause.to_string().contains("call 1.0 was requested twice"), "{cause}");
}

#[test]
fn a_refused_request_need_not_be_sent_to_its_end() {
    let mut calls = ClientCalls::default();
    let call = begin(&mut calls, later());
    let head = Head::Response {
        call,
        code: Code::ResourceExhausted,
        executed: Executed::No,
        messages: None,
    };
    let delivered = calls.handle_message(Message::bare(head)).expect("valid");
    assert_eq!(delivered.revoke, Some(call));
    assert_eq!(calls.handle_message(reply(call)).expect("late").revoke, None);
}

#[test]
fn messages_that_only_clients_send_are_violations() {
    let mut calls = ClientCalls::default();
    let call = CallId { slot: 0, generation: 0 };
    assert!(calls.handle_message(Message::bare(Head::Cancel { call })).is_err());
    let head = Head::Request {
        call,
        method: MethodId(1),
        path: None,
        timeout: Duration::from_secs(1),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    };
    assert!(calls.handle_message(Message::bare(head)).is_err());
}

fn begin_any(calls: &mut ClientCalls) -> CallId {
    let streams = CallStreams::new(None, Some(RecvStream::new(1000)));
    let begun = calls.begin_streaming(MethodId(1), later(), noop(), streams, ReplyForm::Either);
    begun.expect("open").call
}

#[test]
fn a_reply_of_either_form_is_what_comes() {
    let mut calls = ClientCalls::default();
    let [whole, stream, empty, failed] = std::array::from_fn(|_| begin_any(&mut calls));
    assert!(calls.poll_reply(whole, Waker::noop()).is_pending());
    calls.handle_message(reply(whole)).expect("valid");
    let Poll::Ready(Ok(ReplyBegun::Whole(found))) = calls.poll_reply(whole, Waker::noop()) else {
        panic!("one message");
    };
    assert_eq!(found.into_inner().into_bytes(), "reply");
    calls.handle_message(Message::bare(Head::Headers { call: stream })).expect("valid");
    let begun = calls.poll_reply(stream, Waker::noop());
    assert!(matches!(begun, Poll::Ready(Ok(ReplyBegun::Stream(None)))), "{begun:?}");
    // It has begun as a stream, and ends as none.
    calls.handle_message(reply(stream)).expect("valid");
    let Poll::Ready(Err(status)) = calls.poll_message(stream, Waker::noop()) else {
        panic!("a status");
    };
    assert_eq!(status.code(), Code::Internal, "{status}");
    let (code, executed, messages) = (Code::Ok, Executed::Yes, Some(0));
    let end = Head::Response { call: empty, code, executed, messages };
    calls.handle_message(Message::bare(end)).expect("valid");
    let begun = calls.poll_reply(empty, Waker::noop());
    assert!(matches!(begun, Poll::Ready(Ok(ReplyBegun::Stream(None)))), "{begun:?}");
    calls.handle_message(failure(failed)).expect("valid");
    let Poll::Ready(Err(status)) = calls.poll_reply(failed, Waker::noop()) else {
        panic!("a status");
    };
    assert_eq!(status.code(), Code::NotFound);
}

/// What may happen to one of a handful of calls, in any order.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin,
    Reply(prop::sample::Index),
    Cancel(prop::sample::Index),
    Cancelled(prop::sample::Index),
    Poll(prop::sample::Index),
    Drop(prop::sample::Index),
    CancelSent,
    Expire,
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<prop::sample::Index>;
    let step = prop_oneof![
        4 => Just(Step::Begin),
        3 => index().prop_map(Step::Reply),
        2 => index().prop_map(Step::Cancel),
        2 => index().prop_map(Step::Cancelled),
        3 => index().prop_map(Step::Poll),
        2 => index().prop_map(Step::Drop),
        3 => Just(Step::CancelSent),
        1 => Just(Step::Expire),
        1 => Just(Step::Close),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// Whatever happens, in whatever order: each call ends once, and every slot is freed once.
    #[test]
    fn every_call_ends_once_and_frees_its_slot(steps in steps()) {
        let mut calls = ClientCalls::default();
        let (mut held, mut freed, mut begun) = (Vec::<CallId>::new(), 0, 0);
        let pick = |held: &[CallId], index: prop::sample::Index| {
            (!held.is_empty()).then(|| held[index.index(held.len())])
        };
        for step in steps {
            match step {
                Step::Begin => {
                    if let Ok(call) = calls.begin(MethodId(1), later(), noop()) {
                        held.push(call.call);
                        begun += 1;
                    }
                }
                Step::Reply(index) => {
                    if let Some(call) = pick(&held, index) {
                        calls.handle_message(reply(call)).expect("valid");
                    }
                }
                Step::Cancelled(index) => {
                    if let Some(call) = pick(&held, index) {
                        let head = Head::Cancelled { call, executed: Executed::Maybe };
                        calls.handle_message(Message::bare(head)).expect("valid");
                    }
                }
                Step::Cancel(index) => pick(&held, index).into_iter().for_each(|call| calls.cancel(call)),
                Step::Poll(index) => {
                    if let Some(call) = pick(&held, index)
                        && calls.poll_outcome(call, Waker::noop()).is_ready()
                    {
                        held.retain(|one| *one != call);
                        freed += 1;
                    }
                }
                Step::Drop(index) => {
                    if let Some(call) = pick(&held, index) {
                        held.retain(|one| *one != call);
                        freed += usize::from(calls.abandon(call) == Slot::Freed);
                    }
                }
                Step::CancelSent => {
                    freed += usize::from(calls.handle_cancel_sent() == Slot::Freed);
                }
                Step::Expire => drop(calls.handle_timeout(later() + Duration::from_secs(1), || None)),
                Step::Close => {
                    let abandoned = calls.calls.len() - held.len();
                    drop(calls.handle_closed(Error::new(ErrorKind::Lost, "gone")));
                    freed += abandoned;
                }
            }
        }
        calls.handle_timeout(later() + Duration::from_secs(1), || None);
        for call in held {
            prop_assert!(calls.poll_outcome(call, Waker::noop()).is_ready());
            freed += 1;
        }
        while calls.poll_cancel().is_some() {
            freed += usize::from(calls.handle_cancel_sent() == Slot::Freed);
        }
        prop_assert_eq!(freed, begun);
        prop_assert!(calls.calls.is_empty());
    }
}
