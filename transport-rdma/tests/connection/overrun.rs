//! A peer that sends what it had no right to, on receives that others were promised too.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use verbwire_core::transport::Flush;
use verbwire_core::wire::{Hello, Kind};
use verbwire_core::{Error, ErrorKind};
use verbwire_rdma::fabric::{FabricConfig, Profile};
use verbwire_rdma::memory::{NicAccess, NicBuf, Poison, Pool, Slab};
use verbwire_rdma::nic::{
    Access, Connected, Cqs, Depths, Inline, Qp, RecvWr, SendOp, SendWr, Sge, Sges, Signal, WrId,
};
use verbwire_rdma::proto::credit::loan::{KEEP_ALL, Lend, Loan};
use verbwire_rdma::{Peers, RdmaConfig};

use crate::pair::{
    End, Everything, Net, PROFILES, call, drive, hello, pattern, receive_all, request, send, side,
    slot,
};

const CHUNK: usize = 4096;
const DEPTH: u32 = 256;
/// The data window of a raw peer.
const WINDOW: u32 = 64;

/// A queue pair that sends what it likes.
struct Raw {
    qp: Arc<dyn Qp>,
    pool: Arc<Pool>,
    /// What it sends from and receives into; nothing is taken back before the end.
    bufs: Vec<NicBuf>,
    _connected: Option<Connected>,
}

impl Raw {
    /// Connects to `far`, which accepts; receives so many frames.
    async fn connect(net: &Net, receives: u32) -> (Self, Result<End, Error>) {
        Self::connect_lending(net, receives, 0).await
    }

    /// The same; it announces that it may lend a data window of up to `most`.
    async fn connect_lending(net: &Net, receives: u32, most: u32) -> (Self, Result<End, Error>) {
        let mut listener = net.listen().await;
        let address = listener.local_target().address().to_owned();
        let accepting = async {
            let accepting = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
            accepting.handshake(side(Everything)).await.map(|established| established.connection)
        };
        let connecting = async {
            let resolved = net.hosts[0].cm().resolve(&address).await.expect("known");
            let nic = resolved.nic();
            let pool = Pool::new(Slab::new(CHUNK, 2 * DEPTH as usize), Poison::Off);
            pool.slab().set_region(nic.register(pool.slab(), Access::Local).expect("memory"));
            let cq = nic.create_cq(2 * DEPTH).expect("a queue");
            let depths = Depths { send: DEPTH, recv: DEPTH };
            let qp = nic.create_qp(&Cqs::one(&cq), depths).expect("a queue pair");
            let mut raw = Self { qp, pool, bufs: Vec::new(), _connected: None };
            (0..receives).for_each(|_| raw.receive());
            let (data_window, control_window, receive_len) = (WINDOW, 16, 4096);
            let ours = Hello { data_window, control_window, receive_len, ..hello() };
            let ours = Hello { most_data_window: most, ..ours };
            let greeting = [b"VWRD\0\0\0\0".as_slice(), &ours.connection.to_le_bytes()].concat();
            let connected = resolved.connect(Arc::clone(&raw.qp), greeting).await;
            raw._connected = Some(connected.expect("accepted"));
            raw.send(&ours.encode_framed());
            raw
        };
        tokio::join!(connecting, accepting)
    }

    fn receive(&mut self) {
        let buf = self.pool.take().expect("free").into_nic(NicAccess::Write);
        let sge = sge(&buf, CHUNK);
        self.bufs.push(buf);
        self.qp.post_recv(&[RecvWr { id: WrId(0), sge }]).expect("room");
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut buf = self.pool.take().expect("free");
        buf[..bytes.len()].copy_from_slice(bytes);
        let buf = buf.into_nic(NicAccess::Read);
        let sges = Sges::one(sge(&buf, bytes.len()));
        self.bufs.push(buf);
        let (id, op, signal) = (WrId(1), SendOp::Send, Signal::No);
        let wr = SendWr { id, op, sges, signal, inline: Inline::No };
        self.qp.post_send(&[wr]).expect("room");
    }

    /// Sends so many frames of control at once.
    fn flood(&mut self, count: u32) {
        let frame = verbwire_core::wire::Header::new(Kind::Cancel, call(1)).encode();
        (0..count).for_each(|_| self.send(&frame));
    }
}

impl Raw {
    /// Says that it has lent so many receives by now.
    fn lend(&mut self, lent: u32) {
        let lend = Loan::Lend(Lend { lent: lent.into(), keep: KEEP_ALL });
        self.send(&lend.header().encode());
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.qp.destroy();
    }
}

