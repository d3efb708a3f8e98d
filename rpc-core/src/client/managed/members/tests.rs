use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::buf::Body;
use crate::client::{Channel, Client, Endpoints};
use crate::config::{Balance, Random};
use crate::message::{SessionId, SlotUse};
use crate::request::{Request, Response};
use crate::server::Server;
use crate::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
use crate::status::Code;
use crate::transport::mem::MemTransport;

const SECOND: Duration = Duration::from_secs(1);

static WHO: ServiceDescriptor =
    ServiceDescriptor::new("test.Who", &[MethodDescriptor::new("Who", "/test.Who/Who")]);

/// A server that answers with its name.
struct Who {
    name: Target,
    fails: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    /// How many calls are let through.
    gate: Arc<Semaphore>,
}

struct Site {
    target: Target,
    fails: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    server: Option<JoinHandle<()>>,
}

impl Service for Who {
    fn descriptor(&self) -> &ServiceDescriptor {
        &WHO
    }

    fn call(&self, _method: usize, request: Request<Body>) -> HandlerFuture {
        let (name, gate) = (self.name.to_string(), Arc::clone(&self.gate));
        let fails = self.fails.load(Ordering::SeqCst);
        self.asked.fetch_add(1, Ordering::SeqCst);
        unary(request, move |_: Request<Bytes>| async move {
            if fails {
                return Err(Status::unavailable("as told"));
            }
            let _through = gate.acquire().await.expect("it is not closed");
            Ok(Response::new(Bytes::from(name)))
        })
    }
}

impl Site {
    async fn start(test: &str, number: usize) -> Self {
        let target = Target::new("mem", format!("members-{test}-{number}"));
        let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let (fails, asked) = (Arc::default(), Arc::default());
        let mut site = Self { target, fails, asked, gate, server: None };
        site.serve().await;
        site
    }

    async fn serve(&mut self) {
        let service = Who {
            name: self.target.clone(),
            fails: Arc::clone(&self.fails),
            asked: Arc::clone(&self.asked),
            gate: Arc::clone(&self.gate),
        };
        let at = [(Arc::new(MemTransport) as _, self.target.clone())];
        let bound = Server::builder().add_service(service).bind(at).await.expect("a free name");
        self.server = Some(tokio::spawn(async move { drop(bound.serve().await) }));
    }

