//! The endpoints of a channel that has several, and which of them a call goes to.
//!
//! Owns the set of them, which may change, and what is known of each besides its connections. [`proto::balance`](crate::proto::balance) and
//! [`proto::outlier`](crate::proto::outlier) have the rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::info;

use super::super::connector::Connector;
use super::super::link::Link;
use super::super::methods::MethodNumbers;
use super::super::turn::Turn;
use super::subchannel::{Subchannel, unavailable};
use super::{Found, News, Picked, Reason};
use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind};
use crate::paths::Paths;
use crate::proto::balance::{Candidate, Picker};
use crate::proto::outlier::{Outlier, is_failure};
use crate::proto::reconnect::ConnectivityState;
use crate::status::{Executed, Status};
use crate::sync::{Mutex, lock};
use crate::transport::{Target, Transport};

/// The transport of a target, or why there is none.
pub(in crate::client) type TransportOf =
    Arc<dyn Fn(&Target) -> Result<Arc<dyn Transport>, Error> + Send + Sync>;

/// Most connections to one endpoint: more do not make a link faster, and cost its server memory each.
const MAX_STRIPES: usize = 16;

pub(in crate::client) struct Members {
    set: Mutex<Set>,
    transports: TransportOf,
    config: ClientConfig,
    methods: Arc<Mutex<MethodNumbers>>,
    news: Arc<News>,
    runtime: Handle,
}

struct Set {
    members: Vec<Arc<Member>>,
    picker: Picker,
    /// Whether a call came: then all are connected, and those that come later at once.
    is_wanted: bool,
}

/// One connection to an endpoint at a time.
pub(in crate::client) struct Member {
    pub(super) subchannel: Arc<Subchannel>,
    /// What its server is known to say of itself.
    serves: AtomicBool,
    outlier: Mutex<Outlier>,
}

/// An endpoint of a balanced channel, as it is now.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// Where it is.
    pub target: Target,
    /// Whether there is a connection to it; of several connections, of the best.
    pub state: ConnectivityState,
    /// Whether calls may go there, as somebody told [`Endpoints::set_serving`](crate::client::Endpoints::set_serving).
    pub is_serving: bool,
    /// Whether it is left alone for now, since calls failed there one after the other.
    pub is_ejected: bool,
    /// How often it was.
    pub ejections: u64,
}

