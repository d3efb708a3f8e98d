//! Two connected hosts, each with a pool of registered memory and a table of what is in flight.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use crate::fabric::{Fabric, FabricConfig, FabricHost, Latency, Profile};
use crate::memory::{Lkey, NicAccess, NicBuf, Poison, Pool, Released, Rkey, Slab};
use crate::nic::{
    Access, CmConnection, Cq, Cqs, Depths, Inline, Nic, NicError, Qp, RecvWr, SendOp, SendWr, Sge,
    Sges, Signal, Wc, WcStatus, WrId,
};

pub(super) const CHUNK: usize = 8192;

/// Longer than anything on a fabric takes, retries apart.
pub(super) const A_WHILE: Duration = Duration::from_millis(50);

/// One end of a connection.
pub(super) struct Side {
    pub(super) host: FabricHost,
    pub(super) nic: Arc<dyn Nic>,
    pub(super) cq: Arc<dyn Cq>,
    pub(super) qp: Arc<dyn Qp>,
    pub(super) pool: Arc<Pool>,
    pub(super) events: Option<Box<dyn CmConnection>>,
    pub(super) in_flight: BTreeMap<u64, NicBuf>,
}

impl Side {
    pub(super) fn new(fabric: &Fabric, name: &str, depths: Depths, cq_depth: u32) -> Self {
        let host = fabric.host(name);
        let nic = host.nic();
        let pool = registered_pool(&*nic, 64);
        let cq = nic.create_cq(cq_depth).expect("within limits");
        let qp = nic.create_qp(&Cqs::one(&cq), depths).expect("within limits");
        Self { host, nic, cq, qp, pool, events: None, in_flight: BTreeMap::new() }
    }

    /// Posts a receive of `len` bytes.
    pub(super) fn recv_of(&mut self, id: u64, len: u32) -> Result<(), NicError> {
        let buf = self.pool.take().expect("free").into_nic(NicAccess::Write);
        let sge = Sge { address: buf.address(), len, lkey: buf.lkey().expect("registered") };
        self.in_flight.insert(id, buf);
        self.qp.post_recv(&[RecvWr { id: WrId(id), sge }])
    }

    pub(super) fn recv(&mut self, id: u64) {
        self.recv_of(id, len_of(&[0; CHUNK])).expect("room");
    }

    /// Fills a buffer and describes a SEND of it.
    pub(super) fn wr(&mut self, id: u64, data: &[u8]) -> SendWr {
        let mut buf = self.pool.take().expect("free");
        buf[..data.len()].copy_from_slice(data);
        let buf = buf.into_nic(NicAccess::Read);
        let lkey = buf.lkey().expect("registered");
        let sge = Sge { address: buf.address(), len: len_of(data), lkey };
        self.in_flight.insert(id, buf);
        let (op, sges) = (SendOp::Send, Sges::one(sge));
        SendWr { id: WrId(id), op, sges, signal: Signal::Yes, inline: Inline::No }
    }

    pub(super) fn try_send(&mut self, id: u64, data: &[u8]) -> Result<(), NicError> {
        let wr = self.wr(id, data);
        self.qp.post_send(&[wr])
    }

    pub(super) fn send(&mut self, id: u64, data: &[u8]) {
        self.try_send(id, data).expect("room");
    }

    pub(super) fn write(&mut self, id: u64, data: &[u8], address: u64, rkey: Rkey) {
        let mut wr = self.wr(id, data);
        wr.op = SendOp::Write { address, rkey };
        self.qp.post_send(&[wr]).expect("room");
    }

    /// All completions that are there.
    pub(super) fn poll(&self) -> Vec<Wc> {
        let mut out = Vec::new();
        while self.cq.poll(&mut out, 16).expect("not lost") > 0 {}
        out
    }

    /// The next completion, by arming.
    pub(super) async fn wait(&self) -> Wc {
        let mut out = Vec::new();
        while self.cq.poll(&mut out, 1).expect("not lost") == 0 {
            self.cq.arm().expect("not lost");
            if self.cq.poll(&mut out, 1).expect("not lost") > 0 {
                break;
            }
            poll_fn(|cx| self.cq.poll_event(cx)).await.expect("not lost");
        }
        out[0]
    }

