use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::buf::{Body, Buffer};
use crate::error::{Error, ErrorKind};
use crate::request::Request;
use crate::server::Server;
use crate::service::{HandlerFuture, Service, ServiceDescriptor, unknown_method};
use crate::transport::mem::MemTransport;
use crate::transport::{Accepting, BoxFuture, Established, Listener, LocalSide, Target, Transport};

static NOBODY: ServiceDescriptor = ServiceDescriptor::new("test.Nobody", &[]);

/// A service without methods.
struct Nobody;

impl Service for Nobody {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &NOBODY
    }

    fn call(&self, method: usize, _: Request<Body>) -> HandlerFuture {
        unknown_method(&NOBODY, method)
    }
}

/// A transport whose listeners panic.
struct Fragile;

struct FragileListener(Target);

impl Listener for FragileListener {
    fn local_target(&self) -> &Target {
        &self.0
    }

    #[expect(clippy::panic, reason = "what the test is about")]
    fn poll_accept(&mut self, _cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        panic!("a listener that panics")
    }
}

impl Transport for Fragile {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        MemTransport.connect(target, local)
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        let listener = FragileListener(target.clone());
        Box::pin(async move { Ok(Box::new(listener) as Box<dyn Listener>) })
    }

    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        MemTransport.alloc(len, deadline)
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_ends_the_server_with_an_error() {
    let fragile = (Arc::new(Fragile) as Arc<dyn Transport>, Target::new("fragile", "one"));
    let sound = (Arc::new(MemTransport) as Arc<dyn Transport>, Target::new("mem", "sound"));
    let bound =
        Server::builder().add_service(Nobody).bind([sound, fragile]).await.expect("both are free");
    let served = timeout(Duration::from_secs(60), bound.serve()).await.expect("it ends");
    let error = served.expect_err("a listener is gone");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(error.to_string().contains("listener"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn any_number_of_handshakes_may_be_allowed() {
    for handshakes in [0, 1, usize::MAX] {
        let target = Target::new("mem", format!("handshakes-{handshakes}"));
        let transport = Arc::new(MemTransport) as Arc<dyn Transport>;
        let builder = Server::builder()
            .add_service(Nobody)
            .max_handshakes(handshakes)
            .max_connections(handshakes);
        let bound = builder.bind([(transport, target)]).await.expect("it is free");
        let served = timeout(Duration::from_secs(60), bound.serve()).await;
        assert!(served.is_err(), "it serves on: {served:?}");
    }
}
