//! verbwire under the benchmark's driver, with its defaults.
//!
//! Does: serves and calls `bench.Echo` over `tcp://`, over `rdma://` and in process, and encodes as a
//! call does. Does not: tune anything; the method is a plain one, not marked `inline_safe`. Large payloads have a
//! service of their own, `bulk` (feature `rdma`).

use bytes::Bytes;
use verbwire::{Request, Response, Server, Status};
use verbwire_bench_driver::{Framework, Outcome};
use verbwire_core::codec::{Codec, Prost};
use verbwire_core::wire::HEADER_LEN;

#[cfg(feature = "rdma")]
pub mod bulk;

use proto::echo_client::EchoClient;
use proto::echo_server::EchoServer;

mod proto {
    verbwire::include_proto!("bench");
}

/// verbwire with its defaults, over `tcp://`.
#[derive(Debug)]
pub struct Verbwire;

/// The same over `rdma://`, on the device whose address is in `LAB_ADDRESS`.
#[derive(Debug)]
pub struct OverRdma;

/// A generated client of `bench.Echo`.
#[derive(Debug, Clone)]
pub struct Client(EchoClient);

struct EchoService;

impl proto::echo_server::Echo for EchoService {
    async fn unary(
        &self,
        request: Request<proto::Payload>,
    ) -> Result<Response<proto::Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

impl verbwire_bench_driver::Echo for Client {
    async fn echo(&mut self, data: Bytes) -> Outcome<Bytes> {
        let reply = self.0.unary(proto::Payload { data }).await?;
        Ok(reply.into_inner().data)
    }
}

impl Framework for Verbwire {
    type Client = Client;
    type LocalClient = Client;

    async fn serve(announce: impl FnOnce(String) + Send) -> Outcome<()> {
        serve_at("tcp://127.0.0.1:0", announce).await
    }

    async fn connect(address: &str) -> Outcome<Self::Client> {
        Ok(Client(EchoClient::new(verbwire::connect(address).await?)))
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
        serve_at(&format!("rdma://{address}:0"), announce).await
    }

    async fn connect(address: &str) -> Outcome<Self::Client> {
        Verbwire::connect(address).await
    }

    async fn in_process() -> Outcome<Self::LocalClient> {
        Verbwire::in_process().await
    }

    fn encode(payload: &Bytes) -> usize {
        Verbwire::encode(payload)
    }
}

async fn serve_at(target: &str, announce: impl FnOnce(String) + Send) -> Outcome<()> {
    let bound = Server::builder().add_service(EchoServer::new(EchoService)).bind(&[target]).await?;
    announce(bound.local_targets()[0].to_string());
    bound.serve().await?;
    Ok(())
}

/// Bytes of a REQUEST frame that carries `payload` once the method's path is not sent any more, and of
/// a RESPONSE that carries it: what goes over the wire for one direction of a call.
pub fn frame_len(payload: &Bytes) -> usize {
    HEADER_LEN + Verbwire::encode(payload)
}
