//! What a peer can do wrong with frames behind HELLO, on every transport that has frames.

use crate::message::CallId;
use crate::wire::WireError;
use crate::{Error, ErrorKind};

/// A frame that the peer may not send. Each of these ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Bytes that are no frame, or a frame beyond a limit.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// DATA for a call that has no body to come.
    #[error("DATA frame for call {call}, which has no body to come")]
    NoBody {
        /// The call.
        call: CallId,
    },
    /// DATA that does not go on where the body's last piece ended.
    #[error("DATA frame for call {call} at offset {offset}, expected offset {expected}")]
    Offset {
        /// The call.
        call: CallId,
        /// What the peer sent.
        offset: u32,
        /// Where the body's last piece ended.
        expected: usize,
    },
    /// DATA beyond the body's announced end.
    #[error("DATA frame for call {call} ends at byte {end} of a body of {len}")]
    Overrun {
        /// The call.
        call: CallId,
        /// Where the piece would end.
        end: usize,
        /// The body's announced length.
        len: usize,
    },
    /// The end of a body is not where LAST says, or has no LAST.
    #[error("DATA frame for call {call} ends at byte {end} of a body of {len} {mark} LAST")]
    Last {
        /// The call.
        call: CallId,
        /// Where the piece would end.
        end: usize,
        /// The body's announced length.
        len: usize,
        /// "with" or "without".
        mark: &'static str,
    },
    /// A piece that brings the body no further.
    #[error("empty DATA frame for call {call} that is not ABORTED")]
    EmptyPiece {
        /// The call.
        call: CallId,
    },
    /// ABORTED on a piece that brings bytes.
    #[error("ABORTED DATA frame for call {call} with bytes")]
    AbortedPiece {
        /// The call.
        call: CallId,
    },
    /// A frame that announces a body for a call whose last body has not ended.
    #[error("second body for call {call} before the first one ended")]
    SecondBody {
        /// The call.
        call: CallId,
    },
    /// More bodies at a time than calls.
    #[error(
        "more than {limit} bodies arrive at a time; the limit follows from max_concurrent_calls"
    )]
    TooManyBodies {
        /// The limit.
        limit: usize,
    },
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        Self::with_source(ErrorKind::PeerFault, "the peer broke the protocol", error)
    }
}
