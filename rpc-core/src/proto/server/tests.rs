use std::time::Duration;

use super::*;
use crate::status::Code;

type Calls = ServerCalls<&'static str, u32>;

fn calls() -> Calls {
    ServerCalls::new(4, 8, StreamWindows { local: 1000, peer: 1000 })
}

impl Streaming for &'static str {
    /// What the name of the route says.
    fn shape(&self) -> Shape {
        let form = |is_stream| if is_stream { Form::Stream } else { Form::Whole };
        let (request, reply) = (form(self.contains("upload")), form(self.contains("scan")));
        if *self == "open" { Shape::Open } else { Shape::Known { request, reply } }
    }
}

fn id(slot: u32, generation: u32) -> CallId {
    CallId { slot, generation }
}

fn resolve(path: &str) -> Option<&'static str> {
    (path == "/a.A/M").then_some("route")
}

fn request(call: CallId) -> Announcement<'static> {
    let (form, reply) = (Form::Whole, ReplyForm::Whole);
    Announcement { call, method: MethodId(1), path: Some("/a.A/M"), form, reply }
}

fn admit(calls: &mut Calls, call: CallId) -> Result<Admitted<&'static str, u32>, Refusal> {
    calls.admit(Instant::now(), request(call), Duration::from_secs(60), resolve)
}

fn violation<T>(result: Result<T, Refusal>) -> String {
    match result.err() {
        Some(Refusal::Violation(words)) => words,
        other => panic!("expected a violation, got {other:?}"),
    }
}

fn answer<T>(result: Result<T, Refusal>) -> Status {
    match result.err() {
        Some(Refusal::Answer(status)) => status,
        other => panic!("expected an answer, got {other:?}"),
    }
}

#[test]
fn a_call_runs_once_and_is_answered_once() {
    let mut calls = calls();
    let call = id(0, 0);
    assert_eq!(admit(&mut calls, call).expect("admitted").route, "route");
    assert_eq!(calls.running(), 1);
    assert_eq!(calls.enter(Instant::now(), call, None), Entry::Go);
    assert_eq!(calls.enter(Instant::now(), call, None), Entry::Stop);
    assert_eq!(calls.handle_returned(call), Answer::Send { in_flight: 0, messages: None });
    assert_eq!(calls.handle_returned(call), Answer::Discard);
    assert!(violation(admit(&mut calls, call)).contains("requested twice"));
}

#[test]
fn a_method_number_is_learned_with_its_path_and_kept() {
    let mut calls = calls();
    admit(&mut calls, id(0, 0)).expect("admitted");
    let by_number = |method| Announcement {
        call: id(1, 0),
        method: MethodId(method),
        path: None,
        ..request(id(1, 0))
    };
    let minute = Duration::from_secs(60);
    let admitted = calls.admit(Instant::now(), by_number(1), minute, |_| None);
    assert_eq!(admitted.expect("known").route, "route");
    let unknown = calls.admit(Instant::now(), by_number(2), minute, resolve);
    assert!(violation(unknown).contains("method number 2"));
    let changed = Announcement { path: Some("/a.A/Other"), ..request(id(2, 0)) };
    assert!(
        violation(calls.admit(Instant::now(), changed, minute, resolve)).contains("/a.A/Other")
    );
    let beyond = Announcement { method: MethodId(9), ..request(id(2, 0)) };
    let words = violation(calls.admit(Instant::now(), beyond, minute, resolve));
    assert!(words.contains("max_interned_methods of 8"), "{words}");
}

#[test]
fn a_request_without_number_carries_its_path() {
    let mut calls = calls();
    let request = Announcement { method: MethodId::NONE, ..request(id(0, 0)) };
    calls.admit(Instant::now(), request, Duration::from_secs(1), resolve).expect("admitted");
    let nameless = Announcement { path: None, call: id(1, 0), ..request };
    violation(calls.admit(Instant::now(), nameless, Duration::from_secs(1), resolve));
}

#[test]
fn an_unknown_path_is_unimplemented_also_by_its_number() {
    let mut calls = calls();
    for (generation, path) in [(0, Some("/a.A/None")), (1, None)] {
        let request = Announcement { method: MethodId(3), path, ..request(id(0, generation)) };
        let status = answer(calls.admit(Instant::now(), request, Duration::from_secs(1), resolve));
        assert_eq!((status.code(), status.executed()), (Code::Unimplemented, Executed::No));
        assert!(status.message().contains("/a.A/None"), "{status}");
    }
}

