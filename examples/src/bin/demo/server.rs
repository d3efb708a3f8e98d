//! The demo's server: two services on a thread and a runtime of their own.

use std::process;
use std::thread::{self, JoinHandle};

use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task;
use verbwire::{Bound, Request, Response, Server, Status};

use crate::Outcome;
use crate::blockstore::block_store_server::{BlockStore, BlockStoreServer};
use crate::blockstore::{ReadBlockReply, ReadBlockRequest, WriteBlockReply, WriteBlockRequest};
use crate::helloworld::greeter_server::{Greeter, GreeterServer};
use crate::helloworld::{HelloReply, HelloRequest};

struct Hello;

impl Greeter for Hello {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello {}!", request.get_ref().name);
        Ok(Response::new(HelloReply { message }))
    }
}

/// Takes blocks and keeps none: the demo measures the way, not the store.
struct Discard;

impl BlockStore for Discard {
    async fn write_block(
        &self,
        request: Request<WriteBlockRequest>,
    ) -> Result<Response<WriteBlockReply>, Status> {
        let len = request.get_ref().data.len() as u64;
        Ok(Response::new(WriteBlockReply { len }))
    }

    async fn read_block(
        &self,
        _request: Request<ReadBlockRequest>,
    ) -> Result<Response<ReadBlockReply>, Status> {
        Err(Status::not_found("this store keeps nothing"))
    }
}

/// A server that runs.
pub(crate) struct Running {
    targets: Vec<String>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Outcome<()>>,
}

/// Starts the server at one target of each kind that needs no device, and at these `others`, and waits until it listens.
pub(crate) async fn start(others: Vec<String>) -> Outcome<Running> {
    let (announce, announced) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    let thread = thread::spawn(move || serve(others, announce, stopped));
    match announced.await {
        Ok(targets) => Ok(Running { targets, stop, thread }),
        Err(_ended) => Err(join(thread).err().unwrap_or("the server ended early".into())),
    }
}

impl Running {
    /// Where it listens.
    pub(crate) fn targets(&self) -> &[String] {
        &self.targets
    }

    /// Ends it, once its clients are gone.
    pub(crate) async fn stop(self) -> Outcome<()> {
        // An error says that it has ended by itself; why, comes out below.
        let _told = self.stop.send(());
        // Elsewhere, because it waits for the clients, which disconnect on this thread's runtime.
        task::spawn_blocking(|| join(self.thread)).await?
    }
}

fn serve(
    others: Vec<String>,
    announce: oneshot::Sender<Vec<String>>,
    stopped: oneshot::Receiver<()>,
) -> Outcome<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let bound = bind(others).await?;
        let targets = bound.local_targets().iter().map(ToString::to_string);
        // Fails when nobody waits for it, and then the next line ends at once.
        let _heard = announce.send(targets.collect());
        let stopped = async { stopped.await.unwrap_or_default() };
        Ok(bound.serve_with_shutdown(stopped).await?)
    })
}

async fn bind(others: Vec<String>) -> Outcome<Bound> {
    let socket = std::env::temp_dir().join(format!("verbwire-demo-{}.sock", process::id()));
    let builder = Server::builder()
        .add_service(GreeterServer::new(Hello))
        .add_service(BlockStoreServer::new(Discard));
    let mut targets = vec![
        "tcp://127.0.0.1:0".to_owned(),
        format!("unix://{}", socket.display()),
        "mem://demo".to_owned(),
    ];
    targets.extend(others);
    Ok(builder.bind(&targets).await?)
}

fn join(thread: JoinHandle<Outcome<()>>) -> Outcome<()> {
    thread.join().unwrap_or_else(|_panic| Err("the server panicked".into()))
}
