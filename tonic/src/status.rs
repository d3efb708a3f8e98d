//! Statuses of one kind as the other.

use std::error::Error;
use std::sync::Arc;

use http::HeaderMap;
use verbwire::{Executed, Status};

use crate::metadata::{self, Reserved};

/// A native status as tonic's: code, message, details and metadata.
///
/// Who ended the call and whether its handler ran is nothing that tonic has words for: it stays in the native status, which is
/// the [`source`](Error::source) of the other, for [`native`] to find. Entries with the names of HTTP's own headers (`te` and
/// `content-type`) are left out, and all of them where there are more than 8192.
pub fn to_tonic(status: Status) -> tonic::Status {
    let code = tonic::Code::from(i32::from(status.code() as u8));
    let headers = metadata::to_headers(status.metadata(), Reserved::LeftOut).unwrap_or_default();
    let metadata = tonic::metadata::MetadataMap::from_headers(headers);
    let mut converted = tonic::Status::with_details_and_metadata(
        code,
        status.message(),
        status.details().clone(),
        metadata,
    );
    converted.set_source(Arc::new(status));
    converted
}

/// One of tonic's statuses as a native one: code, message, details and metadata. A handler can return it. What caused it is its
/// source.
///
/// Entries that are no native metadata are left out: names that begin with `grpc-`, and text that is not printable ASCII.
pub fn from_tonic(status: tonic::Status) -> Status {
    let code = verbwire::Code::from(i32::from(status.code()));
    let (entries, _left_out) = metadata::from_map(status.metadata());
    let converted = Status::new(code, status.message())
        .with_details(bytes::Bytes::copy_from_slice(status.details()))
        .with_metadata(entries);
    match status.source() {
        Some(_) => converted.with_source(status),
        None => converted,
    }
}

/// The native status that a status of tonic's was made of, if it was: it says whether the handler ran.
pub fn native(status: &tonic::Status) -> Option<&Status> {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if let Some(status) = error.downcast_ref() {
            return Some(status);
        }
        cause = error.source();
    }
    None
}

/// The status that headers or trailers say, if they say one. `Ok` is one.
///
/// # Errors
///
/// They say one whose details are not what they should be.
pub(crate) fn in_headers(headers: &HeaderMap) -> Result<Option<tonic::Status>, Status> {
    const DETAILS: &str = "grpc-status-details-bin";
    let Some(code) = headers.get("grpc-status") else { return Ok(None) };
    if code == "0" {
        return Ok(Some(tonic::Status::new(tonic::Code::Ok, "")));
    }
    // tonic panics where they do not decode.
    if let Some(details) = headers.get(DETAILS)
        && metadata::decode(DETAILS, details).is_none()
    {
        return Err(internal("the details of a status are not base64"));
    }
    Ok(tonic::Status::from_header_map(headers))
}

/// What is wrong with an answer of a tonic service, whose handler ran.
pub(crate) fn internal(message: impl Into<String>) -> Status {
    Status::internal(message).with_executed(Executed::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbwire::Origin;

    #[test]
    fn a_status_comes_back_as_it_was_and_says_what_tonic_has_no_words_for() {
        for code in verbwire::Code::ALL {
            let status = Status::new(code, "as \u{20ac}told")
                .with_details(&b"\0\xff"[..])
                .with_origin(Origin::Transport)
                .with_executed(Executed::No);
            let theirs = to_tonic(status);
            assert_eq!(i32::from(theirs.code()), i32::from(code as u8));
            let kept = native(&theirs).expect("it was made of one");
            assert_eq!((kept.origin(), kept.executed()), (Origin::Transport, Executed::No));
            let back = from_tonic(theirs);
            assert_eq!((back.code(), back.message()), (code, "as \u{20ac}told"));
            assert_eq!(&back.details()[..], b"\0\xff");
        }
        assert!(native(&tonic::Status::not_found("tonic's own")).is_none());
    }
}
