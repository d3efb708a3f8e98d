//! Connecting and listening over any connection manager.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, timeout_at};
use verbwire_core::transport::inbound::{InboundLimits, LandingPool};
use verbwire_core::transport::{
    Accepting, BoxFuture, DeviceInfo, Established, Listener, LocalSide, Path, Ticket, Transport,
};
use verbwire_core::wire::Hello;
use verbwire_core::{Buffer, Error, ErrorKind, Target};

use crate::config::RdmaConfig;
use crate::connection::RdmaConnection;
use crate::decoder::FrameDecoder;
use crate::device::{BufferCounts, Device, Memory, PoolCounts};
use crate::endpoint::Endpoint;
use crate::error::{self, PORT_TRIES, PortTaken};
use crate::handshake::{self, Side};
use crate::nic::{Cm, CmListener, ConnectRequest, Connected, Nic, Wire};
use crate::outbound::{Outbound, OutboundLimits, ZERO_COPY};
use crate::pool::Tenant;
use crate::poster::Poster;
use crate::proto::credit::{Credits, Windows};
use crate::proto::greeting::{Greeting, refusal};
use crate::proto::loans::Shares;
use crate::proto::rendezvous::{BodyLen, OwnerLimits, WriterLimits, quarantine_cap};
use crate::proto::send_queue::SendQueue;
use crate::reactor::ReactorCounts;
use crate::reaper::Reaper;
use crate::receiver::Receiver;
use crate::rendezvous::{Granting, Offers, Rendezvous, RendezvousLimits};
use crate::shared::FLOOR;

/// Messages over the queue pairs of one connection manager.
///
/// Bodies travel in SENDs up to a threshold, and longer ones by Write into memory that their receiver grants.
#[derive(Clone)]
pub struct RdmaTransport {
    cm: Arc<dyn Cm>,
    shared: Arc<Shared>,
}

/// What all connections of a transport share.
struct Shared {
    /// The scheme of its targets.
    scheme: &'static str,
    config: RdmaConfig,
    /// Few: as many as the machine has devices.
    devices: Mutex<Vec<Arc<Device>>>,
    /// Memory of bodies that come in pieces.
    landing: Arc<LandingPool>,
    memory: Arc<Memory>,
    reaper: Arc<dyn Reaper>,
}

impl RdmaTransport {
    /// A transport for targets of this scheme.
    pub fn new(
        scheme: &'static str,
        cm: Arc<dyn Cm>,
        reaper: impl Reaper,
        config: RdmaConfig,
    ) -> Self {
        let config = config.in_range();
        let reaper: Arc<dyn Reaper> = Arc::new(reaper);
        let memory = Memory::new(&config, &reaper);
        Self::with_memory(scheme, cm, (reaper, memory), config)
    }

    /// The same with memory that was allocated before.
    pub(crate) fn with_memory(
        scheme: &'static str,
        cm: Arc<dyn Cm>,
        (reaper, memory): (Arc<dyn Reaper>, Arc<Memory>),
        config: RdmaConfig,
    ) -> Self {
        let config = config.in_range();
        let landing = Arc::new(LandingPool::new(config.kept_landing_bytes));
        let devices = Mutex::default();
        let shared = Shared { scheme, config, devices, landing, memory, reaper };
        Self { cm, shared: Arc::new(shared) }
    }

    /// What its completion queues did so far.
    pub fn reactors(&self) -> ReactorCounts {
        let mut counts = ReactorCounts::default();
        self.shared.devices().iter().for_each(|device| device.count_reactors(&mut counts));
        counts
    }

    /// Its memory for long bodies.
    pub fn pools(&self) -> PoolCounts {
        let users = self.shared.memory.users().snapshot();
        let mut counts = PoolCounts { users, ..PoolCounts::default() };
        self.shared.devices().iter().for_each(|device| device.count_pools(&mut counts));
        counts
    }

    /// How the receives that its connections share are divided, over all devices; all zero where none are shared.
    pub fn shared_receives(&self) -> Shares {
        let mut sum = Shares::default();
        self.shared.devices().iter().for_each(|device| device.count_shared(&mut sum));
        sum
    }

