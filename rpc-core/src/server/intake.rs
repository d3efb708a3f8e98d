//! What a connection's requests are checked against before they run.
//!
//! Owns the call table, and the refusals of requests whose bodies were never received: the transport
//! asks for a place while it reads and must not be called back, so the driver sends them afterwards.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::router::{Route, Router};
use super::size::Size;
use crate::config::Limits;
use crate::message::{CallId, Head};
use crate::proto::server::{Admitted, Announcement, Refusal, ServerCalls};
use crate::status::{Executed, Status};
use crate::transport::{Announced, Placement, PlacementHook};

/// The call table of a server's connection.
pub(super) type Calls = ServerCalls<Route, AbortHandle>;

/// Where requests come in.
pub(super) struct Intake {
    router: Arc<Router>,
    calls: Mutex<Calls>,
    refused: Mutex<Vec<(CallId, Refusal)>>,
    max_landing_bytes: usize,
}

impl Intake {
    pub(super) fn new(router: Arc<Router>, limits: &Limits) -> Self {
        let calls = ServerCalls::new(limits.max_concurrent_calls, limits.max_interned_methods);
        Self {
            router,
            calls: Mutex::new(calls),
            refused: Mutex::default(),
            max_landing_bytes: limits.max_landing_bytes,
        }
    }

    /// Works on the call table under its lock. Keep it short.
    pub(super) fn with_calls<R>(&self, work: impl FnOnce(&mut Calls) -> R) -> R {
        work(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// The requests that were refused before their bodies were received, since the last time.
    pub(super) fn take_refused(&self) -> Vec<(CallId, Refusal)> {
        mem::take(&mut self.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn check(&self, announced: Announced<'_>) -> Result<(), Refusal> {
        let (announcement, _) = announcement(announced.head)?;
        self.with_calls(|calls| calls.announce(announcement, |path| self.router.resolve(path)))?;
        if announced.landing.saturating_add(announced.len) > self.max_landing_bytes {
            let status = Status::resource_exhausted(format!(
                "request message of {} does not fit: {} of max_landing_bytes of {} are in use by \
                 other requests of this connection; send fewer at a time, or raise it at the server",
                Size(announced.len),
                Size(announced.landing),
                Size(self.max_landing_bytes)
            ));
            return Err(Refusal::Answer(status.with_executed(Executed::No)));
        }
        Ok(())
    }
}

impl PlacementHook for Intake {
    fn place(&self, announced: Announced<'_>) -> Placement {
        let Err(refusal) = self.check(announced) else {
            return Placement::Pool;
        };
        let call = announced.head.call().unwrap_or(CallId { slot: 0, generation: 0 });
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push((call, refusal));
        Placement::Refuse
    }
}

/// What a REQUEST asks; any other head is none that a client sends with a body.
fn announcement(head: &Head) -> Result<(Announcement<'_>, std::time::Duration), Refusal> {
    match head {
        Head::Request { call, method, path, timeout, .. } => {
            let path = path.as_deref();
            Ok((Announcement { call: *call, method: *method, path }, *timeout))
        }
        other => {
            Err(Refusal::Violation(format!("the client sent {other:?} where a request belongs")))
        }
    }
}
