//! Calls that run at most once, however often they are repeated.
//!
//! [`proto::sessions`](crate::proto::sessions) has the rules. Here they are joined to handlers: each runs in a task of its own,
//! which goes on when its connection is lost, and everyone who asks for its answer waits for that task. Owns those tasks.

mod opening;
mod running;

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::handler::Handler;
use super::limited::{Gate, Held, LoadLimits};
use crate::buf::Body;
use crate::config::Random;
use crate::message::SlotUse;
use crate::proto::sessions::{Arrival, Fingerprint, SessionLimits, SessionTable};
use crate::request::{Request, Response};
use crate::service::{
    HandlerFuture, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput, enter,
    enter_streaming, unknown_method,
};
use crate::status::{Executed, Status};
use crate::wire;

pub(super) use opening::Opening;
use running::Running;

/// The sessions of a server: what it keeps so that a call which is repeated runs once.
///
/// A client opens a session, and gives each call of it a use of a slot. The first attempt runs; a repeat, over this
/// connection or another one, waits for it, or has its answer. Cheap to clone: servers that share one know each other's calls.
///
/// A call with a slot goes on when its connection is lost or its caller cancels it, until its deadline or the next use of its
/// slot, and at most for `max_unattended` of the [`SessionLimits`], or until its server ends. What it answers is kept until then, as a copy.
///
/// The id of a session is a secret: whoever has it may use its slots, and is given the answers that are kept, if the server's
/// interceptors let the call in. They run before the sessions and see each attempt; a service's own do not see a repeat.
#[derive(Debug, Clone)]
pub struct Sessions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Mutex<SessionTable<Running, Arc<Outcome>>>,
    /// Bounds what runs.
    gate: Gate,
    max_unattended: Duration,
    /// In place of the system's.
    random: Option<Random>,
}

type Outcome = Result<Response<Body>, Status>;

impl Sessions {
    /// No sessions, in epoch 0.
    pub fn new(limits: SessionLimits) -> Self {
        Self::with_names(limits, None)
    }

    /// The same with ids from `random`; a seeded generator repeats a run exactly. For tests: such ids can be guessed from
    /// others, those of the system cannot.
    pub fn with_random(limits: SessionLimits, random: Random) -> Self {
        Self::with_names(limits, Some(random))
    }

    fn with_names(limits: SessionLimits, random: Option<Random>) -> Self {
        let max_unattended = limits.max_unattended;
        let load = LoadLimits::new()
            .max_running_calls(limits.max_running_calls)
            .max_running_bytes(limits.max_running_bytes);
        let gate = Gate::new(&load, "the table of sessions");
        let table = Mutex::new(SessionTable::new(limits));
        Self(Arc::new(Shared { table, gate, max_unattended, random }))
    }

    /// The name of a new session.
    fn draw_name(&self) -> Result<u64, Status> {
        match &self.0.random {
            Some(random) => Ok(random.next_u64()),
            None => getrandom::u64().map_err(|error| {
                let message = format!(
                    "the system has no random number for the id of a session: {error}; see getrandom(2)"
                );
                Status::internal(message).with_executed(Executed::Yes)
            }),
        }
    }

    /// The epoch of sessions that are opened now.
    pub fn epoch(&self) -> u64 {
        self.table().epoch()
    }

    /// Begins a later epoch: sessions of earlier ones are over, and of their calls none is entered any more, however long
    /// ago it was received. What runs goes on. An epoch that is not later changes nothing.
    pub fn set_epoch(&self, epoch: u64) {
        self.table().set_epoch(epoch);
    }

    /// Bytes of all answers that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.table().kept_bytes()
    }

    /// Whether this call runs, or has run: a repeat of it runs nothing.
    pub(super) fn knows(&self, this: SlotUse) -> bool {
        self.table().knows(this)
    }

    fn table(&self) -> MutexGuard<'_, SessionTable<Running, Arc<Outcome>>> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Sessions {
    fn default() -> Self {
        Self::new(SessionLimits::default())
    }
}

/// A service whose calls with slots run at most once.
#[derive(Clone)]
pub(super) struct Once {
    service: Arc<dyn Service>,
    sessions: Sessions,
    /// That of the server, if it has one. A repeat that is let in without a place may find that it has to run.
    server_gate: Option<Arc<Gate>>,
    /// Closed when the server has ended.
    server: watch::Receiver<()>,
}

impl Once {
    pub(super) fn new(
        service: Arc<dyn Service>,
        sessions: Sessions,
        server_gate: Option<Arc<Gate>>,
        server: watch::Receiver<()>,
    ) -> Self {
        Self { service, sessions, server_gate, server }
    }

    async fn run(self, method: usize, request: Request<Body>, this: SlotUse) -> Outcome {
        // An attempt may come compressed that did not before, and is the same call. Another one of them may run.
        let mut request = request
            .try_map(Body::decompressed)
            .map_err(|status: Status| status.with_executed(Executed::Maybe))?;
        let attempt = request.entrance().cloned();
        // Before there is anything that goes on.
        attempt.as_ref().map_or(Ok(()), |attempt| attempt.go_apart())?;
        let (tell, new) = Running::begin();
        let (mut held, mut room, len) = (request.take_held(), None, request.get_ref().len());
        let begin = || {
            if let (None, Some(gate)) = (&held, &self.server_gate) {
                let place = gate.enter(len).map_err(|full| full.with_executed(Executed::Maybe))?;
                held = Some(Arc::new(place));
            }
            room = Some(self.sessions.0.gate.enter(len)?);
            Ok(new)
        };
        let path = self.path(method, &request);
        let print = Fingerprint::of(request.get_ref());
        let arrival = self.sessions.table().arrive(Instant::now(), this, path, print, begin);
        let waiting = match arrival {
            Arrival::Run { running, superseded } => {
                // Before the call begins, which would else have nobody who waits for it.
                let waiting = running.clone().attend();
                if let Some(superseded) = &superseded {
                    superseded.stop.notify_one();
                }
                request.set_entrance(Some(Arc::clone(&running.entrance)));
                let sessions = self.sessions.clone();
                let execution = Execution {
                    sessions,
                    this,
                    running,
                    tell,
                    outcome: None,
                    _held: held,
                    _room: room,
                };
                tokio::spawn(execution.run(self, method, request, superseded));
                waiting
            }
            Arrival::Wait(running) => running.attend(),
            Arrival::Answer(answer) => return Outcome::clone(&answer),
            Arrival::Refuse(status) => return Err(status),
        };
        if let Some(attempt) = attempt {
            attempt.follow(waiting.entrance());
        }
        waiting.outcome().await
    }

