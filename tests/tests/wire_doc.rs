//! `docs/wire.md` against the encoder: every hex dump in it is what this software sends.
//!
//! A dump is a fenced block that opens with `hex NAME`; what follows a `;` is a comment. The second test does
//! what another implementation would: it knows these bytes and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use verbwire::{Code, Executed, Request, Response, Server, Status};
use verbwire_core::Body;
use verbwire_core::codec::{Codec, Prost};
use verbwire_core::compression::{Encoding, EncodingId};
use verbwire_core::message::{
    CallId, Form, GoAway, Head, Message, MethodId, ReplyForm, SessionId, SlotUse,
};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::hello::PREFIX_LEN;
use verbwire_core::wire::metadata::Block;
use verbwire_core::wire::{HEADER_LEN, Header, Hello, Kind, head, status};
use verbwire_rdma::memory::Rkey;
use verbwire_rdma::proto::rendezvous::wire::{
    Crc, Fin, Frame, Grant, GrantId, HeadExtras, Name, Names, Place, RtsNumber,
};

use helloworld::greeter_server::{Greeter, GreeterServer};
use helloworld::{HelloReply, HelloRequest};

mod helloworld {
    verbwire::include_proto!("helloworld");
}

const CALL: CallId = CallId { slot: 0, generation: 0 };

const OTHER: CallId = CallId { slot: 3, generation: 7 };

const PLAIN: EncodingId = EncodingId::NONE;

/// The request for "world" by gzip, which has it as it is: shorter bytes depend on who makes them.
const ZIPPED: [u8; 30] = [
    0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1, 7, 0, 0xf8, 0xff, 10, 5, b'w', b'o', b'r', b'l',
    b'd', 0xdd, 0xf7, 0x84, 0x95, 7, 0, 0, 0,
];

/// Every dump that the document must have, with the encoder's bytes.
fn encoded() -> BTreeMap<&'static str, Bytes> {
    let reply = HelloReply { message: "Hello world!".to_owned() };
    BTreeMap::from([
        ("hello", hello().encode_framed()),
        ("request", frame(&request(CALL, PathOf::Sent), say_hello())),
        ("response", frame(&response(Code::Ok), Prost.encode(&reply))),
        ("request-interned", frame(&request(next_use(), PathOf::Known), say_hello())),
        (
            "response-failed",
            frame(
                &response(Code::NotFound),
                status::encode(&Status::not_found("no block 7"), 4096),
            ),
        ),
        ("response-metadata", with_metadata()),
        ("cancel", frame(&Head::Cancel { call: OTHER }, Body::new())),
        ("cancelled", frame(&cancelled(), Body::new())),
        ("goaway", frame(&go_away(), Body::new())),
        ("data", data(Flags::default(), 0, &[0xaa; 8])),
        ("data-last", data(Flags::LAST, 8, &[0xbb; 2])),
        ("data-aborted", data(Flags::ABORTED, 8, &[])),
        ("request-stream", frame(&stream_request(), Body::new())),
        ("request-replies", frame(&replied(ReplyForm::Stream), say_hello())),
        ("request-any-form", frame(&replied(ReplyForm::Either), say_hello())),
        ("message", frame(&Head::Message { call: OTHER, number: 1 }, say_hello())),
        ("message-compressed", compressed()),
        ("end", frame(&Head::End { call: OTHER, messages: 2 }, Body::new())),
        ("request-slot", frame(&repeatable(), say_hello())),
        ("window", frame(&Head::Window { call: OTHER, granted: 262_286 }, Body::new())),
        ("headers", frame(&Head::Headers { call: OTHER }, Body::new())),
        ("response-stream", frame(&stream_response(), Body::new())),
        ("rts", written_head(&request(OTHER, PathOf::Known), MIB, rts())),
        ("cts", grant_frame(&Frame::Cts { rts: Some(RtsNumber(5)), grant: grant() })),
        ("fin", grant_frame(&Frame::Fin(Fin { offset: 96, crc: Some(Crc(0xdead_beef)), ..fin() }))),
        ("abort", grant_frame(&Frame::Abort(names([GRANT, Name::Rts(RtsNumber(6))])))),
        ("abort-ack", grant_frame(&Frame::AbortAck(names([GRANT])))),
        ("response-written", written_head(&response(Code::Ok), MIB, finished())),
        ("response-unused", written_head(&response(Code::Ok), 0, unused())),
    ])
}

