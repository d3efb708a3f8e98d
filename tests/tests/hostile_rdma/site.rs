//! Where a case runs: two transports over one NIC, a place for raw peers, and a connection that must not notice
//! anything.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use verbwire_core::message::Message;
use verbwire_core::transport::{Listener, LocalSide, Transport};
use verbwire_core::wire::Hello;
use verbwire_core::{Error, ErrorKind, Target};
use verbwire_rdma::fabric::{Fabric, FabricConfig, Profile, ViolationKind};
use verbwire_rdma::testing::InPlace;
use verbwire_rdma::{RdmaConfig, RdmaTransport};
use verbwire_tests::fixture::LONG;
use verbwire_tests::pattern;
use verbwire_tests::raw_rdma::{RawHost, RawRdma};

use crate::end::{End, drive, plain, receive_for_ever, request, send, slot};

/// Longer than a frame.
pub(crate) const LONG_BODY: usize = 100_000;

/// What carries the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The software NIC, as this device.
    Fabric(Profile),
    /// The device under test of the lab.
    #[cfg(feature = "device")]
    Device,
}

/// See the module.
pub(crate) struct Site {
    fabric: Option<Fabric>,
    /// The transport of honest clients, and the one under attack.
    pub(crate) transports: [RdmaTransport; 2],
    pub(crate) raw: RawHost,
    listener: Box<dyn Listener>,
    /// Where the transport under attack listens, and where raw peers do.
    anywhere: [String; 2],
    scheme: &'static str,
    other: Other,
    /// What may be in use when all else has ended: memory that stands by for requests of the other connection.
    idle: [Memory; 2],
}

/// Memory for long bodies of a transport, in bytes and waiters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Memory {
    in_use: usize,
    quarantined: usize,
    leaked: usize,
    waiting: usize,
    granted: u64,
}

impl Memory {
    fn of(transport: &RdmaTransport) -> Self {
        let pools = transport.pools();
        let mut sum = Self { granted: pools.granted_bytes, ..Self::default() };
        for pool in [pools.users, pools.staging, pools.landing] {
            sum.in_use += pool.in_use_bytes;
            sum.quarantined += pool.quarantined_bytes;
            sum.leaked += pool.leaked_bytes;
            sum.waiting += pool.waiting;
        }
        sum
    }

    fn is_within(&self, most: &Self) -> bool {
        let rest = |memory: &Self| (memory.quarantined, memory.leaked, memory.waiting);
        self.in_use <= most.in_use && self.granted <= most.granted && rest(self) == rest(most)
    }
}

/// A connection between honest ends, which are driven in tasks.
pub(crate) struct Other {
    near: End,
    far: End,
    received: mpsc::UnboundedReceiver<Message>,
    /// Requests that it has carried.
    carried: u32,
}

/// Completion queues of exactly the depth that one connection asks for: the fabric loses a queue that it overflows.
pub(crate) fn exact() -> RdmaConfig {
    let mut config = RdmaConfig::default();
    config.completion_queue_depth = 0;
    // soft-iWARP swallows what is posted late, which would cost each end of a connection 5 s.
    config.drain_timeout = Duration::from_millis(300);
    config
}

impl Over {
    fn parts(self, config: &RdmaConfig) -> (Option<Fabric>, [RdmaTransport; 2], RawHost, String) {
        match self {
            Self::Fabric(profile) => {
                let fabric = Fabric::new(FabricConfig { profile, ..FabricConfig::new(1) });
                let [near, far] = ["near", "far"].map(|name| fabric.host(name));
                let over = |host| RdmaTransport::over_fabric(host, config.clone());
                let raw = RawHost { cm: near.cm(), reaper: Arc::new(InPlace) };
                (Some(fabric), [over(&near), over(&far)], raw, "far:0".to_owned())
            }
            #[cfg(feature = "device")]
            Self::Device => {
                use verbwire_rdma::verbs::{ReaperThread, VerbsCm, VerbsConfig};
                let mut verbs = VerbsConfig::default();
                // A credit too many shall show.
                verbs.rnr_retry = 0;
                let over = || RdmaTransport::over_verbs(config.clone(), verbs);
                let cm = Arc::new(VerbsCm::new(verbs));
                let raw = RawHost { cm, reaper: Arc::new(ReaperThread) };
                let address = std::env::var("LAB_ADDRESS").expect("the device lab sets it");
                (None, [over(), over()], raw, format!("{address}:0"))
            }
        }
    }

