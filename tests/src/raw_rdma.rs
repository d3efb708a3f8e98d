//! A peer that speaks the NIC seam itself and keeps to no rule unless the test does: over the software NIC and over real
//! devices, with the same code.
//!
//! It gives no credits, never posts a receive again and never takes a buffer back, so it lives for some hundred
//! frames. What it was written it reads as its NIC would.

mod frames;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;
use verbwire_core::Error;
use verbwire_core::wire::{Header, Hello, Kind};
use verbwire_rdma::testing::{
    Access, Cm, CmListener, Connected, Cq, Cqs, Depths, Domain, Frame, Inline, Nic, NicAccess,
    NicBuf, Place, Poison, Pool, Qp, Reaper, RecvWr, SendOp, SendWr, Sge, Sges, Signal, Slab,
    WcStatus, WrId,
};

pub use frames::{encode, frame_of, head, head_of, rts};

use crate::fixture::LONG;
use crate::raw::hello;

/// Its buffers, of which half are receives.
const LEN: usize = 16 << 10;
const RECEIVES: u32 = 128;

/// Not one of a receive.
const SENT: WrId = WrId(u64::MAX);

/// Where a raw peer lives: a connection manager, and who destroys its queue pairs.
#[derive(Clone)]
pub struct RawHost {
    /// Its connection manager.
    pub cm: Arc<dyn Cm>,
    /// Destroys queue pairs where that may block.
    pub reaper: Arc<dyn Reaper>,
}

/// See the module.
pub struct RawRdma {
    nic: Arc<dyn Nic>,
    pool: Arc<Pool>,
    qp: Arc<dyn Qp>,
    cq: Arc<dyn Cq>,
    reaper: Arc<dyn Reaper>,
    receives: Vec<NicBuf>,
    sends: Vec<NicBuf>,
    /// Memory that the other side may write to.
    landings: Vec<(Arc<Pool>, NicBuf)>,
    /// What that is registered with.
    domain: Domain,
    connected: Option<Connected>,
    is_over: bool,
    failure: Option<WcStatus>,
}

/// Where products connect to a [`RawRdma`].
pub struct RawRdmaListener {
    listener: Box<dyn CmListener>,
    host: RawHost,
}

impl Drop for RawRdma {
    fn drop(&mut self) {
        let qp = Arc::clone(&self.qp);
        self.reaper.run(Box::new(move || qp.destroy()));
    }
}

impl RawHost {
    /// Listens at `address`.
    ///
    /// # Panics
    ///
    /// If it cannot.
    pub async fn listen(&self, address: &str) -> RawRdmaListener {
        let listener = self.cm.listen(address).await.expect("a free port");
        RawRdmaListener { listener, host: self.clone() }
    }

    /// Connects and says nothing.
    ///
    /// # Errors
    ///
    /// The other side refuses.
    pub async fn connect(&self, address: &str) -> Result<RawRdma, Error> {
        self.connect_with(address, greeting(hello().connection)).await
    }

    /// The same with other private data.
    ///
    /// # Errors
    ///
    /// The other side refuses.
    pub async fn connect_with(
        &self,
        address: &str,
        private_data: Vec<u8>,
    ) -> Result<RawRdma, Error> {
        self.connect_to_receive(RECEIVES, address, private_data).await
    }

    /// The same with few receives, so that thousands cost little.
    ///
    /// # Errors
    ///
    /// The other side refuses.
    pub async fn knock(&self, address: &str, private_data: Vec<u8>) -> Result<RawRdma, Error> {
        self.connect_to_receive(4, address, private_data).await
    }

    async fn connect_to_receive(
        &self,
        receives: u32,
        address: &str,
        private_data: Vec<u8>,
    ) -> Result<RawRdma, Error> {
        let resolved = self.cm.resolve(address).await?;
        let mut raw = RawRdma::open(resolved.nic(), Arc::clone(&self.reaper), receives);
        raw.connected = Some(resolved.connect(Arc::clone(&raw.qp), private_data).await?);
        Ok(raw)
    }

    /// Connects and exchanges HELLO.
    ///
    /// # Panics
    ///
    /// If the other side refuses.
    pub async fn established(&self, address: &str) -> RawRdma {
        self.established_as(address, &RawRdma::hello()).await
    }

