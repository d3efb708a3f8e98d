//! Requests and responses: a message with what is said about it.

mod response;

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::buf::Buffer;
use crate::client::Turn;
use crate::compression::{Compression, Outbound};
use crate::context::{self, Cancelled};
use crate::extensions::{self, Extensions};
use crate::interceptor::Payload;
use crate::message::SlotUse;
use crate::metadata::{self, MetadataMap};
use crate::proto::deadlines::{deadline_after, expired_before_execution};
use crate::proto::entrance::Entrance;
use crate::proto::retry::RetryPolicy;
use crate::server::{too_large, too_much_metadata};
use crate::status::{Executed, Status};
use crate::transport::pressure::PressureWatch;
use crate::transport::{Path, PeerCertificates, Transport};

pub use response::Response;

/// A request: on the client a message with options, in a handler a message with where it came from.
#[derive(Debug)]
pub struct Request<T> {
    message: T,
    timeout: Option<Duration>,
    expected_reply: Option<u64>,
    /// `None` where the channel says it.
    wait_for_ready: Option<bool>,
    deadline_of: DeadlineOf,
    /// `None` where the channel says it.
    compression: Option<Compression>,
    received: Option<Received>,
    /// Boxed, because most requests have none, and all are moved.
    metadata: Option<Box<MetadataMap>>,
    /// Boxed for the same reason.
    slot: Option<Box<Slot>>,
    /// Boxed for the same reason.
    extensions: Option<Box<Extensions>>,
    /// Of a received request, where something stands before its handler.
    entrance: Option<Arc<Entrance>>,
}

/// The use of a slot that a call has, and on a server what bounds the calls that run. Such a call goes on when its connection
/// is lost, so that it takes this along; copies have it too, since any of them may be the one that runs.
#[derive(Debug, Clone)]
struct Slot {
    this: SlotUse,
    held: Option<Arc<dyn Any + Send + Sync>>,
}

