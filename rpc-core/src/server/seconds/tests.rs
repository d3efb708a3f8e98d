use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::rig::{Echo, Fickle, echo, mem, second_of, serve, serve_with};
use super::*;
use crate::buf::Buffer;
use crate::client::{Channel, Client};
use crate::config::{ClientConfig, Limits, Random};
use crate::error::{Error, ErrorKind};
use crate::interceptor::from_fn;
use crate::proto::hello::Identity;
use crate::proto::tickets::TicketCounts;
use crate::request::{Request, Response};
use crate::server::Server;
use crate::status::{Code, Status};
use crate::transport::mem::MemTransport;
use crate::transport::{
    Announced, Auto, BoxFuture, Established, Listener, LocalSide, Placement, PlacementHook, Target,
    Ticket, Transport,
};
use crate::wire::Hello;
use crate::wire::paths::{OfferReply, OfferRequest, SERVICE};

struct Anywhere;

impl PlacementHook for Anywhere {
    fn place(&self, _announced: Announced<'_>) -> Placement {
        Placement::Pool
    }
}

async fn connect(name: &str) -> Channel {
    let (transport, target) = mem(name);
    let config = ClientConfig { random: Random::from_seed(5), ..ClientConfig::default() };
    Channel::connect_once(transport, &target, &config).await.expect("a server listens")
}

async fn ask_for(channel: &Channel, scheme: &str) -> Result<OfferReply, Status> {
    let client = Client::new(channel.clone(), &SERVICE);
    let request = OfferRequest { transports: vec![scheme.to_owned()] };
    let reply: Response<OfferReply> = client.unary(0, Request::new(request)).await?;
    Ok(reply.into_inner())
}

async fn ask(channel: &Channel) -> OfferReply {
    ask_for(channel, "mem").await.expect("an offer")
}

/// The incarnation of the client of the only connection.
fn incarnation(connections: &Connections) -> u64 {
    only(connections).entry.incarnation()
}

fn only(connections: &Connections) -> ServedConnection {
    let mut list = connections.list();
    assert_eq!(list.len(), 1, "{list:?}");
    list.remove(0)
}

async fn knock(
    target: &Target,
    ticket: Option<Ticket>,
    incarnation: u64,
) -> Result<Established, Error> {
    let hello = Identity::new(Random::from_entropy()).hello(&Limits::default());
    let local = LocalSide {
        hello: Hello { incarnation, ..hello },
        placement: Arc::new(Anywhere),
        deadline: Instant::now() + Duration::from_secs(5),
        ticket,
    };
    MemTransport.connect(target, local).await
}

async fn ended(established: &Established) -> Error {
    let ended = poll_fn(|cx| established.connection.poll_recv(cx, &mut Vec::new()));
    timeout(Duration::from_secs(60), ended).await.expect("in time").expect_err("its end")
}

#[tokio::test(start_paused = true)]
async fn a_ticket_opens_a_second_path_that_ends_with_the_first() {
    let connections = serve("second-opens").await;
    let channel = connect("second-opens").await;
    let offer = ask(&channel).await;
    assert_eq!(offer.targets, [second_of("second-opens").to_string()]);
    assert_eq!(offer.lifetime(), Duration::from_secs(30));
    let client = incarnation(&connections);
    let second = knock(&second_of("second-opens"), offer.ticket(client), client).await;
    let second = second.expect("let in");
    sleep(Duration::from_millis(1)).await;
    let paths = only(&connections).paths();
    assert_eq!(paths.switches, 1);
    assert_eq!(paths.current().path.local, second_of("second-opens").address());
    assert_eq!(echo(&channel).await.expect("the first goes on"), 7);
    // The echo and what asked for the offer.
    assert_eq!(only(&connections).paths().first.traffic.calls, 2);
    drop(channel);
    assert_eq!(ended(&second).await.kind(), ErrorKind::Lost);
    assert_eq!(connections.list().len(), 0);
}

/// Connects with a ticket.
struct Bearer(Ticket);

impl Transport for Bearer {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        MemTransport.connect(target, LocalSide { ticket: Some(self.0), ..local })
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        MemTransport.listen(target)
    }

    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        MemTransport.alloc(len, deadline)
    }
}

