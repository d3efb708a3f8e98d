//! Two ends of a connection, a raw peer that speaks bytes, and what tests do with them.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use verbwire_core::buf::Body;
use verbwire_core::config::{Limits, Random};
use verbwire_core::message::{CallId, Form, Head, Message, MethodId, ReplyForm};
use verbwire_core::proto::hello::Identity;
use verbwire_core::transport::{
    Announced, Connection, Flush, Incoming, Listener, LocalSide, Outgoing, Placement,
    PlacementHook, SendError, SendHints, Transport,
};
use verbwire_core::wire::header::Flags;
use verbwire_core::wire::hello::PREFIX_LEN;
use verbwire_core::wire::{HEADER_LEN, Header, Hello, Kind};
use verbwire_core::{Error, Target};
use verbwire_tcp::{TcpConfig, TcpTransport, UnixTransport};

/// Places every body.
pub(crate) struct Everything;

impl PlacementHook for Everything {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

/// Refuses every body.
pub(crate) struct Nothing;

impl PlacementHook for Nothing {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Refuse
    }
}

pub(crate) type End = Arc<dyn Connection>;

pub(crate) fn hello() -> Hello {
    Identity::new(Random::from_seed(1)).hello(&Limits::default())
}

pub(crate) fn side(placement: impl PlacementHook + 'static) -> LocalSide {
    LocalSide {
        hello: hello(),
        placement: Arc::new(placement),
        deadline: Instant::now() + Duration::from_secs(20),
        ticket: None,
    }
}

/// A path for a socket, its own per call.
pub(crate) fn socket_path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("verbwire-{}-{count}.sock", std::process::id());
    std::env::temp_dir().join(name)
}

pub(crate) fn unix_target(path: &std::path::Path) -> Target {
    Target::new("unix", path.to_str().expect("a plain path"))
}

/// Both transports, with a target to listen at.
pub(crate) fn transports(config: &TcpConfig) -> [(Box<dyn Transport>, Target); 2] {
    [
        (Box::new(TcpTransport::new(config.clone())), Target::new("tcp", "127.0.0.1:0")),
        (Box::new(UnixTransport::new(config.clone())), unix_target(&socket_path())),
    ]
}

/// A connected pair; the second end places as `placement` says.
pub(crate) async fn pair(
    transport: &dyn Transport,
    target: &Target,
    placement: impl PlacementHook + 'static,
) -> (End, End) {
    let mut listener = transport.listen(target).await.expect("listen");
    let at = listener.local_target().clone();
    let (near, far) =
        tokio::join!(transport.connect(&at, side(Everything)), accept(&mut *listener, placement));
    (near.expect("connect").connection, far)
}

async fn accept(listener: &mut dyn Listener, placement: impl PlacementHook + 'static) -> End {
    let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
    let established = accepting.handshake(side(placement)).await;
    established.expect("handshake").connection
}

pub(crate) async fn tcp_pair(config: TcpConfig) -> (End, End) {
    let transport = TcpTransport::new(config);
    pair(&transport, &Target::new("tcp", "127.0.0.1:0"), Everything).await
}

/// An end whose peer is a bare socket that has said HELLO.
pub(crate) async fn raw_pair(
    config: TcpConfig,
    placement: impl PlacementHook + 'static,
) -> (End, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("free port");
    let address = listener.local_addr().expect("bound").to_string();
    let transport = TcpTransport::new(config);
    let target = Target::new("tcp", address);
    let (end, raw) = tokio::join!(transport.connect(&target, side(placement)), async {
        let (mut raw, _) = listener.accept().await.expect("accept");
        raw.write_all(&hello().encode_framed()).await.expect("say HELLO");
        let mut prefix = [0; PREFIX_LEN];
        raw.read_exact(&mut prefix).await.expect("prefix");
        let len = Hello::decode_prefix(&prefix).expect("HELLO");
        raw.read_exact(&mut vec![0; len]).await.expect("content");
        raw
    });
    (end.expect("connect").connection, raw)
}

/// The next frame that a raw peer gets.
pub(crate) async fn read_frame(raw: &mut TcpStream) -> Header {
    let mut bytes = [0; HEADER_LEN];
    raw.read_exact(&mut bytes).await.expect("a header");
    let header = Header::decode(&bytes).expect("a known type");
    let body =
        if header.flags.contains(Flags::BODY_FOLLOWS) { 0 } else { header.body_len as usize };
    let rest = usize::from(header.tlv_len) + header.metadata_len as usize + body;
    raw.read_exact(&mut vec![0; rest]).await.expect("the rest");
    header
}

/// Writes a frame as a raw peer.
pub(crate) async fn write_frame(raw: &mut TcpStream, header: Header, behind: &[u8]) {
    let bytes = [&header.encode()[..], behind].concat();
    raw.write_all(&bytes).await.expect("room");
}

/// The head of a request whose body comes in pieces.
pub(crate) fn follows(slot: u32, len: u32) -> Header {
    Header { flags: Flags::BODY_FOLLOWS, body_len: len, ..Header::new(Kind::Request, call(slot)) }
}

/// The header of a piece.
pub(crate) fn piece(slot: u32, offset: u32, len: u32, flags: Flags) -> Header {
    Header { flags, aux: offset, body_len: len, ..Header::new(Kind::Data, call(slot)) }
}

pub(crate) fn call(slot: u32) -> CallId {
    CallId { slot, generation: 1 }
}

pub(crate) fn request(slot: u32, body: Bytes) -> Message {
    let head = Head::Request {
        call: call(slot),
        method: MethodId(1),
        path: None,
        timeout: Duration::from_secs(1),
        form: Form::Whole,
        reply: ReplyForm::Whole,
        slot: None,
    };
    Message::with_body(head, Body::from(body))
}

pub(crate) fn zeroes(len: usize) -> Bytes {
    Bytes::from(vec![0; len])
}

/// Sends, waiting for room.
pub(crate) async fn send(end: &End, message: Message, flush: Flush) -> Result<(), Error> {
    let hints = SendHints::flush(flush);
    let mut outgoing = Outgoing { message, hints };
    loop {
        match end.try_send(outgoing) {
            Ok(()) => return Ok(()),
            Err(SendError::Closed(error)) => return Err(error),
            Err(SendError::Full(back)) => outgoing = *back,
        }
        poll_fn(|cx| end.poll_ready(cx)).await;
    }
}

/// One poll of the driver's that brought something.
pub(crate) async fn receive(end: &End) -> Result<Vec<Message>, Error> {
    let mut received: Vec<Incoming> = Vec::new();
    poll_fn(|cx| end.poll_recv(cx, &mut received)).await?;
    assert!(!received.is_empty(), "ready means a message at least");
    Ok(received.into_iter().map(|incoming| incoming.message).collect())
}

/// Drives an end that expects nothing, until it ends.
pub(crate) async fn drive(end: End) -> Error {
    loop {
        match receive(&end).await {
            Ok(messages) => assert!(messages.is_empty(), "unexpected {messages:?}"),
            Err(error) => return error,
        }
    }
}

pub(crate) fn slot(message: &Message) -> u32 {
    message.head.call().expect("about a call").slot
}
