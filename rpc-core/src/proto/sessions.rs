//! Calls that run at most once, however often they are repeated: sessions, their slots, and the answers that are kept.
//!
//! ```text
//!            arrive, a higher sequence         finish
//!   Idle ───────────────────────────► Running ────────► Done (answer kept, or too long for that)
//!    ▲                                   │
//!    └───────────────────────────────────┘ finish, the handler was not entered
//! ```
//!
//! A client opens a session and numbers the calls that it makes in each of the session's slots, one at a time. A repeat has
//! the numbers of the first attempt, and comes over any connection. So a slot has one call, whose answer is kept until
//! the next one, and memory is bounded by sessions and slots.
//!
//! Owns which of these calls run, and what is kept of them. Runs nothing and keeps no clock: `R` is what waits for a call that
//! runs, `A` an answer; both are opaque here.

mod fingerprint;
mod limits;
mod refusal;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::message::{SessionId, SlotUse};
use crate::proto::deadlines::expired_before_execution;
use crate::status::{Executed, Status};

pub use fingerprint::Fingerprint;
pub use limits::SessionLimits;
use refusal::{another_method, another_request, not_kept, over, stale, too_many, unknown};

pub(crate) use refusal::no_sessions;

/// All sessions of a server.
#[derive(Debug)]
pub struct SessionTable<R, A> {
    limits: SessionLimits,
    epoch: u64,
    sessions: BTreeMap<SessionId, Session<R, A>>,
    kept_bytes: usize,
}

#[derive(Debug)]
struct Session<R, A> {
    epoch: u64,
    /// The number of the connection that it was opened over.
    opener: Option<u64>,
    last_used: Instant,
    slots: BTreeMap<u32, Slot<R, A>>,
}

#[derive(Debug)]
struct Slot<R, A> {
    sequence: u64,
    /// The path of the method.
    method: Cow<'static, str>,
    request: Fingerprint,
    state: State<R, A>,
}

#[derive(Debug)]
enum State<R, A> {
    /// The handler was never entered.
    Idle,
    Running(R),
    Done(Kept<A>),
}

/// What is left of a call that has ended.
#[derive(Debug)]
enum Kept<A> {
    Answer {
        answer: A,
        len: usize,
    },
    /// It has this length.
    TooLong(usize),
}

/// A session that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Its name.
    pub session: SessionId,
    /// Its slots.
    pub slots: u32,
    /// How long it is kept without a call.
    pub lease: Duration,
    /// The epoch that it belongs to.
    pub epoch: u64,
}

/// What becomes of an attempt.
#[derive(Debug)]
pub enum Arrival<R, A> {
    /// It runs. Whatever ran in its slot before is to be stopped: its caller does not want it any more.
    Run {
        /// What waits for it.
        running: R,
        /// What ran.
        superseded: Option<R>,
    },
    /// The call runs already.
    Wait(R),
    /// The call has ended so.
    Answer(A),
    /// It does not run.
    Refuse(Status),
}

impl<R: Clone, A: Clone> SessionTable<R, A> {
    /// No sessions, in epoch 0.
    pub fn new(limits: SessionLimits) -> Self {
        Self { limits, epoch: 0, sessions: BTreeMap::new(), kept_bytes: 0 }
    }

    /// The epoch of sessions that are opened now.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes of all answers that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Opens a session for the connection with this number, with a name that `draw` gives. Whoever has the name may use the session: it must not be guessed.
    ///
    /// # Errors
    ///
    /// There are as many as may be, of all or of this connection, or `draw` fails.
    pub fn open(
        &mut self,
        now: Instant,
        opener: Option<u64>,
        mut draw: impl FnMut() -> Result<u64, Status>,
    ) -> Result<Opened, Status> {
        if self.check_room(opener).is_err() {
            self.expire(now);
            self.check_room(opener)?;
        }
        let mut session = SessionId(draw()?);
        while self.sessions.contains_key(&session) {
            session = SessionId(draw()?);
        }
        let new = Session { epoch: self.epoch, opener, last_used: now, slots: BTreeMap::new() };
        self.sessions.insert(session, new);
        let SessionLimits { slots, lease, .. } = self.limits;
        Ok(Opened { session, slots, lease, epoch: self.epoch })
    }