    /// Whether the wire is iWARP's: a refusal ends the stream, and the work request does not say why.
    pub(crate) fn is_iwarp(self) -> bool {
        match self {
            Self::Fabric(profile) => profile == Profile::Siw,
            #[cfg(feature = "device")]
            Self::Device => std::env::var("LAB_KIND").is_ok_and(|kind| kind == "siw"),
        }
    }

    /// Whether peers reach a grant through a window, and nothing beside it.
    pub(crate) fn has_windows(self) -> bool {
        match self {
            Self::Fabric(profile) => profile == Profile::Mlx5Like,
            #[cfg(feature = "device")]
            Self::Device => false,
        }
    }

    fn scheme(self) -> &'static str {
        match self {
            Self::Fabric(_) => "fabric",
            #[cfg(feature = "device")]
            Self::Device => "rdma",
        }
    }
}

impl Site {
    pub(crate) async fn new(over: Over) -> Self {
        Self::with(over, exact()).await
    }

    pub(crate) async fn with(over: Over, config: RdmaConfig) -> Self {
        let (fabric, transports, raw, anywhere) = over.parts(&config);
        let target = Target::new(over.scheme(), &*anywhere);
        let mut listener = transports[1].listen(&target).await.expect("a free port");
        let at = listener.local_target().clone();
        let (near, far) =
            tokio::join!(transports[0].connect(&at, plain()), accept(&mut *listener, plain()));
        let other = Other::new([near.expect("connect").connection, far]);
        let scheme = over.scheme();
        // On a device both are one host.
        let anywhere = [anywhere.clone(), anywhere.replace("far", "near")];
        let idle = Default::default();
        Self { fabric, transports, raw, listener, anywhere, scheme, other, idle }
    }

    /// With settings by which clients are given standing grants. The other connection has its own.
    pub(crate) async fn standing(over: Over, config: RdmaConfig) -> Self {
        let mut site = Self::with(over, config).await;
        let given = async {
            while Memory::of(&site.transports[1]).in_use == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, given).await.expect("it is given in time");
        site.idle[1] = Memory::of(&site.transports[1]);
        site
    }

    /// A raw client, and the end under attack.
    pub(crate) async fn raw_client(&mut self) -> (End, RawRdma) {
        self.raw_client_of(plain()).await
    }

    /// The same; the end says as much as `side` does.
    pub(crate) async fn raw_client_of(&mut self, side: LocalSide) -> (End, RawRdma) {
        let address = self.listener.local_target().address().to_owned();
        tokio::join!(accept(&mut *self.listener, side), self.raw.established(&address))
    }

    /// The same with another HELLO of the client's.
    pub(crate) async fn raw_client_as(
        &mut self,
        side: LocalSide,
        theirs: &Hello,
    ) -> (End, RawRdma) {
        let address = self.listener.local_target().address().to_owned();
        let raw = self.raw.established_as(&address, theirs);
        tokio::join!(accept(&mut *self.listener, side), raw)
    }

    /// A raw server, and the end under attack.
    pub(crate) async fn raw_server(&mut self) -> (End, RawRdma) {
        let mut listener = self.raw.listen(&self.anywhere[1]).await;
        let at = Target::new(self.scheme, listener.address());
        let (end, raw) = tokio::join!(self.transports[1].connect(&at, plain()), listener.accept());
        (end.expect("connect").connection, raw)
    }

    /// An honest pair: a client, and an end of the transport under attack.
    pub(crate) async fn pair(&mut self) -> [End; 2] {
        let at = self.listener.local_target().clone();
        let (near, far) = tokio::join!(
            self.transports[0].connect(&at, plain()),
            accept(&mut *self.listener, plain())
        );
        [near.expect("connect").connection, far]
    }

    /// Where the transport under attack can listen once more.
    pub(crate) fn anywhere(&self) -> &str {
        &self.anywhere[0]
    }

    /// The scheme of its targets.
    pub(crate) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The address of the transport under attack.
    pub(crate) fn address(&self) -> &str {
        self.listener.local_target().address()
    }

    /// The next raw client, whatever becomes of it.
    pub(crate) async fn accept(&mut self, side: LocalSide) -> Result<End, Error> {
        try_accept(&mut *self.listener, side).await
    }

    /// Requests with a short and a long body cross the other connection.
    pub(crate) async fn assert_others_served(&mut self) {
        for len in [100, LONG_BODY] {
            self.other.carry(len).await;
        }
    }