    async fn stop(&mut self) {
        let server = self.server.take().expect("it serves");
        server.abort();
        assert!(server.await.is_err_and(|error| error.is_cancelled()));
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn sites(test: &str, count: usize) -> Vec<Site> {
    let mut sites = Vec::new();
    for number in 0..count {
        sites.push(Site::start(test, number).await);
    }
    sites
}

fn config(balance: Balance) -> ClientConfig {
    let random = Random::from_seed(11);
    let reconnect_backoff = (SECOND, SECOND);
    ClientConfig { balance, random, reconnect_backoff, ..ClientConfig::default() }
}

fn balanced(sites: &[Site], config: &ClientConfig) -> (Client, Endpoints) {
    let targets: Vec<_> = sites.iter().map(|site| site.target.clone()).collect();
    let transports = |_: &Target| Ok(Arc::new(MemTransport) as Arc<dyn Transport>);
    let channel = Channel::balanced(transports, &targets, config).expect("mem is there");
    let endpoints = channel.endpoints().expect("it has several");
    (Client::new(channel, &WHO), endpoints)
}

/// The same, with connections to all.
async fn connected(sites: &[Site], config: &ClientConfig) -> (Client, Endpoints) {
    let (client, endpoints) = balanced(sites, config);
    client.channel().connect_now().await.expect("they serve");
    ready(&endpoints, sites.len()).await;
    (client, endpoints)
}

/// Waits until so many endpoints are connected.
async fn ready(endpoints: &Endpoints, count: usize) {
    let mut changes = endpoints.changes();
    let are_ready = async {
        let is_ready = |one: &EndpointInfo| one.state == ConnectivityState::Ready;
        while endpoints.list().iter().filter(|one| is_ready(one)).count() != count {
            assert!(changes.next().await, "the channel lives");
        }
    };
    timeout(100 * SECOND, are_ready).await.expect("so many come to be ready");
}

async fn ask(client: &Client) -> Result<String, Status> {
    let reply = client.unary::<Bytes, Bytes>(0, Request::new(Bytes::new())).await?;
    Ok(String::from_utf8_lossy(&reply.into_inner()).into_owned())
}

async fn counts(client: &Client, calls: usize) -> Vec<usize> {
    let mut counts = BTreeMap::<String, usize>::new();
    for _ in 0..calls {
        *counts.entry(ask(client).await.expect("answered")).or_default() += 1;
    }
    counts.into_values().collect()
}

#[tokio::test(start_paused = true)]
async fn calls_go_to_one_endpoint_after_the_other() {
    let sites = sites("spread", 3).await;
    let (client, endpoints) = connected(&sites, &config(Balance::RoundRobin)).await;
    assert_eq!(counts(&client, 30).await, [10, 10, 10]);
    assert_eq!(endpoints.list().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_cannot_be_reached_is_passed_over_until_it_is_back() {
    let mut sites = sites("skip", 3).await;
    let (client, endpoints) = connected(&sites, &config(Balance::RoundRobin)).await;
    counts(&client, 3).await;
    sites[1].stop().await;
    ready(&endpoints, 2).await;
    assert_eq!(counts(&client, 30).await, [15, 15]);
    sites[1].serve().await;
    ready(&endpoints, 3).await;
    assert_eq!(counts(&client, 30).await, [10, 10, 10]);
    for site in &mut sites {
        site.stop().await;
    }
    ready(&endpoints, 0).await;
    let status = loop {
        let status = ask(&client).await.expect_err("none is there");
        if status.message().contains("none of 3 endpoints") {
            break status;
        }
    };
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::No), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_could_not_be_sent_goes_to_another_endpoint() {
    let mut sites = sites("moves", 2).await;
    let (client, endpoints) = connected(&sites, &config(Balance::RoundRobin)).await;
    counts(&client, 2).await;
    sites[0].stop().await;
    // Whichever of them its turn is, and although the channel has not heard of the end yet.
    for _ in 0..4 {
        assert_eq!(ask(&client).await.expect("the other answers"), sites[1].target.to_string());
    }
    drop(endpoints);
}

#[tokio::test(start_paused = true)]
async fn endpoints_come_and_go_while_calls_run() {
    let sites = sites("change", 3).await;
    let (client, endpoints) = connected(&sites[..2], &config(Balance::RoundRobin)).await;
    sites[0].gate.forget_permits(Semaphore::MAX_PERMITS);
    let running = [(); 2].map(|()| {
        tokio::spawn({
            let client = client.clone();
            async move { ask(&client).await }
        })
    });
    sleep(SECOND).await;
    assert_eq!((sites[0].asked(), sites[1].asked()), (1, 1));
    endpoints.remove(&sites[0].target);
    endpoints.insert(&sites[2].target).expect("mem is there");
    endpoints.insert(&sites[2].target).expect("it is there already");
    ready(&endpoints, 2).await;
    assert_eq!(counts(&client, 10).await, [5, 5]);
    assert_eq!(sites[0].asked(), 1, "it was removed");
    sites[0].gate.add_permits(1);
    for call in running {
        call.await.expect("no panic").expect("it goes on where it was");
    }
    endpoints.replace(&[sites[0].target.clone(), sites[1].target.clone()]).expect("mem is there");
    ready(&endpoints, 2).await;
    assert_eq!(endpoints.targets().len(), 2);
    assert_eq!(counts(&client, 10).await, [5, 5]);
    assert_eq!((sites[0].asked(), sites[2].asked()), (6, 5));
    endpoints.replace(&[]).expect("nothing to make");
    let status = ask(&client).await.expect_err("no endpoint");
    assert!(status.message().contains("insert one"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_that_it_does_not_serve_gets_no_calls() {
    let sites = sites("serving", 2).await;
    let (client, endpoints) = connected(&sites, &config(Balance::LeastLoaded)).await;
    endpoints.set_serving(&sites[0].target, false);
    counts(&client, 10).await;
    assert_eq!((sites[0].asked(), sites[1].asked()), (0, 10));
    endpoints.set_serving(&sites[1].target, false);
    let status = ask(&client).await.expect_err("none serves");
    assert!(status.message().contains("says that it does not"), "{status}");
    let mut request = Request::new(Bytes::new());
    request.set_wait_for_ready(true);
    let waiting = tokio::spawn(client.unary::<_, Bytes>(0, request));
    sleep(SECOND).await;
    assert!(!waiting.is_finished());
    endpoints.set_serving(&sites[0].target, true);
    waiting.await.expect("no panic").expect("it serves again");
    assert_eq!((sites[0].asked(), sites[1].asked()), (1, 10));
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_at_which_calls_fail_is_left_alone_for_a_while() {
    let sites = sites("outlier", 4).await;
    let (client, endpoints) = connected(&sites, &config(Balance::RoundRobin)).await;
    sites[0].fails.store(true, Ordering::SeqCst);
    let fail = async |calls: usize| {
        let mut failed = 0;
        for _ in 0..calls {
            failed += usize::from(ask(&client).await.is_err());
        }
        failed
    };
    assert_eq!(fail(100).await, 5);
    let ejected =
        |endpoints: &Endpoints| endpoints.list().iter().filter(|one| one.is_ejected).count();
    assert_eq!(ejected(&endpoints), 1);
    sleep(31 * SECOND).await;
    assert_eq!(fail(100).await, 5, "it is tried again");
    // At most two of four.
    for site in &sites {
        site.fails.store(true, Ordering::SeqCst);
    }
    assert_eq!(fail(100).await, 100);
    assert_eq!(ejected(&endpoints), 2);
    for site in &sites {
        site.fails.store(false, Ordering::SeqCst);
    }
    sleep(400 * SECOND).await;
    assert_eq!(counts(&client, 40).await, [10; 4]);
    assert!(endpoints.list().iter().map(|one| one.ejections).sum::<u64>() >= 3);
}

#[tokio::test(start_paused = true)]
async fn the_least_loaded_endpoint_gets_the_calls() {
    let sites = sites("loaded", 2).await;
    let (client, _endpoints) = connected(&sites, &config(Balance::LeastLoaded)).await;
    sites[0].gate.forget_permits(Semaphore::MAX_PERMITS);
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { ask(&client).await })
        })
        .collect();
    sleep(SECOND).await;
    let stuck = sites[0].asked();
    for _ in 0..40 {
        assert_eq!(ask(&client).await.expect("answered"), sites[1].target.to_string());
    }
    assert_eq!(sites[0].asked(), stuck, "calls went to the one that answers none");
    sites[0].gate.add_permits(1000);
    for call in calls {
        call.await.expect("no panic").expect("answered");
    }
}

#[tokio::test(start_paused = true)]
async fn several_connections_to_an_endpoint_share_its_calls() {
    let sites = sites("stripes", 1).await;
    let config = ClientConfig { connections_per_endpoint: 3, ..config(Balance::RoundRobin) };
    let (client, endpoints) = connected(&sites, &config).await;
    sleep(SECOND).await;
    let members = match client.channel().innermost() {
        crate::client::channel::Way::Managed(managed) => managed.members().expect("it has several"),
        _ => unreachable!("it is managed"),
    };
    let links: Vec<_> =
        members.all().iter().map(|member| member.subchannel.link().expect("connected")).collect();
    assert_eq!((links.len(), endpoints.list().len()), (3, 1));
    counts(&client, 3).await;
    assert!(links.iter().all(|link| link.shared().has_served()));
}

#[tokio::test(start_paused = true)]
async fn slots_are_refused_where_calls_go_to_several_servers() {
    let sites = sites("slots", 2).await;
    let (client, endpoints) = connected(&sites, &config(Balance::RoundRobin)).await;
    let request = || {
        let mut request = Request::new(Bytes::new());
        let session = SessionId(7);
        request.set_slot(SlotUse { session, slot: 0, sequence: 1 });
        request
    };
    let status = client.unary::<_, Bytes>(0, request()).await.expect_err("whose session?");
    assert_eq!((status.code(), status.executed()), (Code::InvalidArgument, Executed::No));
    endpoints.remove(&sites[0].target);
    let status = client.unary::<_, Bytes>(0, request()).await.expect_err("it keeps none");
    assert_eq!(status.code(), Code::FailedPrecondition, "the server was asked: {status}");
}
