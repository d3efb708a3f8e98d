//! Shared receive queues on a device.

use std::collections::BTreeMap;

use super::*;

/// A shared receive queue with its receives, and a completion queue for all queue pairs on it.
struct Shared {
    nic: Arc<dyn Nic>,
    srq: Arc<dyn Srq>,
    cq: Arc<dyn Cq>,
    pool: Arc<Pool>,
    posted: BTreeMap<u64, NicBuf>,
}

impl Shared {
    fn open(receives: u64) -> Self {
        let nic: Arc<dyn Nic> = device();
        let depth = u32::try_from(receives).expect("few");
        println!("at most {} receives", nic.capabilities().max_srq_wr);
        let pool = Pool::new(Slab::new(CHUNK, 64), Poison::Off);
        let region = nic.register(pool.slab(), Access::Local).expect("registers");
        pool.slab().set_region(region);
        let srq = nic.create_srq(depth).expect("a shared receive queue");
        let cq = nic.create_cq(64).expect("a completion queue");
        let mut shared = Self { nic, srq, cq, pool, posted: BTreeMap::new() };
        (0..receives).for_each(|id| shared.receive(id));
        shared
    }

    fn receive(&mut self, id: u64) {
        let buf = self.pool.take().expect("a free chunk").into_nic(NicAccess::Write);
        let sge = sge(&buf, CHUNK);
        self.posted.insert(id, buf);
        self.srq.post_recv(&[RecvWr { id: WrId(id), sge }]).expect("posts");
    }

    /// A queue pair on it and its peer, which is connected.
    async fn connect(&self) -> (Arc<dyn Qp>, Side, [Connected; 2]) {
        let cm = cm();
        let mut listener = cm.listen(&format!("{}:0", lab("LAB_ADDRESS"))).await.expect("listens");
        let address = listener.local_address().to_owned();
        let accepting = async {
            let request = poll_fn(|cx| listener.poll_request(cx)).await.expect("a request");
            let cqs = Cqs::one(&self.cq);
            let qp = self.nic.create_qp_on(&self.srq, &cqs, 32).expect("a queue pair");
            let accepted = request.accept(Arc::clone(&qp), b"welcome".to_vec()).await;
            (qp, accepted.expect("accepts"))
        };
        let connecting = async {
            let resolved = cm.resolve(&address).await.expect("resolves");
            let mut side = Side::open(&resolved.nic());
            (0..8).for_each(|id| side.receive(id));
            let connected = resolved.connect(Arc::clone(&side.qp), b"hello".to_vec()).await;
            (side, connected.expect("connects"))
        };
        let ((qp, accepted), (side, connected)) =
            timeout(Duration::from_secs(30), async { tokio::join!(accepting, connecting) })
                .await
                .expect("connected within 30 s");
        (qp, side, [accepted, connected])
    }

    /// Waits for a message; returns whose it is and what it says, and posts its receive again.
    async fn message(&mut self) -> (QpNumber, Vec<u8>) {
        let wc = completion(&*self.cq).await;
        let len = wc.result.expect("received") as usize;
        let buf = self.posted.remove(&wc.id.0).expect("posted").into_cpu(Released::by_nic());
        let message = buf[..len].to_vec();
        drop(buf);
        self.receive(wc.id.0);
        (wc.qp, message)
    }

    async fn end(mut self, qps: Vec<Arc<dyn Qp>>) {
        let (srq, posted) = (Arc::clone(&self.srq), std::mem::take(&mut self.posted));
        let (done, ended) = tokio::sync::oneshot::channel();
        reap(move || {
            qps.iter().for_each(|qp| qp.destroy());
            drop(qps);
            srq.destroy();
            posted.into_values().for_each(|buf| drop(buf.into_cpu(Released::by_nic())));
            let _nobody_waits = done.send(());
        });
        timeout(Duration::from_secs(60), ended).await.expect("in time").expect("destroyed");
        assert_eq!((self.pool.free(), self.pool.leaked()), (64, 0));
    }
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn messages_of_two_connections_take_receives_of_one_queue() {
    let mut shared = Shared::open(16);
    let (one, mut near, _events) = shared.connect().await;
    let (two, mut far, _events) = shared.connect().await;
    assert_ne!(one.number(), two.number());
    for round in 0..100_u64 {
        let (qp, side) = if round % 3 == 0 { (&one, &mut near) } else { (&two, &mut far) };
        let text = format!("round {round}");
        side.send(1000 + round, SendOp::Send, text.as_bytes(), Inline::Yes);
        assert_eq!(side.complete().await.result, Ok(0));
        let own = side.posted.pop().expect("the send's");
        drop(own.into_cpu(Released::by_nic()));
        assert_eq!(shared.message().await, (qp.number(), text.into_bytes()));
    }
    shared.end(vec![one, two]).await;
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_connection_that_fails_leaves_the_receives_to_the_others() {
    let mut shared = Shared::open(4);
    let (one, near, _events) = shared.connect().await;
    let (two, mut far, _events) = shared.connect().await;
    one.fail();
    drop(near);
    for round in 0..12_u64 {
        far.send(1000 + round, SendOp::Send, b"still here", Inline::Yes);
        assert_eq!(far.complete().await.result, Ok(0));
        let own = far.posted.pop().expect("the send's");
        drop(own.into_cpu(Released::by_nic()));
        assert_eq!(shared.message().await, (two.number(), b"still here".to_vec()));
    }
    shared.end(vec![one, two]).await;
}