    /// The same with another HELLO.
    ///
    /// # Panics
    ///
    /// If the other side refuses.
    pub async fn established_as(&self, address: &str, ours: &Hello) -> RawRdma {
        let mut raw = self.connect(address).await.expect("accepted");
        raw.send(&ours.encode_framed());
        raw.receive().await.expect("HELLO");
        raw
    }
}

impl RawRdmaListener {
    /// The address, with its port.
    pub fn address(&self) -> &str {
        self.listener.local_address()
    }

    /// The next client, with HELLOs exchanged.
    ///
    /// # Panics
    ///
    /// If none comes, or says no HELLO.
    pub async fn accept(&mut self) -> RawRdma {
        let request = poll_fn(|cx| self.listener.poll_request(cx)).await.expect("a client");
        let mut raw = RawRdma::open(request.nic(), Arc::clone(&self.host.reaper), RECEIVES);
        let private_data = request.private_data().iter().take(16).copied().collect();
        let connected = request.accept(Arc::clone(&raw.qp), private_data).await;
        raw.connected = Some(connected.expect("the client waits"));
        raw.receive().await.expect("HELLO");
        raw.send(&RawRdma::hello().encode_framed());
        raw
    }
}

impl RawRdma {
    /// Its HELLO: default limits and windows.
    pub fn hello() -> Hello {
        Hello { data_window: 64, control_window: 16, receive_len: 8192, ..hello() }
    }

    /// A queue pair with all its receives.
    fn open(nic: Arc<dyn Nic>, reaper: Arc<dyn Reaper>, count: u32) -> Self {
        let pool = Pool::new(Slab::new(LEN, 2 * count as usize), Poison::Off);
        let region = nic.register(pool.slab(), Access::Local).expect("memory");
        pool.slab().set_region(region);
        let cq = nic.create_cq(4 * count).expect("a queue");
        let depths = Depths { send: count, recv: count };
        let qp = nic.create_qp(&Cqs::one(&cq), depths).expect("a queue pair");
        let post = |number: u32| {
            let buf = pool.take().expect("free").into_nic(NicAccess::Write);
            let wr = RecvWr { id: WrId(u64::from(number)), sge: sge(&buf, LEN) };
            qp.post_recv(&[wr]).expect("room");
            buf
        };
        let receives = (0..count).map(post).collect();
        Self {
            nic,
            pool,
            qp,
            cq,
            reaper,
            receives,
            sends: Vec::new(),
            landings: Vec::new(),
            domain: Domain::unique(),
            connected: None,
            is_over: false,
            failure: None,
        }
    }

    /// Sends a message.
    pub fn send(&mut self, message: &[u8]) {
        self.post(SendOp::Send, message);
    }

    /// Sends a frame: a header and what stands behind it.
    pub fn send_frame(&mut self, header: Header, behind: &[u8]) {
        self.send(&[&header.encode()[..], behind].concat());
    }

    /// Sends a frame about grants.
    pub fn say(&mut self, frame: Frame) {
        self.send(&encode(frame));
    }

    /// Writes into memory of the other side, whatever it says.
    pub fn write(&mut self, place: Place, bytes: &[u8]) {
        for (number, piece) in (0..).zip(bytes.chunks(LEN)) {
            let address = place.address.wrapping_add(number * LEN as u64);
            self.post(SendOp::Write { address, rkey: place.rkey }, piece);
        }
    }

    fn post(&mut self, op: SendOp, bytes: &[u8]) {
        let mut buf = self.pool.take().expect("free");
        buf[..bytes.len()].copy_from_slice(bytes);
        let buf = buf.into_nic(NicAccess::Read);
        let sges = Sges::one(sge(&buf, bytes.len()));
        let wr = SendWr { id: SENT, op, sges, signal: Signal::No, inline: Inline::No };
        // A device may refuse what is posted to a queue pair that has failed.
        let posted = self.qp.post_send(&[wr]);
        assert!(posted.is_ok() || self.failure.is_some(), "{posted:?}");
        self.sends.push(buf);
    }

