//! The connecting side.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;
use verbwire_core::transport::BoxFuture;
use verbwire_core::{Error, ErrorKind};

use super::address::{look_up, shown};
use super::conn::VerbsConnection;
use super::event::{CmEvent, CmEventKind};
use super::id::{CmId, Offer};
use super::{VerbsConfig, own_qp, words};
use crate::error;
use crate::nic::{Connected, Nic, Qp, Resolved, Wire};
use crate::verbs::nic::{self, VerbsNic};
use crate::verbs::qp::{ACK_TIMEOUT, Agreed, VerbsQp};
use crate::verbs::reaper::on_thread;

/// How long finding the device and the way there may take. 2 s: longer than a neighbour takes to answer that
/// is there.
const RESOLVE_MS: i32 = 2000;

/// When a new iWARP connection is nudged: see [`VerbsQp::nudge`]. The first soon enough not to be felt as a
/// hang, the later ones for a machine that is slow.
const NUDGE_AFTER: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// A way to a peer.
pub(super) struct VerbsResolved {
    id: CmId,
    nic: Arc<VerbsNic>,
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
    let id = CmId::create().map_err(failed)?;
    if let Err(error) = id.set_ack_timeout(ACK_TIMEOUT) {
        // An older kernel: the queue pair is told by itself, so only the peer waits longer.
        tracing::debug!(%error, "the acknowledgement timeout of the connection stays the system's");
    }
    id.resolve_addr(address, RESOLVE_MS).map_err(failed)?;
    expect(&id, address, CmEventKind::ADDR_RESOLVED).await?;
    id.resolve_route(RESOLVE_MS).map_err(failed)?;
    expect(&id, address, CmEventKind::ROUTE_RESOLVED).await?;
    let nic = open_device(&id, address).await?;
    Ok(VerbsResolved { id, nic, peer: address.to_string(), config })
}

/// Opens the device that `id` is bound to.
async fn open_device(id: &CmId, address: SocketAddr) -> Result<Arc<VerbsNic>, Error> {
    let name = id.device().ok_or_else(|| {
        let message = format!("{address} was resolved to no device");
        Error::new(ErrorKind::Unreachable, message)
    })?;
    let opened = on_thread(move || nic::open(&name)).await?;
    opened.map_err(|error| error::local("to open the RDMA device", error))
}

/// Waits for the event that ends a step of resolving.
async fn expect(id: &CmId, address: SocketAddr, wanted: CmEventKind) -> Result<(), Error> {
    loop {
        let event = next_event(id).await?;
        match event.kind {
            kind if kind == wanted => return Ok(()),
            CmEventKind::ADDR_ERROR | CmEventKind::ROUTE_ERROR | CmEventKind::DEVICE_REMOVAL => {
                return Err(words::unresolved(address, &event));
            }
            _ => tracing::debug!(?event, "an event that resolving does not expect"),
        }
    }
}

/// The next event of an id.
pub(super) async fn next_event(id: &CmId) -> Result<CmEvent, Error> {
    poll_fn(|cx| id.poll_event(cx)).await.map_err(|error| {
        let message = "the RDMA connection manager gives no events";
        Error::with_source(ErrorKind::LocalResource, message, error)
    })
}

impl Resolved for VerbsResolved {
    fn nic(&self) -> Arc<dyn Nic> {
        Arc::clone(&self.nic) as Arc<dyn Nic>
    }

    fn connect(
        self: Box<Self>,
        qp: Arc<dyn Qp>,
        private_data: Vec<u8>,
    ) -> BoxFuture<'static, Result<Connected, Error>> {
        Box::pin(self.run(qp, private_data))
    }
}

impl VerbsResolved {
    async fn run(self, qp: Arc<dyn Qp>, private_data: Vec<u8>) -> Result<Connected, Error> {
        let Self { id, nic, peer, config } = self;
        let own = own_qp(&*qp, &nic)?;
        let setup = |error| {
            let message = format!("failed to prepare a queue pair for {peer}");
            Error::with_source(ErrorKind::LocalResource, message, error)
        };
        own.init(&id).map_err(setup)?;
        let reads = nic.reads();
        let offer = Offer {
            private_data,
            responder_resources: reads.responder_resources,
            initiator_depth: reads.initiator_depth,
            rnr_retry: config.rnr_retry,
            qp: own.number(),
        };
        let id = Arc::new(id);
        let calling = Arc::clone(&id);
        on_thread(move || calling.connect(&offer))
            .await?
            .map_err(|error| words::not_connected(&peer, error))?;
        let wire = nic.capabilities().wire;
        let answer = loop {
            let event = next_event(&id).await?;
            match event.kind {
                CmEventKind::CONNECT_RESPONSE => {
                    own.ready(&id, Agreed { rnr_retry: config.rnr_retry }).map_err(setup)?;
                    id.establish().map_err(setup)?;
                    break event;
                }
                CmEventKind::ESTABLISHED => break event,
                CmEventKind::REJECTED
                | CmEventKind::UNREACHABLE
                | CmEventKind::CONNECT_ERROR
                | CmEventKind::DISCONNECTED
                | CmEventKind::DEVICE_REMOVAL => return Err(words::refused(&peer, wire, &event)),
                _ => tracing::debug!(?event, "an event that connecting does not expect"),
            }
        };
        if wire == Wire::Iwarp {
            tokio::spawn(nudge(Arc::downgrade(&qp)));
        }
        let addresses = (shown(id.local_address()), peer);
        let events = VerbsConnection::new(id, nic, qp);
        Ok(Connected { private_data: answer.private_data, addresses, events: Box::new(events) })
    }
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
