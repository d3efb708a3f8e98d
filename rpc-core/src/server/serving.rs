//! A server that listens: accepts connections, and ends them when it is told to.

use std::future::{Future, pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, error, warn};

use super::connection::Peer;
use super::driver::Driver;
use super::intake::Intake;
use super::placing::Placer;
use super::router::Router;
use super::workers::Workers;
use crate::compression::{Outbound, Receiver};
use crate::config::ServerConfig;
use crate::error::{Error, ErrorKind};
use crate::proto::deadlines::deadline_after;
use crate::proto::hello::{Identity, agree};
use crate::request::ConnectionOrigin;
use crate::transport::pressure::PressureWatch;
use crate::transport::{Accepting, Established, Listener, LocalSide, Target, Transport};

/// Pause after a failed accept: the usual reason, no descriptors left, does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    pub(super) connections: Arc<Semaphore>,
}

/// A listener and the transport that it came from.
pub(super) struct Listening {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) listener: Box<dyn Listener>,
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
        let mut acceptors: JoinSet<Result<(), Error>> = self
            .listeners
            .into_iter()
            .map(|listening| accept(Arc::clone(&self.shared), listening, stopping.clone()))
            .collect();
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
    let Listening { transport, mut listener } = listening;
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
                let transport = Arc::clone(&transport);
                connections.spawn(connection.serve(transport, accepting, permit, stop.clone()));
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
fn log_panic(target: &Target, ended: Result<(), JoinError>) {
    if let Err(panic) = ended {
        error!(%target, %panic, "a connection's task failed");
    }
}

/// The next connection, once fewer than the allowed number shake hands.
async fn next_connection(
    listener: &mut dyn Listener,
    handshakes: &Arc<Semaphore>,
) -> Result<(Box<dyn Accepting>, OwnedSemaphorePermit), Error> {
    let permit = Arc::clone(handshakes).acquire_owned().await;
    let permit = permit.expect("the semaphore is never closed");
    let accepting = poll_fn(|cx| listener.poll_accept(cx)).await?;
    Ok((accepting, permit))
}

async fn drain(
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
    ) -> Self {
        let connections = config.max_connections.min(Semaphore::MAX_PERMITS);
        let connections = Arc::new(Semaphore::new(connections));
        Self { router, placer, config, identity, connections }
    }

    /// One connection, from its HELLO to its end.
    async fn serve(
        self: Arc<Self>,
        transport: Arc<dyn Transport>,
        accepting: Box<dyn Accepting>,
        permit: OwnedSemaphorePermit,
        stopping: watch::Receiver<bool>,
    ) {
        let peer = accepting.peer();
        let admission = Arc::clone(&self.connections).try_acquire_owned();
        let mut driver = match self.shake_hands(transport, accepting, stopping).await {
            Ok(driver) => driver,
            Err(error) => return debug!(peer, %error, "handshake failed"),
        };
        match admission {
            Ok(_held) => {
                drop(permit);
                driver.await;
            }
            Err(_full) => {
                driver.turn_away(self.config.max_connections);
                // A client that does not close is closed when a silent one would be.
                let _gone = timeout(self.config.handshake_timeout, driver).await;
            }
        }
    }

    async fn shake_hands(
        &self,
        transport: Arc<dyn Transport>,
        accepting: Box<dyn Accepting>,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<Driver, Error> {
        let limits = &self.config.limits;
        let hello = self.identity.hello(limits);
        let (router, placer) = (Arc::clone(&self.router), self.placer.clone());
        let intake = Arc::new(Intake::new(router, placer, limits, hello.stream_window));
        let local = LocalSide {
            hello: hello.clone(),
            placement: Arc::clone(&intake) as _,
            deadline: deadline_after(Instant::now(), self.config.handshake_timeout),
            ticket: None,
        };
        let Established { connection, peer } = accepting.handshake(local).await?;
        if let Err(error) = agree(&hello, &peer) {
            connection.close(error.clone());
            return Err(error);
        }
        intake.with_calls(|calls| calls.set_peer_window(peer.stream_window));
        let origin = Arc::new(ConnectionOrigin {
            number: hello.connection,
            path: connection.path(),
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
        Ok(Driver::new(peer, shutdown))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
