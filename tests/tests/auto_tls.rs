//! TLS as the first path, the software NIC beside it: who a client is holds for both, and its secrets go over the first alone.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use verbwire_core::client::{Client, CredentialsProvider};
use verbwire_core::config::{ClientConfig, PathPolicy};
use verbwire_core::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
use verbwire_core::transport::{Auto, Transport};
use verbwire_core::{Body, Channel, Request, Response, Server, Status, Target};
use verbwire_rdma::fabric::{Fabric, FabricConfig};
use verbwire_rdma::{FabricTransport, Published, RdmaConfig};
use verbwire_tcp::TlsTransport;
use verbwire_tests::fixture::LONG;
use verbwire_tests::pki;

static WHO: ServiceDescriptor =
    ServiceDescriptor::new("test.Who", &[MethodDescriptor::new("Calls", "/test.Who/Calls")]);

struct Who;

impl Service for Who {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &WHO
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        unary(request, |request: Request<Bytes>| async move {
            let transport = request.path().map_or("none", |path| path.transport);
            let name = request.identity::<&str>().copied().unwrap_or("nobody");
            let shown = request.peer_certificates().map_or(0, |shown| shown.chain().len());
            Ok(Response::new(Bytes::from(format!("{name} by {transport}, {shown} certificates"))))
        })
    }
}

struct Site {
    target: Target,
    beside: Target,
    /// How often the server has asked who a client is.
    asked: Arc<AtomicU32>,
    _published: Published,
}

impl Site {
    async fn new(name: &str) -> Self {
        let fabric = Fabric::new(FabricConfig::new(1));
        let published = FabricTransport::publish(name, &fabric).expect("a free name");
        let beside = Target::new("fabric", format!("{name}/server:0"));
        let asked = Arc::new(AtomicU32::new(0));
        let asking = Arc::clone(&asked);
        let builder = Server::builder().add_service(Who).authenticate(move |newcomer| {
            asking.fetch_add(1, Ordering::Relaxed);
            async move {
                match (newcomer.credentials(), newcomer.certificates()) {
                    (Some(b"token"), Some(_)) => Ok("alice"),
                    _ => Err(Status::unauthenticated("a token and a certificate are needed")),
                }
            }
        });
        let listening = TlsTransport::default().listening(pki::server());
        let any_port = Target::new("auto", "127.0.0.1:0");
        let bound = builder.bind([(auto(listening, &beside), any_port)]).await;
        let bound = bound.expect("a free port");
        let target = bound.local_targets()[0].clone();
        tokio::spawn(bound.serve());
        Self { target, beside, asked, _published: published }
    }

    async fn connect(&self, config: ClientConfig) -> Channel {
        let connecting = TlsTransport::default().connecting(pki::client());
        let transport = auto(connecting, &self.beside);
        Channel::connect(transport, &self.target, &config).await.expect("trusted")
    }
}

fn auto(first: TlsTransport, beside: &Target) -> Arc<dyn Transport> {
    let second = Arc::new(FabricTransport::new(RdmaConfig::default()));
    let auto = Auto::new(("tls", Arc::new(first)), ("fabric", second));
    Arc::new(auto.listening_at(beside.clone()))
}

/// With a token; each time that it is asked for is counted.
fn config(given: &Arc<AtomicU32>) -> ClientConfig {
    let given = Arc::clone(given);
    let provider = CredentialsProvider::new(move || {
        given.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>("token") }
    });
    let mut config = ClientConfig::default();
    config.credentials = Some(provider);
    config
}

async fn ask(channel: &Channel) -> String {
    let client = Client::new(channel.clone(), &WHO);
    let reply: Response<Bytes> = client.unary(0, Request::new(Bytes::new())).await.expect("let in");
    String::from_utf8_lossy(&reply.into_inner()).into_owned()
}

#[tokio::test]
async fn who_was_let_in_over_tls_is_known_on_the_second_path_too() {
    let site = Site::new("auto-tls-moves").await;
    let given = Arc::default();
    let channel = site.connect(config(&given)).await;
    let moved = async {
        while channel.path().is_none_or(|path| path.transport != "fabric") {
            assert!(ask(&channel).await.starts_with("alice by "));
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, moved).await.expect("calls move");
    assert_eq!(ask(&channel).await, "alice by fabric, 1 certificates");
    assert_eq!((given.load(Ordering::Relaxed), site.asked.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test]
async fn who_requires_encryption_stays_on_tls_and_is_told_why() {
    let site = Site::new("auto-tls-stays").await;
    let mut config = config(&Arc::default());
    config.path_policy = PathPolicy::RequireEncryption;
    let channel = site.connect(config).await;
    for _ in 0..5 {
        assert_eq!(ask(&channel).await, "alice by tls, 1 certificates");
        sleep(Duration::from_millis(40)).await;
    }
    let paths = channel.paths().expect("connected");
    assert!(paths.second.is_none());
    assert!(paths.why_not.contains("payload over RDMA is not encrypted"), "{}", paths.why_not);
}
