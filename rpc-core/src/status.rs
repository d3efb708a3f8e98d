//! The outcome of a call that did not return a reply.
//!
//! [`Status`] is what crosses the wire: a gRPC code, a message and details bytes. It also says whether
//! the handler ran, which is what a caller needs before repeating the call. Errors that never leave
//! this process (a target that does not parse, a refused connection) are [`crate::Error`]s.

mod code;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use code::Code;

use crate::metadata::MetadataMap;

/// Whether the handler of a call ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Executed {
    /// The handler was never entered: repeating the call is safe.
    No,
    /// The request may have reached the handler; this side cannot know.
    Maybe,
    /// The handler was entered.
    Yes,
}

/// Who ended a call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// This side: a deadline, a cancel, a limit that is looked at before sending, or a reply that does not
    /// decode. Also what a handler makes itself.
    Local,
    /// What is between the two: no connection, a broken one, or one that takes no more calls.
    Transport,
    /// The other side answered so: its handler, or its server instead of it.
    Peer,
}

/// The error of a call: a gRPC code, what happened in words, and whether the handler ran.
///
/// A `Status` is one pointer wide, so that `Result<Response<T>, Status>` stays small.
pub struct Status(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    executed: Executed,
    message: String,
    details: Bytes,
    origin: Origin,
    peer: Option<Box<str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    metadata: MetadataMap,
}

impl Status {
    /// A status with `code` and a message for a person.
    ///
    /// Returned by a handler it counts as [`Executed::Yes`], whatever [`Status::executed`] says before.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            executed: Executed::Maybe,
            message: message.into(),
            details: Bytes::new(),
            origin: Origin::Local,
            peer: None,
            source: None,
            metadata: MetadataMap::new(),
        }))
    }

    /// Adds details: by convention an encoded `google.rpc.Status`, opaque to this crate.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.0.details = details.into();
        self
    }

    /// Says whether the handler ran.
    #[must_use]
    pub fn with_executed(mut self, executed: Executed) -> Self {
        self.0.executed = executed;
        self
    }

    /// Keeps the error that caused this status as its [`source`](StdError::source). It stays on this side:
    /// what the caller shall know belongs into the message.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// Says who ended the call.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        self.0.origin = origin;
        self
    }

    /// Says to whom the call went, unless that is known.
    pub(crate) fn with_peer(mut self, peer: String) -> Self {
        self.0.peer.get_or_insert(peer.into());
        self
    }

    /// Says this besides, to the caller: the trailers of a call that failed.
    ///
    /// Metadata beyond the client's `max_metadata_size` is left out; the message then says so.
    #[must_use]
    pub fn with_metadata(mut self, metadata: MetadataMap) -> Self {
        self.0.metadata = metadata;
        self
    }

    /// The same status with `trailers` in front of its metadata: they are what a stream ends with, however it does.
    pub(crate) fn after_trailers(mut self, mut trailers: MetadataMap) -> Self {
        if trailers.is_empty() {
            return self;
        }
        trailers.extend(std::mem::take(self.metadata_mut()));
        self.with_metadata(trailers)
    }

    /// The same status with a code of failure: who fails with `Ok` has no reply to give, so that cannot be what was meant.
    pub(crate) fn not_ok(mut self) -> Self {
        if self.0.code == Code::Ok {
            self.0.code = Code::Unknown;
        }
        self
    }

    /// The same status with another message.
    pub(crate) fn with_message(mut self, message: String) -> Self {
        self.0.message = message;
        self
    }

    /// The gRPC code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What happened, for a person.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Details bytes; empty where there are none.
    pub fn details(&self) -> &Bytes {
        &self.0.details
    }

    /// Who ended the call.
    pub fn origin(&self) -> Origin {
        self.0.origin
    }

    /// The address that the call went to. `None` where there was no connection: in process, and for a
    /// status that no call ended with.
    pub fn peer(&self) -> Option<&str> {
        self.0.peer.as_deref()
    }

    /// What the handler said besides, in headers and trailers.
    pub fn metadata(&self) -> &MetadataMap {
        &self.0.metadata
    }

    /// The same, to change it.
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.0.metadata
    }

    /// Whether the handler ran. `No` means that repeating the call is safe.
    pub fn executed(&self) -> Executed {
        self.0.executed
    }
}

