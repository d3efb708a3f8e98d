//! A call that runs: its outcome, who waits for it, and the word that it is to stop.
//!
//! Owns the count of those who wait. Runs nothing and decides nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::{Outcome, stopped};
use crate::proto::entrance::Entrance;
use crate::status::Executed;

/// A call that runs, for those who wait for it, and for itself.
#[derive(Debug, Clone)]
pub(super) struct Running {
    outcome: watch::Receiver<Option<Arc<Outcome>>>,
    /// How many wait.
    waiters: watch::Sender<usize>,
    pub(super) stop: Arc<Notify>,
    /// Where its handler is entered, by whatever attempt.
    pub(super) entrance: Arc<Entrance>,
}

/// Someone who waits for a call.
pub(super) struct Waiting(Running);

impl Running {
    /// A call for which nobody waits yet, and who tells its outcome.
    pub(super) fn begin() -> (watch::Sender<Option<Arc<Outcome>>>, Self) {
        let (tell, outcome) = watch::channel(None);
        let waiters = watch::Sender::new(0);
        (tell, Self { outcome, waiters, stop: Arc::default(), entrance: Arc::default() })
    }

    /// One more waits for it.
    pub(super) fn attend(self) -> Waiting {
        self.waiters.send_modify(|waiters| *waiters += 1);
        Waiting(self)
    }

    /// Resolves when its handler is gone.
    pub(super) async fn ended(mut self) {
        drop(self.outcome.wait_for(Option::is_some).await);
    }

    /// Resolves when nobody has waited for it for as long as `limit`.
    pub(super) async fn unattended(&self, limit: Duration) {
        let mut waiters = self.waiters.subscribe();
        loop {
            drop(waiters.wait_for(|waiters| *waiters == 0).await);
            // Also someone who came and is gone again begins another wait.
            if timeout(limit, waiters.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Waiting {
    pub(super) fn entrance(&self) -> Arc<Entrance> {
        Arc::clone(&self.0.entrance)
    }

    pub(super) async fn outcome(mut self) -> Outcome {
        match self.0.outcome.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => Outcome::clone(answer),
            Ok(None) | Err(_) => Err(stopped(Executed::Maybe)),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiters.send_modify(|waiters| *waiters -= 1);
    }
}