    /// The registered buffers of all its connections, and those that they share. When all have ended, all buffers are free.
    pub fn buffers(&self) -> BufferCounts {
        let mut counts = BufferCounts::default();
        self.shared.devices().iter().for_each(|device| device.count(&mut counts));
        counts
    }
}

impl fmt::Debug for RdmaTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RdmaTransport({}, {:?})", self.shared.scheme, self.buffers())
    }
}

impl Transport for RdmaTransport {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        Box::pin(async move {
            let greeting = Greeting { nonce: local.hello.connection, ticket: local.ticket };
            let connected = timeout_at(local.deadline, self.connect_qp(target, greeting));
            let opened = connected.await.unwrap_or_else(|_elapsed| {
                let message =
                    format!("{target} did not answer in time: check the address and server");
                Err(Error::new(ErrorKind::TimedOut, message))
            })?;
            self.shared.establish(opened, Side::Connecting, local).await
        })
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        Box::pin(async move {
            let listener = self.cm.listen(target.address()).await?;
            let local = Target::new(self.shared.scheme, listener.local_address());
            let shared = Arc::clone(&self.shared);
            Ok(Box::new(Listening { listener, local, shared }) as Box<dyn Listener>)
        })
    }

    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(self.shared.memory.alloc(len, deadline))
    }
}

impl RdmaTransport {
    /// Connects a queue pair, by another port where the local one turns out to be in use.
    async fn connect_qp(&self, target: &Target, greeting: Greeting) -> Result<Opened, Error> {
        for _ in 1..PORT_TRIES {
            match self.try_connect_qp(target, greeting).await {
                Err(error) if PortTaken::is_cause_of(&error) => {}
                tried => return tried,
            }
        }
        self.try_connect_qp(target, greeting).await
    }

    async fn try_connect_qp(&self, target: &Target, greeting: Greeting) -> Result<Opened, Error> {
        let resolved = self.cm.resolve(target.address()).await?;
        let mut opened = self.shared.open(&resolved.nic()).await?;
        let qp = Arc::clone(opened.endpoint.qp());
        let connected = resolved.connect(qp, greeting.encode()).await?;
        match Greeting::decode(&connected.private_data) {
            Ok(answer) if answer == greeting.answer() => {}
            Ok(_) => return Err(foreign(target.address(), "answered somebody else's request")),
            Err(error) => return Err(foreign(target.address(), &error.to_string())),
        }
        opened.connected(connected);
        Ok(opened)
    }
}

/// A queue pair that is connected, or about to be.
struct Opened {
    device: Arc<Device>,
    endpoint: Arc<Endpoint>,
    destroyed: tokio::sync::watch::Receiver<()>,
    addresses: (String, String),
    /// GID and MTU.
    link: (Option<String>, Option<u32>),
}

impl Opened {
    fn connected(&mut self, connected: Connected) {
        self.addresses = connected.addresses;
        self.link = (connected.gid, connected.mtu);
        self.endpoint.connected(connected.events);
    }
}

