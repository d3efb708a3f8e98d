//! What the peer of a connection takes: what it would refuse is refused here.

use super::Shared;
use crate::buf::Body;
use crate::compression::Compression;
use crate::message::MethodId;
use crate::status::{Executed, Status};

impl Shared {
    /// Refuses a body that the peer would refuse.
    pub(in crate::client) fn check_size(&self, len: usize) -> Result<(), Status> {
        if len <= self.peer_max_message_size {
            return Ok(());
        }
        Err(crate::server::too_large("request", len, self.peer_max_message_size, "server")
            .with_executed(Executed::No))
    }

    /// A message as it is sent, compressed as its request says or the channel does. Refuses one that the peer would refuse.
    pub(in crate::client) fn outgoing(
        &self,
        body: Body,
        compression: Option<Compression>,
    ) -> Result<Body, Status> {
        let compression = compression.unwrap_or(self.compression);
        let prepared = self.takes.prepare(body, compression, |len| self.check_size(len));
        prepared.map_err(|status| status.with_executed(Executed::No))
    }

    /// Refuses metadata that the peer would refuse.
    pub(in crate::client) fn check_metadata(&self, len: usize) -> Result<(), Status> {
        if len <= self.peer_max_metadata_size {
            return Ok(());
        }
        let max = self.peer_max_metadata_size;
        Err(crate::server::too_much_metadata("request", len, max, "server")
            .with_executed(Executed::No))
    }

    /// Whether the peer takes streams of requests.
    pub(in crate::client) fn check_streams(&self) -> Result<(), Status> {
        if self.windows.peer > 0 {
            return Ok(());
        }
        let message = "the server takes no streams of requests; upgrade it";
        Err(Status::unimplemented(message).with_executed(Executed::No))
    }

    /// The number of a method on this connection; the numbers of a channel are for all of its connections.
    pub(super) fn known(&self, method: MethodId) -> MethodId {
        if method.0 <= self.peer_max_methods { method } else { MethodId::NONE }
    }
}
