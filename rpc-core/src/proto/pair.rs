//! Both sides of calls against each other: random events in any order, over a wire on which messages with long bodies
//! are overtaken. Callers may or may not know the form of the method; some are wrong about it.
//!
//! What must hold, whatever happens: neither side sees the other break a rule; each call ends once, on both sides; what
//! waits at a receiver stays below its window and one message; whoever waits is woken when there is something for it; in
//! the end nothing of any call is left.

mod callee;
mod caller;
mod task;

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::Instant;

use super::client::ClientCalls;
use super::server::{Forms, ServerCalls, Shape, Streaming};
use super::stream::StreamWindows;
use crate::buf::Body;
use crate::message::{CallId, Form, Head, Message, MethodId, ReplyForm};
use crate::status::{Code, Status};
use callee::Callee;
use caller::Caller;

const WINDOW: u32 = 1000;
const MAX_CALLS: u32 = 4;
const LONGEST: usize = 3000;

const SHAPES: [Shape; 5] = [
    Shape::Known { request: Form::Whole, reply: Form::Whole },
    Shape::Known { request: Form::Stream, reply: Form::Whole },
    Shape::Known { request: Form::Whole, reply: Form::Stream },
    Shape::Known { request: Form::Stream, reply: Form::Stream },
    Shape::Open,
];

const PATHS: [&str; 5] = ["/s.S/One", "/s.S/Up", "/s.S/Down", "/s.S/Both", "/s.S/Any"];

const FORMS: [Forms; 6] = [
    Forms { request: Form::Whole, reply: ReplyForm::Whole },
    Forms { request: Form::Stream, reply: ReplyForm::Whole },
    Forms { request: Form::Whole, reply: ReplyForm::Stream },
    Forms { request: Form::Stream, reply: ReplyForm::Stream },
    Forms { request: Form::Whole, reply: ReplyForm::Either },
    Forms { request: Form::Stream, reply: ReplyForm::Either },
];

impl Streaming for Shape {
    fn shape(&self) -> Shape {
        *self
    }
}

struct Pair {
    now: Instant,
    client: ClientCalls,
    server: ServerCalls<Shape, CallId>,
    callers: BTreeMap<(u32, u32), Caller>,
    callees: BTreeMap<(u32, u32), Callee>,
    to_server: Vec<Message>,
    to_client: Vec<Message>,
    /// Slots that the caller's side may use.
    free: u32,
}

/// What happens next. Numbers pick one of those that there are.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin { method: usize, forms: usize, seconds: u64 },
    Feed(usize, usize),
    EndRequests(usize),
    Read(usize),
    Cancel(usize),
    CancelSent,
    Drop(usize),
    Fail(usize),
    ToServer(usize),
    ToClient(usize),
    Enter(usize),
    Answer(usize, usize),
    Take(usize),
    StopReading(usize),
    Return(usize, bool),
    TimePasses(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = any::<usize>;
    let len = || prop_oneof![3 => 0..300_usize, 1 => 0..LONGEST];
    let step = prop_oneof![
        2 => (0..4_usize, 1..100_u64)
            .prop_map(|(method, seconds)| Step::Begin { method, forms: method, seconds }),
        4 => (0..PATHS.len(), 0..FORMS.len(), 1..100_u64)
            .prop_map(|(method, forms, seconds)| Step::Begin { method, forms, seconds }),
        8 => (number(), len()).prop_map(|(pick, len)| Step::Feed(pick, len)),
        2 => number().prop_map(Step::EndRequests),
        8 => number().prop_map(Step::Read),
        1 => number().prop_map(Step::Cancel),
        2 => Just(Step::CancelSent),
        1 => number().prop_map(Step::Drop),
        1 => number().prop_map(Step::Fail),
        12 => number().prop_map(Step::ToServer),
        12 => number().prop_map(Step::ToClient),
        4 => number().prop_map(Step::Enter),
        8 => (number(), len()).prop_map(|(pick, len)| Step::Answer(pick, len)),
        8 => number().prop_map(Step::Take),
        1 => number().prop_map(Step::StopReading),
        2 => (number(), any::<bool>()).prop_map(|(pick, is_ok)| Step::Return(pick, is_ok)),
        1 => (0..20_u64).prop_map(Step::TimePasses),
    ];
    prop::collection::vec(step, 0..300)
}

fn pick<T>(among: &BTreeMap<(u32, u32), T>, pick: usize) -> Option<CallId> {
    let (slot, generation) = *among.keys().nth(pick.checked_rem(among.len())?)?;
    Some(CallId { slot, generation })
}

fn key(call: CallId) -> (u32, u32) {
    (call.slot, call.generation)
}