impl Shared {
    /// A queue pair of `nic` with its receives posted.
    async fn open(&self, nic: &Arc<dyn Nic>) -> Result<Opened, Error> {
        let device = self.device(nic).for_peer(&self.config, &self.reaper);
        let device = device
            .map_err(|error| error::local("giving a peer a protection domain of its own", error))?;
        device.ready().await;
        let opened = Endpoint::open(&device, &self.config, &self.reaper);
        let (endpoint, destroyed) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                device.leave(self.config.kept_slabs);
                return Err(error);
            }
        };
        let (addresses, link) = Default::default();
        Ok(Opened { device, endpoint, destroyed, addresses, link })
    }

    fn device(&self, nic: &Arc<dyn Nic>) -> Arc<Device> {
        let mut devices = self.devices();
        if let Some(known) = devices.iter().find(|device| Arc::ptr_eq(device.nic(), nic)) {
            return Arc::clone(known);
        }
        devices.retain(|device| !device.nic().is_gone());
        let nic = Arc::clone(nic);
        let device = Arc::new(Device::new(nic, &self.config, &self.memory, &self.reaper));
        devices.push(Arc::clone(&device));
        device
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Arc<Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges HELLO and makes the connection.
    async fn establish(
        &self,
        opened: Opened,
        side: Side,
        local: LocalSide,
    ) -> Result<Established, Error> {
        let Opened { device, endpoint, destroyed, addresses, link: (gid, mtu) } = opened;
        let name = device.nic().capabilities().device.clone();
        let info = DeviceInfo { name, gid, mtu };
        let path = Path { transport: self.scheme, local: addresses.0, peer: addresses.1 };
        let windows = match endpoint.membership() {
            Some(_) => FLOOR,
            None => self.config.windows(),
        };
        let own = handshake::announce(local.hello, side, (windows, &self.config));
        let peer = handshake::exchange(&endpoint, side, &own, &path.peer, local.deadline).await?;
        let rendezvous = self.rendezvous(&device, &own, &peer);
        let outbound = self.outbound(&endpoint, &own, &peer, rendezvous);
        let decoder = FrameDecoder::new(InboundLimits::new(&own, &peer), Arc::clone(&self.landing));
        let isolated = (Arc::clone(&device), device.isolation());
        let placement = local.placement;
        let driver = Arc::default();
        endpoint.membership().into_iter().for_each(|membership| membership.watch(&driver));
        let tenant = Tenant::unique();
        let mut granting =
            Granting::new(Arc::clone(&device), tenant, Arc::clone(&placement), &driver);
        let receiver = Receiver::new(Arc::clone(&endpoint), decoder, placement, isolated);
        let standing_len = BodyLen::new(self.config.standing_grant_len);
        let standing_len = standing_len.filter(|_| self.standing(&device, &own, &peer) > 0);
        standing_len.into_iter().for_each(|len| granting.stand(len));
        let threshold = self.config.rendezvous_threshold;
        let offers = Offers::new(&device, tenant, threshold);
        let poster = Poster::new(endpoint, device);
        let connection = RdmaConnection::new(
            outbound,
            poster,
            (receiver, granting, offers),
            (driver, destroyed),
            (path, info),
            self.config.stall_timeout,
        );
        Ok(Established { connection: Arc::new(connection), peer })
    }

    /// The stage of a connection between these two.
    fn outbound(
        &self,
        endpoint: &Endpoint,
        own: &Hello,
        peer: &Hello,
        rendezvous: Rendezvous,
    ) -> Outbound {
        let config = &self.config;
        let limits = OutboundLimits {
            messages: config.send_queue_messages,
            bytes: config.send_queue_bytes,
            frame: config.eager_len.min(peer.receive_len as usize),
            frame_body: own.max_frame_body.min(peer.max_frame_body).max(1) as usize,
            in_pieces: config.rendezvous_threshold,
            signal_from: match endpoint.wire() {
                Wire::Iwarp => ZERO_COPY,
                Wire::InfiniBand => usize::MAX,
            },
        };
        let theirs = Windows { data: peer.data_window, control: peer.control_window };
        // HELLO may still hold a slot and a buffer.
        let slots = endpoint.send_depth().min(config.staging_buffers) - 1;
        let ours = Windows { data: own.data_window, control: own.control_window };
        let credits = Credits::with_loans((theirs, peer.most_data_window), ours);
        Outbound::new(limits, credits, SendQueue::new(slots), rendezvous)
    }

    /// Standing grants that this side gives the peer: to clients alone, which say how many they take.
    fn standing(&self, device: &Device, own: &Hello, peer: &Hello) -> usize {
        // Where a peer has a domain of its own, memory that runs out is not waited for: what stands in one would have
        // the messages of others refused.
        if device.is_apart() {
            return 0;
        }
        let is_server = own.standing_grants == 0;
        let len = BodyLen::new(self.config.standing_grant_len);
        let Some(len) = len.filter(|_| is_server) else { return 0 };
        // All may be in quarantine at once, when their memory is wanted back.
        let fit = self.quarantine(own) / len.grant_len();
        let wanted = self.config.standing_grants.min(peer.standing_grants) as usize;
        wanted.min(usize::try_from(fit).unwrap_or(usize::MAX))
    }

    /// Bytes of a connection that may be in quarantine.
    fn quarantine(&self, own: &Hello) -> u64 {
        quarantine_cap(self.config.landing.size.cap as u64, own.max_message_size)
    }

    /// The long bodies of a connection between these two.
    fn rendezvous(&self, device: &Device, own: &Hello, peer: &Hello) -> Rendezvous {
        let config = &self.config;
        let ours = InboundLimits::new(own, peer).bodies();
        let theirs = InboundLimits::new(peer, own).bodies();
        let limits = RendezvousLimits {
            owner: OwnerLimits {
                rts: ours,
                advertised: theirs,
                quarantine: self.quarantine(own),
                revoke_timeout: config.revoke_timeout,
            },
            writer: WriterLimits {
                chunk: config.write_chunk,
                window: config.write_window,
                rts: theirs,
                advertised: ours,
                standing: own.standing_grants as usize,
            },
            max_sge: device.max_sge(),
            standing: self.standing(device, own, peer),
        };
        Rendezvous::new(limits, (Arc::clone(device.sources()), device.domain()))
    }
}

