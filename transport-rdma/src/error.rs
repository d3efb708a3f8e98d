//! What goes wrong over RDMA, in words.
//!
//! [`ReceiveError`] is all that a peer can do wrong behind HELLO; the functions below give what a device says
//! a sentence and say who must act.

use std::error::Error as StdError;
use std::fmt;

use verbwire_core::transport::inbound::FrameError;
use verbwire_core::wire::WireError;
use verbwire_core::{Error, ErrorKind};

use crate::nic::{NicError, WcStatus};
use crate::proto::credit::loan::FalseLoan;
use crate::proto::credit::{FalseCredit, Overrun};
use crate::proto::rendezvous::Violation;

/// How often another port is tried when the system's choice is taken: iWARP has TCP's ports, and the connection manager asks TCP neither
/// before it listens nor before it connects.
pub(crate) const PORT_TRIES: usize = 16;

/// Why a connect failed whose local port turned out to be somebody else's. Another attempt gets another one.
#[derive(Debug)]
pub(crate) struct PortTaken(pub(crate) Box<dyn StdError + Send + Sync>);

impl PortTaken {
    /// Whether that is what ended an attempt.
    pub(crate) fn is_cause_of(error: &Error) -> bool {
        error.source().is_some_and(|source| source.is::<Self>())
    }
}

impl fmt::Display for PortTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for PortTaken {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// Something received that the peer may not send. Each of these ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// A frame that breaks a rule, or is beyond a limit.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Not even a header.
    #[error("a frame of {len} bytes, a header alone has {}", verbwire_core::wire::HEADER_LEN)]
    Short {
        /// Bytes received.
        len: usize,
    },
    /// A frame that is not as long as its header says.
    #[error("a frame of {len} bytes whose header announces {announced}")]
    Length {
        /// Bytes received.
        len: usize,
        /// Bytes that the header announces, itself included.
        announced: u64,
    },
    /// A wrong use of grants.
    #[error(transparent)]
    Grant(#[from] Violation),
    /// A body that is not what its sender says.
    #[error("a body with CRC32C 0x{found:08x}, its sender says 0x{expected:08x}")]
    Crc {
        /// What the sender says.
        expected: u32,
        /// What the body has.
        found: u32,
    },
    /// A count of receives that cannot be.
    #[error(transparent)]
    Credit(#[from] FalseCredit),
    /// Frames that there was no right to send.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// A count of receives that were lent that cannot be.
    #[error(transparent)]
    Loan(#[from] FalseLoan),
}

impl From<WireError> for ReceiveError {
    fn from(error: WireError) -> Self {
        Self::Frame(FrameError::Wire(error))
    }
}

impl From<ReceiveError> for Error {
    fn from(error: ReceiveError) -> Self {
        Self::with_source(ErrorKind::PeerFault, "the peer broke the protocol", error)
    }
}

/// The end of a connection by its device.
pub(crate) fn lost(doing: &str, error: NicError) -> Error {
    Error::with_source(ErrorKind::Lost, format!("connection lost while {doing}"), error)
}

/// The end of a connection by a work request that failed.
pub(crate) fn failed(status: WcStatus) -> Error {
    Error::new(ErrorKind::Lost, format!("connection lost: {status}"))
}

/// Something that this machine's device does not give.
pub(crate) fn local(doing: &str, error: NicError) -> Error {
    Error::with_source(ErrorKind::LocalResource, format!("failed {doing}"), error)
}

/// The end of a connection by the peer or the device, while `bodies` were to come.
pub(crate) fn disconnected(cause: Error, bodies: usize) -> Error {
    let within = match bodies {
        0 if cause.kind() == ErrorKind::Lost => return cause,
        0 => "the connection ended".to_owned(),
        1 => "within a body".to_owned(),
        count => format!("within {count} bodies"),
    };
    Error::with_source(ErrorKind::Lost, within, cause)
}
