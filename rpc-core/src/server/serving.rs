//! A server that listens: accepts connections, and ends them when it is told to.

use std::future::{Future, pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, error, warn};

use super::authentication::{Authentication, Newcomer};
use super::connection::Peer;
use super::driver::Driver;
use super::intake::Intake;
use super::placing::Placer;
use super::router::Router;
use super::seconds::{Connections, Entry, Fate, Second, SecondListener, Upgrade, accept_second};
use super::workers::Workers;
use crate::compression::{Outbound, Receiver};
use crate::config::ServerConfig;
use crate::error::{Error, ErrorKind};
use crate::paths::Line;
use crate::proto::deadlines::deadline_after;
use crate::proto::hello::{Identity, agree};
use crate::pulse::Pulse;
use crate::request::{ConnectionOrigin, Who};
use crate::status::Status;
use crate::transport::counted::Counted;
use crate::transport::pressure::PressureWatch;
use crate::transport::{
    Accepting, Beside, Connection, Established, Listener, LocalSide, PeerCertificates, Target,
    Transport,
};
use crate::wire::Hello;

/// Pause after a failed accept: the usual reason, no descriptors left, does not go away at once.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that listens at all its targets. Connections are accepted while it serves.
#[must_use = "a bound server does nothing until it serves"]
pub struct Bound {
    shared: Arc<Shared>,
    listeners: Vec<Listening>,
    targets: Vec<Target>,
}

/// What all connections of a server share.
pub(super) struct Shared {
    pub(super) router: Arc<Router>,
    pub(super) placer: Placer,
    pub(super) config: ServerConfig,
    pub(super) identity: Identity,
    /// Connections that are still allowed.
    pub(super) allowed: Arc<Semaphore>,
    /// Those that are served.
    pub(super) connections: Connections,
    /// Says who clients are, if anything does.
    authentication: Option<Authentication>,
}

/// A listener and the transport that it came from.
pub(super) struct Listening {
    transport: Arc<dyn Transport>,
    listener: Box<dyn Listener>,
    upgrade: Upgrade,
    second: Option<(Arc<Second>, SecondListener)>,
}

impl Listening {
    pub(super) async fn at(transport: Arc<dyn Transport>, target: &Target) -> Result<Self, Error> {
        let listener = transport.listen(target).await?;
        let (upgrade, second) = match transport.beside() {
            None => {
                let why = format!(
                    "the server listens at {target}, which has one path; bind auto:// there"
                );
                (Upgrade::Never(why.into()), None)
            }
            Some(Beside::Nothing(why)) => {
                (Upgrade::Never(format!("at the server, {why}").into()), None)
            }
            Some(Beside::Second(second)) => {
                let target = second.target_beside(target);
                let (second, listener) = Second::open(Arc::clone(second.transport()), target).await;
                (Upgrade::To(Arc::clone(&second)), Some((second, listener)))
            }
        };
        Ok(Self { transport, listener, upgrade, second })
    }
}

impl Bound {
    pub(super) fn new(shared: Shared, listeners: Vec<Listening>) -> Self {
        let targets = listeners.iter().map(|one| one.listener.local_target().clone()).collect();
        Self { shared: Arc::new(shared), listeners, targets }
    }

    /// Where the server listens, in the order of binding, with ports that the system chose filled in.
    pub fn local_targets(&self) -> &[Target] {
        &self.targets
    }

    /// The connections that it serves, to look at and to end.
    pub fn connections(&self) -> Connections {
        self.shared.connections.clone()
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    ///
    /// `Closed` if a listener panicked, which ends the server: the other listeners drain as at a shutdown. An accept that fails
    /// is logged and tried again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends every connection at once and drops every handler.
    pub async fn serve(self) -> Result<(), Error> {
        self.serve_with_shutdown(pending()).await
    }

    /// Serves until `signal` is ready, then drains: accepts nothing more, tells every client, and lets
    /// running calls finish, at most for `drain_timeout`. What still runs then is cut off.
    ///
    /// # Errors
    ///
    /// `TimedOut` if calls had to be cut off; and as for [`serve`](Self::serve).
    ///
    /// # Cancel safety
    ///
    /// As for [`serve`](Self::serve).
    pub async fn serve_with_shutdown(self, signal: impl Future<Output = ()>) -> Result<(), Error> {
        let (stop, stopping) = watch::channel(false);
        let mut acceptors: JoinSet<Result<(), Error>> = JoinSet::new();
        for mut listening in self.listeners {
            if let Some(second) = listening.second.take() {
                acceptors.spawn(accept_second(Arc::clone(&self.shared), second, stopping.clone()));
            }
            acceptors.spawn(accept(Arc::clone(&self.shared), listening, stopping.clone()));
        }
        drop(stopping);
        let first = tokio::select! {
            () = signal => None,
            // None ends by itself but by a panic.
            Some(ended) = acceptors.join_next() => Some(ended),
        };
        // Fails only without acceptors, and then there is nobody to tell.
        let _told = stop.send(true);
        let mut outcome = first.map_or(Ok(()), outcome_of);
        while let Some(ended) = acceptors.join_next().await {
            outcome = outcome.and(outcome_of(ended));
        }
        outcome
    }
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").field("targets", &self.targets).finish_non_exhaustive()
    }
}

