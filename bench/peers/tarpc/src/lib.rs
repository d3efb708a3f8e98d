//! tarpc under the benchmark's driver: TCP, length-delimited frames, bincode.
//!
//! bincode is its fastest serde transport, and `Bytes` its fastest payload: a `Vec<u8>` would be
//! serialized byte by byte.

use std::pin::pin;

use bytes::Bytes;
use futures_util::StreamExt;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::Serializer;
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::LengthDelimitedCodec;
use tarpc::{client, context, serde_transport, server};
use tokio::net::{TcpListener, TcpStream};
use verbwire_bench_driver::{Framework, Outcome};

/// Responses and requests that may wait for the connection. The defaults of 100 would make some
/// of 128 callers wait for a place in the queue.
const QUEUE: usize = 1_024;

/// tarpc over TCP; in process, over its own in-memory channel, which does not encode.
pub struct Tarpc;

#[tarpc::service]
trait Echo {
    async fn unary(data: Bytes) -> Bytes;
}

#[derive(Clone)]
struct EchoService;

impl Echo for EchoService {
    async fn unary(self, _: context::Context, data: Bytes) -> Bytes {
        data
    }
}

#[derive(Clone)]
pub struct Client(EchoClient);

impl verbwire_bench_driver::Echo for Client {
    async fn echo(&mut self, payload: Bytes) -> Outcome<Bytes> {
        Ok(self.0.unary(context::current(), payload).await?)
    }
}

impl Framework for Tarpc {
    type Client = Client;
    type LocalClient = Client;

    async fn serve(announce: impl FnOnce(String) + Send) -> Outcome<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        announce(listener.local_addr()?.to_string());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let framed = LengthDelimitedCodec::builder().new_framed(stream);
            tokio::spawn(answer(serde_transport::new(framed, Bincode::default())));
        }
    }

    async fn connect(address: &str) -> Outcome<Self::Client> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let framed = LengthDelimitedCodec::builder().new_framed(stream);
        Ok(client(serde_transport::new(framed, Bincode::default())))
    }

    async fn in_process() -> Outcome<Self::LocalClient> {
        let (ours, theirs) = tarpc::transport::channel::unbounded();
        tokio::spawn(answer(theirs));
        Ok(client(ours))
    }

    fn encode(payload: &Bytes) -> usize {
        let format = Bincode::<EchoRequest, EchoRequest>::default();
        let request = EchoRequest::Unary { data: payload.clone() };
        pin!(format).serialize(&request).map_or(0, |encoded| encoded.len())
    }
}

fn client<T>(transport: T) -> Client
where
    T: tarpc::Transport<tarpc::ClientMessage<EchoRequest>, tarpc::Response<EchoResponse>>
        + Send
        + 'static,
    T::Error: std::error::Error + Send + Sync,
{
    let mut config = client::Config::default();
    config.pending_request_buffer = QUEUE;
    Client(EchoClient::new(config, transport).spawn())
}

/// Serves one connection as tarpc's documentation does: a task per request.
async fn answer<T>(transport: T)
where
    T: tarpc::Transport<tarpc::Response<EchoResponse>, tarpc::ClientMessage<EchoRequest>>
        + Send
        + 'static,
    T::Error: Send,
{
    let config = server::Config { pending_response_buffer: QUEUE };
    BaseChannel::new(config, transport)
        .execute(EchoService.serve())
        .for_each(|response| async {
            tokio::spawn(response);
        })
        .await;
}
