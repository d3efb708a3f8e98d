//! A channel as a tower service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tower_service::Service;
use verbwire_core::interceptor::{Outcome, Payload};
use verbwire_core::{Channel, Response, Status, Turn};

use crate::request::TowerRequest;

/// A channel as a tower service: the innermost one of a stack.
///
/// It is ready when a call would not have to wait for its place among the calls of the connection, and keeps that place for
/// the next call or until it is dropped; a clone has none. It never fails to be ready: where the connection has ended, the
/// call says why.
pub struct TowerChannel {
    channel: Channel,
    turn: Taking,
}

/// A place on the connection.
enum Taking {
    None,
    Waiting(Pin<Box<dyn Future<Output = Turn> + Send>>),
    Taken(Turn),
}

impl TowerChannel {
    /// A service whose readiness is the channel's.
    pub fn new(channel: Channel) -> Self {
        Self { channel, turn: Taking::None }
    }

    /// The channel.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}

impl Service<TowerRequest> for TowerChannel {
    type Response = Response<Payload>;
    type Error = Status;
    type Future = TowerCall;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        loop {
            match &mut self.turn {
                Taking::None => self.turn = Taking::Waiting(Box::pin(self.channel.turn())),
                Taking::Waiting(turn) => {
                    self.turn = Taking::Taken(std::task::ready!(turn.as_mut().poll(cx)));
                }
                Taking::Taken(_) => return Poll::Ready(Ok(())),
            }
        }
    }

    fn call(&mut self, call: TowerRequest) -> TowerCall {
        let (mut request, next) = call.into_parts();
        if let Taking::Taken(turn) = std::mem::replace(&mut self.turn, Taking::None) {
            request.set_turn(turn);
        }
        TowerCall(Box::pin(next.run(request)))
    }
}

impl Clone for TowerChannel {
    fn clone(&self) -> Self {
        Self::new(self.channel.clone())
    }
}

impl fmt::Debug for TowerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TowerChannel").field(&self.channel).finish()
    }
}

/// A call that runs: a future of its encoded reply.
///
/// # Errors
///
/// How the call failed; [`executed`](Status::executed) says whether its handler ran.
///
/// # Cancel safety
///
/// Dropping it cancels the call.
#[must_use = "a call does nothing until it is awaited or polled"]
pub struct TowerCall(Pin<Box<dyn Future<Output = Outcome> + Send>>);

impl Future for TowerCall {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for TowerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TowerCall")
    }
}
