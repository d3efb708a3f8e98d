//! Makes connections to one address. Owns what each of them begins with; keeps none.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::credentials::for_connection;
use super::driver::Driver;
use super::link::Link;
use super::methods::MethodNumbers;
use super::table::Table;
use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind};
use crate::proto::deadlines::deadline_after;
use crate::proto::hello::{Identity, agree};
use crate::pulse::Pulse;
use crate::sync::Mutex;
use crate::transport::{LocalSide, Second, Target, Ticket, Transport};
use crate::wire::Hello;
use crate::wire::paths::{MAX_TARGETS, OfferReply};

/// Longest time to connect a second path. 20 s: over RDMA a lost message of the connection manager costs more than 4, and nobody
/// waits for it.
const SECOND_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Connector {
    transport: Arc<dyn Transport>,
    target: Target,
    config: ClientConfig,
    identity: Identity,
    methods: Arc<Mutex<MethodNumbers>>,
}

/// By what a connection is let in.
struct Brings {
    credentials: Bytes,
    ticket: Option<Ticket>,
}

impl Connector {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        target: &Target,
        config: &ClientConfig,
        methods: Arc<Mutex<MethodNumbers>>,
    ) -> Self {
        let identity = Identity::new(config.random.clone());
        Self { transport, target: target.clone(), config: config.clone(), identity, methods }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// A connection that has said HELLO. Its driver runs on the runtime that polls this.
    ///
    /// Dropping the future gives the attempt up.
    pub(super) async fn connect(&self) -> Result<Arc<Link>, Error> {
        let refused = |why| Error::new(ErrorKind::Unsupported, why);
        self.config.path_policy.check_beside(self.transport.beside()).map_err(refused)?;
        let deadline = deadline_after(Instant::now(), self.config.connect_timeout);
        let secrecy = self.transport.secrecy();
        let credentials = for_connection(&self.config, &self.target, secrecy, deadline).await?;
        let brings = Brings { credentials, ticket: None };
        let made = self.establish(&self.transport, &self.target, brings, deadline).await?;
        self.config.path_policy.check_first(&made.link.path()).map_err(refused)?;
        Ok(made.begin())
    }

    /// The second path of `first` that the server offers. One address is tried after the other, each with its share of the time.
    ///
    /// Dropping the future gives the attempt up.
    pub(super) async fn connect_second(
        &self,
        second: &Second,
        offer: &OfferReply,
        first: Arc<Link>,
    ) -> Result<Arc<Link>, Error> {
        let wrong =
            |why: &str| Error::new(ErrorKind::PeerFault, format!("the server's offer {why}"));
        let ticket = offer.ticket(self.identity.incarnation());
        let ticket = ticket.ok_or_else(|| wrong("has a token of another length than 16"))?;
        let targets =
            offer.targets.iter().take(MAX_TARGETS).filter_map(|target| target.parse().ok());
        let targets = targets.filter(|target: &Target| target.scheme() == second.scheme());
        let targets: Vec<Target> = targets.collect();
        let until = Instant::now() + SECOND_TIMEOUT;
        let mut failure = wrong("names no address that this side can connect to");
        for (index, target) in targets.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let shares = u32::try_from(targets.len() - index).unwrap_or(u32::MAX);
            let deadline = Instant::now() + left / shares;
            // It is let in by its ticket: who it is, the server knows from its first path.
            let brings = Brings { credentials: Bytes::new(), ticket: Some(ticket) };
            match self.establish(second.transport(), target, brings, deadline).await {
                Ok(made) if made.link.incarnation() == first.incarnation() => {
                    let link = made.link.beside(first, self.config.path_policy);
                    return Ok(Made { link, ..made }.begin());
                }
                Ok(_) => failure = wrong("leads to another server"),
                Err(error) => {
                    let message = format!("connecting to {target}");
                    failure = Error::with_source(error.kind(), message, error);
                }
            }
        }
        Err(failure)
    }

    async fn establish(
        &self,
        transport: &Arc<dyn Transport>,
        target: &Target,
        Brings { credentials, ticket }: Brings,
        deadline: Instant,
    ) -> Result<Made, Error> {
        let hello = Hello { credentials, ..self.identity.hello(&self.config.limits) };
        let table = Arc::new(Table::default());
        let placement = Arc::clone(&table) as _;
        let local = LocalSide { hello: hello.clone(), placement, deadline, ticket };
        let established = transport.connect(target, local).await?;
        if let Err(error) = agree(&hello, &established.peer) {
            established.connection.close(error.clone());
            return Err(error);
        }
        let (transport, methods) = (Arc::clone(transport), Arc::clone(&self.methods));
        let window = hello.stream_window;
        let pulse = Pulse::new(self.config.keep_alive, &established.peer);
        let link = Link::new(transport, table, established, &self.config, methods, window);
        Ok(Made { link, pulse })
    }
}

/// A connection that nobody drives yet.
struct Made {
    link: Link,
    pulse: Pulse,
}

impl Made {
    fn begin(self) -> Arc<Link> {
        tokio::spawn(Driver::new(Arc::clone(self.link.shared()), self.pulse));
        Arc::new(self.link)
    }
}