    /// Sessions of earlier epochs are over: of their calls none is entered any more. What runs goes on.
    pub fn set_epoch(&mut self, epoch: u64) {
        if epoch <= self.epoch {
            return;
        }
        self.epoch = epoch;
        for session in self.sessions.values_mut() {
            self.kept_bytes -= session.forget_answers();
        }
    }

    /// An attempt at a call of the method with this path has come, with this request. If it is to run, `begin` makes what waits for it, or says
    /// why it cannot: then nothing has happened.
    pub fn arrive(
        &mut self,
        now: Instant,
        this: SlotUse,
        method: Cow<'static, str>,
        request: Fingerprint,
        begin: impl FnOnce() -> Result<R, Status>,
    ) -> Arrival<R, A> {
        if let Err(status) = self.check(now, this) {
            return Arrival::Refuse(status);
        }
        let session = self.sessions.get_mut(&this.session).expect("looked at before");
        session.last_used = now;
        let slot = session.slots.entry(this.slot).or_insert_with(|| Slot {
            sequence: this.sequence,
            method: method.clone(),
            request,
            state: State::Idle,
        });
        if this.sequence < slot.sequence {
            return Arrival::Refuse(stale(this));
        }
        if this.sequence == slot.sequence {
            if slot.method != method {
                return Arrival::Refuse(another_method(this, &method));
            }
            // What has not run has no answer that could be taken for this one's.
            if slot.request != request && !matches!(slot.state, State::Idle) {
                return Arrival::Refuse(another_request(this));
            }
            match &slot.state {
                State::Idle => {}
                State::Running(running) => return Arrival::Wait(running.clone()),
                State::Done(Kept::Answer { answer, .. }) => return Arrival::Answer(answer.clone()),
                State::Done(Kept::TooLong(len)) => {
                    return Arrival::Refuse(not_kept(*len, &self.limits));
                }
            }
        }
        let running = match begin() {
            Ok(running) => running,
            Err(status) => return Arrival::Refuse(status),
        };
        let state = State::Running(running.clone());
        let new = Slot { sequence: this.sequence, method, request, state };
        let old = std::mem::replace(slot, new).state;
        self.kept_bytes -= old.kept_bytes();
        let superseded = match old {
            State::Running(running) => Some(running),
            State::Idle | State::Done(_) => None,
        };
        Arrival::Run { running, superseded }
    }

    /// Whether this call runs, or has run: a repeat of it runs nothing. Nothing happens by asking.
    pub fn knows(&self, this: SlotUse) -> bool {
        let session = self.sessions.get(&this.session);
        let slot = session.and_then(|session| session.slots.get(&this.slot));
        slot.is_some_and(|slot| {
            slot.sequence == this.sequence && !matches!(slot.state, State::Idle)
        })
    }

    /// The handler of a call that runs is about to be entered: the moment of execution.
    ///
    /// # Errors
    ///
    /// It must not be any more: its deadline has passed, its session is over, or its slot has a newer call. Then it is
    /// not executed, which [`finish`](Self::finish) is to be told.
    pub fn enter(&self, now: Instant, this: SlotUse, deadline: Instant) -> Result<(), Status> {
        let session = self.sessions.get(&this.session).ok_or_else(unknown);
        let entered = session.and_then(|session| {
            self.check_epoch(session)?;
            let slot = session.slots.get(&this.slot);
            match slot {
                Some(Slot { sequence, state: State::Running(_), .. })
                    if *sequence == this.sequence => {}
                Some(_) => return Err(stale(this)),
                None => return Err(unknown()),
            }
            if now < deadline {
                return Ok(());
            }
            Err(expired_before_execution())
        });
        entered.map_err(|status| status.with_executed(Executed::No))
    }

