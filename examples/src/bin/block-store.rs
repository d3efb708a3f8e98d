//! A block store and its client in one program: large `bytes` fields, deadlines, and what to do after a failure, and
//! streams of blocks in both directions.
//!
//!     block-store [TARGET]              default: tcp://127.0.0.1:0, a port that the system chooses

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blockstore::block_store_client::BlockStoreClient;
use blockstore::block_store_server::{BlockStore, BlockStoreServer};
use blockstore::block_streams_client::BlockStreamsClient;
use blockstore::block_streams_server::{BlockStreams, BlockStreamsServer};
use blockstore::{
    Block, ReadBlockReply, ReadBlockRequest, ScanBlocksRequest, WriteBlockReply, WriteBlockRequest,
    WriteBlocksReply,
};
use bytes::Bytes;
use tokio_stream::iter;
use verbwire::{
    Code, Executed, Landing, LongRequest, NamedService, Request, Response, Server, Status,
    Streaming,
};
use verbwire_health::Watcher;

mod blockstore {
    verbwire::include_proto!("blockstore");
}

const BLOCK_SIZE: usize = 1 << 20;

#[derive(Default)]
struct Blocks(Mutex<BTreeMap<u64, Bytes>>);

impl Blocks {
    fn write(&self, request: WriteBlockRequest) -> Result<(), Status> {
        let WriteBlockRequest { block, data } = request;
        if data.len() != BLOCK_SIZE {
            let len = data.len();
            let why = format!("block {block} has {len} bytes, {BLOCK_SIZE} are needed");
            return Err(Status::invalid_argument(why));
        }
        // `data` is a slice of the message, and keeping it keeps the message: see `place_payloads` below.
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.insert(block, data);
        Ok(())
    }
}

impl BlockStore for Blocks {
    async fn write_block(
        &self,
        request: Request<WriteBlockRequest>,
    ) -> Result<Response<WriteBlockReply>, Status> {
        self.write(request.into_inner())?;
        Ok(Response::new(WriteBlockReply { len: BLOCK_SIZE as u64 }))
    }

    async fn read_block(
        &self,
        request: Request<ReadBlockRequest>,
    ) -> Result<Response<ReadBlockReply>, Status> {
        let block = request.get_ref().block;
        let blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match blocks.get(&block) {
            Some(data) => Ok(Response::new(ReadBlockReply { data: data.clone() })),
            None => Err(Status::not_found(format!("block {block} was never written"))),
        }
    }
}

impl BlockStreams for Blocks {
    async fn write_blocks(
        &self,
        request: Request<Streaming<WriteBlockRequest>>,
    ) -> Result<Response<WriteBlocksReply>, Status> {
        let mut requests = request.into_inner();
        let mut blocks = 0;
        while let Some(WriteBlockRequest { block, data }) = requests.message().await? {
            // `place_payloads` is not asked about messages of streams, so what is kept of them is copied.
            let data = Bytes::copy_from_slice(&data);
            self.write(WriteBlockRequest { block, data })?;
            blocks += 1;
        }
        Ok(Response::new(WriteBlocksReply { blocks }))
    }

    type ScanBlocksStream = tokio_stream::Iter<std::vec::IntoIter<Result<Block, Status>>>;

