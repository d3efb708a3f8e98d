//! The serving side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use verbwire::{Request, Response, Status};
use verbwire_bench_driver::Outcome;
use verbwire_core::Server;
use verbwire_core::transport::Transport;
use verbwire_rdma::RdmaTransport;

use super::proto::bulk_server::{Bulk, BulkServer};
use super::{checksum, counts, proto};

struct BulkService {
    transport: Arc<RdmaTransport>,
    /// Replies by length, made when they are first wanted.
    replies: Mutex<HashMap<usize, Bytes>>,
}

pub(super) async fn serve(transport: Arc<RdmaTransport>, target: &str) -> Outcome<()> {
    let service = BulkService { transport: Arc::clone(&transport), replies: Mutex::default() };
    let target = (transport as Arc<dyn Transport>, target.parse()?);
    let bound = Server::builder().add_service(BulkServer::new(service)).bind(vec![target]).await?;
    println!("{}", bound.local_targets()[0]);
    bound.serve().await?;
    Ok(())
}

impl BulkService {
    async fn reply(&self, request: &Request<proto::Wanted>) -> Result<Bytes, Status> {
        let refused = |_| Status::invalid_argument("so many bytes fit no memory");
        let len = usize::try_from(request.get_ref().bytes).map_err(refused)?;
        let known = self.replies.lock().unwrap_or_else(PoisonError::into_inner).get(&len).cloned();
        if let Some(reply) = known {
            return Ok(reply);
        }
        let reply = request.alloc(len).await?.freeze();
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(replies.entry(len).or_insert(reply).clone())
    }
}

impl Bulk for BulkService {
    async fn put(
        &self,
        request: Request<proto::Blob>,
    ) -> Result<Response<proto::Received>, Status> {
        let proto::Blob { data, check } = request.into_inner();
        let checksum = if check { checksum(&data) } else { 0 };
        Ok(Response::new(proto::Received { bytes: data.len() as u64, checksum }))
    }

    async fn fetch(
        &self,
        request: Request<proto::Wanted>,
    ) -> Result<Response<proto::Blob>, Status> {
        let data = self.reply(&request).await?;
        Ok(Response::new(proto::Blob { data, check: false }))
    }

    async fn count(
        &self,
        _request: Request<proto::Nothing>,
    ) -> Result<Response<proto::Counts>, Status> {
        Ok(Response::new(counts(&self.transport)))
    }
}