impl Members {
    /// The endpoints at `targets`.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub(super) fn new(
        transports: TransportOf,
        targets: &[Target],
        config: &ClientConfig,
        methods: Arc<Mutex<MethodNumbers>>,
        news: Arc<News>,
    ) -> Result<Self, Error> {
        let picker = Picker::new(config.balance, config.random.clone());
        let members = Self {
            set: Mutex::new(Set { members: Vec::new(), picker, is_wanted: false }),
            transports,
            config: config.clone(),
            methods,
            news,
            runtime: Handle::current(),
        };
        members.replace(targets)?;
        Ok(members)
    }

    /// Makes `targets` the set. Those that stay keep their connections; calls that run at others go on.
    pub(in crate::client) fn replace(&self, targets: &[Target]) -> Result<(), Error> {
        let known = self.targets();
        let mut new: Vec<&Target> = targets.iter().filter(|one| !known.contains(one)).collect();
        new.sort_unstable();
        new.dedup();
        let new = new.into_iter().map(|target| self.make(target)).collect::<Result<Vec<_>, _>>()?;
        new.into_iter().for_each(|members| self.admit(members));
        self.dismiss(|target| !targets.contains(target));
        Ok(())
    }

    pub(in crate::client) fn insert(&self, target: &Target) -> Result<(), Error> {
        if !self.targets().contains(target) {
            self.admit(self.make(target)?);
        }
        Ok(())
    }

    pub(in crate::client) fn remove(&self, target: &Target) {
        self.dismiss(|known| known == target);
    }

    /// Takes the members of one target in, unless another has brought it in meanwhile.
    fn admit(&self, new: Vec<Arc<Member>>) {
        let mut set = lock(&self.set);
        let is_known = |new: &Arc<Member>| {
            let mut known = set.members.iter().map(|known| known.subchannel.target());
            known.any(|known| known == new.subchannel.target())
        };
        if new.first().is_none_or(is_known) {
            return;
        }
        set.members.extend(new.iter().map(Arc::clone));
        let is_wanted = set.is_wanted;
        drop(set);
        if is_wanted {
            new.iter().for_each(|member| member.subchannel.demand());
        }
        self.news.send_replace(());
    }

    fn dismiss(&self, leaves: impl Fn(&Target) -> bool) {
        let mut set = lock(&self.set);
        let all = std::mem::take(&mut set.members);
        let (left, stay): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|member| leaves(member.subchannel.target()));
        set.members = stay;
        drop(set);
        for member in left {
            let cause = format!("{} was removed from the channel", member.subchannel.target());
            member.subchannel.shut_down(Error::new(ErrorKind::Closed, cause));
        }
        self.news.send_replace(());
    }

    fn make(&self, target: &Target) -> Result<Vec<Arc<Member>>, Error> {
        let transport = (self.transports)(target)?;
        let _runtime = self.runtime.enter();
        let stripes = self.config.connections_per_endpoint.clamp(1, MAX_STRIPES);
        Ok((0..stripes)
            .map(|_| {
                let (transport, methods) = (Arc::clone(&transport), Arc::clone(&self.methods));
                let connector = Connector::new(transport, target, &self.config, methods);
                Arc::new(Member {
                    subchannel: Subchannel::new(connector, Arc::clone(&self.news)),
                    serves: AtomicBool::new(true),
                    outlier: Mutex::new(Outlier::default()),
                })
            })
            .collect())
    }

    fn all(&self) -> Vec<Arc<Member>> {
        lock(&self.set).members.clone()
    }

    pub(in crate::client) fn targets(&self) -> Vec<Target> {
        let mut targets: Vec<_> =
            self.all().iter().map(|member| member.subchannel.target().clone()).collect();
        targets.dedup();
        targets
    }

    pub(in crate::client) fn infos(&self) -> Vec<EndpointInfo> {
        let now = Instant::now();
        let mut infos: Vec<EndpointInfo> = Vec::new();
        for member in self.all() {
            let outlier = lock(&member.outlier);
            let info = EndpointInfo {
                target: member.subchannel.target().clone(),
                state: member.subchannel.state(),
                is_serving: member.serves.load(Ordering::Relaxed),
                is_ejected: outlier.is_ejected(now),
                ejections: outlier.ejections(),
            };
            match infos.last_mut() {
                Some(last) if last.target == info.target => last.add(&info),
                _ => infos.push(info),
            }
        }
        infos
    }

    pub(in crate::client) fn set_serving(&self, target: &Target, serves: bool) {
        for member in self.all() {
            if member.subchannel.target() == target {
                let before = member.serves.swap(serves, Ordering::Relaxed);
                if before != serves {
                    info!(%target, serves, "an endpoint says whether it serves");
                }
            }
        }
        self.news.send_replace(());
    }

    /// Connects all.
    pub(super) fn demand(&self) {
        lock(&self.set).is_wanted = true;
        self.all().iter().for_each(|member| member.subchannel.demand());
    }

    pub(super) fn state(&self) -> ConnectivityState {
        best(self.all().iter().map(|member| member.subchannel.state()))
    }

    /// A connection that is there.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.all().iter().find_map(|member| member.subchannel.link())
    }

    /// Those of an endpoint that is connected.
    pub(super) fn paths(&self) -> Option<Paths> {
        self.all().iter().find_map(|member| member.subchannel.paths())
    }

    pub(super) fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.all().first().map(|member| Arc::clone(member.subchannel.transport()))
    }

    pub(super) fn pick(&self, turn: Option<&Turn>) -> Picked {
        let mut set = lock(&self.set);
        if !set.is_wanted {
            drop(set);
            self.demand();
            return Picked::Wait(0);
        }
        let Set { members, picker, .. } = &mut *set;
        if let Some(turn) = turn
            && let Some(found) = members.iter().find_map(|member| of_turn(member, turn))
        {
            return Picked::Link(found);
        }
        let now = Instant::now();
        let picked = picker.pick(members.len(), |index| members[index].candidate(now));
        let picked = picked.map(|index| Arc::clone(&members[index]));
        drop(set);
        if let Some(member) = picked
            && let Some(link) = member.subchannel.link()
        {
            return Picked::Link(Found { link, member: Some(member) });
        }
        let members = self.all();
        if members.iter().any(|member| member.subchannel.is_promising()) {
            return Picked::Wait(0);
        }
        let is_shut =
            |member: &Arc<Member>| member.subchannel.state() == ConnectivityState::Shutdown;
        // An empty list may be filled; an endpoint that has shut down does not come back.
        let reason = match !members.is_empty() && members.iter().all(is_shut) {
            true => Reason::Shutdown,
            false => Reason::Failing,
        };
        Picked::Failed(reason(none(&members)))
    }

    /// Why no call can go out.
    pub(super) fn failing(&self) -> Status {
        none(&self.all())
    }

    /// The status of a call whose deadline came first.
    pub(super) fn waited_too_long(&self) -> Status {
        let members = self.all();
        if let Some(status) = members.iter().find_map(|one| one.subchannel.waited_for_preferred()) {
            return status;
        }
        let why = none(&members);
        let message = format!(
            "the deadline passed while the call waited for a connection: {}",
            why.message()
        );
        Status::deadline_exceeded(message).with_executed(Executed::No)
    }

    /// A call that went to `member` has ended.
    pub(super) fn handle_end(&self, member: &Member, failure: Option<&Status>) {
        if !failure.is_some_and(is_failure) {
            return lock(&member.outlier).handle_success();
        }
        let limits = &self.config.outliers;
        if !lock(&member.outlier).handle_failure(limits) {
            return;
        }
        let (members, now) = (self.all(), Instant::now());
        let ejected = members.iter().filter(|member| lock(&member.outlier).is_ejected(now)).count();
        if limits.may_eject(ejected, members.len()) {
            lock(&member.outlier).handle_ejected(now, limits);
            info!(target = %member.subchannel.target(), "calls fail there, and others are preferred");
        }
    }

    /// Whether all are at one server, which knows the slots of its sessions.
    pub(super) fn are_at_one_server(&self) -> bool {
        self.targets().len() == 1
    }

    /// How the endpoints are called together.
    pub(super) fn name(&self) -> String {
        let targets: Vec<_> = self.targets().iter().take(4).map(ToString::to_string).collect();
        let all = self.targets().len();
        let more = if all > targets.len() {
            format!(" and {} more", all - targets.len())
        } else {
            String::new()
        };
        format!("{}{more}", targets.join(", "))
    }
}