    /// A call that ran has ended, with an answer of `len` bytes, which `keep` makes if there is room for it. One whose
    /// handler was not entered may run again.
    pub fn finish(
        &mut self,
        now: Instant,
        this: SlotUse,
        executed: Executed,
        len: usize,
        keep: impl FnOnce() -> A,
    ) {
        let has_room = len <= self.limits.max_kept_answer && self.make_room(now, len);
        let Some(session) = self.sessions.get_mut(&this.session) else { return };
        let Some(slot) = session.slots.get_mut(&this.slot) else { return };
        if slot.sequence != this.sequence || !matches!(slot.state, State::Running(_)) {
            return;
        }
        session.last_used = now;
        let is_over = session.epoch != self.epoch;
        slot.state = match executed {
            Executed::No => State::Idle,
            Executed::Maybe | Executed::Yes if has_room && !is_over => {
                self.kept_bytes += len;
                State::Done(Kept::Answer { answer: keep(), len })
            }
            Executed::Maybe | Executed::Yes => State::Done(Kept::TooLong(len)),
        };
    }

    /// Whether there is room for an answer, if need be that of sessions that have expired.
    fn make_room(&mut self, now: Instant, len: usize) -> bool {
        if self.kept_bytes.saturating_add(len) > self.limits.max_kept_bytes {
            self.expire(now);
        }
        self.kept_bytes.saturating_add(len) <= self.limits.max_kept_bytes
    }

    /// Whether one more session may be opened over this connection.
    fn check_room(&self, opener: Option<u64>) -> Result<(), Status> {
        let SessionLimits { max_sessions, max_sessions_per_connection, lease, .. } = self.limits;
        if self.sessions.len() >= max_sessions {
            return Err(too_many("the server", "max_sessions", max_sessions, lease));
        }
        let its = self.sessions.values().filter(|session| session.opener == opener).count();
        if its >= max_sessions_per_connection {
            let most = max_sessions_per_connection;
            return Err(too_many("the connection", "max_sessions_per_connection", most, lease));
        }
        Ok(())
    }

    /// Forgets the sessions whose lease is over, and those of earlier epochs, of whose calls none runs any more.
    fn expire(&mut self, now: Instant) {
        let (lease, epoch) = (self.limits.lease, self.epoch);
        let mut freed = 0;
        self.sessions.retain(|_, session| {
            let is_earlier = session.epoch != epoch && !session.is_running();
            let is_over = is_earlier || session.is_over(now, lease);
            if is_over {
                freed += session.forget_answers();
            }
            !is_over
        });
        self.kept_bytes -= freed;
    }

    /// Whether an attempt may look at its slot.
    fn check(&mut self, now: Instant, this: SlotUse) -> Result<(), Status> {
        if let Some(session) = self.sessions.get_mut(&this.session)
            && session.is_over(now, self.limits.lease)
        {
            self.kept_bytes -= session.forget_answers();
            self.sessions.remove(&this.session);
        }
        let session = self.sessions.get(&this.session).ok_or_else(unknown)?;
        self.check_epoch(session)?;
        if this.slot < self.limits.slots && this.sequence > 0 {
            return Ok(());
        }
        let message = format!(
            "slot {} with sequence {} is none of a session of {} slots: they are numbered from 0, sequences from 1",
            this.slot, this.sequence, self.limits.slots
        );
        Err(Status::invalid_argument(message).with_executed(Executed::No))
    }

    fn check_epoch(&self, session: &Session<R, A>) -> Result<(), Status> {
        if session.epoch == self.epoch {
            return Ok(());
        }
        Err(over(session.epoch, self.epoch))
    }
}

impl<R, A> Session<R, A> {
    /// Whether nothing was heard of it for as long as it is kept.
    fn is_over(&self, now: Instant, lease: Duration) -> bool {
        !self.is_running() && now.saturating_duration_since(self.last_used) > lease
    }

    fn is_running(&self) -> bool {
        self.slots.values().any(|slot| matches!(slot.state, State::Running(_)))
    }

    /// Forgets the answers, and says how many bytes they had.
    fn forget_answers(&mut self) -> usize {
        let mut freed = 0;
        for slot in self.slots.values_mut() {
            if let State::Done(kept) = &mut slot.state
                && let Kept::Answer { len, .. } = *kept
            {
                freed += len;
                *kept = Kept::TooLong(len);
            }
        }
        freed
    }
}

impl<R, A> State<R, A> {
    fn kept_bytes(&self) -> usize {
        match self {
            Self::Done(Kept::Answer { len, .. }) => *len,
            Self::Idle | Self::Running(_) | Self::Done(Kept::TooLong(_)) => 0,
        }
    }
}

#[cfg(test)]
mod tests;
