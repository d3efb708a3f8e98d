//! The headers `grpc-encoding` and `grpc-accept-encoding`.
//!
//! What tonic has compressed is carried as it is. What comes compressed is decompressed before tonic sees it, whatever a client of
//! tonic's accepts: tonic's decoder takes the first of several gzip members for all of a message and does not look at what is behind
//! it, so that it would read another message than native peers do. And the headers of a stream, which are there before its
//! messages, could only guess at an encoding.

use http::{HeaderMap, HeaderValue};
use verbwire::compression::Encoding;

pub(crate) const GRPC_ENCODING: &str = "grpc-encoding";

pub(crate) const GRPC_ACCEPT_ENCODING: &str = "grpc-accept-encoding";

/// How the messages of a body are compressed whose frames say that they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// No header, or `identity`.
    None,
    Known(Encoding),
    /// Nothing that is carried here.
    Unknown(String),
}

/// What the headers of a body name.
pub(crate) fn named(headers: &HeaderMap) -> Named {
    let Some(value) = headers.get(GRPC_ENCODING) else { return Named::None };
    let name = String::from_utf8_lossy(value.as_bytes());
    match Encoding::from_name(&name) {
        Some(encoding) => Named::Known(encoding),
        None if name == "identity" => Named::None,
        None => Named::Unknown(name.into_owned()),
    }
}

/// Says to a service what its replies may be compressed with: what the other side does not take is decompressed on the way.
pub(crate) fn accept_all(headers: &mut HeaderMap) {
    let names = Encoding::ALL.iter().map(|encoding| encoding.name());
    let list = names.chain(["identity"]).collect::<Vec<_>>().join(",");
    let list = HeaderValue::try_from(list).expect("names of encodings are printable ASCII");
    headers.insert(GRPC_ACCEPT_ENCODING, list);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )])
    }

    #[test]
    fn encodings_are_read_as_grpc_writes_them() {
        let mut all = HeaderMap::new();
        accept_all(&mut all);
        let list = all.get(GRPC_ACCEPT_ENCODING).expect("said").to_str().expect("text");
        assert!(list.starts_with("gzip,") && list.ends_with(",identity"), "{list}");
        for (name, expected) in [
            ("gzip", Named::Known(Encoding::Gzip)),
            ("identity", Named::None),
            ("deflate", Named::Unknown("deflate".to_owned())),
        ] {
            assert_eq!(named(&headers(GRPC_ENCODING, name)), expected);
        }
        assert_eq!(named(&HeaderMap::new()), Named::None);
    }
}