/// Whose deadline a request has, besides its own timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum DeadlineOf {
    /// That of the handler that sends it.
    #[default]
    Handler,
    /// Nobody's.
    Nobody,
    /// It is known: the call has begun, and an interceptor has it.
    At(Instant),
}

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
    /// A request without options: the channel's default timeout applies.
    pub fn new(message: T) -> Self {
        Self::with_received(message, None, None)
    }

    /// The message.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to change it.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// Another message with the same options and origin.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Request<U> {
        let Ok(changed) = self.try_map(|message| Ok::<_, Infallible>(change(message)));
        changed
    }

    /// Another message with the same options and origin, unless `change` fails.
    pub(crate) fn try_map<U, E>(
        self,
        change: impl FnOnce(T) -> Result<U, E>,
    ) -> Result<Request<U>, E> {
        let Self {
            message,
            timeout,
            expected_reply,
            wait_for_ready,
            deadline_of,
            compression,
            received,
            metadata,
            slot,
            extensions,
            entrance,
        } = self;
        Ok(Request {
            message: change(message)?,
            timeout,
            expected_reply,
            wait_for_ready,
            deadline_of,
            compression,
            received,
            metadata,
            slot,
            extensions,
            entrance,
        })
    }

    /// Sets how long the call may take, from the moment the client method is called.
    ///
    /// It travels with the request and is enforced on both sides; the call ends with `DeadlineExceeded`.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// The timeout that was set, if one was.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The same request without the deadline of the handler that sends it.
    ///
    /// A call made inside a handler has what is left of that handler's deadline, or its own timeout where that is
    /// less. A detached one has its own timeout alone, or the channel's default.
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.deadline_of = DeadlineOf::Nobody;
        self
    }

    /// Says that the encoded reply will have at most `bytes` bytes, as far as the caller knows. Over RDMA, memory for a
    /// long reply then goes out with the request, and the reply needs no round trip for it. A longer reply is no
    /// error. Takes the place of the method's `expected_reply_size`.
    pub fn expect_reply(&mut self, bytes: u64) {
        self.expected_reply = Some(bytes);
    }

    /// The length of the reply, if one was set.
    pub fn expected_reply(&self) -> Option<u64> {
        self.expected_reply
    }

    /// Says whether the call waits, at most until its deadline, where its channel cannot connect for now. Else it fails at
    /// once with `Unavailable`, not executed, and the reason. While the channel connects, calls wait in any case. Takes the
    /// place of what the channel does by itself.
    pub fn set_wait_for_ready(&mut self, wait: bool) {
        self.wait_for_ready = Some(wait);
    }

    /// What was set.
    pub fn wait_for_ready(&self) -> Option<bool> {
        self.wait_for_ready
    }

    /// Says whether the request is compressed, of a stream each message: an [`Encoding`](crate::compression::Encoding), or
    /// [`Compression::NONE`]. Takes the place of what the channel does by itself. Means nothing to a service in this process.
    pub fn set_compression(&mut self, compression: impl Into<Compression>) {
        self.compression = Some(compression.into());
    }

    /// What was set.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// Makes this an attempt at the call that has this use of a slot, see [`Session`](crate::client::Session): of all
    /// attempts at it one runs, and the others have its answer. Only for calls without streams, to a server with
    /// [`Sessions`](crate::server::Sessions), which else refuses them.
    pub fn set_slot(&mut self, slot: SlotUse) {
        let held = self.take_held();
        self.slot = Some(Box::new(Slot { this: slot, held }));
    }

    /// The use of a slot that the call has.
    pub fn slot(&self) -> Option<SlotUse> {
        self.slot.as_deref().map(|slot| slot.this)
    }

    /// A received request has the slot that its head says.
    pub(crate) fn receive_slot(&mut self, slot: Option<Box<SlotUse>>) {
        self.slot = slot.map(|this| Box::new(Slot { this: *this, held: None }));
    }

    /// Keeps `held` for as long as the call goes on, if it has a slot.
    pub(crate) fn hold(&mut self, held: Arc<dyn Any + Send + Sync>) {
        if let Some(slot) = &mut self.slot {
            slot.held = Some(held);
        }
    }

    pub(crate) fn take_held(&mut self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.slot.as_mut()?.held.take()
    }

    /// Says where its handler is entered: `None` where to call the service is that.
    pub(crate) fn set_entrance(&mut self, entrance: Option<Arc<Entrance>>) {
        self.entrance = entrance;
    }

    pub(crate) fn entrance(&self) -> Option<&Arc<Entrance>> {
        self.entrance.as_ref()
    }

    /// Gives the call a turn that was waited for: see [`Channel::turn`](crate::Channel::turn). On another connection
    /// it is worth nothing.
    pub fn set_turn(&mut self, turn: Turn) {
        self.extensions_mut().insert(turn);
    }

    pub(crate) fn take_turn(&mut self) -> Option<Turn> {
        self.extensions.as_mut()?.remove()
    }

    /// Has the call made again if it fails, as `policy` says, in the place of what the channel does by itself: see [`RetryPolicy`]. Means
    /// nothing to a service in this process, nor to a channel of one connection. An interceptor's copies do not have it.
    pub fn set_retry(&mut self, policy: RetryPolicy) {
        self.extensions_mut().insert(Arc::new(policy));
    }

    pub(crate) fn take_retry(&mut self) -> Option<Arc<RetryPolicy>> {
        self.extensions.as_mut()?.remove()
    }

    /// What the caller says besides the message.
    pub fn metadata(&self) -> &MetadataMap {
        self.metadata.as_deref().unwrap_or(&metadata::EMPTY)
    }

    /// The same, to change it. It goes out with the request; the server's `max_metadata_size` bounds it.
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        self.metadata.get_or_insert_default()
    }

    /// In a handler or an interceptor: when the call must be done. `None` on a request that is not part of a call
    /// yet.
    pub fn deadline(&self) -> Option<Instant> {
        match (&self.received, self.deadline_of) {
            (_, DeadlineOf::At(due)) => Some(due),
            (received, _) => received.as_ref().map(|received| received.deadline),
        }
    }

    /// Whether its handler may still be entered.
    pub(crate) fn check_deadline(&self) -> Result<(), Status> {
        if self.deadline().is_none_or(|deadline| Instant::now() < deadline) {
            return Ok(());
        }
        Err(expired_before_execution())
    }

    /// Values that travel with the request inside this process, from an interceptor to a handler for example.
    pub fn extensions(&self) -> &Extensions {
        self.extensions.as_deref().unwrap_or(&extensions::NONE)
    }

    /// The same, to change them.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        self.extensions.get_or_insert_default()
    }

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

    pub(crate) fn received(
        message: T,
        received: Received,
        metadata: Option<Box<MetadataMap>>,
    ) -> Self {
        Self::with_received(message, Some(received), metadata)
    }

    fn with_received(
        message: T,
        received: Option<Received>,
        metadata: Option<Box<MetadataMap>>,
    ) -> Self {
        Self {
            message,
            timeout: None,
            expected_reply: None,
            wait_for_ready: None,
            deadline_of: DeadlineOf::default(),
            compression: None,
            received,
            metadata,
            slot: None,
            extensions: None,
            entrance: None,
        }
    }

    /// The request without its message, and the message.
    pub(crate) fn split(self) -> (Request<()>, T) {
        let mut message = None;
        let request = self.map(|taken| message = Some(taken));
        (request, message.expect("the closure runs once"))
    }

    /// The same request with a deadline that is known.
    pub(crate) fn with_due(mut self, due: Instant) -> Self {
        self.deadline_of = DeadlineOf::At(due);
        self
    }

    /// When a call of this request must be done, on a channel with this default timeout.
    pub(crate) fn due(&self, default: Duration) -> Instant {
        let now = Instant::now();
        let own = self.timeout.map(|timeout| deadline_after(now, timeout));
        let inherited = match self.deadline_of {
            DeadlineOf::Handler => context::deadline(),
            DeadlineOf::Nobody => None,
            DeadlineOf::At(due) => Some(due),
        };
        own.into_iter().chain(inherited).min().unwrap_or_else(|| deadline_after(now, default))
    }

    /// Takes the metadata out.
    pub(crate) fn take_metadata(&mut self) -> Option<Box<MetadataMap>> {
        self.metadata.take()
    }
}

impl Request<Payload> {
    /// The same request, to run a call more than once: message and metadata are shared, not copied. Extensions stay
    /// with this one. `None` if the request is a stream, which goes by only once.
    pub fn copy(&self) -> Option<Self> {
        Some(Self {
            message: self.message.copy()?,
            timeout: self.timeout,
            expected_reply: self.expected_reply,
            wait_for_ready: self.wait_for_ready,
            deadline_of: self.deadline_of,
            compression: self.compression,
            received: self.received.clone(),
            metadata: self.metadata.clone(),
            slot: self.slot.clone(),
            extensions: None,
            entrance: self.entrance.clone(),
        })
    }
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InProcess => f.write_str("in process"),
            Self::Connection(connection) => write!(f, "{}", connection.path),
        }
    }
}

/// What client methods take: a message, or a [`Request`] with options.
pub trait IntoRequest<T> {
    /// The request.
    fn into_request(self) -> Request<T>;
}

impl<T> IntoRequest<T> for T {
    fn into_request(self) -> Request<T> {
        Request::new(self)
    }
}

impl<T> IntoRequest<T> for Request<T> {
    fn into_request(self) -> Request<T> {
        self
    }
}
