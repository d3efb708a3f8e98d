//! What tests of second paths are made of: a server in this process that listens twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Connections;
use crate::buf::{Body, Buffer};
use crate::client::{Channel, Client};
use crate::error::{Error, ErrorKind};
use crate::request::{Request, Response};
use crate::server::{Bound, Builder, Server};
use crate::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
use crate::status::Status;
use crate::transport::mem::MemTransport;
use crate::transport::{Auto, BoxFuture, Established, Listener, LocalSide, Target, Transport};

static ECHO: ServiceDescriptor = ServiceDescriptor::new(
    "test.Echo",
    &[
        MethodDescriptor::new("Echo", "/test.Echo/Echo"),
        MethodDescriptor::new("Slow", "/test.Echo/Slow"),
    ],
);

/// What answers with what it was sent: at once, or after that many milliseconds.
pub(crate) struct Echo;

impl Service for Echo {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &ECHO
    }

    fn call(&self, method: usize, request: Request<Body>) -> HandlerFuture {
        unary(request, move |request: Request<u32>| async move {
            let number = request.into_inner();
            if method == 1 {
                sleep(Duration::from_millis(number.into())).await;
            }
            Ok(Response::new(number))
        })
    }
}

/// A transport whose device is there or not.
#[derive(Default)]
pub(crate) struct Fickle(pub(crate) AtomicBool);

impl Transport for Fickle {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        MemTransport.connect(target, local)
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        match self.0.load(Ordering::Relaxed) {
            true => MemTransport.listen(target),
            false => {
                let error = Error::new(ErrorKind::LocalResource, "there is no device");
                Box::pin(std::future::ready(Err(error)))
            }
        }
    }

    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        MemTransport.alloc(len, deadline)
    }
}

pub(crate) fn mem(name: &str) -> (Arc<dyn Transport>, Target) {
    (Arc::new(MemTransport), Target::new("mem", name))
}

pub(crate) fn second_of(name: &str) -> Target {
    Target::new("mem", format!("{name}-second"))
}

/// `mem://name`, and beside it `second` at a name of its own.
pub(crate) fn auto(name: &str, second: Arc<dyn Transport>) -> (Arc<dyn Transport>, Target) {
    let (first, target) = mem(name);
    let auto = Auto::new(("mem", first), ("mem", second)).listening_at(second_of(name));
    (Arc::new(auto), target)
}

/// A server at `name` with a listener for second paths, and what it serves.
pub(crate) async fn serve_with(
    builder: Builder,
    name: &str,
    second: Arc<dyn Transport>,
) -> Connections {
    let bound: Bound =
        builder.add_service(Echo).bind([auto(name, second)]).await.expect("free names");
    let connections = bound.connections();
    tokio::spawn(bound.serve());
    connections
}

pub(crate) async fn serve(name: &str) -> Connections {
    serve_with(Server::builder(), name, Arc::new(MemTransport)).await
}

pub(crate) async fn echo(channel: &Channel) -> Result<u32, Status> {
    call(channel, 0, 7).await
}

pub(crate) async fn call(channel: &Channel, method: usize, number: u32) -> Result<u32, Status> {
    let client = Client::new(channel.clone(), &ECHO);
    let reply: Response<u32> = client.unary(method, Request::new(number)).await?;
    Ok(reply.into_inner())
}
