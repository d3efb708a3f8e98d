//! The accepting side.

use std::iter;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use verbwire_core::transport::BoxFuture;
use verbwire_core::{Error, ErrorKind};

use super::address::{look_up, shown};
use super::channel::EventedId;
use super::connect::connected;
use super::event::CmEvent;
use super::id::{CmId, Offer};
use super::link::{Link, check_port, open_device, poll_step, within};
use super::state::{State, Step};
use super::sysfs::{DEVICES, addresses};
use super::{VerbsConfig, own_qp, words};
use crate::error::PORT_TRIES;
use crate::nic::{CmListener, ConnectRequest, Connected, Nic, Qp};
use crate::verbs::nic::VerbsNic;
use crate::verbs::qp::{Agreed, VerbsQp};
use crate::verbs::ret::CallError;

/// Requests that may wait to be taken; the kernel allows no more unless it is told to.
const BACKLOG: i32 = 1024;

/// Takes connect requests at an address.
pub(super) struct VerbsListener {
    id: EventedId,
    address: String,
    /// Devices that requests came by.
    nics: Vec<Arc<VerbsNic>>,
    /// A request by a device that is being opened. Others wait meanwhile.
    opening: Option<Opening>,
    config: VerbsConfig,
}

/// A request by a device that nobody has used yet.
struct Opening {
    asked: Asked,
    nic: BoxFuture<'static, Result<Arc<VerbsNic>, Error>>,
}

/// A request, before its device is known.
struct Asked {
    id: EventedId,
    private_data: Vec<u8>,
    /// Reads that the peer allows, and that it wants to do.
    peer_reads: (u8, u8),
}

/// Begins to listen at the first of the addresses that `address` stands for.
pub(super) async fn listen(address: &str, config: VerbsConfig) -> Result<VerbsListener, Error> {
    let found = look_up(address).await?;
    let address = found.first().copied().ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, format!("{address} stands for no address"))
    })?;
    let failed = |error| words::unusable("listening at", address, error);
    let id = bind(address).map_err(failed)?;
    let local = id.id().local_address().unwrap_or(address);
    let address = local.to_string();
    // Not bound to a device where it listens at all addresses.
    let nics = match id.id().device() {
        Some(_) => vec![open_device(id.id()).await?],
        None => Vec::new(),
    };
    Ok(VerbsListener { id, address, nics, opening: None, config })
}

/// An id that listens; at another port if the system's choice turns out to be in use.
fn bind(address: SocketAddr) -> Result<EventedId, CallError> {
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let evented = EventedId::create()?;
        let id = evented.id();
        match id.bind(address).and_then(|()| id.listen(BACKLOG)) {
            Ok(()) => return Ok(evented),
            Err(error) if tries > 0 && error.errno.0 == libc::EADDRINUSE => {}
            Err(error) => return Err(error),
        }
    }
}

impl VerbsListener {
    /// Takes a request over. `Some` if its device is open.
    fn adopt(&mut self, id: CmId, event: CmEvent) -> Result<Option<VerbsRequest>, Error> {
        let broken = |error| {
            let message =
                "a connect request could not be taken: is this process out of descriptors?";
            Error::with_source(ErrorKind::LocalResource, message, error)
        };
        let id = EventedId::adopt(id).map_err(broken)?;
        let name = id.id().device();
        let asked = Asked { id, private_data: event.private_data, peer_reads: event.peer_reads };
        self.nics.retain(|nic| !nic.is_gone());
        if let Some(nic) = self.nics.iter().find(|nic| Some(nic.device()) == name.as_deref()) {
            return Ok(Some(asked.by(Arc::clone(nic), self.config)));
        }
        let nic = open_device(asked.id.id());
        self.opening = Some(Opening { asked, nic: Box::pin(nic) });
        Ok(None)
    }

