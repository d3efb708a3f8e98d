use super::*;
use crate::buf::BY_REFERENCE;
use crate::codec::{Codec, Prost};
use crate::status::Code;

const GZIP: Compression = Compression::new(Encoding::Gzip);

#[derive(Clone, PartialEq, prost::Message)]
struct Block {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "bytes", tag = "2")]
    data: Bytes,
}

fn block(name: usize, data: usize) -> Block {
    Block { name: "n".repeat(name), data: Bytes::from(vec![0; data]) }
}

fn to(takes: Encodings) -> Outbound {
    Outbound { takes, side: Receiver::Client, limit: 1 << 20 }
}

fn sent(body: &Body, takes: Encodings, compression: Compression) -> Body {
    to(takes).prepare(body.clone(), compression, |_| Ok(())).expect("nothing is wrong with it")
}

fn is_compressed(body: &Body) -> bool {
    body.encoding().expect("one of ours").is_some()
}

#[test]
fn a_message_becomes_smaller_and_the_same_again() {
    let message = block(5000, BY_REFERENCE - 1);
    let plain = Prost.encode(&message);
    for encoding in Encoding::ALL {
        let body = sent(&plain, Encodings::all(), Compression::new(*encoding));
        assert_eq!(body.encoding().expect("one of ours"), Some(*encoding));
        assert!(body.len() < plain.len() / 10, "{encoding}: {} bytes", body.len());
        assert_eq!(Prost.decode(body).ok(), Some(message.clone()), "{encoding}");
    }
}

#[test]
fn what_the_peer_does_not_take_what_is_short_and_what_gains_nothing_goes_as_it_is() {
    let plain = Prost.encode(&block(5000, 0));
    assert!(!is_compressed(&sent(&plain, Encodings::NONE, GZIP)));
    assert!(!is_compressed(&sent(&plain, Encodings::all(), Compression::NONE)));
    let of = |len| Body::from(Bytes::from(vec![7; len]));
    assert!(!is_compressed(&sent(&of(MIN_COMPRESSED_LEN - 1), Encodings::all(), GZIP)));
    assert!(is_compressed(&sent(&of(MIN_COMPRESSED_LEN), Encodings::all(), GZIP)));
    let mut random = fastrand::Rng::with_seed(1);
    let noise: Bytes = std::iter::repeat_with(|| random.u8(..)).take(9000).collect();
    let body = sent(&Body::from(noise.clone()), Encodings::all(), GZIP.compress_payloads(true));
    assert!(!is_compressed(&body));
    assert_eq!(body.into_bytes().as_ptr(), noise.as_ptr());
}

#[test]
fn a_large_field_keeps_its_message_from_it_unless_that_is_asked_for() {
    let message = block(9000, BY_REFERENCE);
    let plain = Prost.encode(&message);
    let body = sent(&plain, Encodings::all(), GZIP);
    assert!(!is_compressed(&body));
    let same = body.segments().any(|segment| segment.as_ptr() == message.data.as_ptr());
    assert!(same, "it goes from where it lies");
    assert!(is_compressed(&sent(&plain, Encodings::all(), GZIP.compress_payloads(true))));
    // Long by other fields.
    assert!(is_compressed(&sent(&Prost.encode(&block(90_000, 100)), Encodings::all(), GZIP)));
}

#[test]
fn a_large_message_that_was_not_encoded_here_counts_as_one_with_a_large_field() {
    let text = Prost.encode(&block(2 * BY_REFERENCE, 0));
    assert!(is_compressed(&sent(&text, Encodings::all(), GZIP)));
    let bytes = text.into_bytes();
    let (first, second) = (bytes.slice(..BY_REFERENCE), bytes.slice(BY_REFERENCE..));
    for came in [Body::from(bytes.clone()), [first, second].into_iter().collect()] {
        assert!(!is_compressed(&sent(&came, Encodings::all(), GZIP)));
        assert!(is_compressed(&sent(&came, Encodings::all(), GZIP.compress_payloads(true))));
    }
    let short = Body::from(bytes.slice(..BY_REFERENCE - 1));
    assert!(is_compressed(&sent(&short, Encodings::all(), GZIP)), "it has no large field");
}

#[test]
fn what_was_made_compressed_is_decompressed_within_the_limit_of_who_sends_it() {
    let all = GZIP.compress_payloads(true);
    let default = Limits::default().max_message_size;
    let made = sent(&Body::from(Bytes::from(vec![0; default + 1])), Encodings::all(), all);
    assert_eq!(
        made.clone().decompressed().map_err(|it| it.code()).err(),
        Some(Code::ResourceExhausted)
    );
    let with = |limit, side| Outbound { takes: Encodings::NONE, side, limit };
    let plain = with(default + 1, Receiver::Client).prepare(made.clone(), GZIP, |_| Ok(()));
    assert_eq!(plain.expect("the limit was raised").len(), default + 1);
    for (side, setter) in [(Receiver::Client, "the client's"), (Receiver::Server, "the server's")] {
        let status = with(1 << 20, side).prepare(made.clone(), GZIP, |_| Ok(()));
        let status = status.expect_err("64 MiB are more than 1");
        let said = format!("max_message_size of 1 MiB when it is decompressed, set by {setter}");
        assert!(status.message().contains(&said), "{status}");
    }
}

#[test]
fn what_came_compressed_goes_on_as_it_is_or_is_decompressed() {
    let plain = Prost.encode(&block(5000, 0));
    let came = sent(&plain, Encodings::all(), GZIP);
    let at = came.clone().into_bytes().as_ptr();
    let passed = sent(&came, Encodings::from(Encoding::Gzip), Compression::NONE);
    assert!(is_compressed(&passed));
    assert_eq!(passed.into_bytes().as_ptr(), at);
    let opened = sent(&came, Encodings::NONE, GZIP);
    assert!(!is_compressed(&opened));
    assert_eq!(opened.into_bytes(), plain.into_bytes());
}

#[test]
fn a_length_is_checked_before_it_is_compressed_and_of_what_came_as_it_goes() {
    let plain = Prost.encode(&block(5000, 0));
    let came = sent(&plain, Encodings::all(), GZIP);
    let at_most = |limit| {
        move |len| if len <= limit { Ok(()) } else { Err(Status::resource_exhausted("too long")) }
    };
    let takes = to(Encodings::all());
    let refused = takes.prepare(plain, GZIP, at_most(4000)).expect_err("5000 are more");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let len = came.len();
    assert!(takes.prepare(came.clone(), GZIP, at_most(len)).is_ok());
    assert!(takes.prepare(came, GZIP, at_most(len - 1)).is_err());
}
