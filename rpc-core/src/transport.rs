//! The transport seam: what carries messages between two peers, and nothing else.
//!
//! [`Transport`] and [`Listener`] are the control path: they make connections and may box futures.
//! [`Connection`] is the data path: no boxes, messages in and out. What a transport implements:
//!
//! * **Messages, whole and in order.** A message accepted by `try_send` arrives whole, or the connection
//!   ends. Heads arrive in the order in which they were accepted, with two exceptions. A message with a long
//!   body may be overtaken by shorter ones, also of its own call: bodies travel in pieces so that a small call
//!   never waits for a large one. CANCEL, CANCELLED, GOAWAY, PING and PONG may overtake messages of other calls: control gets
//!   through where data waits.
//! * **Back-pressure.** `try_send` gives the message back when the send queue is full; `poll_ready` waits.
//! * **One driver.** One task polls `poll_recv`. It makes all progress that needs a task: reading,
//!   writing what is queued, timers of the transport. `try_send` may be called from any task or thread.
//! * **One end.** A connection ends once; the first cause is what every later call reports.
//!
//! Later parts extend the seam by [`SendHints`] and by [`Connection::capability`], not by new methods.

pub mod auto;
mod certificates;
pub(crate) mod counted;
pub mod driver;
pub mod inbound;
pub mod mem;
pub mod news;
pub mod post;
pub mod pressure;
pub mod sleeper;
pub mod stall;
mod target;
mod ticket;

use std::any::{Any, TypeId};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::Instant;

use crate::buf::Buffer;
use crate::error::{Error, ErrorKind};
use crate::message::{CallId, Head, Message};
use crate::wire::Hello;

pub use auto::{Auto, Beside, Second};
pub use certificates::PeerCertificates;
pub use target::Target;
pub use ticket::Ticket;

/// A boxed future of the control path.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes connections of one kind, and memory that this kind can send without a copy.
pub trait Transport: Send + Sync + 'static {
    /// Connects to `target` and exchanges HELLO.
    ///
    /// # Errors
    ///
    /// One sentence that says which step failed and what to do. At `local.deadline`: `TimedOut`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the attempt up; nothing is left open.
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>>;

    /// Begins to listen at `target`.
    ///
    /// # Errors
    ///
    /// The address is in use, not allowed, or not one of this machine.
    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>>;

    /// `len` zeroed bytes from the pool that this transport sends from without a copy.
    ///
    /// Works before anything is connected. The memory outlives the transport.
    ///
    /// # Errors
    ///
    /// The pool has no room before `deadline`.
    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>>;

    /// What channels and servers may use for second paths beside its connections. `None` where a target means one path.
    fn beside(&self) -> Option<&Beside> {
        None
    }

    /// Who can read what is said over its connections, HELLO included.
    fn secrecy(&self) -> Secrecy {
        Secrecy::Plaintext
    }
}

/// Who can read what two peers say to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// Nobody else.
    Encrypted,
    /// It does not leave this machine.
    Local,
    /// Whoever is on the way.
    Plaintext,
}

/// Accepts connections at one target.
pub trait Listener: Send + 'static {
    /// The target with what the system filled in, for example the port where 0 was asked.
    fn local_target(&self) -> &Target;

    /// Where clients reach it, each of them a way to this listener. More than one where it listens at all addresses of a
    /// machine and the transport knows them.
    fn targets(&self) -> Vec<Target> {
        vec![self.local_target().clone()]
    }

    /// The next peer that connects.
    ///
    /// # Errors
    ///
    /// This machine cannot accept now (no descriptors left); the caller waits a moment and asks again.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>>;
}

/// A peer that connected and has not exchanged HELLO yet.
pub trait Accepting: Send + 'static {
    /// The peer's address, for logs.
    fn peer(&self) -> String;

    /// What admits the peer, if it brought anything. `None` over transports that carry none.
    fn ticket(&self) -> Option<Ticket> {
        None
    }

    /// Turns the peer away before anything was made for it. It is told `why` as far as the transport has room for words
    /// there, which over RDMA is 56 bytes; dropped, it is turned away without.
    fn refuse(self: Box<Self>, why: &str) {
        let _no_words_here = why;
    }

    /// Exchanges HELLO.
    ///
    /// # Errors
    ///
    /// As for [`Transport::connect`].
    fn handshake(
        self: Box<Self>,
        local: LocalSide,
    ) -> BoxFuture<'static, Result<Established, Error>>;
}

/// What one side brings to a new connection.
pub struct LocalSide {
    /// What this side says of itself; also its limits, which the transport enforces on what it receives.
    pub hello: Hello,
    /// Asked before memory is taken for a body that does not come with its head.
    pub placement: Arc<dyn PlacementHook>,
    /// When the attempt ends.
    pub deadline: Instant,
    /// What admits this side where it connects, at a listener that asks for it. A transport that carries none refuses to
    /// connect with one.
    pub ticket: Option<Ticket>,
}

