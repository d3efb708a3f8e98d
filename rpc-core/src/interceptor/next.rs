//! What is behind an interceptor.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::{Outcome, Payload};
use crate::request::Request;
use crate::service::MethodDescriptor;
use crate::status::{Executed, Status};
use crate::transport::BoxFuture;

/// The rest of a call: further interceptors, and then the channel or the handler.
///
/// It can be cloned, to run the call again.
#[derive(Clone)]
pub struct Next {
    method: &'static MethodDescriptor,
    side: Side,
    rest: Arc<dyn Rest>,
    ran: Arc<Ran>,
}

/// Where an interceptor stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Before a channel.
    Client,
    /// Before a service.
    Server,
}

/// What comes behind the last interceptor.
pub(crate) trait Rest: Send + Sync + 'static {
    fn run(&self, request: Request<Payload>) -> BoxFuture<'static, Outcome>;
}

/// What is known of whether the handler ran, over all runs of the rest.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    has_begun: AtomicBool,
    /// The most of all runs that have ended, as a number.
    executed: AtomicU8,
}

/// One run of the rest. Dropped before its end, it may have reached the handler.
struct Run<'a> {
    ran: &'a Ran,
    executed: Executed,
}

impl Next {
    pub(crate) fn new(
        method: &'static MethodDescriptor,
        side: Side,
        rest: Arc<dyn Rest>,
    ) -> (Self, Arc<Ran>) {
        let ran = Arc::<Ran>::default();
        (Self { method, side, rest, ran: Arc::clone(&ran) }, ran)
    }

    /// The method that is called.
    pub fn method(&self) -> &'static MethodDescriptor {
        self.method
    }

    /// The side that this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Runs the rest of the call.
    ///
    /// # Errors
    ///
    /// How the call failed. Whatever status an interceptor makes of it, whether the handler ran is kept.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels what it runs.
    pub async fn run(self, request: Request<Payload>) -> Outcome {
        let mut run = self.ran.begin();
        let outcome = self.rest.run(request).await;
        run.executed = match &outcome {
            Ok(_) => Executed::Yes,
            Err(status) => status.executed(),
        };
        outcome
    }
}

impl Ran {
    /// Whether the rest of the call has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// The status with which an intercepted call ends, when no run of its rest goes on.
    pub(crate) fn status(&self, status: Status) -> Status {
        status.with_executed(match self.executed.load(Ordering::Relaxed) {
            0 => Executed::No,
            1 => Executed::Maybe,
            _ => Executed::Yes,
        })
    }

    fn begin(&self) -> Run<'_> {
        self.has_begun.store(true, Ordering::Relaxed);
        Run { ran: self, executed: Executed::Maybe }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let number = match self.executed {
            Executed::No => 0,
            Executed::Maybe => 1,
            Executed::Yes => 2,
        };
        self.ran.executed.fetch_max(number, Ordering::Relaxed);
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("method", &self.method.path).field("side", &self.side).finish()
    }
}
