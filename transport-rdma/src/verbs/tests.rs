//! What needs a device: run in the lab's guest, with `--ignored` and the variables that the lab sets.
//!
//! `LAB_ADDRESS` is an address of the device `LAB_DEVICE`, of kind `LAB_KIND` (`rxe` or `siw`).

mod endings;
mod pools;
mod refused;
mod srq;
mod windows;
mod wire;

use std::env;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use verbwire_core::ErrorKind;

use super::reaper::reap;
use super::{VerbsCm, VerbsConfig, nic};
use crate::memory::{CpuBuf, Lkey, NicAccess, NicBuf, Poison, Pool, Released, Rkey, Slab};
use crate::nic::*;

fn lab(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run this in the device lab"))
}

fn is_siw() -> bool {
    lab("LAB_KIND") == "siw"
}

fn cm() -> VerbsCm {
    cm_with(0)
}

fn cm_with(rnr_retry: u8) -> VerbsCm {
    VerbsCm::new(VerbsConfig { rnr_retry })
}

/// A queue pair with its memory.
struct Side {
    qp: Arc<dyn Qp>,
    cq: Arc<dyn Cq>,
    pool: Arc<Pool>,
    posted: Vec<NicBuf>,
}

const CHUNK: usize = 4096;

impl Side {
    fn open(nic: &Arc<dyn Nic>) -> Self {
        Self::with_queue(nic, 64)
    }

    /// With a completion queue for so many completions.
    fn with_queue(nic: &Arc<dyn Nic>, completions: u32) -> Self {
        let pool = Pool::new(Slab::new(CHUNK, 64), Poison::Off);
        let region = nic.register(pool.slab(), Access::RemoteWrite).expect("registers");
        pool.slab().set_region(region);
        let cq = nic.create_cq(completions).expect("a completion queue");
        let qp =
            nic.create_qp(&Cqs::one(&cq), Depths { send: 32, recv: 32 }).expect("a queue pair");
        Self { qp, cq, pool, posted: Vec::new() }
    }

    fn take(&self) -> CpuBuf {
        self.pool.take().expect("a free chunk")
    }

    fn receive(&mut self, id: u64) {
        self.receive_up_to(id, CHUNK);
    }

    fn receive_up_to(&mut self, id: u64, len: usize) {
        let buf = self.take().into_nic(NicAccess::Write);
        let sge = sge(&buf, len);
        self.posted.push(buf);
        self.qp.post_recv(&[RecvWr { id: WrId(id), sge }]).expect("posts");
    }

    fn send(&mut self, id: u64, op: SendOp, bytes: &[u8], inline: Inline) {
        let mut buf = self.take();
        buf[..bytes.len()].copy_from_slice(bytes);
        let buf = buf.into_nic(NicAccess::Read);
        let sges = Sges::one(sge(&buf, bytes.len()));
        self.posted.push(buf);
        let wr = SendWr { id: WrId(id), op, sges, signal: Signal::Yes, inline };
        self.qp.post_send(&[wr]).expect("posts");
    }

    async fn complete(&self) -> Wc {
        completion(&*self.cq).await
    }

    /// The buffer of a completed receive.
    fn received(&mut self, address: u64) -> CpuBuf {
        let place = self.posted.iter().position(|buf| buf.address() == address).expect("posted");
        self.posted.remove(place).into_cpu(Released::by_nic())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let (qp, posted) = (Arc::clone(&self.qp), std::mem::take(&mut self.posted));
        reap(move || {
            qp.destroy();
            for buf in posted {
                drop(buf.into_cpu(Released::by_nic()));
            }
        });
    }
}

/// Waits for a completion in the way that the contract of the seam asks for.
async fn completion(cq: &dyn Cq) -> Wc {
    let mut out = Vec::new();
    let wait = async {
        while cq.poll(&mut out, 1).expect("polls") == 0 {
            cq.arm().expect("arms");
            if cq.poll(&mut out, 1).expect("polls") > 0 {
                break;
            }
            poll_fn(|cx| cq.poll_event(cx)).await.expect("an event");
        }
    };
    timeout(Duration::from_secs(20), wait).await.expect("a completion within 20 s");
    out[0]
}

fn sge(buf: &NicBuf, len: usize) -> Sge {
    let len = u32::try_from(len).expect("short");
    Sge { address: buf.address(), len, lkey: buf.lkey().unwrap_or(Lkey(0)) }
}

/// Both ends of a connection, each with a receive posted at the same id as it has in `posted`.
async fn pair() -> ((Side, Connected), (Side, Connected)) {
    let ready: Open = |nic| {
        let mut side = Side::open(nic);
        (0..8).for_each(|id| side.receive(id));
        side
    };
    pair_over(cm(), [ready; 2]).await
}

/// Makes an end of a connection.
type Open = fn(&Arc<dyn Nic>) -> Side;

/// Both ends of a connection, the connecting side first.
async fn pair_over(cm: VerbsCm, open: [Open; 2]) -> ((Side, Connected), (Side, Connected)) {
    let mut listener = cm.listen(&format!("{}:0", lab("LAB_ADDRESS"))).await.expect("listens");
    let address = listener.local_address().to_owned();
    let accepting = async {
        let request = poll_fn(|cx| listener.poll_request(cx)).await.expect("a request");
        assert!(request.private_data().starts_with(b"hello"), "{:?}", request.private_data());
        let side = open[1](&request.nic());
        let qp = Arc::clone(&side.qp);
        let connected = request.accept(qp, b"welcome".to_vec()).await.expect("accepts");
        (side, connected)
    };
    let connecting = async {
        let resolved = cm.resolve(&address).await.expect("resolves");
        assert_eq!(resolved.nic().capabilities().device, lab("LAB_DEVICE"));
        let side = open[0](&resolved.nic());
        let qp = Arc::clone(&side.qp);
        let connected = resolved.connect(qp, b"hello".to_vec()).await.expect("connects");
        assert!(connected.private_data.starts_with(b"welcome"), "{:?}", connected.private_data);
        (side, connected)
    };
    timeout(Duration::from_secs(30), async { tokio::join!(connecting, accepting) })
        .await
        .expect("connected within 30 s")
}

