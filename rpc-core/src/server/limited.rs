//! Bounds on the calls that run at a time, and what callers beyond them are told.

mod gate;
mod streams;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::buf::Body;
use crate::request::Request;
use crate::service::{
    HandlerFuture, NamedService, Service, ServiceDescriptor, StreamHandlerFuture, StreamInput,
    StreamOutput, enter, enter_streaming,
};
use crate::status::{Executed, Status};

use super::sessions::Sessions;
pub(super) use gate::{Gate, Held};
use streams::{Admitted, Holding};

/// When callers who were turned away may try again, unless that is set: long enough for most calls to end.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What runs at a time. A call beyond a bound is turned away at once: `ResourceExhausted`, not executed, with a
/// [`RetryInfo`](crate::error_details::RetryInfo) that says when to try again. No call waits, so an overloaded server stays quick for those whom it
/// serves. Of a call with a slot that a server turns away it says executed *maybe*: another attempt at it may run. A repeat of
/// one that runs, or of which the answer is kept, runs nothing and is not turned away.
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

    /// Calls whose handlers run. One whose replies are a stream runs until that has ended.
    pub fn max_running_calls(mut self, calls: usize) -> Self {
        self.calls = Some(calls);
        self
    }

    /// Bytes of the requests whose handlers run, as they were received; of one that came compressed, those that it has when it is
    /// decompressed, for which that is done twice. A call beyond [`max_running_calls`](Self::max_running_calls) is turned away
    /// before that, and one beyond the bytes once it shows that they are more than are free. A request of more is let in when no
    /// other is there. Of a stream of requests it is the message that the handler has taken last; one for which there is no
    /// room is not refused, but waits for it, and its sender with it. It reserves nothing meanwhile: calls that fit begin
    /// before it, messages of other streams after it. Messages that wait in their streams are not counted: each connection
    /// bounds them, by `stream_window` and `max_landing_bytes`.
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

/// A service with [`LoadLimits`] of its own.
pub struct Limited<S: ?Sized> {
    service: Arc<S>,
    gate: Arc<Gate>,
    /// The sessions behind a gate of the server.
    sessions: Option<Sessions>,
}

impl<S: Service> Limited<S> {
    /// Bounds `service`.
    pub fn new(service: S, limits: &LoadLimits) -> Self {
        let gate = Gate::new(limits, service.descriptor().name);
        Self { service: Arc::new(service), gate: Arc::new(gate), sessions: None }
    }
}

impl<S: Service + ?Sized> Limited<S> {
    /// `service` with its sessions behind a gate of the server.
    pub(super) fn behind(service: Arc<S>, gate: Arc<Gate>, sessions: Option<Sessions>) -> Self {
        Self { service, gate, sessions }
    }

    /// Lets a call in with a request that counts with the bytes that it has for its handler. Those of one that is compressed only
    /// show as it is decompressed, of which nothing is kept, since the handler may hand it on as it is.
    fn enter(&self, request: &Body) -> Result<Held, Status> {
        self.gate.enter_within(|most| request.decompressed_len_within(most))
    }
}

impl<S: Service + ?Sized> Service for Limited<S> {
    fn descriptor(&self) -> &ServiceDescriptor {
        self.service.descriptor()
    }

    fn call_streaming(&self, method: usize, request: Request<StreamInput>) -> StreamHandlerFuture {
        let held = match request.get_ref() {
            StreamInput::Whole(body) => self.enter(body),
            StreamInput::Stream(_) => self.gate.enter(0),
        };
        let held = match held {
            Ok(held) => held,
            Err(status) => return Box::pin(std::future::ready(Err(status))),
        };
        let request = request.map(|input| match input {
            StreamInput::Stream(requests) => {
                StreamInput::Stream(Box::new(Admitted::new(requests, Arc::clone(&self.gate))))
            }
            whole @ StreamInput::Whole(_) => whole,
        });
        let running = enter_streaming(&*self.service, method, request);
        Box::pin(async move {
            let response = running.await?;
            Ok(response.map(|output| match output {
                StreamOutput::Stream(replies) => {
                    StreamOutput::Stream(Box::new(Holding::new(replies, held)))
                }
                whole @ StreamOutput::Whole(_) => whole,
            }))
        })
    }

    fn call(&self, method: usize, mut request: Request<Body>) -> HandlerFuture {
        match self.enter(request.get_ref()) {
            Ok(held) => {
                let held = Arc::new(held);
                // Such a call goes on when this one is dropped.
                request.hold(Arc::clone(&held) as _);
                let running = enter(&*self.service, method, request);
                Box::pin(async move {
                    let _held = held;
                    running.await
                })
            }
            Err(status) => {
                let executed = match (request.slot(), &self.sessions) {
                    (Some(this), Some(sessions)) if sessions.knows(this) => {
                        return enter(&*self.service, method, request);
                    }
                    // Another attempt may be on its way.
                    (Some(_), Some(_)) => Executed::Maybe,
                    _ => Executed::No,
                };
                Box::pin(std::future::ready(Err(status.with_executed(executed))))
            }
        }
    }

    fn is_layer(&self) -> bool {
        true
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
