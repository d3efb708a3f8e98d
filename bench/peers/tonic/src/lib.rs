//! tonic under the benchmark's driver, with its defaults and with larger HTTP/2 windows.
//!
//! The defaults win on large payloads, the windows can win on small ones, so both run.

use std::iter::repeat_n;

use bytes::Bytes;
use prost::Message;
use tonic::codegen::Body;
use tonic::codegen::StdError;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use verbwire_bench_driver::{Echo, Framework, Outcome};

use proto::echo_client::EchoClient;
use proto::echo_server::EchoServer;

mod proto {
    tonic::include_proto!("bench");
}

/// Longest payload of a case, with its head.
const LONGEST: usize = (1 << 30) + 64;

const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const FRAME_SIZE: u32 = 1 << 20;

/// tonic as its documentation starts it: default HTTP/2 settings, `TCP_NODELAY`.
pub struct Tonic;

/// tonic with HTTP/2 windows that hold several of the largest payloads.
pub struct TonicWithLargerWindows;

#[derive(Clone)]
pub struct Client<T>(EchoClient<T>);

impl<T> Echo for Client<T>
where
    T: tonic::client::GrpcService<tonic::body::Body> + Clone + Send + 'static,
    T::ResponseBody: Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as Body>::Error: Into<StdError> + Send,
    T::Future: Send,
{
    async fn echo(&mut self, data: Bytes) -> Outcome<Bytes> {
        Ok(self.0.unary(proto::Payload { data }).await?.into_inner().data)
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

/// Answers with the payload it was sent.
pub struct EchoService;

#[tonic::async_trait]
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

    type DownStream = tokio_stream::Iter<std::iter::RepeatN<Result<proto::Payload, Status>>>;

    async fn down(
        &self,
        request: Request<proto::Amount>,
    ) -> Result<Response<Self::DownStream>, Status> {
        let proto::Amount { messages, bytes } = request.into_inner();
        let data = Bytes::from(vec![0; bytes as usize]);
        let replies = repeat_n(Ok(proto::Payload { data }), messages as usize);
        Ok(Response::new(tokio_stream::iter(replies)))
    }
}

impl Framework for Tonic {
    type Client = Client<Channel>;
    type LocalClient = Client<EchoServer<EchoService>>;

    async fn serve(announce: impl FnOnce(String) + Send) -> Outcome<()> {
        serve(Server::builder(), announce).await
    }

    async fn connect(address: &str) -> Outcome<Self::Client> {
        connect(Endpoint::from_shared(address.to_owned())?).await
    }

    async fn in_process() -> Outcome<Self::LocalClient> {
        Ok(Client(EchoClient::new(EchoServer::new(EchoService))))
    }

    fn encode(payload: &Bytes) -> usize {
        proto::Payload { data: payload.clone() }.encode_to_vec().len()
    }
}

impl Framework for TonicWithLargerWindows {
    type Client = Client<Channel>;
    type LocalClient = <Tonic as Framework>::LocalClient;

    async fn serve(announce: impl FnOnce(String) + Send) -> Outcome<()> {
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_SIZE);
        serve(server, announce).await
    }

    async fn connect(address: &str) -> Outcome<Self::Client> {
        let endpoint = Endpoint::from_shared(address.to_owned())?
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_SIZE);
        connect(endpoint).await
    }

    async fn in_process() -> Outcome<Self::LocalClient> {
        Tonic::in_process().await
    }

    fn encode(payload: &Bytes) -> usize {
        Tonic::encode(payload)
    }
}

async fn serve(mut server: Server, announce: impl FnOnce(String)) -> Outcome<()> {
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    announce(format!("http://{}", incoming.local_addr()?));
    let service = EchoServer::new(EchoService).max_decoding_message_size(LONGEST);
    server.add_service(service).serve_with_incoming(incoming).await?;
    Ok(())
}

async fn connect(endpoint: Endpoint) -> Outcome<Client<Channel>> {
    let client = EchoClient::new(endpoint.tcp_nodelay(true).connect().await?);
    Ok(Client(client.max_encoding_message_size(LONGEST)))
}