/// What the end of an accept loop says.
fn outcome_of(ended: Result<Result<(), Error>, JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|panic| {
        let message =
            "a listener panicked, and its connections ended with it: bind the server anew";
        Err(Error::with_source(ErrorKind::Closed, message, panic))
    })
}

/// Accepts at one listener until told to stop, then waits for its connections to drain.
async fn accept(
    shared: Arc<Shared>,
    listening: Listening,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let Listening { transport, mut listener, upgrade, second: _ } = listening;
    let target = listener.local_target().clone();
    let max_handshakes = shared.config.max_handshakes.clamp(1, Semaphore::MAX_PERMITS);
    let handshakes = Arc::new(Semaphore::new(max_handshakes));
    let mut connections = JoinSet::new();
    let stop = stopping.clone();
    loop {
        let next = next_connection(&mut *listener, &handshakes);
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => break,
            Some(ended) = connections.join_next() => {
                log_panic(&target, ended);
                continue;
            }
            accepted = next => accepted,
        };
        match accepted {
            Ok((accepting, permit)) => {
                let connection = Arc::clone(&shared);
                let from = (Arc::clone(&transport), upgrade.clone());
                connections.spawn(connection.serve(from, accepting, permit, stop.clone()));
            }
            Err(error) => {
                warn!(%target, %error, "cannot accept now");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    drain(&target, connections, shared.config.drain_timeout).await
}

/// A panic in a connection's task is a bug of this crate; it ends that connection and nothing else.
pub(super) fn log_panic(target: &Target, ended: Result<(), JoinError>) {
    if let Err(panic) = ended {
        error!(%target, %panic, "a connection's task failed");
    }
}

/// The next connection, once fewer than the allowed number shake hands.
pub(super) async fn next_connection(
    listener: &mut dyn Listener,
    handshakes: &Arc<Semaphore>,
) -> Result<(Box<dyn Accepting>, OwnedSemaphorePermit), Error> {
    let permit = Arc::clone(handshakes).acquire_owned().await;
    let permit = permit.expect("the semaphore is never closed");
    let accepting = poll_fn(|cx| listener.poll_accept(cx)).await?;
    Ok((accepting, permit))
}

pub(super) async fn drain(
    target: &Target,
    mut connections: JoinSet<()>,
    limit: Duration,
) -> Result<(), Error> {
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            log_panic(target, ended);
        }
    };
    if timeout(limit, all_ended).await.is_ok() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::TimedOut,
        format!(
            "connections at {target} that did not drain within drain_timeout of {limit:?} and were cut \
             off: {}; raise it if their calls need longer",
            connections.len()
        ),
    ))
}

impl Shared {
    pub(super) fn new(
        router: Arc<Router>,
        placer: Placer,
        config: ServerConfig,
        identity: Identity,
        connections: Connections,
    ) -> Self {
        let allowed = config.max_connections.min(Semaphore::MAX_PERMITS);
        let allowed = Arc::new(Semaphore::new(allowed));
        let authentication = None;
        Self { router, placer, config, identity, allowed, connections, authentication }
    }

    pub(super) fn authenticating(self, authentication: Option<Authentication>) -> Self {
        Self { authentication, ..self }
    }

    /// One connection, from its HELLO to its end.
    async fn serve(
        self: Arc<Self>,
        (transport, upgrade): (Arc<dyn Transport>, Upgrade),
        accepting: Box<dyn Accepting>,
        permit: OwnedSemaphorePermit,
        stopping: watch::Receiver<bool>,
    ) {
        let peer = accepting.peer();
        let admission = Arc::clone(&self.allowed).try_acquire_owned();
        let coming = if admission.is_ok() { Coming::First } else { Coming::TooMany };
        let arrival = self.connections.arrival(permit);
        let Greeted { mut driver, line, number, incarnation, who, refused } =
            match self.shake_hands(transport, accepting, coming, stopping).await {
                Ok(greeted) => greeted,
                Err(error) => {
                    arrival.note(Fate::Failed(error.kind()));
                    return debug!(peer, %error, "handshake failed");
                }
            };
        match (admission, refused) {
            (Ok(_held), None) => {
                arrival.note(Fate::LetIn);
                drop(arrival);
                let entry = Entry::new((number, incarnation), line, upgrade, who);
                let _listed = self.connections.insert(entry);
                return driver.await;
            }
            (Ok(_), Some(status)) => {
                arrival.note(Fate::Unauthenticated);
                debug!(peer, %status, "a client was refused");
                driver.refuse_all(status);
            }
            (Err(_full), _) => {
                arrival.note(Fate::TooMany);
                driver.turn_away(self.config.max_connections);
            }
        }
        // It hears why for each of its calls. If it does not close, it is closed when a silent one would be.
        let _gone = timeout(self.config.handshake_timeout, driver).await;
    }