impl Member {
    fn candidate(&self, now: Instant) -> Candidate {
        let Some(link) = self.subchannel.link() else { return Candidate::Unusable };
        if !self.serves.load(Ordering::Relaxed) {
            return Candidate::Unusable;
        }
        if lock(&self.outlier).is_ejected(now) {
            return Candidate::LastResort;
        }
        Candidate::Usable { outstanding: link.shared().in_flight() }
    }
}

impl EndpointInfo {
    /// Another connection to the same endpoint.
    fn add(&mut self, other: &Self) {
        self.state = best([self.state, other.state].into_iter());
        self.is_ejected &= other.is_ejected;
        self.ejections += other.ejections;
    }
}

fn of_turn(member: &Arc<Member>, turn: &Turn) -> Option<Found> {
    match member.subchannel.pick(Some(turn)) {
        Picked::Link(Found { link, .. }) if turn.is_of(link.shared()) => {
            Some(Found { link, member: Some(Arc::clone(member)) })
        }
        _ => None,
    }
}

/// What a channel is whose endpoints are in these states.
fn best(states: impl Iterator<Item = ConnectivityState>) -> ConnectivityState {
    let rank = |state: &ConnectivityState| match state {
        ConnectivityState::Ready => 4,
        ConnectivityState::Connecting => 3,
        ConnectivityState::Idle => 2,
        ConnectivityState::TransientFailure => 1,
        ConnectivityState::Shutdown => 0,
    };
    states.max_by_key(rank).unwrap_or(ConnectivityState::TransientFailure)
}

/// Why no call can go to any of `members`.
fn none(members: &[Arc<Member>]) -> Status {
    let Some(first) = members.first() else {
        return unavailable("the channel has no endpoint; insert one".to_owned());
    };
    if let Some(idle) = members.iter().find(|member| member.subchannel.link().is_some()) {
        let target = idle.subchannel.target();
        return unavailable(format!(
            "none of the endpoints serves; {target} is connected and says that it does not"
        ));
    }
    let failing = first.subchannel.failing();
    let message =
        format!("none of {} endpoints can be reached; {}", members.len(), failing.message());
    failing.with_message(message)
}

#[cfg(all(test, not(loom)))]
mod tests;
