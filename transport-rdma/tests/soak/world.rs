//! What a run knows of itself: the plan, what happened to each call, and what was found wrong.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use verbwire_core::{Code, Executed};

use crate::plan::{Answer, CallPlan, Ending, Plan, Weather};

pub(crate) struct World {
    pub(crate) plan: Plan,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By call: how often its handler ran.
    runs: Vec<u32>,
    /// By call: how it ended.
    outcomes: Vec<Vec<Outcome>>,
    failures: Vec<String>,
}

/// How a call ended for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There was no connection to call on.
    NotBegun,
    Reply,
    Status(Code, Executed),
    Dropped,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let calls = plan.calls.len();
        let (runs, outcomes) = (vec![0; calls], vec![Vec::new(); calls]);
        let state = Mutex::new(State { runs, outcomes, failures: Vec::new() });
        Self { plan, begun: Instant::now(), state }
    }

    /// The plan of a call; `None` for a number that no call has.
    pub(crate) fn call(&self, number: u32) -> Option<&CallPlan> {
        self.plan.calls.get(number as usize)
    }

    /// Notes what was found wrong.
    pub(crate) fn fail(&self, what: impl Display) {
        let at = self.begun.elapsed();
        tracing::error!(?at, "wrong: {what}");
        self.state().failures.push(format!("after {at:?}: {what}"));
    }

    pub(crate) fn ran(&self, number: u32) {
        self.state().runs[number as usize] += 1;
    }

    pub(crate) fn ended(&self, number: u32, outcome: Outcome) {
        tracing::debug!(at = ?self.begun.elapsed(), number, ?outcome, "a call has ended");
        self.state().outcomes[number as usize].push(outcome);
    }

    /// Judges all calls, when no handler can run any more. How many got their reply, and what was found wrong.
    pub(crate) fn judge(&self) -> (usize, Vec<String>) {
        let mut state = self.state();
        let mut wrong = Vec::new();
        let mut replies = 0;
        for plan in &self.plan.calls {
            let number = plan.number as usize;
            let (runs, outcomes) = (state.runs[number], &state.outcomes[number]);
            replies += outcomes.iter().filter(|outcome| **outcome == Outcome::Reply).count();
            if let Some(why) = self.fault_of(plan, runs, outcomes) {
                wrong.push(format!(
                    "call {number} ended as {outcomes:?}, its handler ran {runs} times: {why}"
                ));
            }
        }
        let mut failures = std::mem::take(&mut state.failures);
        failures.append(&mut wrong);
        (replies, failures)
    }

    fn fault_of(&self, plan: &CallPlan, runs: u32, outcomes: &[Outcome]) -> Option<&'static str> {
        let [outcome] = outcomes else { return Some("a call ends exactly once") };
        if runs > 1 {
            return Some("a handler runs once at most");
        }
        match outcome {
            Outcome::NotBegun if runs > 0 => return Some("nobody called"),
            Outcome::Reply if runs == 0 => return Some("nobody replied"),
            Outcome::Status(_, Executed::No) if runs > 0 => return Some("it was executed"),
            Outcome::Status(_, Executed::Yes) if runs == 0 => return Some("it was not executed"),
            _ => {}
        }
        let fair = self.plan.weather == Weather::Fair && !self.is_as_planned(plan, *outcome);
        fair.then_some("in fair weather a call ends as planned")
    }

    /// Whether a call has ended as it must where nothing goes wrong.
    fn is_as_planned(&self, plan: &CallPlan, outcome: Outcome) -> bool {
        let max = self.plan.max_message;
        let too_long = |len: usize| len > max;
        let planned = if too_long(plan.request.shape.encoded_len(plan.number)) {
            Outcome::Status(Code::ResourceExhausted, Executed::No)
        } else if plan.answer == Answer::Fail {
            Outcome::Status(Code::FailedPrecondition, Executed::Yes)
        } else if too_long(plan.reply.shape.encoded_len(plan.number)) {
            Outcome::Status(Code::ResourceExhausted, Executed::Yes)
        } else {
            Outcome::Reply
        };
        let given_up = match outcome {
            Outcome::Dropped => matches!(plan.ending, Ending::Drop(_)),
            Outcome::Status(Code::Cancelled, _) => matches!(plan.ending, Ending::Cancel(_)),
            // Who waits for memory is told so shortly before the deadline.
            Outcome::Status(Code::DeadlineExceeded | Code::ResourceExhausted, _) => {
                plan.timeout.as_secs() < 1
            }
            _ => false,
        };
        outcome == planned || given_up
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
