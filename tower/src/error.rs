//! What layers fail with, as statuses.

use std::error::Error;
use std::iter::successors;

use tower::buffer::error::Closed;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use verbwire_core::{Code, Status};

/// As in tower.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The status of a call whose layers failed so.
pub(crate) fn status(error: BoxError) -> Status {
    let error = match error.downcast::<Status>() {
        Ok(status) => return *status,
        Err(other) => other,
    };
    let first: &(dyn Error + 'static) = &*error;
    let known = successors(Some(first), |one| (*one).source()).find_map(known);
    let status = known.unwrap_or_else(|| Status::unknown(format!("a layer failed: {error}")));
    status.with_source(error)
}

fn known(error: &(dyn Error + 'static)) -> Option<Status> {
    if let Some(status) = error.downcast_ref::<Status>() {
        return Some(status.clone());
    }
    let (code, message) = if error.is::<Elapsed>() {
        (Code::DeadlineExceeded, "the call took longer than a timeout layer of this client allows")
    } else if error.is::<Overloaded>() {
        (
            Code::ResourceExhausted,
            "a layer of this client took no more calls, and the call was shed",
        )
    } else if error.is::<Closed>() {
        (Code::Unavailable, "the task of a buffer layer of this client is gone")
    } else {
        return None;
    };
    Some(Status::new(code, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbwire_core::{Executed, Origin};

    #[derive(Debug)]
    struct Wrapped(BoxError);

    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("wrapped")
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.0)
        }
    }

    fn not_found() -> Status {
        Status::not_found("no such block")
            .with_details(&b"details"[..])
            .with_origin(Origin::Peer)
            .with_executed(Executed::Yes)
            .with_source("the disk")
    }

    fn assert_is_it(status: &Status) {
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no such block"));
        assert_eq!((status.origin(), status.executed()), (Origin::Peer, Executed::Yes));
        assert_eq!(&status.details()[..], b"details");
    }

    #[test]
    fn a_status_stays_what_it_is() {
        let status = status(not_found().into());
        assert_is_it(&status);
        assert_eq!(status.source().expect("kept").to_string(), "the disk");
    }

    #[test]
    fn a_wrapped_status_is_found_and_its_wrapping_kept() {
        let status = status(Wrapped(Wrapped(not_found().into()).into()).into());
        assert_is_it(&status);
        let sources = successors(status.source(), |one| (*one).source());
        let words: Vec<_> = sources.map(ToString::to_string).collect();
        assert_eq!(words, ["wrapped", "wrapped", "not found: no such block: the disk", "the disk"]);
    }

    #[test]
    fn towers_errors_have_their_codes_and_others_are_unknown() {
        let overloaded = status(Overloaded::new().into());
        assert_eq!(overloaded.code(), Code::ResourceExhausted);
        assert!(overloaded.source().expect("kept").is::<Overloaded>());
        assert_eq!(status(Elapsed::new().into()).code(), Code::DeadlineExceeded);
        let wrapped = status(Wrapped(Elapsed::new().into()).into());
        assert_eq!(wrapped.code(), Code::DeadlineExceeded);
        let other = status("the token has expired".into());
        assert_eq!(other.code(), Code::Unknown);
        assert!(other.message().contains("the token has expired"), "{other}");
    }
}
