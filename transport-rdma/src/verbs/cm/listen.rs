//! The accepting side.

use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use rdma_sys::rdma_cm_id;
use verbwire_core::transport::BoxFuture;
use verbwire_core::{Error, ErrorKind};

use super::address::{look_up, shown};
use super::conn::{VerbsConnection, removed};
use super::connect::next_event;
use super::event::{CmEvent, CmEventKind};
use super::id::{CmId, Offer};
use super::{VerbsConfig, own_qp, words};
use crate::error;
use crate::nic::{CmListener, ConnectRequest, Connected, Nic, Qp};
use crate::verbs::nic::{self, VerbsNic};
use crate::verbs::qp::{Agreed, VerbsQp};
use crate::verbs::ret::CallError;

/// Requests that may wait to be taken; the kernel allows no more unless it is told to.
const BACKLOG: i32 = 1024;

/// How often another port is tried when the system's choice is taken: iWARP has TCP's ports, and the
/// connection manager does not ask TCP before it listens.
const PORT_TRIES: usize = 16;

/// Takes connect requests at an address.
pub(super) struct VerbsListener {
    id: CmId,
    address: String,
    /// Devices that requests came by, kept open while this listens.
    nics: Vec<Arc<VerbsNic>>,
    config: VerbsConfig,
}

/// Begins to listen at the first of the addresses that `address` stands for.
pub(super) async fn listen(address: &str, config: VerbsConfig) -> Result<VerbsListener, Error> {
    let found = look_up(address).await?;
    let address = found.first().copied().ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, format!("{address} stands for no address"))
    })?;
    let failed = |error| words::unusable("listening at", address, error);
    let id = bind(address).map_err(failed)?;
    let local = id.local_address().unwrap_or(address);
    let mut listener = VerbsListener { id, address: local.to_string(), nics: Vec::new(), config };
    // Not bound to a device where it listens at all addresses.
    if let Some(name) = listener.id.device() {
        let opened = crate::verbs::reaper::on_thread(move || nic::open(&name)).await?;
        let opened = opened.map_err(|error| error::local("to open the RDMA device", error))?;
        listener.nics.push(opened);
    }
    Ok(listener)
}

/// An id that listens; at another port if the system's choice turns out to be in use.
fn bind(address: SocketAddr) -> Result<CmId, CallError> {
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let id = CmId::create()?;
        match id.bind(address).and_then(|()| id.listen(BACKLOG)) {
            Ok(()) => return Ok(id),
            Err(error) if tries > 0 && error.errno.0 == libc::EADDRINUSE => {}
            Err(error) => return Err(error),
        }
    }
}

impl VerbsListener {
    /// Takes a request over.
    fn adopt(&mut self, raw: NonNull<rdma_cm_id>, event: CmEvent) -> Result<VerbsRequest, Error> {
        let broken = |error| {
            let message =
                "a connect request could not be taken: is this process out of descriptors?";
            Error::with_source(ErrorKind::LocalResource, message, error)
        };
        let id = CmId::adopt(raw).map_err(broken)?;
        let name = id.device().ok_or_else(|| {
            Error::new(ErrorKind::LocalResource, "a connect request came by no device")
        })?;
        let known = self.nics.iter().find(|nic| nic.device() == name && !nic.is_gone());
        let nic = match known {
            Some(nic) => Arc::clone(nic),
            None => {
                let nic = nic::open(&name)
                    .map_err(|error| error::local("to open the RDMA device", error))?;
                self.nics.retain(|known| known.device() != name);
                self.nics.push(Arc::clone(&nic));
                nic
            }
        };
        let config = self.config;
        Ok(VerbsRequest {
            id,
            nic,
            private_data: event.private_data,
            peer_reads: event.peer_reads,
            config,
        })
    }
}

impl CmListener for VerbsListener {
    fn local_address(&self) -> &str {
        &self.address
    }

