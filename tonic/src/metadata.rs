//! Headers as metadata, and metadata as headers.
//!
//! A header whose name ends in `-bin` has base64 where metadata has the bytes themselves. Values of one name keep their order;
//! the order of different names is the map's.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE};
use tonic::metadata as theirs;
use verbwire::metadata::{KeyAndValueRef, MetadataError, MetadataMap, MetadataValue};

/// Names that are HTTP's own in a call.
const OF_HTTP: [HeaderName; 2] = [CONTENT_TYPE, TE];

/// Names that the bridge understands itself, and which are no metadata.
const UNDERSTOOD: [&str; 6] = [
    crate::timeout::GRPC_TIMEOUT,
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    crate::encoding::GRPC_ENCODING,
    crate::encoding::GRPC_ACCEPT_ENCODING,
];

/// What becomes of entries with the names of HTTP's own headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserved {
    Refused,
    LeftOut,
}

/// Most entries that become headers: a map of headers panics beyond some 24,000 of them, and peers say how many there are.
const MOST: usize = 8192;

/// Metadata that cannot be headers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotHeaders {
    #[error(
        "metadata key \"{0}\" is HTTP's own on the other side of a bridge to tonic: choose another"
    )]
    Reserved(HeaderName),
    #[error("{0} entries of metadata are more than the {MOST} that become headers: send fewer")]
    TooMany(usize),
}

/// A header that cannot be metadata.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotMetadata {
    #[error("header \"{key}\": {error}")]
    Refused { key: String, error: MetadataError },
    #[error("header \"{key}\" of {len} bytes is not base64")]
    NotBase64 { key: String, len: usize },
}

/// Metadata as headers.
pub(crate) fn to_headers(
    metadata: &MetadataMap,
    reserved: Reserved,
) -> Result<HeaderMap, NotHeaders> {
    let mut headers = HeaderMap::new();
    append(metadata, reserved, &mut headers)?;
    Ok(headers)
}

/// Adds metadata to headers.
pub(crate) fn append(
    metadata: &MetadataMap,
    reserved: Reserved,
    headers: &mut HeaderMap,
) -> Result<(), NotHeaders> {
    if metadata.len() > MOST {
        return Err(NotHeaders::TooMany(metadata.len()));
    }
    for entry in metadata.iter() {
        let name = HeaderName::from_bytes(entry.key().as_bytes())
            .expect("names of metadata are made of letters that names of headers have");
        if OF_HTTP.contains(&name) {
            match reserved {
                Reserved::Refused => return Err(NotHeaders::Reserved(name)),
                Reserved::LeftOut => continue,
            }
        }
        headers.append(name, value_of(entry));
    }
    Ok(())
}

fn value_of(entry: KeyAndValueRef<'_>) -> HeaderValue {
    match entry {
        KeyAndValueRef::Ascii(_, text) => HeaderValue::from_maybe_shared(text.to_bytes())
            .expect("text of metadata is printable ASCII"),
        KeyAndValueRef::Binary(_, bytes) => {
            let encoded = theirs::BinaryMetadataValue::from_bytes(bytes.as_bytes());
            HeaderValue::from_bytes(encoded.as_encoded_bytes()).expect("base64 is printable ASCII")
        }
    }
}

/// Headers as metadata, without those that are HTTP's or that the bridge understands itself.
///
/// # Errors
///
/// The first header that cannot be metadata.
pub(crate) fn from_headers(headers: HeaderMap) -> Result<MetadataMap, NotMetadata> {
    let (entries, left_out) = from_map(&theirs::MetadataMap::from_headers(headers));
    left_out.map_or(Ok(entries), Err)
}

/// The same of tonic's map; what cannot be metadata is left out, and the first such entry told.
pub(crate) fn from_map(map: &theirs::MetadataMap) -> (MetadataMap, Option<NotMetadata>) {
    let (mut entries, mut left_out) = (MetadataMap::new(), None);
    for entry in map.iter() {
        let (key, added) = match entry {
            theirs::KeyAndValueRef::Ascii(key, value) => {
                let key = key.as_str();
                (key, add_text(&mut entries, key, value.as_encoded_bytes()))
            }
            theirs::KeyAndValueRef::Binary(key, value) => {
                let key = key.as_str();
                let Ok(bytes) = value.to_bytes() else {
                    let len = value.as_encoded_bytes().len();
                    let _first =
                        left_out.get_or_insert(NotMetadata::NotBase64 { key: key.to_owned(), len });
                    continue;
                };
                (key, add_bytes(&mut entries, key, bytes))
            }
        };
        if let Err(error) = added {
            left_out.get_or_insert(NotMetadata::Refused { key: key.to_owned(), error });
        }
    }
    (entries, left_out)
}

fn add_text(entries: &mut MetadataMap, key: &str, value: &[u8]) -> Result<(), MetadataError> {
    if OF_HTTP.iter().any(|name| name == key) || UNDERSTOOD.contains(&key) {
        return Ok(());
    }
    let unprintable = value.iter().position(|byte| !matches!(byte, b' '..=b'~'));
    if let Some(at) = unprintable {
        return Err(MetadataError::ValueByte { byte: value[at], at });
    }
    let text = std::str::from_utf8(value).expect("printable ASCII is UTF-8");
    entries.append(key, MetadataValue::try_from(text)?)
}

fn add_bytes(entries: &mut MetadataMap, key: &str, value: Bytes) -> Result<(), MetadataError> {
    if UNDERSTOOD.contains(&key) {
        return Ok(());
    }
    entries.append_bin(key, value.into())
}

/// The bytes of a header whose name ends in `-bin`; `None` if they do not decode.
pub(crate) fn decode(name: &'static str, value: &HeaderValue) -> Option<Bytes> {
    let mut headers = HeaderMap::new();
    headers.insert(name, value.clone());
    theirs::MetadataMap::from_headers(headers).get_bin(name)?.to_bytes().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_entries_as_a_peer_can_say_are_refused_and_no_panic() {
        let many = |count: usize| {
            let mut metadata = MetadataMap::new();
            for number in 0..count {
                let key = format!("k{number}");
                metadata.append(key.as_str(), number.into()).expect("a name");
            }
            metadata
        };
        let headers = to_headers(&many(MOST), Reserved::Refused).expect("so many are taken");
        assert_eq!(headers.len(), MOST);
        let refused = to_headers(&many(40_000), Reserved::Refused).expect_err("too many");
        assert_eq!(refused, NotHeaders::TooMany(40_000));
    }

    #[test]
    fn names_that_are_https_own_are_refused_or_left_out() {
        for name in ["te", "content-type"] {
            let mut metadata = MetadataMap::new();
            metadata.append(name, MetadataValue::from_static("x")).expect("a native name");
            let refused = to_headers(&metadata, Reserved::Refused).expect_err("HTTP's");
            assert!(refused.to_string().contains(name), "{refused}");
            assert!(to_headers(&metadata, Reserved::LeftOut).expect("left out").is_empty());
        }
    }
}
