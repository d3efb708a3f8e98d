//! What asks for a second path: the service `verbwire.Paths`, which servers that listen for one have.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::service::{MethodDescriptor, ServiceDescriptor};
use crate::transport::Ticket;

/// The service and its one method.
pub static SERVICE: ServiceDescriptor = ServiceDescriptor::new(
    "verbwire.Paths",
    &[MethodDescriptor::new("Offer", "/verbwire.Paths/Offer")],
);

/// Most targets that are looked at in an offer: a machine has few devices with few addresses each.
pub const MAX_TARGETS: usize = 16;

/// The request of `Offer`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OfferRequest {
    /// Schemes of transports that the client could take.
    #[prost(string, repeated, tag = "1")]
    pub transports: Vec<String>,
}

/// The reply of `Offer`: where the second path begins, and what admits to it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct OfferReply {
    /// Targets in the order in which to try them.
    #[prost(string, repeated, tag = "1")]
    pub targets: Vec<String>,
    /// 16 bytes. A secret.
    #[prost(bytes = "bytes", tag = "2")]
    pub token: Bytes,
    /// Number of the connection that this came over, as the server's HELLO says it.
    #[prost(fixed64, tag = "3")]
    pub connection: u64,
    /// How long the token admits, in milliseconds.
    #[prost(uint64, tag = "4")]
    pub lifetime_ms: u64,
}

impl OfferReply {
    /// How long the token admits.
    pub fn lifetime(&self) -> Duration {
        Duration::from_millis(self.lifetime_ms)
    }

    /// What a client of this incarnation shows. `None` if the token has another length than it must.
    pub fn ticket(&self, incarnation: u64) -> Option<Ticket> {
        let token = self.token.as_ref().try_into().ok()?;
        Some(Ticket { token, connection: self.connection, incarnation })
    }
}

impl fmt::Debug for OfferReply {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfferReply")
            .field("targets", &self.targets)
            .field("connection", &self.connection)
            .field("lifetime", &self.lifetime())
            .finish_non_exhaustive()
    }
}
