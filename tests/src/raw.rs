//! A peer that writes and reads bytes, and keeps to no rule unless the test does.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use verbwire::compression::EncodingId;
use verbwire::config::{Limits, Random};
use verbwire_core::message::{CallId, Form, Head, MethodId, ReplyForm};
use verbwire_core::proto::hello::Identity;
use verbwire_core::wire::hello::PREFIX_LEN;
use verbwire_core::wire::{HEADER_LEN, Header, Hello, head};

use crate::fixture::LONG;

/// What both kinds of socket do.
trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// One end of a byte stream.
pub struct RawPeer {
    socket: Box<dyn Socket>,
    /// Words by which the other side's log names this connection.
    pub mark: String,
}

/// Where clients find a [`RawPeer`].
#[derive(Debug)]
pub enum RawListener {
    /// At a port.
    Tcp(TcpListener),
    /// At a socket file.
    Unix(UnixListener),
}

/// A frame as it was read.
#[derive(Debug)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    /// Its TLVs.
    pub tlvs: Vec<u8>,
    /// Its body, empty where DATA frames carry it.
    pub body: Vec<u8>,
}

impl RawPeer {
    /// Connects and says nothing.
    ///
    /// # Panics
    ///
    /// If nothing listens at `target`.
    pub async fn dial(target: &str) -> Self {
        match target.split_once("://") {
            Some(("tcp", address)) => {
                let socket = TcpStream::connect(address).await.expect("a server listens");
                socket.set_nodelay(true).expect("a connected socket");
                let mark = socket.local_addr().expect("a connected socket").to_string();
                Self { socket: Box::new(socket), mark }
            }
            Some((_, path)) => {
                let socket = UnixStream::connect(path).await.expect("a server listens");
                Self { socket: Box::new(socket), mark: path.to_owned() }
            }
            None => unreachable!("the suite's targets are well-formed"),
        }
    }

    /// Connects and exchanges proper HELLOs.
    pub async fn client(target: &str) -> Self {
        let mut peer = Self::dial(target).await;
        peer.send(&hello().encode_framed()).await;
        peer.read_hello().await;
        peer
    }

    /// Sends bytes. Whether they arrive is not known: the other side may have closed.
    pub async fn send(&mut self, bytes: &[u8]) {
        let sent = timeout(LONG, self.socket.write_all(bytes)).await;
        // An error says that the other side has closed, which reading shows as well.
        let _closed = sent.expect("the other side reads or closes");
    }

    /// Sends bytes for as long as the other side takes some; returns how many it took.
    pub async fn send_while_taken(&mut self, bytes: &[u8], patience: Duration) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            match timeout(patience, self.socket.write(&bytes[taken..])).await {
                Ok(Ok(count)) => taken += count,
                Ok(Err(_)) | Err(_) => break,
            }
        }
        taken
    }

    /// Ends this side's half of the stream.
    pub async fn finish(&mut self) {
        // An error says that it has ended already.
        let _ended = self.socket.shutdown().await;
    }

    /// The other side's HELLO.
    ///
    /// # Panics
    ///
    /// If it says none.
    pub async fn read_hello(&mut self) -> Hello {
        let mut prefix = [0; PREFIX_LEN];
        self.read(&mut prefix).await.expect("a HELLO");
        let len = Hello::decode_prefix(&prefix).expect("a HELLO");
        let mut content = vec![0; len];
        self.read(&mut content).await.expect("a HELLO");
        Hello::decode_content(&content).expect("a HELLO")
    }

    /// The next frame; `None` once the other side has closed.
    ///
    /// # Panics
    ///
    /// If neither comes, or bytes that are no frame.
    pub async fn frame(&mut self) -> Option<Frame> {
        let mut header = [0; HEADER_LEN];
        self.read(&mut header).await.ok()?;
        let header = Header::decode(&header).expect("a frame");
        let mut tlvs = vec![0; usize::from(header.tlv_len)];
        self.read(&mut tlvs).await.ok()?;
        let follows = header.flags.contains(verbwire_core::wire::header::Flags::BODY_FOLLOWS);
        let mut body = vec![0; if follows { 0 } else { header.body_len as usize }];
        self.read(&mut body).await.ok()?;
        Some(Frame { header, tlvs, body })
    }

    /// Reads until the other side closes; the frames that came before.
    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        frames
    }

    async fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let read = timeout(LONG, self.socket.read_exact(bytes)).await;
        read.expect("the other side says something or closes").map(|_| ())
    }
}

