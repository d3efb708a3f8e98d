//! Bounds on the calls that run at a time, and what callers beyond them are told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::size::Size;
use crate::buf::Body;
use crate::error_details::{ErrorDetails, RetryInfo};
use crate::request::Request;
use crate::service::{
    HandlerFuture, NamedService, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput,
    no_streams_through,
};
use crate::status::{Executed, Status};

/// When callers who were turned away may try again, unless that is set: long enough for most calls to end.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What runs at a time. A call beyond a bound is turned away at once: `ResourceExhausted`, not executed, with a
/// [`RetryInfo`] that says when to try again. Nothing waits, so an overloaded server stays quick for those whom it
/// serves.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct LoadLimits {
    calls: Option<usize>,
    bytes: Option<usize>,
    retry_after: Duration,
}

impl Default for LoadLimits {
    fn default() -> Self {
        Self { calls: None, bytes: None, retry_after: RETRY_AFTER }
    }
}

impl LoadLimits {
    /// No bounds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls whose handlers run.
    pub fn max_running_calls(mut self, calls: usize) -> Self {
        self.calls = Some(calls);
        self
    }

    /// Bytes of the requests whose handlers run, as they were received. A request of more is let in when no other
    /// is there.
    pub fn max_running_bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// When callers who were turned away shall try again. 100 ms.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = delay;
        self
    }

    pub(super) fn is_none(&self) -> bool {
        self.calls.is_none() && self.bytes.is_none()
    }
}

/// Lets calls in, for all services that share it.
#[derive(Debug)]
pub(super) struct Gate {
    calls: Option<Room>,
    bytes: Option<Room>,
    retry_after: Duration,
    whose: &'static str,
}

#[derive(Debug)]
struct Room {
    limit: usize,
    free: Arc<Semaphore>,
}

/// What a call holds while it runs.
#[derive(Debug)]
struct Held {
    _calls: Option<OwnedSemaphorePermit>,
    _bytes: Option<OwnedSemaphorePermit>,
}

impl Gate {
    /// A gate of a server or service, which is how it calls itself.
    pub(super) fn new(limits: &LoadLimits, whose: &'static str) -> Self {
        let room = |limit: usize| {
            // As many as can be asked for at once.
            let limit = limit.min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
            Room { limit, free: Arc::new(Semaphore::new(limit)) }
        };
        Self {
            calls: limits.calls.map(room),
            bytes: limits.bytes.map(room),
            retry_after: limits.retry_after,
            whose,
        }
    }

    fn enter(&self, len: usize) -> Result<Held, Status> {
        let whose = self.whose;
        let calls = Room::take(self.calls.as_ref(), 1).map_err(|limit| {
            self.refusal(format!("{whose} runs max_running_calls of {limit} calls already"))
        })?;
        let bytes = Room::take(self.bytes.as_ref(), len).map_err(|limit| {
            self.refusal(format!(
                "a request of {} does not fit beside the others that {whose} runs within \
                 max_running_bytes of {}",
                Size(len),
                Size(limit)
            ))
        })?;
        Ok(Held { _calls: calls, _bytes: bytes })
    }

    fn refusal(&self, message: String) -> Status {
        let details = ErrorDetails::new().with(RetryInfo::after(self.retry_after));
        Status::resource_exhausted(format!("{message}; try again in {:?}", self.retry_after))
            .with_error_details(&details)
            .with_executed(Executed::No)
    }
}

impl Room {
    /// Takes `count` of what is free, or all there is where that is less; `Err` with the limit if it is not free.
    fn take(room: Option<&Self>, count: usize) -> Result<Option<OwnedSemaphorePermit>, usize> {
        let Some(Self { limit, free }) = room else {
            return Ok(None);
        };
        if *limit == 0 {
            return Err(0);
        }
        let count = u32::try_from(count.min(*limit)).expect("limits are cut to 32 bits");
        Arc::clone(free).try_acquire_many_owned(count).map(Some).map_err(|_full| *limit)
    }
}

/// A service with [`LoadLimits`] of its own.
pub struct Limited<S: ?Sized> {
    service: Arc<S>,
    gate: Arc<Gate>,
}

impl<S: Service> Limited<S> {
    /// Bounds `service`.
    pub fn new(service: S, limits: &LoadLimits) -> Self {
        let gate = Gate::new(limits, service.descriptor().name);
        Self { service: Arc::new(service), gate: Arc::new(gate) }
    }
}

impl<S: Service + ?Sized> Limited<S> {
    pub(super) fn behind(service: Arc<S>, gate: Arc<Gate>) -> Self {
        Self { service, gate }
    }
}

impl<S: Service + ?Sized> Service for Limited<S> {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.service.descriptor()
    }

    fn call_streaming(&self, _: usize, _: Request<StreamInput>) -> StreamHandlerFuture {
        no_streams_through("limits")
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        match self.gate.enter(request.get_ref().len()) {
            Ok(held) => {
                let running = self.service.call(method, request);
                Box::pin(async move {
                    let _held = held;
                    running.await
                })
            }
            Err(status) => Box::pin(std::future::ready(Err(status))),
        }
    }
}

impl<S: NamedService> NamedService for Limited<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: ?Sized> fmt::Debug for Limited<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limited").field(&self.gate).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_beyond_a_bound_is_turned_away_with_a_hint() {
        let limits = LoadLimits::new().max_running_calls(1).retry_after(Duration::from_secs(3));
        let gate = Gate::new(&limits, "the server");
        let held = gate.enter(1).expect("room");
        let status = gate.enter(1).expect_err("full");
        assert!(status.message().contains("max_running_calls of 1"), "{status}");
        let details = status.error_details().expect("the standard form");
        let delay = details.retry_info().and_then(RetryInfo::delay);
        assert_eq!(delay, Some(Duration::from_secs(3)));
        drop(held);
        assert!(gate.enter(1).is_ok());
    }

    #[test]
    fn a_request_of_more_than_the_bound_is_let_in_alone() {
        let gate = Gate::new(&LoadLimits::new().max_running_bytes(10), "the server");
        let small = gate.enter(1).expect("room");
        assert!(gate.enter(100).is_err());
        drop(small);
        let large = gate.enter(100).expect("alone");
        assert!(gate.enter(1).is_err());
        drop(large);
        assert!(gate.enter(5).is_ok() && gate.enter(10).is_ok());
    }

    #[test]
    fn a_bound_of_nothing_lets_nothing_in() {
        let gate = Gate::new(&LoadLimits::new().max_running_bytes(0), "the server");
        assert!(gate.enter(0).is_err());
    }
}
