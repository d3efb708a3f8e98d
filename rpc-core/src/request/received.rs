//! What a handler learns of its request besides the message: where it came from, who sent it, memory for the reply.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::Request;
use crate::buf::Buffer;
use crate::compression::Outbound;
use crate::context::{self, Cancelled};
use crate::server::{too_large, too_much_metadata};
use crate::status::{Executed, Status};
use crate::transport::pressure::PressureWatch;
use crate::transport::{Path, PeerCertificates, Transport};

/// What a server knows of a request.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) deadline: Instant,
    pub(crate) origin: Origin,
}

/// Where a request came from, and where memory for its reply comes from.
#[derive(Clone)]
pub(crate) enum Origin {
    /// The caller's own task.
    InProcess,
    /// A connection.
    Connection(Arc<ConnectionOrigin>),
}

/// The part of an [`Origin`] that all requests of a connection share.
pub(crate) struct ConnectionOrigin {
    /// Its number among all connections, as HELLO says it.
    pub(crate) number: u64,
    /// The connection that it is the second path of.
    pub(crate) parent: Option<u64>,
    pub(crate) path: Path,
    pub(crate) who: Who,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) pressure: PressureWatch,
    /// Longest reply that the client accepts.
    pub(crate) max_reply: usize,
    /// Longest metadata that it accepts.
    pub(crate) max_metadata: usize,
    /// How messages to it may be compressed.
    pub(crate) takes: Outbound,
}

/// Who is at the other end of a connection, whichever of its paths a request takes.
#[derive(Clone, Default)]
pub(crate) struct Who {
    pub(crate) certificates: Option<PeerCertificates>,
    /// What the server's authentication found.
    pub(crate) identity: Option<Arc<dyn Any + Send + Sync>>,
}

impl ConnectionOrigin {
    /// Refuses a reply that the client would refuse.
    pub(crate) fn check_reply(&self, len: usize) -> Result<(), Status> {
        if len <= self.max_reply {
            return Ok(());
        }
        Err(too_large("reply", len, self.max_reply, "client").with_executed(Executed::Yes))
    }

    /// Refuses metadata of a reply that the client would refuse.
    pub(crate) fn check_metadata(&self, len: usize) -> Result<(), Status> {
        if len <= self.max_metadata {
            return Ok(());
        }
        Err(too_much_metadata("reply", len, self.max_metadata, "client")
            .with_executed(Executed::Yes))
    }
}

impl<T> Request<T> {
    /// In a handler: resolves when nobody waits for this call any more, for work that outlives the handler. The
    /// handler itself is dropped then and need not ask.
    ///
    /// To be called in the handler, or in a task that [`spawn`](crate::spawn) began; the future may be awaited
    /// anywhere. Elsewhere it never resolves.
    pub fn cancelled(&self) -> Cancelled {
        context::cancelled()
    }

    /// In a handler: the way the request came. `None` in process, and on a request that was not received.
    pub fn path(&self) -> Option<&Path> {
        match &self.received.as_ref()?.origin {
            Origin::InProcess => None,
            Origin::Connection(connection) => Some(&connection.path),
        }
    }

    /// In a handler: the certificates that the client has shown, where its connection asks for them (`tls://`). `None` where
    /// it does not, where the client has shown none, and in process.
    pub fn peer_certificates(&self) -> Option<&PeerCertificates> {
        match &self.received.as_ref()?.origin {
            Origin::InProcess => None,
            Origin::Connection(connection) => connection.who.certificates.as_ref(),
        }
    }

    /// In a handler: who calls, as the server's authentication has found (`Builder::authenticate`). `None` if it found
    /// something of another type, without one, and in process.
    pub fn identity<I: Send + Sync + 'static>(&self) -> Option<&I> {
        match &self.received.as_ref()?.origin {
            Origin::InProcess => None,
            Origin::Connection(connection) => connection.who.identity.as_ref()?.downcast_ref(),
        }
    }

    /// The number of the connection that it came over, whichever of its paths.
    pub(crate) fn connection(&self) -> Option<u64> {
        match &self.received.as_ref()?.origin {
            Origin::InProcess => None,
            Origin::Connection(connection) => Some(connection.parent.unwrap_or(connection.number)),
        }
    }

    /// In a handler: `len` zeroed bytes that the connection can send without a copy, to fill a large reply
    /// field in place.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if no reply can be that long, or if the transport's pool has no room before the
    /// call's deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing.
    pub async fn alloc(&self, len: usize) -> Result<Buffer, Status> {
        match &self.received {
            Some(Received { deadline, origin: Origin::Connection(connection) }) => {
                connection.check_reply(len)?;
                connection.transport.alloc(len, *deadline).await
            }
            _ => Buffer::zeroed(len),
        }
        .map_err(|error| error.to_status(Executed::Yes))
    }

    /// In a handler: how much memory requests that this process still holds pin of what its connection receives into, and
    /// when that changes. See [`Channel::memory_pressure`](crate::Channel::memory_pressure).
    pub fn memory_pressure(&self) -> PressureWatch {
        match &self.received {
            Some(Received { origin: Origin::Connection(connection), .. }) => {
                connection.pressure.clone()
            }
            _ => PressureWatch::none(),
        }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InProcess => f.write_str("in process"),
            Self::Connection(connection) => write!(f, "{}", connection.path),
        }
    }
}
