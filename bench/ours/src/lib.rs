//! verbwire under the benchmark's driver, with its defaults.
//!
//! Does: serves and calls `bench.Echo` over `tcp://`, over `rdma://` and in process, and encodes as a
//! call does. Does not: tune anything; the method is a plain one, not marked `inline_safe`. Large payloads have a
//! service of their own, `bulk` (feature `rdma`).

use std::iter::repeat_n;

use bytes::Bytes;
use tokio_stream::Iter;
use verbwire::{Endpoint, Request, Response, Server, Status, Streaming};
use verbwire_bench_driver::{Framework, Outcome};
use verbwire_core::codec::{Codec, Prost};
use verbwire_core::wire::HEADER_LEN;

#[cfg(feature = "rdma")]
pub mod bulk;

use proto::echo_client::EchoClient;
use proto::echo_server::EchoServer;

/// Messages and stubs of `bench.Echo`.
pub mod proto {
    verbwire::include_proto!("bench");
}

/// Longest payload of a case, with its head.
const LONGEST: usize = (1 << 30) + 64;

/// verbwire with its defaults, but for the longest message, over `tcp://`.
#[derive(Debug)]
pub struct Verbwire;

/// The same over `rdma://`, on the device whose address is in `LAB_ADDRESS`.
#[derive(Debug)]
pub struct OverRdma;

/// A generated client of `bench.Echo`.
#[derive(Debug, Clone)]
pub struct Client(EchoClient);

/// The service.
#[derive(Debug)]
pub struct EchoService;

impl proto::echo_server::Echo for EchoService {
    async fn unary(
        &self,
        request: Request<proto::Payload>,
    ) -> Result<Response<proto::Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn take(
        &self,
        request: Request<proto::Payload>,
    ) -> Result<Response<proto::Amount>, Status> {
        let bytes = request.into_inner().data.len() as u64;
        Ok(Response::new(proto::Amount { messages: 1, bytes }))
    }

    async fn up(
        &self,
        request: Request<Streaming<proto::Payload>>,
    ) -> Result<Response<proto::Amount>, Status> {
        let mut payloads = request.into_inner();
        let mut amount = proto::Amount::default();
        while let Some(payload) = payloads.message().await? {
            amount.messages += 1;
            amount.bytes = payload.data.len() as u64;
        }
        Ok(Response::new(amount))
    }

    type DownStream = Iter<Replies>;

    async fn down(
        &self,
        request: Request<proto::Amount>,
    ) -> Result<Response<Self::DownStream>, Status> {
        let proto::Amount { messages, bytes } = request.into_inner();
        let refused = |_| Status::invalid_argument("so much fits no memory");
        let data = Bytes::from(vec![0; usize::try_from(bytes).map_err(refused)?]);
        let messages = usize::try_from(messages).map_err(refused)?;
        let replies = repeat_n(Ok(proto::Payload { data }), messages);
        Ok(Response::new(tokio_stream::iter(replies)))
    }
}

type Replies = std::iter::RepeatN<Result<proto::Payload, Status>>;

impl verbwire_bench_driver::Echo for Client {
    async fn echo(&mut self, data: Bytes) -> Outcome<Bytes> {
        let reply = self.0.unary(proto::Payload { data }).await?;
        Ok(reply.into_inner().data)
    }

    async fn take(&mut self, data: Bytes) -> Outcome<u64> {
        Ok(self.0.take(proto::Payload { data }).await?.into_inner().bytes)
    }

    async fn up(&mut self, data: Bytes, messages: usize) -> Outcome<u64> {
        let payloads = tokio_stream::iter(repeat_n(proto::Payload { data }, messages));
        Ok(self.0.up(payloads).await?.into_inner().messages)
    }

    async fn down(&mut self, size: usize, messages: usize) -> Outcome<u64> {
        let wanted = proto::Amount { messages: messages as u64, bytes: size as u64 };
        let mut payloads = self.0.down(wanted).await?.into_inner();
        let mut came = 0;
        while let Some(payload) = payloads.message().await? {
            came += u64::from(payload.data.len() == size);
        }
        Ok(came)
    }
}

impl Framework for Verbwire {
    type Client = Client;
    type LocalClient = Client;

    async fn serve(announce: impl FnOnce(String) + Send) -> Outcome<()> {
        let server = Server::builder().max_message_size(LONGEST).max_landing_bytes(2 * LONGEST);
        serve_at(server, "tcp://127.0.0.1:0", announce).await
    }

    async fn connect(address: &str) -> Outcome<Self::Client> {
        let endpoint = Endpoint::new(address)?.max_message_size(LONGEST);
        Ok(Client(EchoClient::new(endpoint.connect().await?)))
    }

    async fn in_process() -> Outcome<Self::LocalClient> {
        Ok(Client(EchoClient::in_process(EchoService)))
    }

    fn encode(payload: &Bytes) -> usize {
        let data = payload.clone();
        Prost.encode(&proto::Payload { data }).len()
    }
}

impl Framework for OverRdma {
    type Client = Client;
    type LocalClient = Client;

    async fn serve(announce: impl FnOnce(String) + Send) -> Outcome<()> {
        let address = std::env::var("LAB_ADDRESS").map_err(|_unset| "LAB_ADDRESS is not set")?;
        serve_at(Server::builder(), &format!("rdma://{address}:0"), announce).await
    }

    async fn connect(address: &str) -> Outcome<Self::Client> {
        Ok(Client(EchoClient::new(verbwire::connect(address).await?)))
    }

    async fn in_process() -> Outcome<Self::LocalClient> {
        Verbwire::in_process().await
    }

    fn encode(payload: &Bytes) -> usize {
        Verbwire::encode(payload)
    }
}

async fn serve_at(
    server: verbwire::Builder,
    target: &str,
    announce: impl FnOnce(String) + Send,
) -> Outcome<()> {
    let bound = server.add_service(EchoServer::new(EchoService)).bind(&[target]).await?;
    announce(bound.local_targets()[0].to_string());
    bound.serve().await?;
    Ok(())
}

/// Bytes of a REQUEST frame that carries `payload` once the method's path is not sent any more, and of
/// a RESPONSE that carries it: what goes over the wire for one direction of a call.
pub fn frame_len(payload: &Bytes) -> usize {
    HEADER_LEN + Verbwire::encode(payload)
}
