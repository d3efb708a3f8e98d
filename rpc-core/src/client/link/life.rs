//! Whether a connection takes calls, and how that ends.

use std::task::Waker;

use tokio::sync::watch;

use super::Shared;
use crate::error::{Error, ErrorKind};
use crate::proto::reconnect::ConnectivityState;

/// Whether a connection takes calls.
#[derive(Debug, Clone)]
pub(in crate::client) enum Life {
    Open,
    /// It takes no more, for this reason; those that it has go on.
    Leaving(Error),
    Ended {
        cause: Error,
        /// Why it took no more before that, if it did; else the cause.
        left: Error,
    },
}

/// Waits for the end of a connection, or for the word that it takes no more calls. Keeps nothing of it.
pub(in crate::client) struct Leaving(watch::Receiver<Life>);

impl Shared {
    /// Whether calls may begin, as far as callers have been told.
    pub(in crate::client) fn is_open(&self) -> bool {
        !self.free_slots.is_closed()
    }

    pub(in crate::client) fn state(&self) -> ConnectivityState {
        match *self.life.borrow() {
            Life::Open => ConnectivityState::Ready,
            Life::Leaving(_) | Life::Ended { .. } => ConnectivityState::Shutdown,
        }
    }

    pub(in crate::client) async fn state_changed(
        &self,
        last: ConnectivityState,
    ) -> ConnectivityState {
        let mut life = self.life.subscribe();
        while self.state() == last {
            life.changed().await.expect("this has its sender");
        }
        self.state()
    }

    pub(in crate::client) fn leaving(&self) -> Leaving {
        Leaving(self.life.subscribe())
    }

    /// No call begins any more: who waits for a slot wakes, and learns from `begin` why.
    pub(in crate::client) fn refuse_waiting(&self, why: String) {
        // First, so that whoever finds the connection closed finds out why.
        self.live_on_as(Life::Leaving(Error::new(ErrorKind::Closed, why)));
        self.free_slots.close();
    }

    /// Why calls may begin no more.
    pub(in crate::client) fn why_left(&self) -> Option<Error> {
        match &*self.life.borrow() {
            Life::Open => None,
            Life::Leaving(why) | Life::Ended { left: why, .. } => Some(why.clone()),
        }
    }

    fn live_on_as(&self, next: Life) {
        self.life.send_if_modified(|life| {
            *life = match (&*life, next) {
                (Life::Open, next) => next,
                (Life::Leaving(why), Life::Ended { cause, .. }) => {
                    Life::Ended { cause, left: why.clone() }
                }
                _ => return false,
            };
            true
        });
    }

    /// The connection is gone: ends every call with the cause, and lets none begin.
    pub(in crate::client) fn end(&self, cause: &Error) {
        let wakers = self.table.with(|calls| calls.handle_closed(cause.clone()));
        self.live_on_as(Life::Ended { cause: cause.clone(), left: cause.clone() });
        self.free_slots.close();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Leaving {
    /// Why the connection has ended; `None` if it was dropped.
    pub(in crate::client) async fn ended(mut self) -> Option<Error> {
        match self.0.wait_for(|life| matches!(life, Life::Ended { .. })).await.as_deref() {
            Ok(Life::Ended { cause, .. }) => Some(cause.clone()),
            _ => None,
        }
    }

    /// Why the connection takes no more calls; `None` if it was dropped.
    pub(in crate::client) async fn wait(mut self) -> Option<Error> {
        // Nobody is left to change it where the connection has been dropped.
        let life = self.0.wait_for(|life| !matches!(life, Life::Open)).await;
        match life.as_deref() {
            Ok(Life::Leaving(why) | Life::Ended { left: why, .. }) => Some(why.clone()),
            Ok(Life::Open) | Err(_) => None,
        }
    }
}
