//! The callee's side of every call on one connection.
//!
//! ```text
//!          REQUEST admitted           enter              the handler returned
//!   (none) ───────────────► Admitted ──────► Entered ───────────────────────► Finished
//!                              │                │  CANCEL, deadline, newer use of the slot     ▲
//!                              └────────────────┴──────────── handler dropped ───────────────┘
//! ```
//!
//! Owns which calls run, what method numbers mean, and what was refused before it was received. `R` is
//! what a method resolves to, `H` the handle that drops a running handler; both are opaque here.
//!
//! A slot remembers the last generation that used it, for two reasons: a CANCEL that comes after the
//! answer must not claim that nothing ran, and a REQUEST whose long body comes after its own CANCEL must not
//! run.

mod streams;

use std::time::Duration;

use tokio::time::Instant;

use super::deadlines::{Deadlines, Timer, deadline_after};
use crate::message::{CallId, Form, MethodId};
use crate::proto::stream::{CallStreams, StreamWindows};
use crate::status::{Executed, Status};

pub use streams::{Shape, Wanted};

/// All calls of one connection, seen from the callee.
#[derive(Debug)]
pub struct ServerCalls<R, H> {
    slots: Vec<Option<Slot<H>>>,
    running: usize,
    methods: Vec<Option<Method<R>>>,
    deadlines: Deadlines,
    /// Why no new calls are admitted.
    draining: Option<String>,
    max_calls: usize,
    max_methods: usize,
    windows: StreamWindows,
    /// Of calls that have ended; to be dropped without the lock.
    over: Vec<CallStreams>,
}

/// What a method resolves to says which streams it has.
pub trait Streaming: Sized {
    /// Its shape.
    fn shape(&self) -> Shape;

    /// What answers where the request has this form: what stands for methods of any shape has something for each form.
    fn in_form(self, _request: Form) -> Self {
        self
    }
}

#[derive(Debug)]
struct Slot<H> {
    generation: u32,
    state: State,
    /// Drops the handler's task. Kept when the handler has finished, until the task has handed its answer to the
    /// transport, which may be full.
    handle: Option<H>,
    /// Of a call that runs. Boxed, so that calls without any stay short.
    streams: Option<Box<CallStreams>>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Admitted { deadline: Instant },
    Entered { deadline: Instant },
    Finished(Executed),
}

#[derive(Debug, Clone)]
struct Method<R> {
    path: Box<str>,
    /// `None`: nothing is served at the path.
    route: Option<R>,
}

/// What a REQUEST says.
#[derive(Debug, Clone, Copy)]
pub struct Announcement<'a> {
    /// The call.
    pub call: CallId,
    /// Its method's number.
    pub method: MethodId,
    /// Its method's path, if the REQUEST carries it.
    pub path: Option<&'a str>,
    /// Whether its body is the request.
    pub form: Form,
}

/// A call that may run.
#[derive(Debug)]
pub struct Admitted<R, H> {
    /// What to run.
    pub route: R,
    /// When it must be done.
    pub deadline: Instant,
    /// Whether the driver must wake for this deadline.
    pub timer: Timer,
    /// The handler that used the slot before and may still be running.
    pub superseded: Option<H>,
}

/// Why a REQUEST does not run.
#[derive(Debug)]
pub enum Refusal {
    /// It is answered with this status; `executed` is `No`.
    Answer(Status),
    /// The caller has given the call up already; there is nothing to answer.
    Late,
    /// The caller broke the protocol; the connection ends.
    Violation(String),
}

/// A call that was stopped before its handler returned.
#[derive(Debug, PartialEq, Eq)]
pub struct Stopped<H> {
    /// The call.
    pub call: CallId,
    /// Drops its handler. `None` where it had not been spawned yet.
    pub handle: Option<H>,
    /// Whether the handler was entered.
    pub executed: Executed,
}