/// An address that is listened at.
struct Listening {
    listener: Box<dyn CmListener>,
    local: Target,
    shared: Arc<Shared>,
}

impl Listener for Listening {
    fn local_target(&self) -> &Target {
        &self.local
    }

    fn targets(&self) -> Vec<Target> {
        let addresses = self.listener.addresses().into_iter();
        addresses.map(|address| Target::new(self.local.scheme(), address)).collect()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        loop {
            let request = ready!(self.listener.poll_request(cx))?;
            match Greeting::decode(request.private_data()) {
                Ok(greeting) => {
                    let shared = Arc::clone(&self.shared);
                    return Poll::Ready(Ok(Box::new(Accepted { request, greeting, shared })));
                }
                Err(error) => {
                    tracing::debug!(peer = request.peer(), %error, "refused a connect request");
                    request.reject(refusal(&error.to_string()));
                }
            }
        }
    }
}

/// A peer that wants to connect.
struct Accepted {
    request: Box<dyn ConnectRequest>,
    greeting: Greeting,
    shared: Arc<Shared>,
}

impl Accepting for Accepted {
    fn peer(&self) -> String {
        self.request.peer()
    }

    fn ticket(&self) -> Option<Ticket> {
        self.greeting.ticket
    }

    fn refuse(self: Box<Self>, why: &str) {
        self.request.reject(refusal(why));
    }

    fn handshake(
        self: Box<Self>,
        local: LocalSide,
    ) -> BoxFuture<'static, Result<Established, Error>> {
        Box::pin(async move {
            let Self { request, greeting, shared } = *self;
            let peer = request.peer();
            let mut opened = match shared.open(&request.nic()).await {
                Ok(opened) => opened,
                Err(error) => {
                    request.reject(refusal("the server is out of queue pairs, receives or memory"));
                    return Err(error);
                }
            };
            let qp = Arc::clone(opened.endpoint.qp());
            let accepted =
                timeout_at(local.deadline, request.accept(qp, greeting.answer().encode()));
            let connected = accepted.await.unwrap_or_else(|_elapsed| {
                let message = format!("{peer} did not finish connecting in time");
                Err(Error::new(ErrorKind::TimedOut, message))
            })?;
            opened.connected(connected);
            let established = shared.establish(opened, Side::Accepting, local).await?;
            if established.peer.connection != greeting.nonce {
                let message = "HELLO is not from the peer that asked to connect";
                return Err(foreign(&peer, message));
            }
            Ok(established)
        })
    }
}

fn foreign(peer: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::PeerFault,
        format!("{peer} is no verbwire endpoint of this version: {why}"),
    )
}
