//! The fuzz target on a stable compiler: the corpus, and mutations of it that are the same in every run.
//!
//! The corpus is made here, so that people can read what its files hold. After a change of the wire
//! format, `VERBWIRE_WRITE_CORPUS=1 cargo test --test corpus the_corpus` writes them anew.

use std::fs;
use std::path::{Path, PathBuf};

use verbwire_core::compression::EncodingId;
use verbwire_core::message::{CallId, Form, Head, MethodId, ReplyForm};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::tlv::{ENCODING, MANDATORY, Tlv};
use verbwire_core::wire::{HEADER_LEN, Header, Kind, head};
use verbwire_tcp::fuzzing;

const MUTATIONS: usize = 10_000;

fn call(slot: u32) -> CallId {
    CallId { slot, generation: 0 }
}

fn frame(header: Header, behind: &[u8]) -> Vec<u8> {
    [&header.encode()[..], behind].concat()
}

fn piece(slot: u32, offset: u32, len: u16, flags: Flags) -> Vec<u8> {
    let body_len = u32::from(len);
    let header = Header { flags, aux: offset, body_len, ..Header::new(Kind::Data, call(slot)) };
    frame(header, &vec![0xda; usize::from(len)])
}

fn follows(slot: u32, len: u32) -> Vec<u8> {
    let flags = Flags::BODY_FOLLOWS;
    frame(Header { flags, body_len: len, ..Header::new(Kind::Response, call(slot)) }, b"")
}

fn first_request() -> Vec<u8> {
    let head = Head::Request {
        call: call(0),
        method: MethodId(1),
        path: Some("/helloworld.Greeter/SayHello".into()),
        timeout: std::time::Duration::from_secs(1),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    };
    let mut header = head::header(&head, EncodingId::NONE);
    let metadata = b"\x04\0\x02\0\0\0langde\x07\0\x01\0\0\0sum-bin\xff";
    header.metadata_len = u32::try_from(metadata.len()).expect("short");
    header.body_len = 5;
    let mut behind = Vec::new();
    head::encode_tlvs(&head, EncodingId::NONE, &mut behind);
    behind.extend(metadata);
    behind.extend(b"world");
    frame(header, &behind)
}

fn tlvs(kind: u16) -> Vec<u8> {
    let mut block = Vec::new();
    Tlv { kind, value: b"later" }.encode(&mut block);
    let tlv_len = 9;
    frame(Header { tlv_len, ..Header::new(Kind::Cancel, call(2)) }, &block)
}

/// A message of a stream that says so often how it is compressed.
fn compressed(times: u16) -> Vec<u8> {
    let mut block = Vec::new();
    for _ in 0..times {
        Tlv { kind: ENCODING, value: &[1] }.encode(&mut block);
    }
    let header = Header { tlv_len: 5 * times, body_len: 3, ..Header::new(Kind::Message, call(1)) };
    frame(header, &[&block[..], b"zip"].concat())
}

/// The inputs by name; the first byte of each is the target's own, see `fuzzing::decode`.
fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    let none = Flags::default();
    let landing = Header { body_len: 9000, ..Header::new(Kind::Response, call(0)) };
    let goaway = Header { aux: 1, body_len: 4, ..Header::new(Kind::GoAway, call(0)) };
    let too_long = Header { body_len: u32::MAX, ..Header::new(Kind::Request, call(0)) };
    let streams: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("empty", vec![]),
        ("request_with_path_and_metadata", vec![first_request()]),
        ("cancel_cut_in_its_header", vec![tlvs(1)[..HEADER_LEN / 2].to_vec()]),
        ("body_with_a_landing", vec![frame(landing, &[1; 9000])]),
        ("body_in_pieces", vec![follows(0, 12), piece(0, 0, 8, none), piece(0, 8, 4, Flags::LAST)]),
        (
            "two_bodies_in_turns_and_a_request",
            vec![
                follows(0, 9000),
                follows(1, 10),
                piece(0, 0, 8192, none),
                first_request(),
                piece(1, 0, 10, Flags::LAST),
                piece(0, 8192, 808, Flags::LAST),
            ],
        ),
        (
            "aborted_body",
            vec![follows(2, 12), piece(2, 0, 8, none), piece(2, 8, 0, Flags::ABORTED)],
        ),
        ("piece_without_a_body", vec![piece(0, 0, 8, none)]),
        ("piece_at_a_wrong_offset", vec![follows(0, 12), piece(0, 4, 8, Flags::LAST)]),
        ("goaway_with_words", vec![frame(goaway, b"why?")]),
        ("optional_tlv", vec![tlvs(0x1234)]),
        ("mandatory_tlv", vec![tlvs(0x1234 | MANDATORY)]),
        ("compressed_message", vec![compressed(1)]),
        ("compressed_message_twice", vec![compressed(1), compressed(2)]),
        ("length_beyond_all_limits", vec![frame(too_long, b"")]),
        ("unknown_type", vec![vec![0xff; HEADER_LEN]]),
    ];
    let with_seed = |frames: Vec<Vec<u8>>| [vec![2], frames.concat()].concat();
    streams.into_iter().map(|(name, frames)| (name, with_seed(frames))).collect()
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/frame_decoder")
}

#[test]
fn the_corpus_is_what_this_file_makes() {
    for (name, input) in inputs() {
        let path = corpus().join(name);
        if std::env::var_os("VERBWIRE_WRITE_CORPUS").is_some() {
            fs::write(&path, &input).expect("the corpus is writable");
        }
        let found = fs::read(&path).expect("run with VERBWIRE_WRITE_CORPUS=1");
        assert!(found == input, "{name} differs; run with VERBWIRE_WRITE_CORPUS=1");
    }
}

#[test]
fn no_input_of_the_corpus_and_no_mutation_of_it_panics() {
    let files = fs::read_dir(corpus()).expect("the corpus");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    assert!(paths.len() >= inputs().len());
    let corpus: Vec<_> = paths.iter().map(|path| fs::read(path).expect("readable")).collect();
    corpus.iter().for_each(|input| fuzzing::decode(input));
    let mut random = fastrand::Rng::with_seed(0x5eed);
    for _ in 0..MUTATIONS {
        let mut input = corpus[random.usize(..corpus.len())].clone();
        for _ in 0..random.usize(1..5) {
            mutate(&mut input, &corpus, &mut random);
        }
        fuzzing::decode(&input);
    }
}

/// Does to `input` one of the things that a fuzzer does.
fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut fastrand::Rng) {
    let at = random.usize(..=input.len());
    match random.u8(..5) {
        0 => input.truncate(at),
        1 => input.insert(at, random.u8(..)),
        2 => {
            let other = &corpus[random.usize(..corpus.len())];
            input.splice(at..at, other.iter().copied());
        }
        3 => {
            let end = input.len().min(at + random.usize(..8));
            input.drain(at..end);
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte = [0, 1, 0x40, 0x7f, 0xff, random.u8(..)][random.usize(..6)];
            }
        }
    }
}