/// Takes one message off the wire: any one in front of which are only such with bodies, which take their time.
fn arrive(wire: &mut Vec<Message>, pick: usize) -> Option<Message> {
    let with_bodies =
        wire.iter().take_while(|message| matches!(message.head, Head::Message { .. })).count();
    let reach = (with_bodies + 1).min(wire.len());
    Some(wire.remove(pick.checked_rem(reach)?))
}

fn body(len: usize) -> Body {
    Bytes::from(vec![7; len]).into()
}

impl Pair {
    fn new() -> Self {
        let windows = StreamWindows { local: WINDOW, peer: WINDOW };
        Self {
            now: Instant::now(),
            client: ClientCalls::default(),
            server: ServerCalls::new(MAX_CALLS, 8, windows),
            callers: BTreeMap::new(),
            callees: BTreeMap::new(),
            to_server: Vec::new(),
            to_client: Vec::new(),
            free: MAX_CALLS,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin { method, forms, seconds } => {
                self.begin(method, FORMS[forms], Duration::from_secs(seconds));
            }
            Step::Feed(number, len) => self.feed(number, len),
            Step::EndRequests(number) => self.end_requests(number),
            Step::Read(number) => self.read(number),
            Step::Cancel(number) => {
                pick(&self.callers, number).into_iter().for_each(|call| self.client.cancel(call));
            }
            Step::CancelSent => self.cancel_sent(),
            Step::Drop(number) => self.drop_call(number),
            Step::Fail(number) => {
                let call = pick(&self.callers, number);
                let status = || Status::invalid_argument("the user's stream failed");
                call.into_iter().for_each(|call| self.client.fail(call, status()));
            }
            Step::ToServer(number) => self.arrive_at_server(number),
            Step::ToClient(number) => self.arrive_at_client(number),
            Step::Enter(number) => self.enter(number),
            Step::Answer(number, len) => self.answer(number, len),
            Step::Take(number) => self.take(number),
            Step::StopReading(number) => {
                // Who collects a stream reads it to its end.
                let call = pick(&self.callees, number)
                    .filter(|call| self.callees[&key(*call)].collecting.is_none());
                if let Some(call) = call {
                    self.server.close_requests(call);
                    self.callees.get_mut(&key(call)).expect("picked").reads = false;
                }
            }
            Step::Return(number, is_ok) => self.returns(number, is_ok),
            Step::TimePasses(seconds) => self.time_passes(seconds),
        }
        // As a driver does: who waits on what is over is woken.
        let over = self.server.take_over();
        over.into_iter().for_each(|mut streams| streams.wakers().for_each(Waker::wake));
    }

    fn time_passes(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        for (_, waker) in self.client.handle_timeout(self.now, || None) {
            waker.into_iter().for_each(Waker::wake);
        }
        for stopped in self.server.handle_timeout(self.now) {
            self.callees.remove(&key(stopped.call));
            let (call, executed) = (stopped.call, stopped.executed);
            let code = Code::DeadlineExceeded;
            let head = Head::Response { call, code, executed, messages: None };
            self.to_client.push(Message::bare(head));
        }
    }

    /// Everything comes to its end: handlers return, what is under way arrives, callers take what is there.
    fn finish(&mut self) {
        for _ in 0..1000 {
            let is_quiet = self.to_server.is_empty() && self.to_client.is_empty();
            if is_quiet && self.callers.is_empty() && self.client.poll_cancel().is_none() {
                if self.callees.is_empty() {
                    return;
                }
                // Callers end at their deadlines without a word; these calls do so at the server's.
                self.step(Step::TimePasses(1000));
            }
            for number in 0..MAX_CALLS as usize {
                self.step(Step::ToServer(0));
                self.step(Step::ToClient(0));
                self.step(Step::EndRequests(number));
                self.step(Step::Take(number));
                self.step(Step::Enter(number));
                self.step(Step::Return(number, true));
                self.step(Step::Read(number));
                self.step(Step::CancelSent);
            }
        }
    }

    fn assert_nothing_is_left(&mut self) {
        assert!(self.callers.is_empty(), "calls that never end: {:?}", self.callers);
        assert_eq!((self.server.running(), self.free), (0, MAX_CALLS));
        drop(self.server.take_handles());
        assert!(self.server.take_over().is_empty(), "streams of calls that are over");
        let begun = self.client.begin(MethodId(1), self.now, Waker::noop().clone());
        assert_eq!(begun.expect("the connection is open").in_flight, 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn calls_of_every_shape_end_once_and_leave_nothing_whatever_happens(steps in steps()) {
        let mut pair = Pair::new();
        steps.into_iter().for_each(|step| pair.step(step));
        pair.finish();
        pair.assert_nothing_is_left();
    }
}