#[tokio::test(start_paused = true)]
async fn over_a_second_path_handlers_see_who_was_let_in_over_the_first() {
    let (seen, asked) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (noting, asking) = (Arc::clone(&seen), Arc::clone(&asked));
    let note = from_fn(move |request: Request<()>| {
        let transport = request.path().map(|path| path.local.clone());
        noting.lock().expect("no panic").push((transport, request.identity::<u32>().copied()));
        Ok::<_, Status>(request)
    });
    let builder = Server::builder().intercept(note).authenticate(move |_| {
        asking.fetch_add(1, Ordering::Relaxed);
        async { Ok(41_u32) }
    });
    let connections = serve_with(builder, "second-who", Arc::new(MemTransport)).await;
    let channel = connect("second-who").await;
    assert_eq!(echo(&channel).await.expect("let in"), 7);
    let ticket = ask(&channel).await.ticket(incarnation(&connections)).expect("16 bytes");
    // The same seed as the first one's, so the same incarnation.
    let config = ClientConfig { random: Random::from_seed(5), ..ClientConfig::default() };
    let target = second_of("second-who");
    let second = Channel::connect_once(Arc::new(Bearer(ticket)), &target, &config).await;
    assert_eq!(echo(&second.expect("let in")).await.expect("let in"), 7);
    let seen = seen.lock().expect("no panic");
    let (first, second) = ("second-who".to_owned(), target.address().to_owned());
    assert_eq!(*seen, [(Some(first), Some(41)), (Some(second), Some(41))]);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn who_has_no_good_ticket_is_refused_in_words_and_counted_and_hurts_nobody() {
    let connections = serve("second-refused").await;
    let channel = connect("second-refused").await;
    let target = second_of("second-refused");
    let client = incarnation(&connections);
    let refused = async |ticket, words: &str| {
        let error = knock(&target, ticket, client).await.err().expect("refused");
        assert!(error.to_string().contains(words), "{error}, not {words}");
    };
    refused(None, "a ticket is needed here").await;
    let good = ask(&channel).await.ticket(client).expect("16 bytes");
    let forged = Ticket { token: [0; 16], ..good };
    refused(Some(forged), "not known").await;
    refused(Some(Ticket { connection: 1, ..good }), "another connection's").await;
    refused(Some(Ticket { incarnation: 1, ..good }), "another connection's").await;
    let second = knock(&target, Some(good), client).await.expect("let in");
    refused(Some(good), "was used").await;
    sleep(Duration::from_millis(1)).await;
    assert!(only(&connections).paths().second.is_some(), "the second path stands");
    let late = ask(&channel).await.ticket(client);
    sleep(Duration::from_secs(30)).await;
    refused(late, "has expired").await;
    let counts = TicketCounts {
        issued: 2,
        redeemed: 1,
        missing: 1,
        unknown: 1,
        expired: 1,
        used: 1,
        not_yours: 2,
    };
    assert_eq!(connections.tickets(), counts);
    assert_eq!(echo(&channel).await.expect("served"), 7);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_stolen_ticket_shows_by_the_incarnation_in_hello() {
    let connections = serve("second-stolen").await;
    let channel = connect("second-stolen").await;
    let client = incarnation(&connections);
    let stolen = ask(&channel).await.ticket(client);
    let thief = knock(&second_of("second-stolen"), stolen, client + 1).await;
    if let Ok(established) = thief {
        ended(&established).await;
    }
    assert!(only(&connections).paths().second.is_none());
    assert!(only(&connections).paths().why_not.contains("incarnation"), "{connections:?}");
}

#[tokio::test(start_paused = true)]
async fn a_second_path_counts_as_no_connection_and_a_newer_one_takes_its_place() {
    let builder = Server::builder().max_connections(1);
    let connections = serve_with(builder, "second-counts", Arc::new(MemTransport)).await;
    let channel = connect("second-counts").await;
    let client = incarnation(&connections);
    let mut before: Option<Established> = None;
    for number in 1..4 {
        let ticket = ask(&channel).await.ticket(client);
        let second = knock(&second_of("second-counts"), ticket, client).await.expect("let in");
        if let Some(before) = before.replace(second) {
            ended(&before).await;
        }
        sleep(Duration::from_millis(1)).await;
        let paths = only(&connections).paths();
        assert_eq!((paths.switches, paths.second.is_some()), (number, true));
    }
    assert_eq!(echo(&channel).await.expect("served"), 7);
}

#[tokio::test(start_paused = true)]
async fn retiring_a_connection_ends_both_paths_and_no_other_connection() {
    let connections = serve("second-retired").await;
    let channel = connect("second-retired").await;
    let client = incarnation(&connections);
    let ticket = ask(&channel).await.ticket(client);
    let second = knock(&second_of("second-retired"), ticket, client).await.expect("let in");
    sleep(Duration::from_millis(1)).await;
    let retired = only(&connections);
    let other = connect("second-retired").await;
    let unused = ask(&channel).await.ticket(client);
    retired.retire().await;
    ended(&second).await;
    assert_eq!(echo(&channel).await.expect_err("ended").code(), Code::Unavailable);
    assert_eq!(echo(&other).await.expect("another"), 7);
    let late = knock(&second_of("second-retired"), unused, client).await.err().expect("no more");
    assert!(late.to_string().contains("has expired"), "{late}");
    assert_eq!(connections.list().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_device_says_so_and_looks_again_once_per_second() {
    let device = Arc::new(Fickle::default());
    let second = Arc::clone(&device) as Arc<dyn Transport>;
    let connections = serve_with(Server::builder(), "second-fickle", second).await;
    let channel = connect("second-fickle").await;
    let refused = ask_for(&channel, "mem").await.expect_err("no device");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("there is no device"), "{}", refused.message());
    assert_eq!(only(&connections).paths().why_not, refused.message());
    device.0.store(true, Ordering::Relaxed);
    ask_for(&channel, "mem").await.expect_err("it has just looked");
    sleep(Duration::from_secs(1)).await;
    let client = incarnation(&connections);
    let ticket = ask(&channel).await.ticket(client);
    knock(&second_of("second-fickle"), ticket, client).await.expect("let in");
}

#[tokio::test(start_paused = true)]
async fn why_nothing_is_offered_is_said_by_the_place() {
    let (first, target) = mem("second-never");
    let auto = Auto::alone("mem", first, "no RDMA in this build");
    let auto = (Arc::new(auto) as Arc<dyn Transport>, target);
    let bound = Server::builder().add_service(Echo).bind([auto, mem("second-bare")]).await;
    tokio::spawn(bound.expect("free names").serve());
    let refused = ask_for(&connect("second-never").await, "mem").await.expect_err("never");
    let words = "at the server, no RDMA in this build";
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, words));
    let refused = ask_for(&connect("second-bare").await, "mem").await.expect_err("never");
    assert!(refused.message().contains("bind auto://"), "{}", refused.message());
    let connections = serve("second-other").await;
    let refused = ask_for(&connect("second-other").await, "rdma").await.expect_err("not taken");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("takes [rdma]"), "{}", refused.message());
    assert_eq!(connections.tickets(), TicketCounts::default());
}