    /// What completes within a while: ids with success or status.
    pub(super) async fn outcomes(&self) -> Vec<(u64, Result<u32, WcStatus>)> {
        tokio::time::sleep(A_WHILE).await;
        self.poll().into_iter().map(|wc| (wc.id.0, wc.result)).collect()
    }

    /// Takes a buffer back, whether that is allowed or not.
    pub(super) fn take_back(&mut self, id: u64) -> Vec<u8> {
        let buf = self.in_flight.remove(&id).expect("in flight");
        buf.into_cpu(Released::by_nic()).to_vec()
    }

    pub(super) async fn disconnected(&mut self) -> String {
        let events = self.events.as_mut().expect("connected");
        poll_fn(|cx| events.poll_disconnected(cx)).await.to_string()
    }

    /// Whether the connection's end is known by now.
    pub(super) async fn is_disconnected(&mut self) -> bool {
        tokio::time::timeout(A_WHILE, self.disconnected()).await.is_ok()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.qp.destroy();
        for (_, buf) in std::mem::take(&mut self.in_flight) {
            drop(buf.into_cpu(Released::by_nic()));
        }
    }
}

pub(super) fn len_of(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("test data is short")
}

pub(super) fn registered_pool(nic: &dyn Nic, chunks: usize) -> Arc<Pool> {
    let pool = Pool::new(Slab::new(CHUNK, chunks), Poison::WhileNicOwns);
    let region = nic.register(pool.slab(), Access::RemoteWrite).expect("within limits");
    pool.slab().set_region(region);
    pool
}

pub(super) fn config(profile: Profile) -> FabricConfig {
    FabricConfig { profile, ..FabricConfig::new(7) }
}

/// Connects `a` to `b`, which has posted `recvs` receives with ids from 100.
pub(super) async fn connect(fabric: &Fabric, a: &mut Side, b: &mut Side, recvs: u64) {
    for id in 0..recvs {
        b.recv(100 + id);
    }
    let mut listener = b.host.cm().listen(&format!("{}:0", b.host.name())).await.expect("free");
    let address = listener.local_address().to_owned();
    let resolved = a.host.cm().resolve(&address).await.expect("known");
    let (qp, server_qp) = (Arc::clone(&a.qp), Arc::clone(&b.qp));
    let client = tokio::spawn(resolved.connect(qp, b"hello".to_vec()));
    let request = poll_fn(|cx| listener.poll_request(cx)).await.expect("alive");
    assert_eq!(request.private_data(), b"hello");
    let accepted = request.accept(server_qp, b"welcome".to_vec()).await.expect("connected");
    let connected = client.await.expect("no panic").expect("connected");
    assert_eq!(connected.private_data, b"welcome");
    assert_eq!(connected.addresses.1, address);
    (a.events, b.events) = (Some(connected.events), Some(accepted.events));
    assert_eq!(fabric.violations(), []);
}

pub(super) const DEPTHS: Depths = Depths { send: 16, recv: 16 };

/// Two connected hosts `a` and `b`; `b` has posted `recvs` receives with ids from 100.
pub(super) async fn pair_of(config: FabricConfig, recvs: u64) -> (Fabric, Side, Side) {
    let fabric = Fabric::new(config);
    let mut a = Side::new(&fabric, "a", DEPTHS, 64);
    let mut b = Side::new(&fabric, "b", DEPTHS, 64);
    connect(&fabric, &mut a, &mut b, recvs).await;
    (fabric, a, b)
}

pub(super) async fn pair(profile: Profile, recvs: u64) -> (Fabric, Side, Side) {
    pair_of(config(profile), recvs).await
}

pub(super) const ALL: [Profile; 3] = [Profile::Rxe, Profile::Siw, Profile::Mlx5Like];

pub(super) fn wrong_lkey(wr: &mut SendWr) {
    let mut sge = wr.sges.as_slice()[0];
    sge.lkey = Lkey(sge.lkey.0 ^ 1);
    wr.sges = Sges::one(sge);
}

pub(super) fn slow(profile: Profile) -> FabricConfig {
    let latency = Latency {
        base: Duration::from_millis(5),
        per_kib: Duration::ZERO,
        jitter: Duration::from_millis(1),
    };
    FabricConfig { latency, ..config(profile) }
}
