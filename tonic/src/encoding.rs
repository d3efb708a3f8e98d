//! The headers `grpc-encoding` and `grpc-accept-encoding`.
//!
//! What tonic has compressed is carried as it is. What comes compressed is handed to a client of tonic's that accepts it so, and is
//! decompressed for others, services among them: whether tonic or the bridge does that work makes no difference.

use http::{HeaderMap, HeaderValue};
use verbwire::compression::{Encoding, Encodings};

const GRPC_ENCODING: &str = "grpc-encoding";

const GRPC_ACCEPT_ENCODING: &str = "grpc-accept-encoding";

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

/// What a client of tonic's accepts.
pub(crate) fn accepted(headers: &HeaderMap) -> Encodings {
    let lists = headers.get_all(GRPC_ACCEPT_ENCODING);
    let names = lists.iter().filter_map(|list| list.to_str().ok()).flat_map(|list| list.split(','));
    names.filter_map(|name| Encoding::from_name(name.trim())).collect()
}

/// The one in which messages of a stream are handed on, where several are accepted.
pub(crate) fn preferred(accepted: Encodings) -> Option<Encoding> {
    Encoding::ALL.iter().copied().find(|encoding| accepted.contains(*encoding))
}

/// Says that messages whose frames say so are compressed like this.
pub(crate) fn name(encoding: Encoding, headers: &mut HeaderMap) {
    headers.insert(GRPC_ENCODING, HeaderValue::from_static(encoding.name()));
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
        let gzip = Encodings::from(Encoding::Gzip);
        for (list, expected) in
            [("gzip,identity", gzip), (" deflate , gzip", gzip), ("identity", Encodings::NONE)]
        {
            assert_eq!(accepted(&headers(GRPC_ACCEPT_ENCODING, list)), expected, "{list}");
        }
        let mut all = HeaderMap::new();
        accept_all(&mut all);
        assert_eq!(accepted(&all), Encodings::all());
        for (name, expected) in [
            ("gzip", Named::Known(Encoding::Gzip)),
            ("identity", Named::None),
            ("deflate", Named::Unknown("deflate".to_owned())),
        ] {
            assert_eq!(named(&headers(GRPC_ENCODING, name)), expected);
        }
        assert_eq!(named(&HeaderMap::new()), Named::None);
        assert_eq!(preferred(Encodings::all()), Some(Encoding::Gzip));
        assert_eq!(preferred(Encodings::NONE), None);
    }
}
