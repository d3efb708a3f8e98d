//! A listener for second paths, which may come and go with its device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::error::Error;
use crate::transport::{Listener, Target, Transport};

/// Shortest time between two attempts to listen, whoever asks. 1 s: a device that came back is soon found, and a server
/// without any spends nothing on clients that ask.
const ATTEMPTS: Duration = Duration::from_secs(1);

/// Where second paths are listened for. Its listener is with the task that accepts.
pub(in crate::server) struct Second {
    pub(in crate::server) transport: Arc<dyn Transport>,
    pub(in crate::server) target: Target,
    state: Mutex<State>,
    /// Held by who tries to listen.
    attempt: tokio::sync::Mutex<()>,
    found: mpsc::UnboundedSender<Box<dyn Listener>>,
}

/// Where the task that accepts gets its listener. Only who found no listener tries for one, so that one waits at most.
pub(in crate::server) type SecondListener = mpsc::UnboundedReceiver<Box<dyn Listener>>;

enum State {
    /// Clients reach it there.
    At(Vec<Target>),
    /// Nobody listens, since the last attempt at this time.
    Down(Error, Instant),
}

impl Second {
    /// Tries to listen.
    pub(in crate::server) async fn open(
        transport: Arc<dyn Transport>,
        target: Target,
    ) -> (Arc<Self>, SecondListener) {
        let (found, listener) = mpsc::unbounded_channel();
        let state = match transport.listen(&target).await {
            Ok(listener) => State::At(hand_over(&found, listener)),
            Err(error) => {
                warn!(%target, %error, "no second paths until this can be listened at");
                State::Down(error, Instant::now())
            }
        };
        let (state, attempt) = (Mutex::new(state), tokio::sync::Mutex::default());
        (Arc::new(Self { transport, target, state, attempt, found }), listener)
    }

    /// Its transport's scheme.
    pub(super) fn scheme(&self) -> &str {
        self.target.scheme()
    }

    /// Where clients reach it now. Tries to listen if nobody does, unless somebody has tried just before.
    ///
    /// # Errors
    ///
    /// Why nobody listens.
    pub(super) async fn targets(&self) -> Result<Vec<Target>, Error> {
        let _attempt = self.attempt.lock().await;
        match &*self.state() {
            State::At(targets) => return Ok(targets.clone()),
            State::Down(error, tried) if tried.elapsed() < ATTEMPTS => return Err(error.clone()),
            State::Down(..) => {}
        }
        match self.transport.listen(&self.target).await {
            Ok(listener) => {
                info!(target = %listener.local_target(), "second paths are listened for again");
                let targets = hand_over(&self.found, listener);
                *self.state() = State::At(targets.clone());
                Ok(targets)
            }
            Err(error) => {
                *self.state() = State::Down(error.clone(), Instant::now());
                Err(error)
            }
        }
    }

    /// The listener is of no use any more.
    pub(in crate::server) fn handle_lost(&self, error: Error) {
        warn!(target = %self.target, %error, "second paths are not listened for any more");
        *self.state() = State::Down(error, Instant::now());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hand_over(
    found: &mpsc::UnboundedSender<Box<dyn Listener>>,
    listener: Box<dyn Listener>,
) -> Vec<Target> {
    let targets = listener.targets();
    // Without the task that accepts, the server has ended.
    let _taken = found.send(listener);
    targets
}
