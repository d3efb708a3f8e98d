//! What a connection's requests are checked against before they run.
//!
//! Owns the call table, and the refusals of requests whose bodies were never received: the transport
//! asks for a place while it reads and must not be called back, so the driver sends them afterwards.

use std::mem;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::placing::{Landing, LongRequest, Placer};
use super::router::{Route, Router};
use super::size::Size;
use crate::buf::Body;
use crate::compression::{EncodingId, Inbound, Receiver};
use crate::config::Limits;
use crate::message::{CallId, Head};
use crate::proto::server::{Admitted, Announcement, Refusal, ServerCalls, Wanted};
use crate::proto::sessions::no_sessions;
use crate::proto::stream::StreamWindows;
use crate::status::{Executed, Status};
use crate::transport::{Announced, Placement, PlacementHook};

/// The call table of a server's connection.
pub(super) type Calls = ServerCalls<Route, AbortHandle>;

/// What was decided while the transport received.
#[derive(Default)]
pub(super) struct Notes {
    /// Requests that were refused before their bodies were received.
    pub(super) refused: Vec<(CallId, Refusal)>,
    /// Calls that cannot go on, since a message of their requests cannot be received.
    pub(super) failed: Vec<(CallId, Status)>,
}

/// Where requests come in.
pub(super) struct Intake {
    router: Arc<Router>,
    calls: Mutex<Calls>,
    notes: Mutex<Notes>,
    placer: Placer,
    max_landing_bytes: usize,
    compressed: Inbound,
}

impl Intake {
    pub(super) fn new(
        router: Arc<Router>,
        placer: Placer,
        limits: &Limits,
        stream_window: u32,
    ) -> Self {
        let (max_calls, max_methods) = (limits.max_concurrent_calls, limits.max_interned_methods);
        // The peer's is known when HELLO has come.
        let windows = StreamWindows { local: stream_window, peer: 0 };
        let calls = ServerCalls::new(max_calls, max_methods, windows);
        Self {
            router,
            calls: Mutex::new(calls),
            notes: Mutex::default(),
            placer,
            max_landing_bytes: limits.max_landing_bytes,
            compressed: Inbound::new(limits, Receiver::Server),
        }
    }

    /// Works on the call table under its lock. Keep it short.
    pub(super) fn with_calls<R>(&self, work: impl FnOnce(&mut Calls) -> R) -> R {
        work(&mut self.calls.lock())
    }

    /// The body of a message that came.
    pub(super) fn receive(&self, encoding: EncodingId, body: Body) -> Body {
        self.compressed.receive(encoding, body)
    }

    /// Admits a request that is there as a whole, or says why not.
    pub(super) fn admit(
        &self,
        now: Instant,
        head: &Head,
    ) -> Result<Admitted<Route, AbortHandle>, Refusal> {
        let (announcement, timeout) = announcement(head)?;
        self.with_calls(|calls| {
            calls.admit(now, announcement, timeout, |path| self.router.resolve(path))
        })
    }

    /// Refuses a call with a slot where nothing is kept that would keep it from running twice.
    pub(super) fn check_slot(&self) -> Result<(), Status> {
        if self.router.has_sessions() { Ok(()) } else { Err(no_sessions()) }
    }

    /// What was decided since the last time.
    pub(super) fn take_notes(&self) -> Notes {
        mem::take(&mut self.notes())
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock()
    }

    /// A long message of a stream. Nothing of it is decided by its call's not being known: that may wait to be admitted.
    fn place_message(&self, call: CallId, announced: Announced<'_>) -> Placement {
        let (wanted, waiting) = self.with_calls(|calls| (calls.wants(call), calls.waiting_bytes()));
        if wanted == Wanted::No {
            return Placement::Refuse;
        }
        match self.check_room(announced, waiting) {
            Ok(()) => Placement::Pool,
            Err(status) => {
                self.notes().failed.push((call, status));
                Placement::Refuse
            }
        }
    }

    fn place_request(&self, announced: Announced<'_>) -> Result<Landing, Refusal> {
        let (announcement, _) = announcement(announced.head)?;
        let resolve = |path: &str| self.router.resolve(path);
        let (route, forms) = self.with_calls(|calls| calls.announce(announcement, resolve))?;
        let method = route.method(forms);
        let path = route.path().map_or(method.path, |path| path);
        let request = LongRequest::new(method, path, announced.len, announced.metadata);
        let placed = self.check_room(announced, 0).and_then(|()| self.placer.place(&request));
        placed.map_err(|status| Refusal::Answer(status.with_executed(Executed::No)))
    }

    /// Whether a message may come beside what is on its way and those that wait in streams, of so many bytes.
    fn check_room(&self, announced: Announced<'_>, waiting: usize) -> Result<(), Status> {
        let in_use = announced.landing.saturating_add(waiting);
        if in_use.saturating_add(announced.len) > self.max_landing_bytes {
            let whose = match waiting {
                0 => "other requests of this connection",
                _ => {
                    "other requests of this connection and messages that its streams have not read"
                }
            };
            return Err(Status::resource_exhausted(format!(
                "request message of {} does not fit: {} of max_landing_bytes of {} are in use by \
                 {whose}; send fewer at a time, or raise it at the server",
                Size(announced.len),
                Size(in_use),
                Size(self.max_landing_bytes)
            )));
        }
        Ok(())
    }
}

impl PlacementHook for Intake {
    fn place(&self, announced: Announced<'_>) -> Placement {
        if let Head::Message { call, .. } = announced.head {
            return self.place_message(*call, announced);
        }
        let refusal = match self.place_request(announced) {
            Ok(Landing::Pooled) => return Placement::Pool,
            Ok(Landing::Owned) => return Placement::Owned,
            Err(refusal) => refusal,
        };
        let call = announced.head.call().unwrap_or(CallId { slot: 0, generation: 0 });
        self.notes().refused.push((call, refusal));
        Placement::Refuse
    }

    fn stream_deadline(&self, call: CallId) -> Option<Instant> {
        self.with_calls(|calls| calls.stream_deadline(call))
    }

    fn lost(&self, head: &Head, why: &str) {
        if let Some(call) = head.call() {
            self.notes().failed.push((call, Status::resource_exhausted(why)));
        }
    }
}

/// What a REQUEST asks; any other head is none that a client sends with a body.
fn announcement(head: &Head) -> Result<(Announcement<'_>, std::time::Duration), Refusal> {
    match head {
        Head::Request { call, method, path, timeout, form, reply, slot: _ } => {
            let path = path.as_deref();
            let (call, method, form, reply) = (*call, *method, *form, *reply);
            Ok((Announcement { call, method, path, form, reply }, *timeout))
        }
        other => {
            Err(Refusal::Violation(format!("the client sent {other:?} where a request belongs")))
        }
    }
}