enum PathOf {
    Sent,
    Known,
}

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        max_message_size: 64 << 20,
        max_metadata_size: 16 << 10,
        max_frame_body: 256 << 10,
        max_concurrent_calls: 1024,
        max_interned_methods: 4096,
        incarnation: 0x0807_0605_0403_0201,
        connection: 0x1817_1615_1413_1211,
        encodings: 1 << Encoding::Gzip.id().0,
        software: "example".to_owned(),
        ..Hello::default()
    }
}

fn request(call: CallId, path: PathOf) -> Head {
    Head::Request {
        call,
        method: MethodId(1),
        path: match path {
            PathOf::Sent => Some("/helloworld.Greeter/SayHello".into()),
            PathOf::Known => None,
        },
        timeout: Duration::from_secs(10),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    }
}

fn stream_request() -> Head {
    let (call, method, timeout) = (OTHER, MethodId(1), Duration::from_secs(10));
    let (form, reply) = (Form::Stream, ReplyForm::Whole);
    Head::Request { call, method, path: None, timeout, form, reply, slot: None }
}

/// A call with one request and a reply in this form.
fn replied(reply: ReplyForm) -> Head {
    let (call, method, timeout) = (OTHER, MethodId(1), Duration::from_secs(10));
    Head::Request { call, method, path: None, timeout, form: Form::Whole, reply, slot: None }
}

fn repeatable() -> Head {
    let (call, method, timeout) = (OTHER, MethodId(1), Duration::from_secs(10));
    let this = SlotUse { session: SessionId(0x0123_4567_89ab_cdef), slot: 2, sequence: 9 };
    let (form, reply, slot) = (Form::Whole, ReplyForm::Whole, Some(Box::new(this)));
    Head::Request { call, method, path: None, timeout, form, reply, slot }
}

fn stream_response() -> Head {
    let (call, code, executed) = (OTHER, Code::Ok, Executed::Yes);
    Head::Response { call, code, executed, messages: Some(5) }
}

fn next_use() -> CallId {
    CallId { generation: CALL.generation + 1, ..CALL }
}

fn say_hello() -> Body {
    Prost.encode(&HelloRequest { name: "world".to_owned() })
}

fn response(code: Code) -> Head {
    Head::Response { call: CALL, code, executed: Executed::Yes, messages: None }
}

fn cancelled() -> Head {
    Head::Cancelled { call: OTHER, executed: Executed::Maybe }
}

fn go_away() -> Head {
    Head::GoAway { reason: GoAway::Draining }
}

/// A frame with its body behind it, as a byte transport sends it.
fn frame(head: &Head, body: Body) -> Bytes {
    let body = body.into_bytes();
    let header = Header {
        body_len: u32::try_from(body.len()).expect("a short body"),
        ..head::header(head, PLAIN)
    };
    let mut bytes = BytesMut::from(&header.encode()[..]);
    head::encode_tlvs(head, PLAIN, &mut bytes);
    bytes.extend_from_slice(&body);
    bytes.freeze()
}

/// The same message as another one, compressed.
fn compressed() -> Bytes {
    let body = Body::from(Bytes::from_static(&ZIPPED)).with_encoding(Encoding::Gzip);
    let message = Message::with_body(Head::Message { call: OTHER, number: 1 }, body);
    let plain = message.body.clone().decompressed().expect("gzip");
    assert_eq!(plain.into_bytes(), say_hello().into_bytes());
    let header = Header { body_len: 30, ..head::header(&message.head, message.encoding) };
    let mut bytes = BytesMut::from(&header.encode()[..]);
    head::encode_tlvs(&message.head, message.encoding, &mut bytes);
    bytes.extend_from_slice(&ZIPPED);
    bytes.freeze()
}

fn with_metadata() -> Bytes {
    let mut block = Block::default();
    block.headers.insert("lang", "de".parse().expect("text")).expect("a key");
    block.trailers.insert_bin("sum-bin", vec![1, 0xff].into()).expect("a key");
    let metadata = block.encode();
    let whole = frame(&response(Code::Ok), Bytes::from_static(b"x").into());
    let (header, body) = whole.split_at(HEADER_LEN);
    let mut header = BytesMut::from(header);
    header[28] = u8::try_from(metadata.len()).expect("short");
    [&header[..], &metadata, body].concat().into()
}

fn data(flags: Flags, offset: u32, piece: &[u8]) -> Bytes {
    let header = Header {
        flags,
        aux: offset,
        body_len: u32::try_from(piece.len()).expect("a short piece"),
        ..Header::new(Kind::Data, OTHER)
    };
    [&header.encode(), piece].concat().into()
}

