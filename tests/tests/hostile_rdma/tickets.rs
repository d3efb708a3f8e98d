//! A listener for second paths, at a server whose clients come over another transport first: who has no good ticket is
//! refused before anything is made for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use verbwire_core::client::Client;
use verbwire_core::config::{ClientConfig, Random};
use verbwire_core::server::Connections;
use verbwire_core::service::{HandlerFuture, MethodDescriptor, Service, ServiceDescriptor, unary};
use verbwire_core::transport::mem::MemTransport;
use verbwire_core::transport::{Auto, LocalSide, Ticket, Transport};
use verbwire_core::wire::Hello;
use verbwire_core::wire::paths::{OfferReply, OfferRequest, SERVICE};
use verbwire_core::{Body, Channel, Request, Response, Server, Target};
use verbwire_rdma::RdmaTransport;

use crate::end::plain;
use crate::over_nics;
use crate::site::{Over, Site};

over_nics!(
    nobody_comes_in_without_a_good_ticket_and_nothing_is_made_for_who_tries,
    a_flood_of_forged_tickets_is_counted_and_costs_no_memory,
    a_ticket_opens_a_path_for_its_client,
);

/// Handshakes at a time that a server allows.
pub(crate) const MOST_HANDSHAKES: usize = 32;

pub(crate) static ECHO: ServiceDescriptor =
    ServiceDescriptor::new("test.Echo", &[MethodDescriptor::new("Echo", "/test.Echo/Echo")]);

/// What answers with what it was sent.
pub(crate) struct Echo;

impl Service for Echo {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &ECHO
    }

    fn call(&self, _: usize, request: Request<Body>) -> HandlerFuture {
        unary(
            request,
            |request: Request<u32>| async move { Ok(Response::new(request.into_inner())) },
        )
    }
}

/// A server that listens in this process, and by the transport under attack for second paths; and a client of it.
pub(crate) struct Upgradable {
    pub(crate) connections: Connections,
    target: Target,
    client: Client,
    /// What the client says of itself.
    incarnation: u64,
}

impl Upgradable {
    pub(crate) async fn at(site: &Site, name: &str) -> Self {
        let first = Arc::new(MemTransport) as Arc<dyn Transport>;
        let target = Target::new("mem", name);
        let second = Arc::new(site.transports[1].clone());
        let anywhere = Target::new(site.scheme(), site.anywhere());
        let (below, second) = (("mem", Arc::clone(&first)), second as Arc<dyn Transport>);
        let auto = Auto::new(below, (site.scheme(), second)).listening_at(anywhere);
        let auto = Arc::new(auto) as Arc<dyn Transport>;
        let builder = Server::builder().add_service(Echo).max_handshakes(MOST_HANDSHAKES);
        let bound = builder.bind([(auto, target.clone())]).await;
        let bound = bound.expect("free");
        let connections = bound.connections();
        tokio::spawn(bound.serve());
        let random = Random::from_seed(5);
        let incarnation = Random::from_seed(5).next_u64();
        let mut config = ClientConfig::default();
        config.random = random;
        let channel = Channel::connect(first, &target, &config).await.expect("a server listens");
        Self { connections, target, client: Client::new(channel, &SERVICE), incarnation }
    }