impl Frame {
    /// What it says.
    ///
    /// # Panics
    ///
    /// If it is no message of the core.
    pub fn head(&self) -> Head {
        head::decode(&self.header, &self.tlvs).expect("a message").0
    }
}

impl RawListener {
    /// Listens at `target`; returns the target with its port filled in.
    ///
    /// # Panics
    ///
    /// If it cannot.
    pub async fn bind(target: &str) -> (Self, String) {
        match target.split_once("://") {
            Some(("tcp", address)) => {
                let listener = TcpListener::bind(address).await.expect("a free port");
                let address = listener.local_addr().expect("bound");
                (Self::Tcp(listener), format!("tcp://{address}"))
            }
            Some((_, path)) => {
                let listener = UnixListener::bind(path).expect("a fresh path");
                (Self::Unix(listener), target.to_owned())
            }
            None => unreachable!("the suite's targets are well-formed"),
        }
    }

    /// The next client, to which nothing was said yet.
    ///
    /// # Panics
    ///
    /// If none can be accepted.
    pub async fn accept(&self) -> RawPeer {
        match self {
            Self::Tcp(listener) => {
                let (socket, from) = listener.accept().await.expect("a client connects");
                RawPeer { socket: Box::new(socket), mark: from.to_string() }
            }
            Self::Unix(listener) => {
                let (socket, _) = listener.accept().await.expect("a client connects");
                RawPeer { socket: Box::new(socket), mark: String::new() }
            }
        }
    }

    /// The next client, with proper HELLOs exchanged; this side's is `ours`.
    pub async fn greet(&self, ours: &Hello) -> RawPeer {
        let mut peer = self.accept().await;
        peer.send(&ours.encode_framed()).await;
        peer.read_hello().await;
        peer
    }
}

impl std::fmt::Debug for RawPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawPeer({})", self.mark)
    }
}

/// A proper HELLO with default limits.
pub fn hello() -> Hello {
    // They answer nothing by themselves, PING neither.
    Hello { features: 0, ..Identity::new(Random::from_seed(1)).hello(&Limits::default()) }
}

/// The id of the first use of `slot`.
pub fn call(slot: u32) -> CallId {
    CallId { slot, generation: 0 }
}

/// A message in one frame.
pub fn message(head: &Head, body: &[u8]) -> Vec<u8> {
    compressed(head, EncodingId::NONE, body)
}

/// The same, which says that its body is compressed so.
pub fn compressed(head: &Head, encoding: EncodingId, body: &[u8]) -> Vec<u8> {
    let mut header = head::header(head, encoding);
    header.body_len = u32::try_from(body.len()).expect("the suite's bodies are short");
    let mut bytes = header.encode().to_vec();
    head::encode_tlvs(head, encoding, &mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

/// A REQUEST for a method by its path, which is not given a number.
pub fn request(call: CallId, path: &str, timeout: Duration, body: &[u8]) -> Vec<u8> {
    request_for(call, path, timeout, ReplyForm::Whole, body)
}

/// The same of a caller that takes the reply in this form.
pub fn request_for(
    call: CallId,
    path: &str,
    timeout: Duration,
    reply: ReplyForm,
    body: &[u8],
) -> Vec<u8> {
    let (method, path) = (MethodId::NONE, Some(path.to_owned().into()));
    let form = Form::Whole;
    message(&Head::Request { call, method, path, timeout, form, reply, slot: None }, body)
}

/// The same frame with a metadata block behind its TLVs.
pub fn with_metadata(frame: &[u8], block: &[u8]) -> Vec<u8> {
    let (header, behind) = frame.split_first_chunk().expect("a frame");
    let mut header = Header::decode(header).expect("a frame");
    header.metadata_len = u32::try_from(block.len()).expect("the suite's metadata is short");
    let (tlvs, body) = behind.split_at(usize::from(header.tlv_len));
    [&header.encode()[..], tlvs, block, body].concat()
}

/// An entry of a metadata block with whatever lengths it claims.
pub fn metadata_entry(key_len: u16, value_len: u32, behind: &[u8]) -> Vec<u8> {
    [&key_len.to_le_bytes()[..], &value_len.to_le_bytes()[..], behind].concat()
}

/// A frame with TLVs that its header counts, and nothing behind them.
pub fn with_tlvs(mut header: Header, tlvs: &[u8]) -> Vec<u8> {
    header.tlv_len = u16::try_from(tlvs.len()).expect("the suite's TLVs are short");
    [&header.encode()[..], tlvs].concat()
}