impl LocalSide {
    /// For transports that carry no tickets.
    ///
    /// # Errors
    ///
    /// `Unsupported` if there is one.
    pub fn without_ticket(&self, scheme: &str) -> Result<(), Error> {
        if self.ticket.is_none() {
            return Ok(());
        }
        let message =
            format!("{scheme}:// cannot be the second path of a connection: it carries no ticket");
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// A connection on which both sides have said HELLO.
pub struct Established {
    /// The data path.
    pub connection: Arc<dyn Connection>,
    /// What the peer said of itself.
    pub peer: Hello,
}

/// Decides where a body lands that does not come with its head.
///
/// Called by the transport while it receives, so an implementation only looks and notes: it neither
/// blocks nor sends.
pub trait PlacementHook: Send + Sync {
    /// Where the body that `announced` describes shall go.
    fn place(&self, announced: Announced<'_>) -> Placement;

    /// When the call with this stream ends at the latest, where this side holds it to its deadline. Memory for a long message
    /// of it is waited for less long than that, so that [`lost`](Self::lost) can still tell its caller what was in the
    /// way. Asked when the message's turn has come, and all that was received before it is handled.
    fn stream_deadline(&self, call: CallId) -> Option<Instant> {
        let _nobody_streams = call;
        None
    }

    /// A message of a stream will not come although it was to be placed: this side has no memory for it, as `why`
    /// says. Its call cannot go on.
    fn lost(&self, head: &Head, why: &str) {
        let _nobody_streams = (head, why);
    }
}

/// A body that is about to arrive.
#[derive(Debug, Clone, Copy)]
pub struct Announced<'a> {
    /// The head of its message.
    pub head: &'a Head,
    /// The encoded metadata block of its message.
    pub metadata: &'a Bytes,
    /// Its length in bytes, at most `max_message_size`.
    pub len: usize,
    /// Bytes of the bodies that are arriving on this connection already.
    pub landing: usize,
}

/// The answer of a [`PlacementHook`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// Into memory of the transport's choice.
    Pool,
    /// Into memory that holds none of the transport's once the body is whole.
    Owned,
    /// Nowhere: the body is received and thrown away, and its message is not delivered.
    Refuse,
}

/// A message with what its sender knows about how to send it.
#[derive(Debug)]
pub struct Outgoing {
    /// The message.
    pub message: Message,
    /// Knowledge that makes sending cheaper and changes nothing else.
    pub hints: SendHints,
}

/// What the sender of a message knows.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct SendHints {
    /// Whether more is likely to be sent at once.
    pub flush: Flush,
    /// For a REQUEST: the length that its reply's body is expected to have at most, in bytes. A transport may have
    /// memory for it ready, so that a long reply needs no round trip for that.
    pub expected_reply: Option<u64>,
}

impl SendHints {
    /// Hints with this flush rule.
    pub fn flush(flush: Flush) -> Self {
        Self { flush, expected_reply: None }
    }

    /// The same with the length of the reply.
    #[must_use]
    pub fn expecting(self, expected_reply: Option<u64>) -> Self {
        Self { expected_reply, ..self }
    }
}

/// When a message goes out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flush {
    /// The calling task sends by itself: nothing else is under way, so a hop through the driver would
    /// only cost time.
    #[default]
    Now,
    /// The driver sends it together with what else is queued: other calls are under way, so one system
    /// call can carry many messages.
    Batch,
}

/// A message as it was received.
#[derive(Debug)]
pub struct Incoming {
    /// The message.
    pub message: Message,
}

/// Why `try_send` did not take a message.
#[derive(Debug)]
pub enum SendError {
    /// The send queue is full; here is the message back. [`Connection::poll_ready`] waits for room.
    Full(Box<Outgoing>),
    /// The connection has ended, for this reason.
    Closed(Error),
}

/// The data path of one connection.
pub trait Connection: Send + Sync + 'static {
    /// Takes a message to be sent. Callable from any task or thread; never blocks.
    ///
    /// An accepted message is sent unless the connection ends or its call is revoked.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    fn try_send(&self, outgoing: Outgoing) -> Result<(), SendError>;

    /// Waits until `try_send` may succeed. Any number of tasks may wait; all are woken together.
    /// Ready at once on an ended connection, so that `try_send` can say why.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Receives: appends messages to `received`. Ready when it has appended some and is to be polled again for more. Pending
    /// when nothing more is there: what it has appended by then is for its caller to take all the same.
    ///
    /// Polled by one task, the driver. Besides receiving it sends what is queued.
    ///
    /// # Errors
    ///
    /// Why the connection ended, after the last message was received. Then it is not polled again.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        received: &mut Vec<Incoming>,
    ) -> Poll<Result<(), Error>>;

    /// The call is over on this side: pieces of all its bodies need not be sent any more, and what still
    /// arrives for it is thrown away. Messages about the call that are queued without a body stay queued.
    fn revoke(&self, call: CallId);

    /// Ends the connection with this cause, unless it has ended before. Queued messages are sent if that
    /// is possible without waiting.
    fn close(&self, cause: Error);

    /// Resolves when nothing from this peer can arrive or be written any more: sockets closed or queue
    /// pairs destroyed, and received messages that were not taken are dropped. Implies `close`.
    fn retire(&self) -> BoxFuture<'static, ()>;

    /// Which way the messages go.
    fn path(&self) -> Path;

    /// Something that only some transports can do, by the type of its handle.
    fn capability(&self, id: TypeId) -> Option<&(dyn Any + Send + Sync)>;
}

/// Which way the messages of a connection go, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The transport's scheme, for example `tcp`.
    pub transport: &'static str,
    /// This end's address.
    pub local: String,
    /// The other end's address.
    pub peer: String,
}

/// The device under a connection, for people: what a transport that has one gives as its [`Connection::capability`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, for example `rxe0`.
    pub name: String,
    /// Its address on its fabric, as the connection uses it; `None` where that is not known.
    pub gid: Option<String>,
    /// Bytes of payload in a packet; `None` where that is not known.
    pub mtu: Option<u32>,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(gid) = &self.gid {
            write!(f, ", GID {gid}")?;
        }
        match self.mtu {
            Some(mtu) => write!(f, ", MTU {mtu}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} to {}", self.transport, self.local, self.peer)
    }
}
