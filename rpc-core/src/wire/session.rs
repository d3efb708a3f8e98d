//! What opens a session: the service `verbwire.Sessions`, which servers that keep sessions have.

use std::fmt;
use std::time::Duration;

use crate::message::SessionId;
use crate::proto::sessions::Opened;
use crate::service::{MethodDescriptor, ServiceDescriptor};

/// The service and its one method.
pub static SERVICE: ServiceDescriptor = ServiceDescriptor::new(
    "verbwire.Sessions",
    &[MethodDescriptor::new("Open", "/verbwire.Sessions/Open")],
);

/// The reply of `Open`; the request is empty.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct OpenReply {
    /// Its name.
    #[prost(fixed64, tag = "1")]
    pub session: u64,
    /// Its slots.
    #[prost(uint32, tag = "2")]
    pub slots: u32,
    /// How long it is kept without a call, in milliseconds.
    #[prost(uint64, tag = "3")]
    pub lease_ms: u64,
    /// The epoch that it belongs to.
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
}

impl fmt::Debug for OpenReply {
    /// Without the name, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenReply").field(&self.opened()).finish()
    }
}

impl OpenReply {
    /// What is said of a session that was opened.
    pub fn of(opened: &Opened) -> Self {
        let Opened { session, slots, lease, epoch } = *opened;
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        Self { session: session.0, slots, lease_ms, epoch }
    }

    /// What was said.
    pub fn opened(&self) -> Opened {
        Opened {
            session: SessionId(self.session),
            slots: self.slots,
            lease: Duration::from_millis(self.lease_ms),
            epoch: self.epoch,
        }
    }
}