    /// The request whose device has been opened, if there is one.
    fn poll_opened(
        &mut self,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<VerbsRequest, Error>>> {
        let Some(opening) = &mut self.opening else { return Poll::Ready(None) };
        let opened = ready!(opening.nic.as_mut().poll(cx));
        let asked = self.opening.take().map(|opening| opening.asked);
        Poll::Ready(asked.map(|asked| {
            let nic = opened?;
            self.nics.push(Arc::clone(&nic));
            Ok(asked.by(nic, self.config))
        }))
    }

    /// The next request, or why there is none.
    fn poll_adopted(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Adopted, Error>> {
        if let Some(opened) = ready!(self.poll_opened(cx)) {
            return Poll::Ready(Ok(opened.map(Some)));
        }
        let (step, mut event) =
            ready!(poll_step(&self.id, State::Listening, cx)).map_err(|error| {
                let message = format!("{} is not listened at any more", self.address);
                Error::with_source(ErrorKind::Lost, message, error)
            })?;
        if step == Step::Removed {
            let message =
                format!("the RDMA device under {} was removed: listen anew", self.address);
            return Poll::Ready(Err(Error::new(ErrorKind::Lost, message)));
        }
        let request = event.request.take();
        Poll::Ready(Ok(request.map_or(Ok(None), |id| self.adopt(id, event))))
    }
}

/// A request, `None` if its device has to be opened first, or why it was refused.
type Adopted = Result<Option<VerbsRequest>, Error>;

impl Asked {
    fn by(self, nic: Arc<VerbsNic>, config: VerbsConfig) -> VerbsRequest {
        let Self { id, private_data, peer_reads } = self;
        let link = Link::new(id, nic, State::Accepting);
        VerbsRequest { link, private_data, peer_reads, config }
    }
}

impl CmListener for VerbsListener {
    fn local_address(&self) -> &str {
        &self.address
    }

    fn addresses(&self) -> Vec<String> {
        let own = self.address.parse().ok().filter(|own: &SocketAddr| own.ip().is_unspecified());
        // An IPv6 listener takes IPv4 too, unless the system's bindv6only says otherwise; then those attempts fail.
        let of_devices = own.into_iter().flat_map(|own| {
            let found = addresses(Path::new(DEVICES)).into_iter();
            let found = found.filter(move |ip| ip.is_ipv4() || own.is_ipv6());
            found.map(move |ip| SocketAddr::new(ip, own.port()).to_string())
        });
        iter::once(self.address.clone()).chain(of_devices).collect()
    }

    fn poll_request(
        &mut self,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<Box<dyn ConnectRequest>, Error>> {
        loop {
            match ready!(self.poll_adopted(cx))? {
                Ok(Some(request)) => return Poll::Ready(Ok(Box::new(request))),
                Ok(None) => {}
                // The peer is refused; others may have more luck.
                Err(error) => tracing::warn!(%error, "a connect request was dropped"),
            }
        }
    }
}

/// A peer that wants to connect. Dropped, it refuses: so the library does with an id that is destroyed.
struct VerbsRequest {
    link: Link,
    private_data: Vec<u8>,
    /// Reads that the peer allows, and that it wants to do.
    peer_reads: (u8, u8),
    config: VerbsConfig,
}

impl ConnectRequest for VerbsRequest {
    fn nic(&self) -> Arc<dyn Nic> {
        Arc::clone(self.link.nic()) as Arc<dyn Nic>
    }

    fn peer(&self) -> String {
        shown(self.link.id().peer_address())
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn accept(
        self: Box<Self>,
        qp: Arc<dyn Qp>,
        private_data: Vec<u8>,
    ) -> BoxFuture<'static, Result<Connected, Error>> {
        Box::pin(async move {
            let peer = self.peer();
            let late = |limit| format!("{peer} did not finish connecting within {limit:?}");
            within(State::Accepting, self.run(qp, private_data), late).await
        })
    }

    fn reject(self: Box<Self>, private_data: Vec<u8>) {
        if let Err(error) = self.link.id().reject(&private_data) {
            tracing::debug!(%error, "a connect request was not refused in words");
        }
    }
}

impl VerbsRequest {
    async fn run(mut self, qp: Arc<dyn Qp>, private_data: Vec<u8>) -> Result<Connected, Error> {
        let peer = self.peer();
        let nic = Arc::clone(self.link.nic());
        let own = own_qp(&*qp, &nic)?;
        check_port(&nic, self.link.id())?;
        self.accept_with(own, private_data).map_err(|error| {
            let message = format!("failed to accept {peer}: it may have given up");
            Error::with_source(ErrorKind::LocalResource, message, error)
        })?;
        match self.link.next_step().await? {
            (Step::Next, event) => Ok(connected(self.link, qp, peer, event)),
            (_, event) => Err(words::refused(&peer, nic.wire(), &event)),
        }
    }

    /// Makes the queue pair ready and accepts.
    fn accept_with(&self, qp: &VerbsQp, private_data: Vec<u8>) -> Result<(), CallError> {
        let (peer_allows, peer_wants) = self.peer_reads;
        let (id, reads) = (self.link.id(), self.link.nic().reads());
        qp.init(id)?;
        qp.ready(id, Agreed { rnr_retry: self.config.rnr_retry })?;
        id.accept(&Offer {
            private_data,
            responder_resources: reads.responder_resources.min(peer_wants),
            initiator_depth: reads.initiator_depth.min(peer_allows),
            rnr_retry: self.config.rnr_retry,
            qp: qp.number(),
            shares_receives: qp.shares_receives(),
        })
    }
}
