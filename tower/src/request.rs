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
    /// never ran, its method is idempotent, or it has a [slot](Request::set_slot) and how it ended is not known. A call with
    /// a slot that is known to have run would have the same answer again. Not when its replies, in a stream, have begun.
    pub fn may_repeat(&self, status: &Status) -> bool {
        let is_safe = match status.executed() {
            Executed::No => true,
            Executed::Maybe => self.method().idempotent || self.request.slot().is_some(),
            Executed::Yes => self.method().idempotent,
        };
        is_safe && self.next.can_run()
    }
}

impl fmt::Debug for TowerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TowerRequest");
        out.field("method", &self.method().path).field("request", &self.request).finish()
    }
}

#[cfg(test)]
mod tests {
    use verbwire_core::message::{SessionId, SlotUse};
    use verbwire_core::service::{HandlerFuture, Service, ServiceDescriptor, unknown_method};
    use verbwire_core::{Body, Channel};

    use super::*;

    static DESCRIPTOR: ServiceDescriptor = ServiceDescriptor::new(
        "a.A",
        &[
            MethodDescriptor::new("Put", "/a.A/Put"),
            MethodDescriptor::new("Get", "/a.A/Get").idempotent(),
        ],
    );

    struct Nothing;

    impl Service for Nothing {
        fn descriptor(&self) -> &'static ServiceDescriptor {
            &DESCRIPTOR
        }

        fn call(&self, method: usize, _: Request<Body>) -> HandlerFuture {
            unknown_method(&DESCRIPTOR, method)
        }
    }

    #[test]
    fn a_call_with_a_slot_may_be_repeated_unless_it_is_known_to_have_run() {
        let client = Client::new(Channel::in_process(Nothing), &DESCRIPTOR);
        let may = |method, slot: Option<SlotUse>| {
            let mut request = Request::new(Payload::from(Body::new()));
            slot.into_iter().for_each(|slot| request.set_slot(slot));
            let call = TowerRequest::new(&client, method, request);
            [Executed::No, Executed::Maybe, Executed::Yes].map(|executed| {
                call.may_repeat(&Status::unavailable("gone").with_executed(executed))
            })
        };
        let slot = Some(SlotUse { session: SessionId(1), slot: 0, sequence: 1 });
        assert_eq!(may(0, None), [true, false, false]);
        assert_eq!(may(0, slot), [true, true, false]);
        assert_eq!(may(1, None), [true, true, true]);
    }
}