macro_rules! constructors {
    ($($name:ident => $code:ident: $doc:literal;)*) => {
        impl Status {
            $(
                #[doc = $doc]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self::new(Code::$code, message)
                }
            )*
        }
    };
}

constructors! {
    cancelled => Cancelled: "The call was cancelled, as a rule by its caller.";
    unknown => Unknown: "An error that fits no other code.";
    invalid_argument => InvalidArgument: "The request is wrong whatever the state of the system.";
    deadline_exceeded => DeadlineExceeded: "The deadline passed before the call was done.";
    not_found => NotFound: "Something that the request names does not exist.";
    already_exists => AlreadyExists: "Something that the request would create exists.";
    permission_denied => PermissionDenied: "The caller is known and may not do this.";
    resource_exhausted => ResourceExhausted: "A limit or quota was reached.";
    failed_precondition => FailedPrecondition: "The system is not in the state that the request needs.";
    aborted => Aborted: "The operation lost against a concurrent one.";
    out_of_range => OutOfRange: "The operation went past a valid range.";
    unimplemented => Unimplemented: "The service or method does not exist here.";
    internal => Internal: "An invariant of the system is broken.";
    unavailable => Unavailable: "The service cannot be reached now; another try may succeed.";
    data_loss => DataLoss: "Data is lost or corrupt beyond repair.";
    unauthenticated => Unauthenticated: "The caller did not prove who it is.";
}

impl Clone for Status {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The code, the message, and every cause that the message does not name.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.message())?;
        // An error of this crate says its causes itself, and a message often quotes what caused it.
        let mut said = self.message().to_owned();
        let mut next = self.source();
        while let Some(cause) = next {
            let words = cause.to_string();
            if !said.contains(&words) {
                write!(f, ": {words}")?;
                said.push_str(&words);
            }
            next = cause.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Status");
        out.field("code", &self.code())
            .field("message", &self.message())
            .field("executed", &self.executed())
            .field("origin", &self.origin());
        if let Some(peer) = self.peer() {
            out.field("peer", &peer);
        }
        if !self.details().is_empty() {
            out.field("details_len", &self.details().len());
        }
        if !self.metadata().is_empty() {
            out.field("metadata", self.metadata());
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Status {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_pointer_wide() {
        assert_eq!(size_of::<Status>(), size_of::<usize>());
        assert_eq!(size_of::<Result<(), Status>>(), size_of::<usize>());
    }

    #[test]
    fn display_names_the_code_and_the_message() {
        let status = Status::not_found("block 7 does not exist");
        assert_eq!(status.to_string(), "not found: block 7 does not exist");
    }

    #[test]
    fn display_names_every_cause_once() {
        let io = std::io::Error::other("disk on fire");
        let status = Status::data_loss("block 7 is gone").with_source(io);
        assert_eq!(status.to_string(), "data loss: block 7 is gone: disk on fire");
        let inner = crate::Error::new(crate::ErrorKind::Lost, "connection reset");
        let outer = crate::Error::with_source(crate::ErrorKind::Lost, "cannot read", inner);
        let status = outer.to_status(Executed::Maybe);
        assert_eq!(status.to_string(), "unavailable: cannot read: connection reset");
        let wrapped = Status::unavailable("no answer").with_source(status);
        assert_eq!(
            wrapped.to_string(),
            "unavailable: no answer: unavailable: cannot read: connection reset"
        );
    }

    #[test]
    fn the_chain_of_sources_reaches_the_first_cause() {
        let io = std::io::Error::other("disk on fire");
        let inner = crate::Error::with_source(crate::ErrorKind::Lost, "cannot read", io);
        let status = inner.to_status(Executed::Maybe);
        let error = status.source().and_then(StdError::source).expect("two deep");
        assert!(error.downcast_ref::<std::io::Error>().is_some());
        assert_eq!(status.origin(), Origin::Transport);
    }
}
