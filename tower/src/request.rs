//! A call as tower's services see it.

use std::fmt;

use verbwire_core::client::Client;
use verbwire_core::interceptor::{Next, Payload};
use verbwire_core::service::MethodDescriptor;
use verbwire_core::{Executed, Request, Status};

/// A call that has not been made: its method and its request, the message encoded.
pub struct TowerRequest {
    request: Request<Payload>,
    next: Next,
}

impl TowerRequest {
    /// A call of a unary method, by its index in the client's descriptor. [`layer`](crate::layer()) makes those of
    /// generated clients.
    ///
    /// # Panics
    ///
    /// If the service has no such method.
    pub fn new(client: &Client, method: usize, request: Request<Payload>) -> Self {
        Self::of(request, client.next(method))
    }

    pub(crate) fn of(request: Request<Payload>, next: Next) -> Self {
        Self { request, next }
    }

    pub(crate) fn into_parts(self) -> (Request<Payload>, Next) {
        (self.request, self.next)
    }

    /// The method that is called.
    pub fn method(&self) -> &'static MethodDescriptor {
        self.next.method()
    }

    /// The request: metadata, deadline, extensions, the encoded message.
    pub fn request(&self) -> &Request<Payload> {
        &self.request
    }

    /// The same, to change it.
    pub fn request_mut(&mut self) -> &mut Request<Payload> {
        &mut self.request
    }

    /// The same call, to make it once more: it shares the message and has the same metadata and deadline, but no
    /// extensions. `None` if the request is a stream, which goes by only once.
    pub fn copy(&self) -> Option<Self> {
        Some(Self { request: self.request.copy()?, next: self.next.clone() })
    }

    /// Whether the call may be made again after it has failed so, without doing anything twice that must not be: its handler
    /// never ran, or its method is idempotent. Not when its replies, in a stream, have begun.
    pub fn may_repeat(&self, status: &Status) -> bool {
        self.next.can_run() && (status.executed() == Executed::No || self.method().idempotent)
    }
}

impl fmt::Debug for TowerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TowerRequest");
        out.field("method", &self.method().path).field("request", &self.request).finish()
    }
}