impl<R: Streaming + Clone, H> ServerCalls<R, H> {
    /// No calls yet; at most `max_calls` at a time, `max_methods` method numbers and streams with these windows, as
    /// HELLO announced.
    pub fn new(max_calls: u32, max_methods: u32, windows: StreamWindows) -> Self {
        Self {
            slots: Vec::new(),
            running: 0,
            methods: Vec::new(),
            deadlines: Deadlines::default(),
            draining: None,
            max_calls: max_calls as usize,
            max_methods: max_methods as usize,
            windows,
            over: Vec::new(),
        }
    }

    /// Calls that were admitted and have not ended.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Takes no new calls from now on, for this reason.
    pub fn drain(&mut self, why: String) {
        self.draining = Some(why);
    }

    /// Looks at a REQUEST before its body is there. What it says of methods is learned, since the answer
    /// to it tells the caller that the number is known.
    ///
    /// # Errors
    ///
    /// The REQUEST cannot run; its body need not be received.
    pub fn announce(
        &mut self,
        request: Announcement<'_>,
        resolve: impl FnOnce(&str) -> Option<R>,
    ) -> Result<R, Refusal> {
        let route = self.route(request, resolve)?;
        self.check_slot(request.call)?;
        if let Some(why) = &self.draining {
            return Err(refuse(Status::unavailable(why.as_str())));
        }
        let route = route?.in_form(request.form);
        match route.shape().refuses(request.form, self.windows) {
            None => Ok(route),
            Some(status) => Err(refuse(status)),
        }
    }