    async fn scan_blocks(
        &self,
        request: Request<ScanBlocksRequest>,
    ) -> Result<Response<Self::ScanBlocksStream>, Status> {
        let blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = blocks.range(request.get_ref().from..);
        let found = found.map(|(block, data)| Ok(Block { block: *block, data: data.clone() }));
        // The list holds blocks by reference; they are sent as fast as the caller takes them.
        Ok(Response::new(iter(found.collect::<Vec<_>>())))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().unwrap_or("tcp://127.0.0.1:0".to_owned());
    if target.starts_with('-') || arguments.next().is_some() {
        eprintln!("usage: block-store [TARGET], for example tcp://127.0.0.1:0");
        return ExitCode::FAILURE;
    }
    match run(&target).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("block-store: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(target: &str) -> Result<(), Box<dyn Error>> {
    let blocks = Arc::new(Blocks::default());
    let (reporter, health) = verbwire_health::health_reporter();
    reporter.set_serving::<BlockStoreServer<Blocks>>();
    let bound = Server::builder()
        .add_service(health)
        .add_service(BlockStoreServer::from_arc(Arc::clone(&blocks)))
        .add_service(BlockStreamsServer::from_arc(blocks))
        // A MiB of payload and the few bytes around it.
        .max_message_size(BLOCK_SIZE + 1024)
        // Blocks are kept. Without this they would, over RDMA, stay in the registered memory that peers write to, and
        // writes would be refused from 256 MiB on.
        .place_payloads(|_: &LongRequest<'_>| Ok(Landing::Owned))
        .bind(&[target])
        .await?;
    let target = bound.local_targets()[0].to_string();
    let server = tokio::spawn(bound.serve());

    let store = BlockStoreClient::new(verbwire::connect(&target).await?);
    wait_until_it_serves(target).await?;
    write_and_read(&store).await?;
    read_missing(&store).await;
    write_and_scan(&BlockStreamsClient::new(store.channel().clone())).await?;
    server.abort();
    Ok(())
}

/// Watches the health of the store until it serves. A program that chooses among stores would go on watching.
async fn wait_until_it_serves(target: String) -> Result<(), Status> {
    let name = BlockStoreServer::<Blocks>::NAME;
    let connect = move || {
        let target = target.clone();
        async move { verbwire::connect(&target).await }
    };
    let mut store = Watcher::new(name, connect);
    loop {
        let state = store.next().await?;
        println!("{name}: {state}");
        if state.is_serving() {
            return Ok(());
        }
    }
}

/// Fills a block in memory that the transport sends as it is, writes it and reads it back.
async fn write_and_read(store: &BlockStoreClient) -> Result<(), Status> {
    let mut buffer = store.channel().alloc(BLOCK_SIZE).await?;
    buffer.fill(7);
    let data = buffer.freeze();
    let len = write_block(store, 42, data.clone()).await?;
    let read = store.read_block(ReadBlockRequest { block: 42 }).await?;
    assert_eq!(read.into_inner().data, data);
    println!("wrote block 42 and read its {len} bytes back");
    Ok(())
}

/// Writes a block, and once more if the first try failed on its way. `WriteBlock` is idempotent; a call that
/// is not may be repeated only after `Executed::No`.
async fn write_block(store: &BlockStoreClient, block: u64, data: Bytes) -> Result<u64, Status> {
    let attempt = || {
        let data = data.clone();
        let mut request = Request::new(WriteBlockRequest { block, data });
        request.set_timeout(Duration::from_secs(10));
        store.write_block(request)
    };
    let written = match attempt().await {
        Err(status) if status.executed() != Executed::Yes => attempt().await?,
        first => first?,
    };
    Ok(written.into_inner().len)
}

/// Reads what is not there: the server's status arrives as it was returned.
async fn read_missing(store: &BlockStoreClient) {
    match store.read_block(ReadBlockRequest { block: 7 }).await {
        Ok(_) => println!("block 7 is there, although nobody wrote it"),
        Err(status) if status.code() == Code::NotFound => println!("{status}"),
        Err(status) => println!("cannot read block 7: {status}"),
    }
}

/// Writes three blocks in one call, and reads all that are there in another.
async fn write_and_scan(store: &BlockStreamsClient) -> Result<(), Status> {
    let data = Bytes::from(vec![8; BLOCK_SIZE]);
    let requests = (1..=3).map(move |block| WriteBlockRequest { block, data: data.clone() });
    let reply = store.write_blocks(iter(requests)).await?;
    println!("wrote {} blocks in one call", reply.into_inner().blocks);

    let mut blocks = store.scan_blocks(ScanBlocksRequest { from: 2 }).await?.into_inner();
    while let Some(Block { block, data }) = blocks.message().await? {
        println!("block {block} has {} bytes", data.len());
    }
    Ok(())
}
