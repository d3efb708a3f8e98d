//! The task that keeps a subchannel connected: one attempt at a time, and a wait between two of them.
//!
//! Owns nothing of the subchannel, so that it ends with it; the rules are [`Reconnect`](crate::proto::reconnect::Reconnect)'s.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::super::connector::Connector;
use super::super::link::Leaving;
use super::subchannel::Watch;

/// Waits for the end of the connection that there is, makes another, and so on.
///
/// `watch` is an argument, so that it is dropped also where the task never runs.
pub(super) async fn keep(watch: Watch, connector: Arc<Connector>, mut leaving: Option<Leaving>) {
    let subchannel = watch.subchannel();
    loop {
        if let Some(leaving) = leaving.take() {
            leaving.wait().await;
            let Some(subchannel) = subchannel.upgrade() else { return };
            subchannel.handle_left();
        }
        let due = match subchannel.upgrade() {
            Some(subchannel) => subchannel.next_attempt(),
            None => return,
        };
        let Some(due) = due else { return };
        // A timer is up to a millisecond late.
        if due > Instant::now() {
            sleep_until(due).await;
        }
        let Some(connecting) = subchannel.upgrade() else { return };
        connecting.handle_attempt();
        drop(connecting);
        let connected = connector.connect().await;
        let Some(subchannel) = subchannel.upgrade() else { return };
        match connected {
            Ok(link) => {
                leaving = Some(link.shared().leaving());
                subchannel.handle_connected(link);
            }
            Err(error) => subchannel.handle_failure(error),
        }
    }
}