    /// Admits a REQUEST that is there as a whole.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub fn admit(
        &mut self,
        now: Instant,
        request: Announcement<'_>,
        timeout: Duration,
        resolve: impl FnOnce(&str) -> Option<R>,
    ) -> Result<Admitted<R, H>, Refusal> {
        let route = self.announce(request, resolve)?;
        if timeout.is_zero() {
            return Err(refuse(Status::deadline_exceeded(
                "the deadline passed before the request reached the server",
            )));
        }
        let deadline = deadline_after(now, timeout);
        let superseded = self.occupy(request.call, State::Admitted { deadline });
        if let Some(streams) = route.shape().streams(self.windows)
            && let Some(slot) = self.slot(request.call)
        {
            slot.streams = Some(streams);
        }
        let timer = self.deadlines.handle_begin(deadline);
        Ok(Admitted { route, deadline, timer, superseded })
    }

    /// Keeps the handle of an admitted call's task; gives it back if the call has been stopped meanwhile.
    pub fn attach(&mut self, call: CallId, handle: H) -> Option<H> {
        match self.slot(call) {
            Some(slot) => {
                slot.handle = Some(handle);
                None
            }
            None => Some(handle),
        }
    }

    /// The task of a call has nothing more to do for it: it gets its handle back, to run another call. `None` if somebody
    /// else has taken it, to stop the task.
    pub fn detach(&mut self, call: CallId) -> Option<H> {
        self.slot(call)?.handle.take()
    }

    /// The handler is about to be entered. Not if the call was stopped or its deadline has passed.
    pub fn enter(&mut self, now: Instant, call: CallId) -> Entry {
        match self.slot(call) {
            Some(Slot { state, .. }) => match *state {
                State::Admitted { deadline } if now < deadline => {
                    *state = State::Entered { deadline };
                    Entry::Go
                }
                _ => Entry::Stop,
            },
            None => Entry::Stop,
        }
    }

    /// The handler returned. Says whether its answer is wanted.
    pub fn handle_returned(&mut self, call: CallId) -> Answer {
        let Some(slot) = self.finish(call, Executed::Yes) else { return Answer::Discard };
        let messages = slot.streams.take().and_then(|mut streams| {
            let messages = streams.end_outgoing();
            self.over.push(*streams);
            messages
        });
        Answer::Send { in_flight: self.running, messages }
    }

    /// The call cannot go on. `None` if it does not run.
    pub fn stop(&mut self, call: CallId) -> Option<Stopped<H>> {
        let executed = entered(self.slot(call)?.state);
        let handle = self.finish(call, executed)?.handle.take();
        self.retire(call);
        Some(Stopped { call, handle, executed })
    }

    /// The caller gave up. Says what to answer, and what to stop.
    ///
    /// # Errors
    ///
    /// A slot beyond the limit, as words for a protocol violation.
    pub fn handle_cancel(&mut self, call: CallId) -> Result<Cancelled<H>, String> {
        self.check_range(call)?;
        let none = |executed| Cancelled { executed, handle: None };
        match self.slots.get(call.slot as usize).and_then(Option::as_ref) {
            Some(slot) if is_older(call.generation, slot.generation) => Ok(none(Executed::Maybe)),
            Some(Slot { generation, state: State::Finished(executed), .. })
                if *generation == call.generation =>
            {
                Ok(none(*executed))
            }
            Some(slot) if slot.generation == call.generation => {
                let executed = entered(slot.state);
                let handle = self.finish(call, executed).and_then(|slot| slot.handle.take());
                self.retire(call);
                Ok(Cancelled { executed, handle })
            }
            // Its REQUEST is not here yet, and shall not run if it still comes.
            _ => {
                let handle = self.occupy(call, State::Finished(Executed::No));
                Ok(Cancelled { executed: Executed::No, handle })
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Stops the calls whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<Stopped<H>> {
        if !self.deadlines.is_due(now) {
            return Vec::new();
        }
        let mut stopped = Vec::new();
        for (entry, number) in self.slots.iter_mut().zip(0..) {
            let Some(slot) = entry else { continue };
            if deadline(slot.state).is_some_and(|deadline| deadline <= now) {
                let executed = entered(slot.state);
                slot.state = State::Finished(executed);
                let call = CallId { slot: number, generation: slot.generation };
                stopped.push(Stopped { call, handle: slot.handle.take(), executed });
                self.over.extend(slot.streams.take().map(|streams| *streams));
            }
        }
        self.running -= stopped.len();
        let earliest = self.slots.iter().flatten().filter_map(|slot| deadline(slot.state)).min();
        self.deadlines.handle_looked(earliest);
        stopped
    }

    /// Every handle that is left, of tasks that run or wait to hand over their answer.
    pub fn take_handles(&mut self) -> Vec<H> {
        let streams = self.slots.iter_mut().flatten().filter_map(|slot| slot.streams.take());
        self.over.extend(streams.map(|streams| *streams));
        self.slots.iter_mut().flatten().filter_map(|slot| slot.handle.take()).collect()
    }

    fn slot(&mut self, call: CallId) -> Option<&mut Slot<H>> {
        let slot = self.slots.get_mut(call.slot as usize)?.as_mut()?;
        (slot.generation == call.generation).then_some(slot)
    }

    /// Marks a running call as finished. `None` if it does not run.
    fn finish(&mut self, call: CallId, executed: Executed) -> Option<&mut Slot<H>> {
        let slot = self.slot(call).filter(|slot| deadline(slot.state).is_some())?;
        slot.state = State::Finished(executed);
        self.running -= 1;
        self.slot(call)
    }

    /// Takes the streams of a call that has ended out of its slot.
    fn retire(&mut self, call: CallId) {
        let streams = self.slot(call).and_then(|slot| slot.streams.take());
        self.over.extend(streams.map(|streams| *streams));
    }

    /// Puts a new use into a slot; returns the handle of the use before.
    fn occupy(&mut self, call: CallId, state: State) -> Option<H> {
        let index = call.slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        let new = Slot { generation: call.generation, state, handle: None, streams: None };
        let mut old = self.slots[index].replace(new);
        let streams = old.as_mut().and_then(|old| old.streams.take());
        self.over.extend(streams.map(|streams| *streams));
        self.running += usize::from(deadline(state).is_some());
        self.running -= usize::from(old.as_ref().is_some_and(|old| deadline(old.state).is_some()));
        old.and_then(|old| old.handle)
    }

    fn check_range(&self, call: CallId) -> Result<(), String> {
        if (call.slot as usize) < self.max_calls {
            return Ok(());
        }
        Err(format!(
            "call {call} uses a slot beyond max_concurrent_calls of {}; slots are numbered from 0",
            self.max_calls
        ))
    }

    fn check_slot(&self, call: CallId) -> Result<(), Refusal> {
        self.check_range(call).map_err(Refusal::Violation)?;
        match self.slots.get(call.slot as usize).and_then(Option::as_ref) {
            None => Ok(()),
            Some(slot) if is_older(call.generation, slot.generation) => Err(Refusal::Late),
            Some(slot) if slot.generation != call.generation => Ok(()),
            Some(Slot { state: State::Finished(Executed::No), .. }) => Err(Refusal::Late),
            Some(_) => Err(Refusal::Violation(format!("call {call} was requested twice"))),
        }
    }

    /// What the request's method resolves to. The outer error is a violation; the inner one a status.
    fn route(
        &mut self,
        request: Announcement<'_>,
        resolve: impl FnOnce(&str) -> Option<R>,
    ) -> Result<Result<R, Refusal>, Refusal> {
        let number = request.method.0 as usize;
        let Some(path) = request.path else {
            let known = self.methods.get(number).and_then(Option::as_ref);
            let method = known.ok_or_else(|| {
                Refusal::Violation(format!("method number {number} was never given a path"))
            })?;
            return Ok(method.route.clone().ok_or_else(|| unimplemented_at(&method.path)));
        };
        if number > self.max_methods {
            return Err(Refusal::Violation(format!(
                "method number {number} exceeds max_interned_methods of {}",
                self.max_methods
            )));
        }
        if request.method != MethodId::NONE {
            let known = self.intern(number, path, resolve)?;
            return Ok(known.route.clone().ok_or_else(|| unimplemented_at(path)));
        }
        Ok(resolve(path).ok_or_else(|| unimplemented_at(path)))
    }

    fn intern(
        &mut self,
        number: usize,
        path: &str,
        resolve: impl FnOnce(&str) -> Option<R>,
    ) -> Result<&Method<R>, Refusal> {
        if self.methods.len() <= number {
            self.methods.resize_with(number + 1, || None);
        }
        let method = self.methods[number]
            .get_or_insert_with(|| Method { path: path.into(), route: resolve(path) });
        if *method.path != *path {
            return Err(Refusal::Violation(format!(
                "method number {number} stands for {} and cannot become {path}",
                method.path
            )));
        }
        Ok(method)
    }
}

/// Whether a handler may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// It may.
    Go,
    /// The call is over.
    Stop,
}

/// What happens with a handler's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is sent.
    Send {
        /// Calls that still run on this connection.
        in_flight: usize,
        /// How many messages its stream had, if it has one.
        messages: Option<u32>,
    },
    /// The call was stopped and has been answered.
    Discard,
}

/// The result of a CANCEL.
#[derive(Debug, PartialEq, Eq)]
pub struct Cancelled<H> {
    /// What CANCELLED says.
    pub executed: Executed,
    /// Drops the handler, where one runs.
    pub handle: Option<H>,
}

fn deadline(state: State) -> Option<Instant> {
    match state {
        State::Admitted { deadline } | State::Entered { deadline } => Some(deadline),
        State::Finished(_) => None,
    }
}

fn entered(state: State) -> Executed {
    match state {
        State::Admitted { .. } => Executed::No,
        State::Entered { .. } => Executed::Yes,
        State::Finished(executed) => executed,
    }
}

/// Whether generation `one` was before `other`; generations wrap.
fn is_older(one: u32, other: u32) -> bool {
    one != other && other.wrapping_sub(one) < u32::MAX / 2
}

fn refuse(status: Status) -> Refusal {
    Refusal::Answer(status.with_executed(Executed::No))
}

fn unimplemented_at(path: &str) -> Refusal {
    refuse(Status::unimplemented(format!(
        "{path} is not served here: the service was not added to the server, or the server is an older \
         version of it"
    )))
}

#[cfg(test)]
mod tests;
