//! Requests and responses: a message with what is said about it.

mod received;
mod response;

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Turn;
use crate::compression::Compression;
use crate::context;
use crate::extensions::{self, Extensions};
use crate::interceptor::Payload;
use crate::message::SlotUse;
use crate::metadata::{self, MetadataMap};
use crate::proto::deadlines::{deadline_after, expired_before_execution};
use crate::proto::entrance::Entrance;
use crate::proto::retry::RetryPolicy;
use crate::status::Status;

pub(crate) use received::{ConnectionOrigin, Origin, Received, Who};
pub use response::Response;

/// A request: on the client a message with options, in a handler a message with where it came from.
#[derive(Debug)]
pub struct Request<T> {
    message: T,
    options: Options,
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

/// What the caller asks for. Where it is `None`, the channel says it.
#[derive(Debug, Clone, Copy, Default)]
struct Options {
    timeout: Option<Duration>,
    expected_reply: Option<u64>,
    wait_for_ready: Option<bool>,
    deadline_of: DeadlineOf,
    compression: Option<Compression>,
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
        let Self { message, options, received, metadata, slot, extensions, entrance } = self;
        let message = change(message)?;
        Ok(Request { message, options, received, metadata, slot, extensions, entrance })
    }

    /// Sets how long the call may take, from the moment the client method is called.
    ///
    /// It travels with the request and is enforced on both sides; the call ends with `DeadlineExceeded`.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = Some(timeout);
    }

    /// The timeout that was set, if one was.
    pub fn timeout(&self) -> Option<Duration> {
        self.options.timeout
    }

    /// The same request without the deadline of the handler that sends it.
    ///
    /// A call made inside a handler has what is left of that handler's deadline, or its own timeout where that is
    /// less. A detached one has its own timeout alone, or the channel's default.
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.options.deadline_of = DeadlineOf::Nobody;
        self
    }

    /// Says that the encoded reply will have at most `bytes` bytes, as far as the caller knows. Over RDMA, memory for a
    /// long reply then goes out with the request, and the reply needs no round trip for it. A longer reply is no
    /// error. Takes the place of the method's `expected_reply_size`.
    pub fn expect_reply(&mut self, bytes: u64) {
        self.options.expected_reply = Some(bytes);
    }

    /// The length of the reply, if one was set.
    pub fn expected_reply(&self) -> Option<u64> {
        self.options.expected_reply
    }

    /// Says whether the call waits, at most until its deadline, where its channel cannot connect for now. Else it fails at
    /// once with `Unavailable`, not executed, and the reason. While the channel connects, calls wait in any case. Takes the
    /// place of what the channel does by itself.
    pub fn set_wait_for_ready(&mut self, wait: bool) {
        self.options.wait_for_ready = Some(wait);
    }

    /// What was set.
    pub fn wait_for_ready(&self) -> Option<bool> {
        self.options.wait_for_ready
    }

    /// Says whether the request is compressed, of a stream each message: an [`Encoding`](crate::compression::Encoding), or
    /// [`Compression::NONE`]. Takes the place of what the channel does by itself. Means nothing to a service in this process.
    pub fn set_compression(&mut self, compression: impl Into<Compression>) {
        self.options.compression = Some(compression.into());
    }

    /// What was set.
    pub fn compression(&self) -> Option<Compression> {
        self.options.compression
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
        match (&self.received, self.options.deadline_of) {
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
            options: Options::default(),
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
        self.options.deadline_of = DeadlineOf::At(due);
        self
    }

    /// When a call of this request must be done, on a channel with this default timeout.
    pub(crate) fn due(&self, default: Duration) -> Instant {
        let now = Instant::now();
        let own = self.options.timeout.map(|timeout| deadline_after(now, timeout));
        let inherited = match self.options.deadline_of {
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
            options: self.options,
            received: self.received.clone(),
            metadata: self.metadata.clone(),
            slot: self.slot.clone(),
            extensions: None,
            entrance: self.entrance.clone(),
        })
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