    /// Memory of this side, for the other one to write to. It begins on a page.
    pub fn landing(&mut self, len: usize) -> Place {
        let pool = Pool::new(Slab::new(len, 1), Poison::Off);
        let region = self.nic.register(pool.slab(), Access::RemoteWrite).expect("memory");
        pool.slab().add_region(self.domain, region);
        let buf = pool.take().expect("free").into_nic(NicAccess::Write);
        let (_, rkey) = pool.slab().keys_in(self.domain).expect("registered above");
        let place = Place { address: buf.address(), rkey };
        self.landings.push((pool, buf));
        place
    }

    /// Ends the registration of memory that [`landing`](Self::landing) gave: its key is stale.
    pub fn deregister(&self, place: Place) {
        self.slab_of(place).end_region(self.domain);
    }

    /// What is in memory that [`landing`](Self::landing) gave.
    pub fn landed(&self, place: Place, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        let read = self.slab_of(place).dma_read(place.address + range.start as u64, &mut bytes);
        read.expect("the NIC's memory");
        bytes
    }

    fn slab_of(&self, place: Place) -> &Arc<Slab> {
        let found = self.landings.iter().find(|(_, buf)| buf.address() == place.address);
        let (pool, _) = found.expect("memory of this peer");
        pool.slab()
    }

    /// The next message; `None` at the end of the connection.
    ///
    /// # Panics
    ///
    /// If neither comes.
    pub async fn receive(&mut self) -> Option<Vec<u8>> {
        timeout(3 * LONG, self.next()).await.expect("a message, or the end")
    }

    /// The next message that comes within `patience`.
    pub async fn receive_within(&mut self, patience: Duration) -> Option<Vec<u8>> {
        timeout(patience, self.next()).await.ok().flatten()
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut completions = Vec::new();
            self.cq.arm().ok()?;
            if self.cq.poll(&mut completions, 1).ok()? == 0 {
                if self.is_over {
                    return None;
                }
                // What came before the end is still there.
                self.is_over = !self.event().await;
                continue;
            }
            let wc = completions[0];
            let len = match wc.result {
                Ok(len) => len as usize,
                Err(status) => {
                    self.failed(status);
                    continue;
                }
            };
            let place = usize::try_from(wc.id.0).ok();
            let Some(buf) = place.and_then(|place| self.receives.get(place)) else { continue };
            let mut message = vec![0; len];
            self.pool.slab().dma_read(buf.address(), &mut message).expect("the NIC's memory");
            return Some(message);
        }
    }

    /// The queue pair is dead. What is flushed says nothing, if something else failed.
    fn failed(&mut self, status: WcStatus) {
        if matches!(self.failure, None | Some(WcStatus::FLUSHED)) {
            self.failure = Some(status);
        }
        self.is_over = true;
    }

    /// Waits until there may be completions. `false` at the end of the connection.
    async fn event(&mut self) -> bool {
        let cq = &self.cq;
        let Some(connected) = &mut self.connected else { return false };
        poll_fn(|cx| {
            if let Poll::Ready(event) = cq.poll_event(cx) {
                return Poll::Ready(event.is_ok());
            }
            connected.events.poll_disconnected(cx).map(|_cause| false)
        })
        .await
    }

    /// The next frame about grants, over any others.
    ///
    /// # Panics
    ///
    /// If the connection ends before.
    pub async fn heard(&mut self) -> Frame {
        loop {
            let message = self.receive().await.expect("a frame about grants");
            if let Some(frame) = frame_of(&message) {
                return frame;
            }
        }
    }

    /// The words of the GOAWAY with which the other side ends the connection, if it came.
    pub async fn told(&mut self) -> Option<String> {
        let mut words = None;
        while let Some(message) = self.receive().await {
            if message[0] == Kind::GoAway as u8 {
                words = Some(String::from_utf8_lossy(&message[40..]).into_owned());
            }
        }
        words
    }

    /// Waits for the end of the connection; why the first work request failed, if one did.
    pub async fn ended(&mut self) -> Option<WcStatus> {
        while self.receive().await.is_some() {}
        self.failure
    }
}

/// The private data of a connect request: magic, version and nonce.
fn greeting(nonce: u64) -> Vec<u8> {
    [&b"VWRD\0\0\0\0"[..], &nonce.to_le_bytes()].concat()
}

fn sge(buf: &NicBuf, len: usize) -> Sge {
    let len = u32::try_from(len).expect("short");
    Sge { address: buf.address(), len, lkey: buf.lkey().expect("registered") }
}