fn sge(buf: &NicBuf, len: usize) -> Sge {
    let len = u32::try_from(len).expect("short");
    Sge { address: buf.address(), len, lkey: buf.lkey().expect("registered") }
}

fn net(profile: Profile, seed: u64) -> Net {
    net_over(FabricConfig { profile, ..FabricConfig::new(seed) })
}

fn net_over(config: FabricConfig) -> Net {
    let mut near = RdmaConfig::default();
    near.peers = Peers::Trusted;
    let mut far = RdmaConfig::for_many(0);
    (far.peers, far.shared_receives) = (Peers::Trusted, 512);
    Net::over(config, [near, far])
}

async fn talk(near: &End, far: &End, rounds: u32) {
    for round in 0..rounds {
        send(near, request(round, pattern(round, 60)), Flush::Now).await.expect("open");
        assert_eq!(slot(&receive_all(far, 1).await[0]), round);
    }
}

/// An honest connection and one to a raw peer, which share receives.
struct Scene {
    net: Net,
    near: End,
    far: End,
    driver: JoinHandle<Error>,
    raw: Raw,
    victim: End,
}

impl Scene {
    async fn begin(profile: Profile, seed: u64) -> Self {
        let net = net(profile, seed);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(near.clone()));
        let (raw, victim) = Raw::connect(&net, 100).await;
        Self { near, far, driver, raw, victim: victim.expect("an honest HELLO"), net }
    }

    /// The raw peer was cut off with `error`, and nobody else had to wait for a receive.
    async fn end(self, error: Error) {
        assert!(error.is_peer_fault(), "{error:?}");
        assert_eq!(self.net.fabric.counters().rnr, 0);
        drop(self.raw);
        self.victim.retire().await;
        self.net.close([&self.near, &self.far]).await;
        self.driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_what_others_were_promised_is_cut_off_and_they_go_on() {
    for profile in PROFILES {
        let mut scene = Scene::begin(profile, 31).await;
        let driver = tokio::spawn(drive(scene.victim.clone()));
        scene.raw.flood(120);
        let error = driver.await.expect("no panic");
        assert!(format!("{error:?}").contains("were promised"), "{error:?}");
        talk(&scene.near, &scene.far, 30).await;
        scene.end(error).await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_cut_off_even_before_anybody_has_looked_at_what_it_sent() {
    for profile in PROFILES {
        let mut scene = Scene::begin(profile, 32).await;
        scene.raw.flood(250);
        // Nobody drives it. On the wire is more than it can be promised, and less than is posted for all.
        sleep(Duration::from_millis(10)).await;
        talk(&scene.near, &scene.far, 30).await;
        let error = drive(scene.victim.clone()).await;
        let counts = scene.net.transports[1].shared_receives();
        assert!(512 - i64::from(counts.missing) > 400, "{counts:?}");
        scene.end(error).await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_cut_off_also_on_a_connection_that_is_being_closed() {
    let mut config = FabricConfig { profile: Profile::Rxe, ..FabricConfig::new(33) };
    // For ever.
    config.rnr_retry = 7;
    let net = net_over(config);
    // It takes HELLO alone, so that the end waits for the rest to be taken.
    let (mut raw, victim) = Raw::connect(&net, 1).await;
    let victim = victim.expect("an honest HELLO");
    send(&victim, request(1, pattern(1, 50)), Flush::Now).await.expect("open");
    let begun = Instant::now();
    victim.close(Error::new(ErrorKind::Closed, "a test"));
    for _ in 0..20 {
        raw.flood(1);
        sleep(Duration::from_millis(1)).await;
    }
    victim.retire().await;
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    drop(raw);
    assert_eq!(net.fabric.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_peer_may_lend_more_than_is_ever_used_and_nothing_beyond_what_it_announced() {
    for profile in PROFILES {
        let net = net(profile, 34);
        let most = 10_000;
        let (mut raw, victim) = Raw::connect_lending(&net, 100, most).await;
        let victim = victim.expect("an honest HELLO");
        let driver = tokio::spawn(drive(victim.clone()));
        raw.lend(most - WINDOW);
        sleep(Duration::from_millis(1)).await;
        assert!(!driver.is_finished(), "it is honest: {profile:?}");
        raw.lend(most - WINDOW + 1);
        let error = driver.await.expect("no panic");
        assert!(error.is_peer_fault(), "{error}");
        let words =
            "the peer has lent 9937 receives by its count, which is not within 9936 to 9936";
        assert!(error.to_string().contains(words), "{error}");
        victim.close(error);
        victim.retire().await;
        drop(raw);
        assert_eq!(net.fabric.violations(), []);
    }
}
