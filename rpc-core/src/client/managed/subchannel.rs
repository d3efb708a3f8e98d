//! The connections of a channel to one address.
//!
//! There is a primary one, and beside it there may be a preferred one to the same server over another transport: calls go there
//! as long as it takes them. Both are of one generation, which ends with the primary one. Owns them, and what the address is
//! while there are none; a [`keeper`](super::keeper) makes new ones.

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{debug, info};

use super::super::connector::Connector;
use super::super::link::{Leaving, Link};
use super::super::turn::Turn;
use super::keeper::keep;
use super::second::Upgrade;
use super::{Found, News, Picked, Reason};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::paths::Paths;
use crate::proto::paths::PathPolicy;
use crate::proto::reconnect::{ConnectivityState, Reconnect, Served};
use crate::status::{Code, Executed, Origin, Status};
use crate::sync::{Mutex, lock};
use crate::transport::{Target, Transport};

pub(super) struct Subchannel {
    connector: Arc<Connector>,
    news: Arc<News>,
    /// Where the keeper and the drivers of connections run.
    runtime: Handle,
    state: Mutex<State>,
}

struct State {
    rules: Reconnect,
    links: Option<Links>,
    /// Why the last connection ended, or the last attempt failed.
    cause: Option<Error>,
    /// Which process was at the address, and where it was in the transport's words.
    incarnation: Option<u64>,
    peer: Option<String>,
    keeper: Option<AbortHandle>,
}

/// The connections of one generation.
struct Links {
    primary: Arc<Link>,
    preferred: Option<Arc<Link>>,
    /// Cares for the preferred one.
    upgrade: Option<Upgrade>,
    policy: PathPolicy,
}

impl Links {
    /// Where a call goes.
    fn open(&self, turn: Option<&Turn>) -> Option<&Arc<Link>> {
        let primary = Some(&self.primary).filter(|_| !self.needs_preferred());
        let mut open = self.preferred.iter().chain(primary).filter(|link| is_open(link));
        if let Some(of_turn) =
            turn.and_then(|turn| open.clone().find(|link| turn.is_of(link.shared())))
        {
            return Some(of_turn);
        }
        open.next()
    }

    /// Whether calls must not go over the primary one.
    fn needs_preferred(&self) -> bool {
        self.policy == PathPolicy::RequireRdma && self.upgrade.is_some()
    }

    /// Whether calls wait for a preferred one, which they need and do not have.
    fn waits_for_preferred(&self) -> bool {
        self.needs_preferred() && !self.preferred.as_ref().is_some_and(is_open)
    }

    fn paths(&self) -> Paths {
        let one_path = || "the target means one path; auto:// means the best there is".to_owned();
        Paths {
            first: self.primary.info(),
            second: self.preferred.as_ref().filter(|link| is_open(link)).map(|link| link.info()),
            why_not: self.upgrade.as_ref().map_or_else(one_path, Upgrade::why_not),
            switches: self.upgrade.as_ref().map_or(0, Upgrade::switches),
        }
    }

    fn served(&self) -> Served {
        let mut links = self.preferred.iter().chain([&self.primary]);
        if links.any(|link| link.shared().has_served()) { Served::Yes } else { Served::No }
    }
}

fn is_open(link: &Arc<Link>) -> bool {
    link.shared().is_open()
}