    /// The end ends because of what the peer did: in which words.
    pub(crate) async fn violation(&mut self, end: End) -> String {
        let error = timeout(LONG, drive(&end)).await.expect("the end in time");
        assert!(error.is_peer_fault(), "{error}");
        end.close(error.clone());
        self.retired(end).await;
        let words = error.to_string();
        words.strip_prefix("the peer broke the protocol: ").unwrap_or(&words).to_owned()
    }

    /// The device ends the connection.
    pub(crate) async fn lost(&mut self, end: End) {
        let error = timeout(2 * LONG, drive(&end)).await.expect("the end in time");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        self.retired(end).await;
    }

    /// Retires an end under attack: all memory for long bodies is back, and others are served.
    pub(crate) async fn retired(&mut self, end: End) {
        timeout(LONG, end.retire()).await.expect("retired in time");
        drop(end);
        self.assert_pools_idle().await;
        self.assert_others_served().await;
    }

    /// No memory for long bodies is in use, while connections live. On a device others have to be told first.
    pub(crate) async fn assert_pools_idle(&self) {
        let until = Instant::now() + LONG;
        loop {
            let found = self.transports.each_ref().map(Memory::of);
            if found.iter().zip(&self.idle).all(|(found, idle)| found.is_within(idle)) {
                return;
            }
            assert!(
                Instant::now() < until,
                "memory is in use: {found:?}, expected {:?}",
                self.idle
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the other connection: every buffer is back, and this side did nothing forbidden. What its peers did
    /// is theirs.
    pub(crate) async fn close(mut self) {
        self.idle = Default::default();
        for end in [&self.other.near, &self.other.far] {
            timeout(LONG, end.retire()).await.expect("retired in time");
        }
        for transport in &self.transports {
            let counts = transport.buffers();
            assert_eq!((counts.free, counts.leaked), (counts.total, 0));
        }
        self.assert_pools_idle().await;
        let Some(fabric) = &self.fabric else { return };
        let is_ours = |kind: &ViolationKind| !matches!(kind, ViolationKind::RemoteWrite(_));
        let ours: Vec<_> =
            fabric.violations().into_iter().filter(|found| is_ours(&found.kind)).collect();
        assert_eq!(ours, []);
        let counters = fabric.counters();
        assert_eq!((counters.rnr, counters.overflows), (0, 0));
    }

    /// The same where no peer wrote where it must not either.
    pub(crate) async fn close_clean(self) {
        let fabric = self.fabric.clone();
        self.close().await;
        if let Some(fabric) = fabric {
            assert_eq!(fabric.violations(), []);
        }
    }
}

impl Other {
    fn new([near, far]: [End; 2]) -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        let driven = [Arc::clone(&near), Arc::clone(&far)];
        tokio::spawn(async move {
            let [near, far] = driven;
            let receiving = async {
                while let Ok(messages) = receive_for_ever(&far).await {
                    for message in messages {
                        // The case may have ended.
                        let _heard = sender.send(message);
                    }
                }
            };
            tokio::join!(drive(&near), receiving)
        });
        Self { near, far, received, carried: 0 }
    }

    /// A request with a body of `len` bytes crosses it, and comes as it was.
    async fn carry(&mut self, len: usize) {
        self.carried += 1;
        let body = pattern::payload(len, u64::from(self.carried));
        send(&self.near, request(self.carried, body.clone())).await.expect("open");
        let message = timeout(2 * LONG, self.received.recv()).await.expect("it crosses in time");
        let message = message.expect("an honest connection lives");
        assert_eq!(slot(&message), self.carried);
        assert!(message.body.into_bytes() == body, "{len} bytes came changed");
    }
}

async fn accept(listener: &mut dyn Listener, side: LocalSide) -> End {
    try_accept(listener, side).await.expect("handshake")
}

async fn try_accept(listener: &mut dyn Listener, side: LocalSide) -> Result<End, Error> {
    let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
    Ok(accepting.handshake(side).await?.connection)
}

/// Each of these frames ends the connection that it comes on with these words; then all memory is back.
pub(crate) async fn assert_violations(over: Over, cases: &[(Vec<u8>, &str)]) {
    let mut site = Site::new(over).await;
    for (frame, words) in cases {
        let (end, mut raw) = site.raw_client().await;
        raw.send(frame);
        assert_eq!(site.violation(end).await, *words);
    }
    site.close_clean().await;
}