    /// What the method is called by, also where one service answers for many.
    fn path(&self, method: usize, request: &Request<Body>) -> Cow<'static, str> {
        match request.called_path() {
            Some(path) => Cow::Owned(path.to_string()),
            None => Cow::Borrowed(self.descriptor().methods[method].path),
        }
    }
}

impl Service for Once {
    fn descriptor(&self) -> &ServiceDescriptor {
        self.service.descriptor()
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        match request.slot() {
            None => enter(&*self.service, method, request),
            Some(_) if method >= self.descriptor().methods.len() => {
                unknown_method(self.descriptor(), method)
            }
            Some(this) => Box::pin(self.clone().run(method, request, this)),
        }
    }

    fn call_streaming(&self, method: usize, request: Request<StreamInput>) -> StreamHandlerFuture {
        enter_streaming(&*self.service, method, request)
    }

    fn is_layer(&self) -> bool {
        true
    }
}

/// A call that runs, or that could not begin. Told to everyone and to the table when it is dropped.
struct Execution {
    sessions: Sessions,
    this: SlotUse,
    running: Running,
    tell: watch::Sender<Option<Arc<Outcome>>>,
    outcome: Option<Outcome>,
    /// What bounds the calls that run at a time, of the server and of all sessions.
    _held: Option<Arc<dyn Any + Send + Sync>>,
    _room: Option<Held>,
}

impl Execution {
    async fn run(
        mut self,
        once: Once,
        method: usize,
        request: Request<Body>,
        superseded: Option<Running>,
    ) {
        if let Some(superseded) = superseded {
            // Nothing ends this early, not even a newer call: that one waits for this one, and so for the oldest.
            superseded.ended().await;
        }
        let mut server = once.server.clone();
        let running = self.running.clone();
        let limit = self.sessions.0.max_unattended;
        self.outcome = tokio::select! {
            biased;
            _closed = server.changed() => None,
            () = running.stop.notified() => None,
            outcome = self.execute(&*once.service, method, request) => Some(outcome),
            () = running.unattended(limit) => Some(Err(unattended(limit, self.executed()))),
        };
    }

    async fn execute(
        &self,
        service: &dyn Service,
        method: usize,
        request: Request<Body>,
    ) -> Outcome {
        let deadline = request.deadline().ok_or_else(no_deadline)?;
        // No await between this and the first poll of the handler.
        self.sessions.table().enter(Instant::now(), self.this, deadline)?;
        let mut handler = Handler::enter(service, method, request, deadline);
        let returned = timeout_at(deadline, std::future::poll_fn(|cx| handler.poll(cx))).await;
        returned.unwrap_or_else(|_elapsed| {
            let message = "the deadline of the first attempt passed before the handler returned";
            Err(Status::deadline_exceeded(message).with_executed(self.running.entrance.stop()))
        })
    }
}

impl Execution {
    /// What to say of the handler, which is stopped.
    fn executed(&self) -> Executed {
        match self.running.entrance.stop() {
            Executed::No => Executed::No,
            // What it did until then is not known.
            Executed::Maybe | Executed::Yes => Executed::Maybe,
        }
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err(stopped(self.executed())));
        let outcome = Arc::new(outcome);
        let executed = outcome.as_ref().as_ref().map_or_else(Status::executed, |_| Executed::Yes);
        let keep = || Arc::new(copy(&outcome));
        self.sessions.table().finish(Instant::now(), self.this, executed, len(&outcome), keep);
        self.tell.send_replace(Some(outcome));
    }
}

/// The same answer in memory of its own: what is kept must not hold a device's.
fn copy(answer: &Outcome) -> Outcome {
    Ok(answer.clone()?.map(|body| body.copied()))
}

fn len(answer: &Outcome) -> usize {
    match answer {
        Ok(response) => {
            let said = [response.metadata(), response.trailers()];
            response.get_ref().len() + said.map(wire::metadata::encoded_len).iter().sum::<usize>()
        }
        Err(status) => {
            let said = wire::metadata::encoded_len(status.metadata());
            status.message().len() + status.details().len() + said
        }
    }
}

fn stopped(executed: Executed) -> Status {
    let message = "the handler was stopped: its slot was used for a newer call, which gives up this one, or its server ended; \
                   a newer call needs a slot of its own while this one is wanted";
    Status::aborted(message).with_executed(executed)
}

fn unattended(limit: Duration, executed: Executed) -> Status {
    let message = format!(
        "the handler was stopped: nobody had waited for its answer for max_unattended of {limit:?}"
    );
    Status::aborted(message).with_executed(executed)
}

/// A received request has a deadline, so that this is about a service that somebody calls by hand.
fn no_deadline() -> Status {
    Status::internal("a call with a slot needs a deadline").with_executed(Executed::No)
}

#[cfg(test)]
mod tests;