/// The device under test.
fn device() -> Arc<nic::VerbsNic> {
    let local = SocketAddr::new(lab("LAB_ADDRESS").parse().expect("an address"), 0);
    nic::open(&lab("LAB_DEVICE"), local).expect("opens")
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_device_says_what_it_can() {
    let nic = device();
    let found = nic.capabilities().clone();
    println!("{found:?}");
    let wire = if is_siw() { Wire::Iwarp } else { Wire::InfiniBand };
    assert_eq!(found.wire, wire);
    assert!(found.max_inline >= 64 && found.max_sge == MAX_SGE, "{found:?}");
    // soft-iWARP refuses a queue at a certain offset, unless that is taken.
    let many: Vec<_> = (0..60).map(|_| nic.create_cq(400).expect("a queue")).collect();
    drop(many);
    assert!(nic.create_cq(found.max_cqe + 1).is_err(), "more than the device has");
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn messages_go_to_and_fro() {
    let ((mut client, _one), (mut server, _two)) = pair().await;
    for round in 0..50_u64 {
        let inline = if round % 2 == 0 { Inline::Yes } else { Inline::No };
        for turn in 0..2 {
            let (from, to) =
                if turn == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let text = format!("round {round} turn {turn}");
            from.send(1000 + round, SendOp::Send, text.as_bytes(), inline);
            let sent = from.complete().await;
            assert_eq!(
                (sent.id, sent.result, sent.qp),
                (WrId(1000 + round), Ok(0), from.qp.number())
            );
            let got = to.complete().await;
            let len = got.result.expect("received") as usize;
            let address =
                to.posted.iter().find(|buf| buf.address() != 0).expect("posted").address();
            let buf = to.received(address);
            assert_eq!(&buf[..len], text.as_bytes());
            drop(buf);
            to.receive(round % 8);
            // The sent buffer lies behind the receives.
            let own = from.posted.pop().expect("the send's");
            drop(own.into_cpu(Released::by_nic()));
        }
    }
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_write_is_there_when_the_message_behind_it_is() {
    let ((mut client, _one), (server, _two)) = pair().await;
    let landing = server.take().into_nic(NicAccess::Write);
    let rkey = landing.rkey().expect("registered");
    let write = SendOp::Write { address: landing.address(), rkey };
    client.send(1, write, &[7; CHUNK], Inline::No);
    client.send(2, SendOp::Send, b"look", Inline::Yes);
    let got = server.complete().await;
    assert_eq!(got.result, Ok(4));
    assert!(landing.into_cpu(Released::by_nic()).iter().all(|byte| *byte == 7));
    assert_eq!(client.complete().await.id, WrId(1));
    assert_eq!(client.complete().await.id, WrId(2));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_disconnect_reaches_the_peer_and_flushes_its_receives() {
    let ((_client, mut one), (server, mut two)) = pair().await;
    one.events.disconnect();
    let over = timeout(Duration::from_secs(20), poll_fn(|cx| two.events.poll_disconnected(cx)));
    assert_eq!(over.await.expect("in time").kind(), ErrorKind::Lost);
    assert_eq!(server.complete().await.result, Err(WcStatus::FLUSHED));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_refusal_comes_in_words() {
    let mut listener = cm().listen(&format!("{}:0", lab("LAB_ADDRESS"))).await.expect("listens");
    let address = listener.local_address().to_owned();
    let refusing = async {
        let request = poll_fn(|cx| listener.poll_request(cx)).await.expect("a request");
        request.reject(b"no room".to_vec());
    };
    let connecting = async {
        let resolved = cm().resolve(&address).await.expect("resolves");
        let side = Side::open(&resolved.nic());
        let error = resolved.connect(Arc::clone(&side.qp), Vec::new()).await.err();
        error.expect("refused").to_string()
    };
    let (message, ()) = tokio::join!(connecting, refusing);
    assert!(message.ends_with("refused the connection: no room"), "{message}");
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_closed_port_says_that_nothing_listens() {
    let address = format!("{}:9", lab("LAB_ADDRESS"));
    let resolved = cm().resolve(&address).await.expect("resolves");
    let side = Side::open(&resolved.nic());
    let error = resolved.connect(Arc::clone(&side.qp), Vec::new()).await.err().expect("closed");
    assert!(error.to_string().starts_with("nothing listens at "), "{error}");
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn addresses_that_lead_to_no_device_say_why() {
    for (address, words) in [("127.0.0.1:7", "loopback"), ("192.0.2.1:7", "leads to 192.0.2.1")] {
        let error = cm().resolve(address).await.err().expect("no device");
        assert!(error.to_string().contains(words), "{error}");
        let error = cm().listen(address).await.err();
        println!("listening at {address}: {error:?}");
    }
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_port_in_use_is_named() {
    let address = lab("LAB_ADDRESS");
    let first = cm().listen(&format!("{address}:0")).await.expect("listens");
    let error = cm().listen(first.local_address()).await.err().expect("in use");
    assert_eq!(error.kind(), ErrorKind::LocalResource);
    let tcp = std::net::TcpListener::bind((address.as_str(), 0)).expect("a TCP port");
    let shared = cm().listen(&tcp.local_addr().expect("bound").to_string()).await;
    assert_eq!(shared.is_err(), is_siw(), "only iWARP shares TCP's ports");
}