#[tokio::test(start_paused = true)]
async fn who_comes_is_counted_by_what_becomes_of_it() {
    let builder = Server::builder().max_connections(1);
    let connections = serve_with(builder, "newcomers", Arc::new(MemTransport)).await;
    let channel = connect("newcomers").await;
    let one_more = connect("newcomers").await;
    assert_eq!(echo(&one_more).await.expect_err("full").code(), Code::Unavailable);
    let client = incarnation(&connections);
    let ticket = ask(&channel).await.ticket(client);
    let _second = knock(&second_of("newcomers"), ticket, client).await.expect("let in");
    sleep(Duration::from_millis(1)).await;
    let counts = connections.newcomers();
    assert_eq!((counts.let_in, counts.too_many, counts.waiting), (2, 1, 0), "{counts:?}");
    let ticket = ask(&channel).await.ticket(client);
    let thief = knock(&second_of("newcomers"), ticket, client + 1).await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(connections.newcomers().at_fault, 1, "{:?}", thief.map(drop));
    let builder = Server::builder()
        .authenticate(|_| async { Err::<(), _>(Status::unauthenticated("nobody is known")) });
    let connections = serve_with(builder, "newcomers-unknown", Arc::new(MemTransport)).await;
    let unknown = connect("newcomers-unknown").await;
    echo(&unknown).await.expect_err("it is not let in");
    let counts = connections.newcomers();
    assert_eq!((counts.unauthenticated, counts.let_in), (1, 0), "{counts:?}");
}
