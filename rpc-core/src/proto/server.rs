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

mod methods;
mod stopping;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::deadlines::{Deadlines, Timer, deadline_after};
use super::entrance::Entrance;
use crate::message::{CallId, Form, MethodId, ReplyForm};
use crate::proto::stream::{CallStreams, StreamWindows};
use crate::status::{Executed, Status};

use methods::Methods;
pub use stopping::{Cancelled, Stopped};
pub use streams::{Forms, Shape, Wanted};

/// All calls of one connection, seen from the callee.
#[derive(Debug)]
pub struct ServerCalls<R, H> {
    slots: Vec<Option<Slot<H>>>,
    running: usize,
    methods: Methods<R>,
    deadlines: Deadlines,
    /// Why no new calls are admitted.
    draining: Option<Status>,
    max_calls: usize,
    windows: StreamWindows,
    /// Of calls that have ended; to be dropped without the lock.
    over: Vec<CallStreams>,
}

/// What a method resolves to says which streams it has.
pub trait Streaming {
    /// Its shape.
    fn shape(&self) -> Shape;
}

#[derive(Debug)]
struct Slot<H> {
    generation: u32,
    state: State,
    /// Drops the handler's task. Kept when the handler has finished, until the task has handed its answer to the
    /// transport, which may be full.
    handle: Option<H>,
    /// Where its handler is entered, if something stands before that.
    entrance: Option<Arc<Entrance>>,
    /// Of a call that runs. Boxed, so that calls without any stay short.
    streams: Option<Box<CallStreams>>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Admitted { deadline: Instant },
    Entered { deadline: Instant },
    Finished(Executed),
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
    /// In what form the caller takes the reply.
    pub reply: ReplyForm,
}

/// A call that may run.
#[derive(Debug)]
pub struct Admitted<R, H> {
    /// What to run.
    pub route: R,
    /// In what forms it is called, and may answer.
    pub forms: Forms,
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

impl<R: Streaming + Clone, H> ServerCalls<R, H> {
    /// No calls yet; at most `max_calls` at a time, `max_methods` method numbers and streams with these windows, as
    /// HELLO announced.
    pub fn new(max_calls: u32, max_methods: u32, windows: StreamWindows) -> Self {
        Self {
            slots: Vec::new(),
            running: 0,
            methods: Methods::new(max_methods),
            deadlines: Deadlines::default(),
            draining: None,
            max_calls: max_calls as usize,
            windows,
            over: Vec::new(),
        }
    }

    /// Calls that were admitted and have not ended.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Takes no new calls from now on; each is answered with this, not executed. The first reason stays.
    pub fn drain(&mut self, why: Status) {
        self.draining.get_or_insert(why);
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
    ) -> Result<(R, Forms), Refusal> {
        let route = self.methods.route(request, resolve)?;
        self.check_slot(request.call)?;
        if let Some(why) = &self.draining {
            return Err(refuse(why.clone()));
        }
        let route = route?;
        let forms = route.shape().forms(request, self.windows).map_err(refuse)?;
        Ok((route, forms))
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
        let (route, forms) = self.announce(request, resolve)?;
        if timeout.is_zero() {
            return Err(refuse(Status::deadline_exceeded(
                "the deadline passed before the request reached the server",
            )));
        }
        let deadline = deadline_after(now, timeout);
        let superseded = self.occupy(request.call, State::Admitted { deadline });
        if let Some(streams) = forms.streams(self.windows)
            && let Some(slot) = self.slot(request.call)
        {
            slot.streams = Some(streams);
        }
        let timer = self.deadlines.handle_begin(deadline);
        Ok(Admitted { route, forms, deadline, timer, superseded })
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

    /// The handler is about to be entered, or what stands before it; then `entrance` is where the handler is. Not if the
    /// call was stopped or its deadline has passed.
    pub fn enter(&mut self, now: Instant, call: CallId, entrance: Option<&Arc<Entrance>>) -> Entry {
        match self.slot(call) {
            Some(slot) => match slot.state {
                State::Admitted { deadline } if now < deadline => {
                    slot.state = State::Entered { deadline };
                    slot.entrance = entrance.cloned();
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
        if let Some(entrance) = slot.entrance.take() {
            // Not closed: an interceptor that answers by itself may leave the call to a task.
            slot.state = State::Finished(entrance.so_far());
        }
        let messages = slot.streams.take().and_then(|mut streams| {
            let messages = streams.end_outgoing();
            self.over.push(*streams);
            messages
        });
        Answer::Send { in_flight: self.running, messages }
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

    /// Puts a new use into a slot; returns the handle of the use before.
    fn occupy(&mut self, call: CallId, state: State) -> Option<H> {
        let index = call.slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        let new = Slot {
            generation: call.generation,
            state,
            handle: None,
            entrance: None,
            streams: None,
        };
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

fn deadline(state: State) -> Option<Instant> {
    match state {
        State::Admitted { deadline } | State::Entered { deadline } => Some(deadline),
        State::Finished(_) => None,
    }
}

/// Whether generation `one` was before `other`; generations wrap.
fn is_older(one: u32, other: u32) -> bool {
    one != other && other.wrapping_sub(one) < u32::MAX / 2
}

fn refuse(status: Status) -> Refusal {
    Refusal::Answer(status.with_executed(Executed::No))
}

#[cfg(test)]
mod tests;