    /// Another client of it, whose calls have moved to a second path.
    pub(crate) async fn moved(&self, site: &Site) -> Channel {
        let (first, second) = (MemTransport, site.transports[0].clone());
        let first = ("mem", Arc::new(first) as Arc<dyn Transport>);
        let auto = Auto::new(first, (site.scheme(), Arc::new(second) as Arc<dyn Transport>));
        let config = ClientConfig::default();
        let channel = Channel::connect(Arc::new(auto), &self.target, &config).await;
        let channel = channel.expect("a server listens");
        let moved = async {
            while channel.paths().is_none_or(|paths| paths.second.is_none()) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(verbwire_tests::fixture::LONG, moved).await.expect("it moves");
        channel
    }

    /// Where second paths begin, and what admits to one.
    pub(crate) async fn ask(&self) -> (Target, Ticket) {
        let transports = vec!["fabric".to_owned(), "rdma".to_owned()];
        let request = Request::new(OfferRequest { transports });
        let reply: Result<Response<OfferReply>, _> = self.client.unary(0, request).await;
        let offer = reply.expect("an offer").into_inner();
        let target = offer.targets[0].parse().expect("well-formed");
        (target, offer.ticket(self.incarnation).expect("16 bytes"))
    }
}

/// The private data of a connect request.
pub(crate) fn private_data(ticket: Option<Ticket>) -> Vec<u8> {
    let version = u32::from(ticket.is_some());
    let nonce = verbwire_tests::raw::hello().connection;
    let mut bytes = [&b"VWRD"[..], &version.to_le_bytes(), &nonce.to_le_bytes()].concat();
    bytes.extend(ticket.iter().flat_map(Ticket::encode));
    bytes
}

/// What a connection takes: buffers, memory for long bodies, a place at completion queues.
pub(crate) fn taken(transport: &RdmaTransport) -> String {
    let (buffers, pools) = (transport.buffers().total, transport.pools());
    format!("{buffers} buffers, {pools:?}, {} connections", transport.reactors().connections)
}

async fn nobody_comes_in_without_a_good_ticket_and_nothing_is_made_for_who_tries(over: Over) {
    let mut site = Site::new(over).await;
    let name = format!("tickets-refused-{over:?}");
    let server = Upgradable::at(&site, &name).await;
    let (at, good) = server.ask().await;
    let before = taken(&site.transports[1]);
    for (ticket, words) in [
        (None, "a ticket is needed here"),
        (Some(Ticket { token: [0; 16], ..good }), "not known"),
        (Some(Ticket { connection: good.connection ^ 1, ..good }), "another connection's"),
        (Some(Ticket { incarnation: good.incarnation ^ 1, ..good }), "another connection's"),
    ] {
        let refused = site.raw.connect_with(at.address(), private_data(ticket)).await;
        let refused = refused.err().expect("refused");
        assert!(refused.to_string().contains(words), "{refused}, not {words}");
        assert_eq!(taken(&site.transports[1]), before, "after {words}");
    }
    // Its time is 30 s.
    sleep(Duration::from_secs(31)).await;
    let refused = site.raw.connect_with(at.address(), private_data(Some(good))).await;
    let refused = refused.err().expect("refused");
    assert!(refused.to_string().contains("expired"), "{refused}");
    assert_eq!(taken(&site.transports[1]), before);
    let counts = server.connections.tickets();
    let turned_away = [counts.missing, counts.unknown, counts.not_yours, counts.expired];
    assert_eq!((turned_away, counts.redeemed), ([1, 1, 2, 1], 0));
    site.assert_others_served().await;
    site.close_clean().await;
}

async fn a_flood_of_forged_tickets_is_counted_and_costs_no_memory(over: Over) {
    let mut site = Site::new(over).await;
    let name = format!("tickets-flood-{over:?}");
    let server = Upgradable::at(&site, &name).await;
    let (at, good) = server.ask().await;
    let before = taken(&site.transports[1]);
    for number in 0..50_u8 {
        let forged = Ticket { token: [number; 16], ..good };
        let refused = site.raw.connect_with(at.address(), private_data(Some(forged))).await;
        assert!(refused.is_err(), "{number}");
    }
    assert_eq!(taken(&site.transports[1]), before);
    assert_eq!(server.connections.tickets().unknown, 50);
    site.assert_others_served().await;
    site.close_clean().await;
}

async fn a_ticket_opens_a_path_for_its_client(over: Over) {
    let mut site = Site::new(over).await;
    let name = format!("tickets-good-{over:?}");
    let server = Upgradable::at(&site, &name).await;
    let (at, ticket) = server.ask().await;
    let side = |ticket| LocalSide {
        hello: Hello { incarnation: server.incarnation, ..plain().hello },
        ticket: Some(ticket),
        ..plain()
    };
    let second = site.transports[0].connect(&at, side(ticket)).await.expect("let in");
    let served = || server.connections.list().remove(0).paths();
    let until = Instant::now() + verbwire_tests::fixture::LONG;
    while served().second.is_none() {
        assert!(Instant::now() < until, "{:?}", served());
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(served().current().path.transport, site.scheme());
    assert!(served().current().device.is_some(), "{:?}", served());
    let again = site.transports[0].connect(&at, side(ticket)).await.err().expect("used");
    assert!(again.to_string().contains("was used"), "{again}");
    let connection = server.connections.list().remove(0);
    connection.retire().await;
    second.connection.retire().await;
    site.assert_pools_idle().await;
    site.assert_others_served().await;
    drop(connection);
    site.close_clean().await;
}
