//! Messages: what crosses the transport seam.
//!
//! A [`Message`] says one thing about one call (or about the connection) and may carry a body. How its
//! head becomes bytes is the business of [`crate::wire`]; in what pieces its body travels is the
//! transport's. `HELLO` is not a message: transports exchange it while they connect.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::buf::Body;
use crate::compression::EncodingId;
use crate::status::{Code, Executed};

/// Names a call on its connection: a slot of the caller's table, and which use of that slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    /// Index in the caller's slot table, below the callee's `max_concurrent_calls`.
    pub slot: u32,
    /// Counts the slot's uses, so that a late message never meets another call. Wraps.
    pub generation: u32,
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// The number that stands for a method path on one connection, chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MethodId(pub u32);

impl MethodId {
    /// Stands for "not interned": the REQUEST carries its path.
    pub const NONE: Self = Self(0);
}

/// Names a session at its server. A secret, drawn from the system's random numbers: who knows it can read the answers of
/// the session's calls, and stop them.
/// `Debug` does not tell it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(..)")
    }
}

/// Names a call over all its attempts: one use of a slot of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotUse {
    /// The session.
    pub session: SessionId,
    /// Its slot, from 0.
    pub slot: u32,
    /// Which use of the slot it is. From 1, and higher for each new call.
    pub sequence: u64,
}

/// In what form a side of a call says what it has to say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// As one message: the body of the REQUEST, or of the RESPONSE.
    #[default]
    Whole,
    /// As a stream: any number of MESSAGEs.
    Stream,
}

/// In what form a caller takes the reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReplyForm {
    /// As one message.
    #[default]
    Whole,
    /// As a stream.
    Stream,
    /// As it comes: the caller does not know the form of the method, neither that of its request.
    Either,
}

impl From<Form> for ReplyForm {
    fn from(form: Form) -> Self {
        match form {
            Form::Whole => Self::Whole,
            Form::Stream => Self::Stream,
        }
    }
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// Caller to callee: run this method.
    Request {
        /// The call that begins.
        call: CallId,
        /// The method's number on this connection, or [`MethodId::NONE`].
        method: MethodId,
        /// The method's path, as long as the callee may not know what the number means.
        path: Option<Cow<'static, str>>,
        /// Time until the call's deadline when the message was handed to the transport.
        timeout: Duration,
        /// Whether the body is the request, or MESSAGEs bring it.
        form: Form,
        /// In what form the caller takes the reply.
        reply: ReplyForm,
        /// Which call this is an attempt at, where it may be made again. Boxed, so that other heads stay short.
        slot: Option<Box<SlotUse>>,
    },
    /// Callee to caller: the call is over. The body is the reply, or an encoded status.
    Response {
        /// The call that ends.
        call: CallId,
        /// `Ok` for a reply.
        code: Code,
        /// Whether the handler ran.
        executed: Executed,
        /// At the end of a stream of replies, how many MESSAGEs it had: they are delivered first. `None` ends
        /// the call at once, whatever has not been delivered.
        messages: Option<u32>,
    },
    /// Caller to callee: nobody waits for this call any more.
    Cancel {
        /// The call to stop.
        call: CallId,
    },
    /// Callee to caller, the answer to every CANCEL. Behind a RESPONSE it is late and ignored.
    Cancelled {
        /// The call that was stopped.
        call: CallId,
        /// Whether its handler ran.
        executed: Executed,
    },
    /// Either way: the next message of a stream, in the body.
    Message {
        /// The call.
        call: CallId,
        /// How many MESSAGEs of this stream were sent before. Wraps.
        number: u32,
    },
    /// Caller to callee: the stream of requests has ended.
    End {
        /// The call.
        call: CallId,
        /// How many MESSAGEs it had. Wraps.
        messages: u32,
    },
    /// Callee to caller: the handler took the call, and its stream of replies begins.
    Headers {
        /// The call.
        call: CallId,
    },
    /// Either way: the receiver of a stream lets more of it come.
    Window {
        /// The call.
        call: CallId,
        /// Bytes that the sender of the stream may have sent since its beginning; see `docs/wire.md`.
        granted: u64,
    },
    /// Either way: the sender has heard nothing for a while. Sent only to a peer that answers it; see
    /// [`proto::keep_alive`](crate::proto::keep_alive).
    Ping,
    /// Either way, the answer to PING. One answers all that came before it.
    Pong,
    /// The sender takes no new call on this connection; the body says why in words (UTF-8).
    GoAway {
        /// Why.
        reason: GoAway,
    },
}

impl Head {
    /// The use of a slot that a REQUEST has.
    pub(crate) fn slot(self) -> Option<Box<SlotUse>> {
        match self {
            Self::Request { slot, .. } => slot,
            _ => None,
        }
    }

    /// The call that the message is about, unless it is about the connection.
    pub fn call(&self) -> Option<CallId> {
        match self {
            Self::Request { call, .. }
            | Self::Response { call, .. }
            | Self::Cancel { call }
            | Self::Cancelled { call, .. }
            | Self::Message { call, .. }
            | Self::End { call, .. }
            | Self::Headers { call }
            | Self::Window { call, .. } => Some(*call),
            Self::Ping | Self::Pong | Self::GoAway { .. } => None,
        }
    }
}

/// Why a peer takes no new calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoAway {
    /// It shuts down: running calls finish, then it closes.
    Draining,
    /// The receiver of GOAWAY broke the protocol; the connection ends at once.
    ProtocolViolation,
    /// It serves as many connections as it may, and no call of this one.
    Overloaded,
    /// A reason that this version does not know.
    Unknown(u32),
}

/// A head, optional metadata and a body.
#[derive(Debug, Clone)]
pub struct Message {
    /// What the message says.
    pub head: Head,
    /// How the body of a REQUEST, MESSAGE or RESPONSE with code `Ok` is compressed, if it is.
    pub encoding: EncodingId,
    /// The encoded metadata block; empty where there is none.
    pub metadata: Bytes,
    /// The payload; empty where there is none.
    pub body: Body,
}

impl Message {
    /// A message of a head alone.
    pub fn bare(head: Head) -> Self {
        Self::with_body(head, Body::new())
    }

    /// A message with a body and no metadata, compressed as the body says.
    pub fn with_body(head: Head, body: Body) -> Self {
        let encoding = body.coded().map_or(EncodingId::NONE, |coded| coded.id());
        Self { head, encoding, metadata: Bytes::new(), body }
    }

    /// The same with a block of metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Bytes) -> Self {
        self.metadata = metadata;
        self
    }
}