    pub(super) async fn shake_hands(
        &self,
        transport: Arc<dyn Transport>,
        accepting: Box<dyn Accepting>,
        coming: Coming<'_>,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<Greeted, Error> {
        let limits = &self.config.limits;
        let hello = self.identity.hello(limits);
        let (router, placer) = (Arc::clone(&self.router), self.placer.clone());
        let intake = Arc::new(Intake::new(router, placer, limits, hello.stream_window));
        let deadline = deadline_after(Instant::now(), self.config.handshake_timeout);
        let local = LocalSide {
            hello: hello.clone(),
            placement: Arc::clone(&intake) as _,
            deadline,
            ticket: None,
        };
        let Established { connection, peer } = accepting.handshake(local).await?;
        if let Err(error) = agree(&hello, &peer) {
            connection.close(error.clone());
            return Err(error);
        }
        intake.with_calls(|calls| calls.set_peer_window(peer.stream_window));
        let (number, incarnation) = (hello.connection, peer.incarnation);
        let parent = coming.parent();
        let (who, refused) = self.find_out(coming, &*connection, &peer, deadline).await;
        let counted = Counted::new(connection);
        let line = Line::new(Arc::clone(&counted));
        let connection: Arc<dyn Connection> = counted;
        let pulse = Pulse::new(self.config.keep_alive, &peer);
        let origin = Arc::new(ConnectionOrigin {
            number,
            parent,
            path: connection.path(),
            who: who.clone(),
            transport,
            pressure: PressureWatch::of(&*connection),
            max_reply: usize::try_from(peer.max_message_size).unwrap_or(usize::MAX),
            max_metadata: usize::try_from(peer.max_metadata_size).unwrap_or(usize::MAX),
            takes: Outbound::to(&peer, limits, Receiver::Server),
        });
        let (workers, compression) = (Workers::default(), self.config.send_compressed);
        let peer = Arc::new(Peer { connection, intake, origin, workers, compression });
        let shutdown = Box::pin(async move {
            // An error says that the server is gone, which stops this task as well.
            let _stopped = stopping.wait_for(|stop| *stop).await;
        });
        let driver = Driver::new(peer, pulse, shutdown);
        Ok(Greeted { driver, line, number, incarnation, who, refused })
    }

    /// Who is at the other end, and what all calls are answered with if it is not let in.
    async fn find_out(
        &self,
        coming: Coming<'_>,
        connection: &dyn Connection,
        hello: &Hello,
        deadline: Instant,
    ) -> (Who, Option<Status>) {
        if let Coming::SecondOf(entry) = coming {
            return (entry.who().clone(), None);
        }
        let certificates = PeerCertificates::of(connection);
        let mut who = Who { certificates, identity: None };
        let (Coming::First, Some(authentication)) = (coming, &self.authentication) else {
            return (who, None);
        };
        let newcomer = Newcomer {
            path: connection.path(),
            certificates: who.certificates.clone(),
            credentials: hello.credentials.clone(),
            software: hello.software.clone(),
        };
        match authentication.ask(newcomer, deadline).await {
            Ok(identity) => who.identity = Some(identity),
            Err(status) => return (who, Some(status)),
        }
        (who, None)
    }
}

/// A connection whose client is about to say HELLO.
#[derive(Clone, Copy)]
pub(super) enum Coming<'a> {
    /// Whoever it is.
    First,
    /// One more than are served. Nobody is asked who it is.
    TooMany,
    /// The client of this connection again: what was found out of it holds.
    SecondOf(&'a Entry),
}

impl Coming<'_> {
    fn parent(self) -> Option<u64> {
        match self {
            Self::First | Self::TooMany => None,
            Self::SecondOf(entry) => Some(entry.number()),
        }
    }
}

/// A connection whose HELLOs were exchanged.
pub(super) struct Greeted {
    pub(super) driver: Driver,
    pub(super) line: Line,
    /// Of the connection.
    number: u64,
    /// The client's.
    pub(super) incarnation: u64,
    who: Who,
    /// What its calls are answered with, if it is not let in.
    refused: Option<Status>,
}

#[cfg(all(test, not(loom)))]
mod tests;