#[test]
fn an_expired_request_does_not_run() {
    let mut calls = calls();
    let status = answer(calls.admit(Instant::now(), request(id(0, 0)), Duration::ZERO, resolve));
    assert_eq!((status.code(), status.executed()), (Code::DeadlineExceeded, Executed::No));
    assert_eq!(calls.running(), 0);
}

#[test]
fn the_deadline_is_checked_again_at_the_moment_of_execution() {
    let mut calls = calls();
    let now = Instant::now();
    let second = Duration::from_secs(1);
    calls.admit(now, request(id(0, 0)), second, resolve).expect("admitted");
    assert_eq!(calls.enter(now + second, id(0, 0), None), Entry::Stop);
}

#[test]
fn deadlines_stop_handlers_and_say_whether_they_ran() {
    let mut calls = calls();
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    for (slot, ms) in [(0, 50), (1, 50), (2, 90)] {
        let timeout = Duration::from_millis(ms);
        calls.admit(now, request(id(slot, 0)), timeout, resolve).expect("admitted");
    }
    calls.enter(now, id(0, 0), None);
    assert_eq!(calls.attach(id(0, 0), 7), None);
    assert_eq!(calls.next_timeout(), Some(at(50)));
    let stopped = calls.handle_timeout(at(50));
    let entered = Stopped { call: id(0, 0), handle: Some(7), executed: Executed::Yes };
    let waiting = Stopped { call: id(1, 0), handle: None, executed: Executed::No };
    assert_eq!(stopped, [entered, waiting]);
    assert_eq!(calls.next_timeout(), Some(at(90)));
    assert_eq!(calls.handle_returned(id(0, 0)), Answer::Discard);
    assert_eq!(calls.enter(at(51), id(1, 0), None), Entry::Stop);
    assert_eq!(calls.running(), 1);
}

#[test]
fn cancel_says_exactly_whether_the_handler_ran() {
    let mut calls = calls();
    (0..3).for_each(|slot| drop(admit(&mut calls, id(slot, 0))));
    calls.enter(Instant::now(), id(1, 0), None);
    calls.attach(id(1, 0), 7);
    calls.enter(Instant::now(), id(2, 0), None);
    calls.handle_returned(id(2, 0));
    let mut cancel = |call| calls.handle_cancel(call).expect("in range");
    assert_eq!(cancel(id(0, 0)), Cancelled { executed: Executed::No, handle: None });
    assert_eq!(cancel(id(1, 0)), Cancelled { executed: Executed::Yes, handle: Some(7) });
    assert_eq!(cancel(id(1, 0)), Cancelled { executed: Executed::Yes, handle: None });
    assert_eq!(cancel(id(2, 0)), Cancelled { executed: Executed::Yes, handle: None });
    assert_eq!(calls.running(), 0);
}

#[test]
fn a_request_that_comes_after_its_cancel_does_not_run() {
    let mut calls = calls();
    let cancelled = calls.handle_cancel(id(0, 5)).expect("in range");
    assert_eq!(cancelled.executed, Executed::No);
    assert!(matches!(admit(&mut calls, id(0, 5)), Err(Refusal::Late)));
    admit(&mut calls, id(0, 6)).expect("the next use of the slot runs");
}

#[test]
fn a_newer_use_of_a_slot_ends_the_older_one() {
    let mut calls = calls();
    admit(&mut calls, id(0, 0)).expect("admitted");
    calls.attach(id(0, 0), 7);
    assert_eq!(admit(&mut calls, id(0, 1)).expect("admitted").superseded, Some(7));
    assert_eq!(calls.running(), 1);
    assert_eq!(calls.attach(id(0, 0), 8), Some(8), "a late handle comes back to be dropped");
    assert!(matches!(admit(&mut calls, id(0, 0)), Err(Refusal::Late)));
    let stale = calls.handle_cancel(id(0, 0)).expect("in range");
    assert_eq!(stale, Cancelled { executed: Executed::Maybe, handle: None });
    assert_eq!(calls.running(), 1);
}

