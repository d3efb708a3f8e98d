//! Errors that stay in this process: targets, connecting, binding, and why a connection ended.
//!
//! An [`Error`] is opaque and cheap to clone, because the first cause of a connection's end is what
//! every later call on it reports.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::status::{Code, Executed, Origin, Status};

/// Who must act on an [`Error`], and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller asked for something that cannot be: a target that does not parse, a duplicate service.
    InvalidInput,
    /// The transport, or this build of it, cannot do what was asked.
    Unsupported,
    /// Nothing answers at the target.
    Unreachable,
    /// The peer did not finish a step in time.
    TimedOut,
    /// The peers have no protocol version or mandatory feature in common.
    Incompatible,
    /// One side does not trust the other: a certificate that does not hold, or none where one is demanded.
    Untrusted,
    /// The peer broke the protocol.
    PeerFault,
    /// The peer, or the path to it, is gone.
    Lost,
    /// This side closed, or is draining.
    Closed,
    /// This machine is out of something: addresses, descriptors, memory.
    LocalResource,
}

/// A local error: what was being done, with the numbers, and what to do about it.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `message` says what was being done, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: None }))
    }

    /// The same with the error underneath, which `Display` adds behind a colon.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: Some(source.into()) }))
    }

    /// Who must act.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether a step took longer than its limit.
    pub fn is_timeout(&self) -> bool {
        self.kind() == ErrorKind::TimedOut
    }

    /// Whether the peer broke the protocol.
    pub fn is_peer_fault(&self) -> bool {
        self.kind() == ErrorKind::PeerFault
    }

    /// The status of a call that this error ended.
    pub fn to_status(&self, executed: Executed) -> Status {
        let code = match self.kind() {
            ErrorKind::InvalidInput => Code::InvalidArgument,
            ErrorKind::Unsupported => Code::Unimplemented,
            ErrorKind::LocalResource => Code::ResourceExhausted,
            ErrorKind::Untrusted => Code::Unauthenticated,
            ErrorKind::PeerFault | ErrorKind::Incompatible => Code::Internal,
            ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Lost | ErrorKind::Closed => {
                Code::Unavailable
            }
        };
        let origin = match self.kind() {
            ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::LocalResource => {
                Origin::Local
            }
            _ => Origin::Transport,
        };
        Status::new(code, self.to_string())
            .with_executed(executed)
            .with_origin(origin)
            .with_source(self.clone())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.kind())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}
