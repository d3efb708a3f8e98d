//! Second paths, from their tickets to their ends.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::connections::Entry;
use super::listening::{Second, SecondListener};
use super::newcomers::Fate;
use crate::error::{Error, ErrorKind};
use crate::server::serving::{
    ACCEPT_PAUSE, Coming, Greeted, Shared, drain, log_panic, next_connection,
};
use crate::transport::{Accepting, Connection, Listener, Transport};

/// Accepts second paths until told to stop, at one listener after the other: a device takes its listener along. Then waits for
/// them to drain.
pub(in crate::server) async fn accept_second(
    shared: Arc<Shared>,
    (second, mut listeners): (Arc<Second>, SecondListener),
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let max_handshakes = shared.config.max_handshakes.clamp(1, Semaphore::MAX_PERMITS);
    let handshakes = Arc::new(Semaphore::new(max_handshakes));
    let mut connections = JoinSet::new();
    let stop = stopping.clone();
    let target = second.target.clone();
    let mut listener: Option<Box<dyn Listener>> = None;
    loop {
        let next = next_second(&mut listener, &mut listeners, &handshakes);
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
                let transport = Arc::clone(&second.transport);
                let serving = connection.serve_second(transport, accepting, permit, stop.clone());
                connections.spawn(serving);
            }
            Err(error) if error.kind() == ErrorKind::Lost => {
                listener = None;
                second.handle_lost(error);
            }
            Err(error) => {
                warn!(%target, %error, "cannot accept a second path now");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    drain(&target, connections, shared.config.drain_timeout).await
}

/// The next connection, once somebody listens.
async fn next_second(
    listener: &mut Option<Box<dyn Listener>>,
    listeners: &mut SecondListener,
    handshakes: &Arc<Semaphore>,
) -> Result<(Box<dyn Accepting>, OwnedSemaphorePermit), Error> {
    if listener.is_none() {
        // This server has the other end, which therefore stays.
        *listener = listeners.recv().await;
    }
    match listener {
        Some(listener) => next_connection(&mut **listener, handshakes).await,
        None => pending().await,
    }
}

impl Shared {
    /// One second path, from its ticket to its end.
    async fn serve_second(
        self: Arc<Self>,
        transport: Arc<dyn Transport>,
        accepting: Box<dyn Accepting>,
        permit: OwnedSemaphorePermit,
        stopping: watch::Receiver<bool>,
    ) {
        let peer = accepting.peer();
        let entry = match self.connections.admit(accepting.ticket()) {
            Ok(entry) => entry,
            Err(refused) => {
                info!(peer, %refused, "a second path was refused");
                return accepting.refuse(&refused.to_string());
            }
        };
        let arrival = self.connections.arrival(permit);
        let greeted = self.greet_second(&entry, transport, accepting, stopping);
        let greeted = tokio::select! {
            biased;
            () = entry.gone() => return arrival.note(Fate::Failed(ErrorKind::Lost)),
            greeted = greeted => greeted,
        };
        let (_seat, Greeted { mut driver, line, .. }) = match greeted {
            Ok(greeted) => greeted,
            Err(error) => {
                arrival.note(Fate::Failed(error.kind()));
                info!(peer, %error, "a second path was not made");
                return entry.note_why_not(&error.to_string());
            }
        };
        arrival.note(Fate::LetIn);
        drop(arrival);
        let connection = Arc::clone(&line.connection);
        info!(path = %line.info(), "a second path: new calls come over it");
        entry.begin_second(line);
        let why = tokio::select! {
            biased;
            () = entry.gone() => "its first path has ended",
            () = &mut driver => "it has ended",
        };
        info!(path = %connection.path(), why, "a second path has ended");
        entry.end_second(&format!("the last one was lost: {why}"));
        drop(driver);
        connection.retire().await;
    }

    /// Takes the seat of a connection's second path and exchanges HELLO with its client.
    async fn greet_second<'a>(
        &self,
        entry: &'a Entry,
        transport: Arc<dyn Transport>,
        accepting: Box<dyn Accepting>,
        stopping: watch::Receiver<bool>,
    ) -> Result<(SemaphorePermit<'a>, Greeted), Error> {
        entry.close_second("its client has made another one");
        let seat = timeout(self.config.handshake_timeout, entry.seat.acquire()).await;
        let Ok(Ok(seat)) = seat else {
            let message = "the second path before this one has not ended in time";
            accepting.refuse(message);
            return Err(Error::new(ErrorKind::TimedOut, message));
        };
        let coming = Coming::SecondOf(entry);
        let greeted = self.shake_hands(transport, accepting, coming, stopping).await?;
        if greeted.incarnation == entry.incarnation() {
            return Ok((seat, greeted));
        }
        let message = format!(
            "the client's incarnation is {:#x} in HELLO and {:#x} on its first path: a stolen ticket",
            greeted.incarnation,
            entry.incarnation()
        );
        let error = Error::new(ErrorKind::PeerFault, message);
        greeted.line.connection.close(error.clone());
        Err(error)
    }
}
