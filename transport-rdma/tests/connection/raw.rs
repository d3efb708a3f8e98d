//! A peer that speaks the NIC seam itself and keeps to no rule.

use std::future::poll_fn;
use std::sync::Arc;

use verbwire_core::Error;
use verbwire_core::wire::{Header, Hello};
use verbwire_rdma::fabric::FabricHost;
use verbwire_rdma::memory::{NicAccess, NicBuf, Poison, Pool, Slab};
use verbwire_rdma::nic::{
    Access, Connected, Cq, Cqs, Depths, Inline, Qp, RecvWr, SendOp, SendWr, Sge, Sges, Signal, WrId,
};

use crate::pair::hello;

const LEN: usize = 16 << 10;
const RECEIVES: u32 = 128;

/// See the module. It never takes a buffer back.
pub(crate) struct Raw {
    pool: Arc<Pool>,
    qp: Arc<dyn Qp>,
    cq: Arc<dyn Cq>,
    receives: Vec<NicBuf>,
    sends: Vec<NicBuf>,
    _connected: Connected,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.qp.destroy();
    }
}

impl Raw {
    pub(crate) fn hello() -> Hello {
        Hello { data_window: 64, control_window: 16, receive_len: 8192, ..hello() }
    }

    pub(crate) async fn connect(host: &FabricHost, address: &str) -> Result<Self, Error> {
        let nonce = hello().connection.to_le_bytes();
        Self::connect_with(host, address, [&b"VWRD\0\0\0\0"[..], &nonce].concat()).await
    }

    pub(crate) async fn connect_with(
        host: &FabricHost,
        address: &str,
        private_data: Vec<u8>,
    ) -> Result<Self, Error> {
        let cm = host.cm();
        let resolved = cm.resolve(address).await?;
        let nic = resolved.nic();
        let pool = Pool::new(Slab::new(LEN, 2 * RECEIVES as usize), Poison::Off);
        let region = nic.register(pool.slab(), Access::Local).expect("memory");
        pool.slab().set_region(region);
        let cq = nic.create_cq(4 * RECEIVES).expect("a queue");
        let depths = Depths { send: RECEIVES, recv: RECEIVES };
        let qp = nic.create_qp(&Cqs::one(&cq), depths).expect("a queue pair");
        let receives: Vec<_> = (0..RECEIVES)
            .map(|number| {
                let buf = pool.take().expect("free").into_nic(NicAccess::Write);
                let wr = RecvWr { id: WrId(u64::from(number)), sge: sge(&buf, LEN) };
                qp.post_recv(&[wr]).expect("room");
                buf
            })
            .collect();
        let connected = resolved.connect(Arc::clone(&qp), private_data).await?;
        Ok(Self { pool, qp, cq, receives, sends: Vec::new(), _connected: connected })
    }

    /// Connects and exchanges HELLO.
    pub(crate) async fn established(host: &FabricHost, address: &str) -> Self {
        let mut raw = Self::connect(host, address).await.expect("accepted");
        raw.send(&Self::hello().encode_framed());
        raw.receive().await.expect("HELLO");
        raw
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        let mut buf = self.pool.take().expect("free");
        buf[..message.len()].copy_from_slice(message);
        let buf = buf.into_nic(NicAccess::Read);
        let wr = SendWr {
            id: WrId(u64::MAX),
            op: SendOp::Send,
            sges: Sges::one(sge(&buf, message.len())),
            signal: Signal::No,
            inline: Inline::No,
        };
        self.qp.post_send(&[wr]).expect("room");
        self.sends.push(buf);
    }

    pub(crate) fn send_frame(&mut self, header: Header, behind: &[u8]) {
        self.send(&[&header.encode()[..], behind].concat());
    }

    /// The next message; `None` at the end of the connection.
    pub(crate) async fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut completions = Vec::new();
            self.cq.arm().ok()?;
            if self.cq.poll(&mut completions, 1).ok()? == 0 {
                let disconnected = &mut self._connected.events;
                let cq = &self.cq;
                let is_event = poll_fn(|cx| {
                    if let std::task::Poll::Ready(event) = cq.poll_event(cx) {
                        return std::task::Poll::Ready(event.is_ok());
                    }
                    disconnected.poll_disconnected(cx).map(|_cause| false)
                })
                .await;
                if !is_event {
                    return None;
                }
                continue;
            }
            let wc = completions[0];
            let len = wc.result.ok()? as usize;
            let place = usize::try_from(wc.id.0).ok();
            let Some(buf) = place.and_then(|place| self.receives.get(place)) else { continue };
            let mut message = vec![0; len];
            self.pool.slab().dma_read(buf.address(), &mut message).expect("the NIC's memory");
            return Some(message);
        }
    }
}

fn sge(buf: &NicBuf, len: usize) -> Sge {
    let len = u32::try_from(len).expect("short");
    Sge { address: buf.address(), len, lkey: buf.lkey().expect("registered") }
}