    fn poll_request(
        &mut self,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<Box<dyn ConnectRequest>, Error>> {
        loop {
            let mut event = ready!(self.id.poll_event(cx)).map_err(|error| {
                let message = format!("{} is not listened at any more", self.address);
                Error::with_source(ErrorKind::Lost, message, error)
            })?;
            match (event.kind, event.request.take()) {
                (CmEventKind::CONNECT_REQUEST, Some(raw)) => match self.adopt(raw, event) {
                    Ok(request) => return Poll::Ready(Ok(Box::new(request))),
                    // The peer is refused; others may have more luck.
                    Err(error) => tracing::warn!(%error, "a connect request was dropped"),
                },
                (CmEventKind::DEVICE_REMOVAL, _) => {
                    self.nics.drain(..).for_each(|nic| {
                        nic.remove(&removed(nic.device()));
                    });
                    let message =
                        format!("the RDMA device under {} was removed: listen anew", self.address);
                    return Poll::Ready(Err(Error::new(ErrorKind::Lost, message)));
                }
                _ => tracing::debug!(?event, "an event that a listener does not expect"),
            }
        }
    }
}

/// A peer that wants to connect. Dropped, it refuses: so the library does with an id that is destroyed.
struct VerbsRequest {
    id: CmId,
    nic: Arc<VerbsNic>,
    private_data: Vec<u8>,
    /// Reads that the peer allows, and that it wants to do.
    peer_reads: (u8, u8),
    config: VerbsConfig,
}

impl ConnectRequest for VerbsRequest {
    fn nic(&self) -> Arc<dyn Nic> {
        Arc::clone(&self.nic) as Arc<dyn Nic>
    }

    fn peer(&self) -> String {
        shown(self.id.peer_address())
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn accept(
        self: Box<Self>,
        qp: Arc<dyn Qp>,
        private_data: Vec<u8>,
    ) -> BoxFuture<'static, Result<Connected, Error>> {
        Box::pin(self.run(qp, private_data))
    }

    fn reject(self: Box<Self>, private_data: Vec<u8>) {
        if let Err(error) = self.id.reject(&private_data) {
            tracing::debug!(%error, "a connect request was not refused in words");
        }
    }
}

impl VerbsRequest {
    async fn run(self, qp: Arc<dyn Qp>, private_data: Vec<u8>) -> Result<Connected, Error> {
        let peer = self.peer();
        let own = own_qp(&*qp, &self.nic)?;
        self.accept_with(own, private_data).map_err(|error| {
            let message = format!("failed to accept {peer}");
            Error::with_source(ErrorKind::LocalResource, message, error)
        })?;
        let event = loop {
            let event = next_event(&self.id).await?;
            match event.kind {
                CmEventKind::ESTABLISHED => break event,
                CmEventKind::REJECTED
                | CmEventKind::UNREACHABLE
                | CmEventKind::CONNECT_ERROR
                | CmEventKind::DISCONNECTED
                | CmEventKind::DEVICE_REMOVAL => {
                    return Err(words::refused(&peer, self.nic.capabilities().wire, &event));
                }
                _ => tracing::debug!(?event, "an event that accepting does not expect"),
            }
        };
        let addresses = (shown(self.id.local_address()), peer);
        let events = VerbsConnection::new(Arc::new(self.id), self.nic, qp);
        Ok(Connected { private_data: event.private_data, addresses, events: Box::new(events) })
    }

    /// Makes the queue pair ready and accepts.
    fn accept_with(&self, qp: &VerbsQp, private_data: Vec<u8>) -> Result<(), CallError> {
        let (peer_allows, peer_wants) = self.peer_reads;
        let reads = self.nic.reads();
        qp.init(&self.id)?;
        qp.ready(&self.id, Agreed { rnr_retry: self.config.rnr_retry })?;
        self.id.accept(&Offer {
            private_data,
            responder_resources: reads.responder_resources.min(peer_wants),
            initiator_depth: reads.initiator_depth.min(peer_allows),
            rnr_retry: self.config.rnr_retry,
            qp: qp.number(),
        })
    }
}
