//! What goes wrong on a byte stream, in words.
//!
//! [`FrameError`] is all that a peer can do wrong behind HELLO; the functions below give the system's
//! errors a sentence and say who must act.

use std::io;

use verbwire_core::message::CallId;
use verbwire_core::wire::WireError;
use verbwire_core::{Error, ErrorKind};

/// A frame that the peer may not send. Each of these ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
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

/// The end of a connection by its socket.
pub(crate) fn lost(doing: &str, error: io::Error) -> Error {
    Error::with_source(ErrorKind::Lost, format!("connection lost while {doing}"), error)
}

/// A connection attempt to `place` that the system refused; `part` is what of it is easily wrong.
pub(crate) fn connect(place: &str, part: &str, error: io::Error) -> Error {
    use io::ErrorKind as Io;
    let unreachable = |why: String| Error::new(ErrorKind::Unreachable, why);
    match error.kind() {
        Io::ConnectionRefused => unreachable(format!(
            "nothing listens at {place} (connection refused): start the server there or check the \
             {part}"
        )),
        Io::NotFound => {
            unreachable(format!("there is no {place}: start the server there or check the {part}"))
        }
        Io::PermissionDenied => {
            unreachable(format!("this process may not connect to {place}: check its permissions"))
        }
        Io::HostUnreachable | Io::NetworkUnreachable => {
            unreachable(format!("there is no way to {place}: check the address and the routes"))
        }
        _ if is_exhaustion(&error) => Error::new(
            ErrorKind::LocalResource,
            format!("out of descriptors while connecting to {place}: raise their limit"),
        ),
        _ => {
            Error::with_source(ErrorKind::Unreachable, format!("cannot connect to {place}"), error)
        }
    }
}

/// A connection attempt to `place` that nobody answered.
pub(crate) fn connect_timeout(place: &str) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("{place} did not answer in time: check the address, the server and firewalls"),
    )
}

/// An address that cannot be listened at.
pub(crate) fn listen(place: &str, error: io::Error) -> Error {
    use io::ErrorKind as Io;
    let (kind, advice) = match error.kind() {
        Io::AddrInUse => {
            (ErrorKind::LocalResource, "it is in use; stop the other server or choose another")
        }
        Io::AddrNotAvailable => {
            (ErrorKind::InvalidInput, "it is no address of this machine; choose one that is")
        }
        Io::PermissionDenied => {
            (ErrorKind::LocalResource, "this process may not; check its rights or choose another")
        }
        Io::NotFound => (ErrorKind::InvalidInput, "its directory does not exist; create it"),
        _ => (ErrorKind::LocalResource, "the system refused"),
    };
    Error::with_source(kind, format!("cannot listen at {place}: {advice}"), error)
}

/// A connection that the system could not accept at `place`.
pub(crate) fn accept(place: &str, error: io::Error) -> Error {
    let advice = if is_exhaustion(&error) {
        "out of descriptors; raise the limit or lower the number of connections"
    } else {
        "the system refused"
    };
    Error::with_source(
        ErrorKind::LocalResource,
        format!("cannot accept at {place}: {advice}"),
        error,
    )
}

/// ENFILE and EMFILE, which have no `io::ErrorKind`.
fn is_exhaustion(error: &io::Error) -> bool {
    cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_says_what_to_do() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = connect("127.0.0.1:9", "port", refused);
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(
            error.to_string(),
            "nothing listens at 127.0.0.1:9 (connection refused): start the server there or check \
             the port"
        );
    }

    #[test]
    fn a_process_without_descriptors_is_told_so() {
        for number in [23, 24] {
            let error = accept("127.0.0.1:9", io::Error::from_raw_os_error(number));
            assert_eq!(error.kind(), ErrorKind::LocalResource);
            assert!(error.to_string().contains("out of descriptors"), "{error}");
        }
    }
}
