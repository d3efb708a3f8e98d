//! What the system refuses, in words: a sentence, and who must act.
//!
//! What a peer can do wrong behind HELLO is the core's `FrameError`, the same over every transport.

use std::io;

use verbwire_core::{Error, ErrorKind};

/// The end of a connection by its socket, or by what is between the socket and the frames, which has words of its own.
pub(crate) fn lost(doing: &str, error: io::Error) -> Error {
    let own = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    if let Some(own) = own {
        return own.clone();
    }
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