impl Subchannel {
    /// Not connected yet.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub(super) fn new(connector: Connector, news: Arc<News>) -> Arc<Self> {
        let config = connector.config();
        let (first, longest) = config.reconnect_backoff;
        let rules = Reconnect::new(Backoff::new(first, longest, config.random.clone()));
        let state = Mutex::new(State {
            rules,
            links: None,
            cause: None,
            incarnation: None,
            peer: None,
            keeper: None,
        });
        let connector = Arc::new(connector);
        Arc::new(Self { connector, news, runtime: Handle::current(), state })
    }

    pub(super) fn target(&self) -> &Target {
        self.connector.target()
    }

    /// The address, as statuses name it.
    pub(super) fn peer(&self) -> String {
        lock(&self.state).peer.clone().unwrap_or_else(|| self.target().to_string())
    }

    /// Where its tasks run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The connections that there are.
    pub(super) fn paths(&self) -> Option<Paths> {
        lock(&self.state).links.as_ref().map(Links::paths)
    }

    pub(super) fn transport(&self) -> &Arc<dyn Transport> {
        self.connector.transport()
    }

    /// `Ready` where calls can go out: over the path that they must take, if there is such a policy.
    pub(super) fn state(&self) -> ConnectivityState {
        let state = lock(&self.state);
        let waits = state.links.as_ref().is_some_and(Links::waits_for_preferred);
        match state.rules.state() {
            ConnectivityState::Ready if waits => ConnectivityState::Connecting,
            state => state,
        }
    }

    /// The connection that calls go to, if there is one.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        lock(&self.state).links.as_ref().and_then(|links| links.open(None)).map(Arc::clone)
    }

    /// Makes the first connection, in the caller's task.
    pub(super) async fn connect_first(self: &Arc<Self>) -> Result<(), Error> {
        let link = self.connector.connect().await?;
        lock(&self.state).rules.handle_attempt();
        let leaving = link.shared().leaving();
        self.handle_connected(link);
        self.spawn_keeper(Some(leaving));
        Ok(())
    }

    fn spawn_keeper(self: &Arc<Self>, leaving: Option<Leaving>) {
        let keeping = keep(Watch(Arc::downgrade(self)), Arc::clone(&self.connector), leaving);
        // Not under the lock: a runtime that has shut down drops the task at once, which looks at the state.
        let keeper = self.runtime.spawn(keeping).abort_handle();
        lock(&self.state).keeper = Some(keeper);
    }

    pub(super) fn pick(self: &Arc<Self>, turn: Option<&Turn>) -> Picked {
        let state = lock(&self.state);
        if let Some(link) = state.links.as_ref().and_then(|links| links.open(turn)) {
            return Picked::Link(Found { link: Arc::clone(link), member: None });
        }
        match state.rules.state() {
            ConnectivityState::TransientFailure => {
                Picked::Failed(Reason::Failing(self.without_connection(&state)))
            }
            ConnectivityState::Shutdown => {
                Picked::Failed(Reason::Shutdown(self.without_connection(&state)))
            }
            // The keeper is about to hear that it takes no more calls.
            ConnectivityState::Ready | ConnectivityState::Connecting => {
                Picked::Wait(state.rules.failures())
            }
            ConnectivityState::Idle => {
                let failures = state.rules.failures();
                drop(state);
                self.demand();
                Picked::Wait(failures)
            }
        }
    }

    /// The first connection is to be made, unless that was said before.
    pub(super) fn demand(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.rules.state() != ConnectivityState::Idle {
            return;
        }
        state.rules.handle_demand(Instant::now());
        drop(state);
        self.tell();
        self.spawn_keeper(None);
    }

    /// Whether there is no connection, and nothing has failed that keeps one from being there soon.
    pub(super) fn is_promising(&self) -> bool {
        let state = lock(&self.state);
        let is_open = state.links.as_ref().is_some_and(|links| links.open(None).is_some());
        let is_over = matches!(
            state.rules.state(),
            ConnectivityState::TransientFailure | ConnectivityState::Shutdown
        );
        !is_open && !is_over && !state.rules.has_failed()
    }

    /// When the next attempt is due; `None` where there is to be none.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        lock(&self.state).rules.next_attempt()
    }

    /// An attempt begins.
    pub(super) fn handle_attempt(&self) {
        lock(&self.state).rules.handle_attempt();
        self.tell();
    }

    /// An attempt succeeded.
    pub(super) fn handle_connected(self: &Arc<Self>, link: Arc<Link>) {
        let upgrade = Upgrade::begin(self, &self.connector, &link);
        let policy = self.connector.config().path_policy;
        let mut state = lock(&self.state);
        let path = link.path();
        match state.incarnation.replace(link.incarnation()) {
            None => debug!(%path, "connected"),
            Some(known) if known == link.incarnation() => info!(%path, "connected again"),
            Some(_) => info!(%path, "connected again, to a server that was started anew"),
        }
        state.peer = Some(path.peer);
        state.rules.handle_connected(Instant::now());
        let before = state.links.replace(Links { primary: link, preferred: None, upgrade, policy });
        drop(state);
        drop(before);
        self.tell();
    }

    /// An attempt failed.
    pub(super) fn handle_failure(&self, cause: Error) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        state.rules.handle_failure(now);
        let next = state.rules.next_attempt().map(|at| at - now);
        info!(target = %self.target(), %cause, ?next, "cannot connect");
        state.cause = Some(cause);
        drop(state);
        self.tell();
    }

    /// The primary connection takes no more calls.
    pub(super) fn handle_left(&self) {
        let primary = lock(&self.state).links.as_ref().map(|links| Arc::clone(&links.primary));
        if let Some(primary) = primary {
            self.leave(&primary);
        }
    }

    /// `link` takes no more calls. Its own go on.
    pub(super) fn leave(&self, link: &Arc<Link>) {
        let mut state = lock(&self.state);
        let Some(links) = &mut state.links else { return };
        if links.preferred.as_ref().is_some_and(|preferred| Arc::ptr_eq(preferred, link)) {
            let left = links.preferred.take();
            drop(state);
            // May close it.
            drop(left);
            return self.tell();
        }
        if !Arc::ptr_eq(&links.primary, link) {
            return;
        }
        let served = links.served();
        let generation = state.links.take();
        // A call may find this out before the keeper does.
        state.cause = link.shared().why_left().or_else(|| state.cause.take());
        state.rules.handle_left(Instant::now(), served);
        drop(state);
        // May close connections.
        drop(generation);
        self.tell();
    }

    /// New calls go over `preferred` from now on. `false` if the generation of `primary` is over.
    pub(super) fn prefer(&self, primary: &Arc<Link>, preferred: Arc<Link>) -> bool {
        let mut state = lock(&self.state);
        let links = state.links.as_mut().filter(|links| Arc::ptr_eq(&links.primary, primary));
        let Some(links) = links else { return false };
        let before = links.preferred.replace(preferred);
        drop(state);
        drop(before);
        self.tell();
        true
    }

    /// No connection is made any more.
    pub(super) fn shut_down(&self, cause: Error) {
        let mut state = lock(&self.state);
        state.rules.handle_shutdown();
        state.cause = Some(cause);
        let generation = state.links.take();
        drop(state);
        drop(generation);
        self.tell();
    }

    fn tell(&self) {
        self.news.send_replace(());
    }

    /// The status of a call for which there is no connection.
    pub(super) fn failing(&self) -> Status {
        self.without_connection(&lock(&self.state))
    }

    fn without_connection(&self, state: &State) -> Status {
        let mut words = format!("there is no connection to {}", self.target());
        let Some(cause) = &state.cause else {
            return unavailable(words);
        };
        words.push_str(&format!(": {cause}"));
        if let Some(next) = state.rules.next_attempt() {
            let after = next.saturating_duration_since(Instant::now());
            words.push_str(&format!(
                "; the next try is in {after:.1?}, and a request with set_wait_for_ready waits for it"
            ));
        }
        unavailable(words).with_source(cause.clone())
    }

    /// The status of a call whose deadline came first.
    pub(super) fn waited_too_long(&self) -> Status {
        if let Some(status) = self.waited_for_preferred() {
            return status;
        }
        let state = lock(&self.state);
        let mut words = format!(
            "the deadline passed while the call waited for a connection to {}, which is {}",
            self.target(),
            state.rules.state()
        );
        if let Some(cause) = &state.cause {
            words.push_str(&format!("; at last: {cause}"));
        }
        Status::deadline_exceeded(words).with_executed(Executed::No)
    }

    /// The same, where it is connected and the path is missing that calls must take.
    pub(super) fn waited_for_preferred(&self) -> Option<Status> {
        let state = lock(&self.state);
        let links = state.links.as_ref().filter(|links| links.waits_for_preferred())?;
        let why = links.upgrade.as_ref().map(Upgrade::why_not).unwrap_or_default();
        Some(unavailable(format!(
            "the channel's policy is RequireRdma, and there was no such path to {} until the deadline: {why}",
            self.target()
        )))
    }
}

pub(super) fn unavailable(words: String) -> Status {
    Status::new(Code::Unavailable, words).with_executed(Executed::No).with_origin(Origin::Transport)
}

impl Drop for Subchannel {
    fn drop(&mut self) {
        if let Some(keeper) = lock(&self.state).keeper.take() {
            keeper.abort();
        }
    }
}

/// Ends the subchannel if its keeper is gone before it.
pub(super) struct Watch(Weak<Subchannel>);

impl Watch {
    pub(super) fn subchannel(&self) -> &Weak<Subchannel> {
        &self.0
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(subchannel) = self.0.upgrade() else { return };
        let cause = match std::thread::panicking() {
            true => {
                "the task that connects panicked, in what a transport did; make another channel"
            }
            false => {
                "the runtime on which the channel was made has shut down; make another on one that lives"
            }
        };
        subchannel.shut_down(Error::new(ErrorKind::Closed, cause));
    }
}