#[test]
fn generations_wrap() {
    let mut calls = calls();
    admit(&mut calls, id(0, u32::MAX)).expect("admitted");
    admit(&mut calls, id(0, 0)).expect("0 follows the highest");
    assert!(matches!(admit(&mut calls, id(0, u32::MAX)), Err(Refusal::Late)));
}

#[test]
fn slots_beyond_the_limit_are_violations() {
    let mut calls = calls();
    assert!(violation(admit(&mut calls, id(4, 0))).contains("max_concurrent_calls of 4"));
    assert!(calls.handle_cancel(id(u32::MAX, 0)).is_err());
}

#[test]
fn a_draining_server_refuses_new_calls_and_finishes_old_ones() {
    let mut calls = calls();
    admit(&mut calls, id(0, 0)).expect("admitted");
    calls.drain(Status::unavailable("as told"));
    let status = answer(admit(&mut calls, id(1, 0)));
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::No));
    calls.enter(Instant::now(), id(0, 0), None);
    assert_eq!(calls.handle_returned(id(0, 0)), Answer::Send { in_flight: 0, messages: None });
}

#[test]
fn a_refused_announcement_still_teaches_the_method() {
    let mut calls = calls();
    calls.drain(Status::unavailable("as told"));
    answer(calls.announce(request(id(0, 0)), resolve));
    let by_number = Announcement { path: None, ..request(id(1, 0)) };
    assert_eq!(answer(calls.announce(by_number, |_| None)).code(), Code::Unavailable);
}

#[test]
fn the_end_of_the_connection_takes_every_handle() {
    let mut calls = calls();
    for slot in 0..2 {
        admit(&mut calls, id(slot, 0)).expect("admitted");
        calls.attach(id(slot, 0), slot);
    }
    calls.enter(Instant::now(), id(0, 0), None);
    calls.handle_returned(id(0, 0));
    assert_eq!(calls.take_handles(), [0, 1]);
}

/// In what forms a call of `route` runs that comes in these, at a client with this window.
fn forms(route: &'static str, form: Form, reply: ReplyForm, window: u32) -> Result<Forms, Refusal> {
    let windows = StreamWindows { local: 1000, peer: window };
    let mut calls = Calls::new(4, 8, windows);
    let request = Announcement { form, reply, ..request(id(0, 0)) };
    let minute = Duration::from_secs(60);
    calls.admit(Instant::now(), request, minute, |_| Some(route)).map(|admitted| admitted.forms)
}

#[test]
fn a_call_in_another_form_than_its_methods_is_unimplemented_unless_its_caller_does_not_know_it() {
    const FORMS: [Form; 2] = [Form::Whole, Form::Stream];
    for (route, shape) in [
        ("route", [Form::Whole, Form::Whole]),
        ("upload", [Form::Stream, Form::Whole]),
        ("scan", [Form::Whole, Form::Stream]),
        ("upload scan", [Form::Stream, Form::Stream]),
    ] {
        for form in FORMS {
            for reply in FORMS {
                let found = forms(route, form, reply.into(), 1000);
                if [form, reply] == shape {
                    let as_called = Forms { request: form, reply: reply.into() };
                    assert_eq!(found.expect("its form"), as_called);
                } else {
                    assert_eq!(answer(found).code(), Code::Unimplemented, "{route}");
                }
            }
            let open = forms(route, form, ReplyForm::Either, 1000).expect("in any form");
            assert_eq!(open, Forms { request: form, reply: shape[1].into() }, "{route}");
        }
    }
}

#[test]
fn an_open_method_answers_as_its_caller_takes_it() {
    for form in [Form::Whole, Form::Stream] {
        for reply in [ReplyForm::Whole, ReplyForm::Stream, ReplyForm::Either] {
            let found = forms("open", form, reply, 1000).expect("in any form");
            assert_eq!(found, Forms { request: form, reply });
        }
    }
}

#[test]
fn a_client_without_a_window_is_given_no_streams() {
    let none = |route, reply| forms(route, Form::Whole, reply, 0);
    assert_eq!(answer(none("scan", ReplyForm::Stream)).code(), Code::Unimplemented);
    assert_eq!(answer(none("scan", ReplyForm::Either)).code(), Code::Unimplemented);
    assert_eq!(answer(none("open", ReplyForm::Stream)).code(), Code::Unimplemented);
    let whole = none("open", ReplyForm::Either).expect("as one message");
    assert_eq!(whole.reply, ReplyForm::Whole);
}