const MIB: u32 = 1 << 20;

const GRANT_ID: GrantId = GrantId { index: 2, generation: 1 };

const GRANT: Name = Name::Grant(GRANT_ID);

fn grant() -> Grant {
    let place = Place { address: 0x7f34_5540_0000, rkey: Rkey(0x1234_5678) };
    Grant { id: GRANT_ID, place, len: u64::from(MIB) + 4096 }
}

fn fin() -> Fin {
    Fin { grant: GRANT_ID, offset: 0, len: MIB, crc: None }
}

fn names<const COUNT: usize>(names: [Name; COUNT]) -> Names {
    Names::first_of(names).expect("one at least")
}

fn rts() -> HeadExtras {
    HeadExtras { rts: Some(RtsNumber(5)), ..HeadExtras::default() }
}

fn finished() -> HeadExtras {
    HeadExtras { fin: Some(fin()), ..HeadExtras::default() }
}

fn unused() -> HeadExtras {
    HeadExtras { unused: Some(GRANT_ID), ..HeadExtras::default() }
}

fn grant_frame(frame: &Frame) -> Bytes {
    let mut bytes = BytesMut::from(&frame.header().encode()[..]);
    frame.encode_tlvs(&mut bytes);
    bytes.freeze()
}

/// The head of a message whose body is written, or one that closes a grant.
fn written_head(head: &Head, body_len: u32, extras: HeadExtras) -> Bytes {
    let bare = head::header(head, PLAIN);
    let follows = if body_len > 0 { Flags::BODY_FOLLOWS } else { Flags::default() };
    let more = u16::try_from(extras.encoded_len()).expect("a handful of short TLVs");
    let (flags, tlv_len) = (bare.flags.with(follows), bare.tlv_len + more);
    let header = Header { flags, tlv_len, body_len, ..bare };
    let mut bytes = BytesMut::from(&header.encode()[..]);
    head::encode_tlvs(head, PLAIN, &mut bytes);
    extras.encode(&mut bytes);
    bytes.freeze()
}

/// The dumps of the document by name.
fn dumps() -> BTreeMap<&'static str, Vec<u8>> {
    let mut dumps = BTreeMap::new();
    let mut lines = include_str!("../../docs/wire.md").lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```hex ") else {
            continue;
        };
        let dump = lines.by_ref().take_while(|line| *line != "```");
        let bytes: Vec<u8> = dump.flat_map(bytes_of).collect();
        assert!(!bytes.is_empty(), "the dump {name} is empty");
        assert!(dumps.insert(name, bytes).is_none(), "two dumps named {name}");
    }
    dumps
}

fn bytes_of(line: &str) -> Vec<u8> {
    let (hex, _comment) = line.split_once(';').unwrap_or((line, ""));
    let byte = |word| u8::from_str_radix(word, 16).expect("two hex digits");
    hex.split_whitespace().map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    let rows = bytes.chunks(16).map(|row| {
        let words: Vec<_> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        words.join(" ")
    });
    rows.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_dump_in_the_wire_document_is_what_the_encoder_writes() {
    let mut dumps = dumps();
    for (name, expected) in encoded() {
        let dump = dumps.remove(name).unwrap_or_default();
        assert_eq!(
            hex(&dump),
            hex(&expected),
            "docs/wire.md, `hex {name}`; the right side is what the encoder writes"
        );
    }
    assert!(dumps.is_empty(), "dumps that nothing is compared with: {dumps:?}");
}

struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

#[tokio::test]
async fn the_dumped_request_spoken_to_a_server_gets_the_dumped_response() {
    let bound = Server::builder()
        .add_service(GreeterServer::new(MyGreeter))
        .bind(&["tcp://127.0.0.1:0"])
        .await
        .expect("a free port");
    let address = bound.local_targets()[0].address().to_owned();
    let server = tokio::spawn(bound.serve());

    let dumps = dumps();
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(&dumps["hello"]).await.expect("open");
    let mut prefix = [0; PREFIX_LEN];
    stream.read_exact(&mut prefix).await.expect("HELLO");
    let len = Hello::decode_prefix(&prefix).expect("its prefix");
    stream.read_exact(&mut vec![0; len]).await.expect("its content");

    stream.write_all(&dumps["request"]).await.expect("open");
    let mut answer = vec![0; dumps["response"].len()];
    stream.read_exact(&mut answer).await.expect("RESPONSE");
    assert_eq!(hex(&answer), hex(&dumps["response"]));
    server.abort();
}
