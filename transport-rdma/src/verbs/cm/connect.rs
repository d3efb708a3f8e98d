//! The connecting side.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::sleep;
use verbwire_core::transport::BoxFuture;
use verbwire_core::{Error, ErrorKind};

use super::address::{look_up, shown};
use super::channel::EventedId;
use super::conn::VerbsConnection;
use super::event::CmEvent;
use super::id::Offer;
use super::link::{Link, check_port, next_step, open_device, within};
use super::state::{RESOLVE_MS, State, Step};
use super::{VerbsConfig, own_qp, words};
use crate::nic::{Connected, Nic, Qp, Resolved, Wire};
use crate::verbs::qp::{ACK_TIMEOUT, Agreed, VerbsQp};
use crate::verbs::reaper::on_thread;

/// Threads that may wait in iWARP's `rdma_connect` at a time: it takes as long as TCP connects, two minutes if the
/// peer's machine is gone, and cannot be called off. 256: tries at a few dead machines leave enough for the others. Who
/// finds no place waits, within its own limit.
static CALLS: Semaphore = Semaphore::const_new(256);

/// When a new iWARP connection is nudged: see [`VerbsQp::nudge`]. The first soon enough not to be felt as a
/// hang, the later ones for a machine that is slow.
const NUDGE_AFTER: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// A way to a peer.
pub(super) struct VerbsResolved {
    link: Link,
    peer: String,
    config: VerbsConfig,
}

/// Finds the device that leads to `address`; the last reason if none of its addresses does.
pub(super) async fn resolve(address: &str, config: VerbsConfig) -> Result<VerbsResolved, Error> {
    let mut last = None;
    for candidate in look_up(address).await? {
        match resolve_one(candidate, config).await {
            Ok(resolved) => return Ok(resolved),
            Err(error) => last = Some(error),
        }
    }
    Err(last
        .unwrap_or_else(|| Error::new(ErrorKind::Unreachable, format!("{address} leads nowhere"))))
}

async fn resolve_one(address: SocketAddr, config: VerbsConfig) -> Result<VerbsResolved, Error> {
    let failed = |error| words::unusable("to resolve", address, error);
    let evented = EventedId::create().map_err(failed)?;
    let id = evented.id();
    if let Err(error) = id.set_ack_timeout(ACK_TIMEOUT) {
        // An older kernel: the queue pair is told by itself, so only the peer waits longer.
        tracing::debug!(%error, "the acknowledgement timeout of the connection stays the system's");
    }
    id.resolve_addr(address, RESOLVE_MS).map_err(failed)?;
    resolve_step(&evented, address, State::ResolvingAddress).await?;
    id.resolve_route(RESOLVE_MS).map_err(failed)?;
    resolve_step(&evented, address, State::ResolvingRoute).await?;
    let nic = open_device(id).await?;
    check_port(&nic, id)?;
    let link = Link::new(evented, nic, State::Connecting);
    Ok(VerbsResolved { link, peer: address.to_string(), config })
}

/// Waits until a step of resolving is done.
async fn resolve_step(id: &EventedId, address: SocketAddr, state: State) -> Result<(), Error> {
    let resolved = async {
        match next_step(id, state).await? {
            (Step::Next, _) => Ok(()),
            (_, event) => Err(words::unresolved(address, &event)),
        }
    };
    let late = |limit| format!("the kernel did not resolve {address} within {limit:?}");
    within(state, resolved, late).await
}

impl Resolved for VerbsResolved {
    fn nic(&self) -> Arc<dyn Nic> {
        Arc::clone(self.link.nic()) as Arc<dyn Nic>
    }

    fn connect(
        self: Box<Self>,
        qp: Arc<dyn Qp>,
        private_data: Vec<u8>,
    ) -> BoxFuture<'static, Result<Connected, Error>> {
        Box::pin(async move {
            let peer = self.peer.clone();
            let late = |limit| format!("{peer} did not answer a connect request within {limit:?}");
            within(State::Connecting, self.run(qp, private_data), late).await
        })
    }
}

impl VerbsResolved {
    async fn run(self, qp: Arc<dyn Qp>, private_data: Vec<u8>) -> Result<Connected, Error> {
        let Self { link, peer, config } = self;
        let nic = Arc::clone(link.nic());
        let own = own_qp(&*qp, &nic)?;
        let setup = |error| {
            let message = format!("failed to prepare a queue pair for {peer}");
            Error::with_source(ErrorKind::LocalResource, message, error)
        };
        own.init(link.id()).map_err(setup)?;
        let reads = nic.reads();
        let offer = Offer {
            private_data,
            responder_resources: reads.responder_resources,
            initiator_depth: reads.initiator_depth,
            rnr_retry: config.rnr_retry,
            qp: own.number(),
            shares_receives: own.shares_receives(),
        };
        let mut link = call(link, offer, &peer).await?;
        let answer = match link.next_step().await? {
            (Step::Answer, event) => {
                own.ready(link.id(), Agreed { rnr_retry: config.rnr_retry }).map_err(setup)?;
                link.id().establish().map_err(setup)?;
                event
            }
            (Step::Next, event) => event,
            (_, event) => return Err(words::refused(&peer, nic.wire(), &event)),
        };
        if nic.wire() == Wire::Iwarp {
            tokio::spawn(nudge(Arc::downgrade(&qp)));
        }
        Ok(connected(link, qp, peer, answer))
    }
}

/// Asks the peer to connect. Dropped, the call still runs to its end, and the link is given up then.
async fn call(link: Link, offer: Offer, peer: &str) -> Result<Link, Error> {
    // InfiniBand's returns at once.
    let place = match link.nic().wire() {
        Wire::InfiniBand => None,
        Wire::Iwarp => Some(CALLS.acquire().await.map_err(|closed| {
            let message = "no RDMA connects are made any more";
            Error::with_source(ErrorKind::LocalResource, message, closed)
        })?),
    };
    let (link, called) = on_thread(move || {
        let called = link.id().connect(&offer);
        drop(place);
        (link, called)
    })
    .await?;
    called.map_err(|error| words::not_connected(peer, error))?;
    Ok(link)
}

/// A connection that stands.
pub(super) fn connected(link: Link, qp: Arc<dyn Qp>, peer: String, answer: CmEvent) -> Connected {
    let addresses = (shown(link.id().local_address()), peer);
    let gid = link.id().gid().map(|gid| gid.to_string());
    let mtu = qp.as_any().downcast_ref::<VerbsQp>().and_then(VerbsQp::mtu);
    let events = Box::new(VerbsConnection::new(link, qp));
    Connected { private_data: answer.private_data, addresses, gid, mtu, events }
}

/// Nudges a new connection while its queue pair is alive.
async fn nudge(qp: Weak<dyn Qp>) {
    for wait in NUDGE_AFTER {
        sleep(wait).await;
        let Some(qp) = qp.upgrade() else { return };
        match qp.as_any().downcast_ref::<VerbsQp>() {
            Some(own) if !own.is_over() => own.nudge(),
            _ => return,
        }
    }
}
