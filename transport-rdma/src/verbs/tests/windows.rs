//! Memory windows of type 2: what a device that says it has them does with them.

use super::*;

/// Memory that peers reach through windows only, and a window.
struct Shut {
    pool: Arc<Pool>,
    window: Box<dyn Window>,
}

impl Shut {
    fn new(nic: &dyn Nic) -> Self {
        let pool = Pool::new(Slab::new(CHUNK, 2), Poison::Off);
        let region = nic.register(pool.slab(), Access::Windows).expect("registers");
        pool.slab().set_region(region);
        Self { pool, window: nic.allocate_window().expect("a window") }
    }

    fn bind(&self, buf: &NicBuf, key: Rkey) -> SendOp {
        let (lkey, address) = (buf.lkey().expect("registered"), buf.address());
        SendOp::Bind { rkey: key, lkey, address, len: 256 }
    }
}

async fn carry_out(side: &Side, id: u64, op: SendOp) -> Result<u32, WcStatus> {
    let (sges, signal, inline) = (Sges::none(), Signal::Yes, Inline::No);
    side.qp.post_send(&[SendWr { id: WrId(id), op, sges, signal, inline }]).expect("posts");
    loop {
        let wc = side.complete().await;
        if wc.id == WrId(id) {
            return wc.result;
        }
    }
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_window_gives_rights_until_it_is_invalidated() {
    let nic = device();
    if is_siw() {
        assert_eq!(nic.capabilities().memory_windows, Windows::No);
        assert!(nic.allocate_window().is_err());
        return;
    }
    assert_eq!(nic.capabilities().memory_windows, Windows::Porous, "rxe checks no bounds");
    let ((mut client, mut one), (server, _two)) = pair().await;
    let shut = Shut::new(&*nic);
    let buf = shut.pool.take().expect("free").into_nic(NicAccess::Write);
    let (address, mut key) = (buf.address(), shut.window.key());
    // Over and over: each time under the next key.
    for round in 0..3_u8 {
        key = key.following();
        assert_eq!(carry_out(&server, 1000, shut.bind(&buf, key)).await, Ok(0));
        let write = SendOp::Write { address, rkey: key };
        client.send(2000, write, &[round + 1; 64], Inline::No);
        assert_eq!(client.complete().await.result, Ok(0), "round {round}");
        assert_eq!(carry_out(&server, 1001, SendOp::Invalidate { rkey: key }).await, Ok(0));
    }
    let write = SendOp::Write { address, rkey: key };
    client.send(2001, write, &[9; 64], Inline::No);
    assert_eq!(client.complete().await.result, Err(WcStatus::REMOTE_ACCESS), "a stale key");
    one.events.disconnect();
    server.qp.destroy();
    let memory = buf.into_cpu(Released::by_nic());
    assert!(memory[..64].iter().all(|byte| *byte == 3) && memory[64..].iter().all(|b| *b == 0));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_window_and_its_memory_are_nobody_elses() {
    if is_siw() {
        return;
    }
    let nic = device();
    let ((_client, _one), (server, _two)) = pair().await;
    let ((mut foreign, mut three), (_server, _four)) = pair().await;
    let shut = Shut::new(&*nic);
    let buf = shut.pool.take().expect("free").into_nic(NicAccess::Write);
    let key = shut.window.key().following();
    assert_eq!(carry_out(&server, 1000, shut.bind(&buf, key)).await, Ok(0));
    let write = SendOp::Write { address: buf.address(), rkey: key };
    foreign.send(2000, write, &[9; 64], Inline::No);
    let refused = foreign.complete().await.result;
    assert_eq!(refused, Err(WcStatus::REMOTE_ACCESS), "another queue pair's window");
    three.events.disconnect();
    let ((mut client, _five), (_other, _six)) = pair().await;
    let write = SendOp::Write { address: buf.address(), rkey: buf.rkey().expect("registered") };
    client.send(2001, write, &[9; 64], Inline::No);
    let refused = client.complete().await.result;
    assert_eq!(refused, Err(WcStatus::REMOTE_ACCESS), "the registration itself gives no right");
    assert_eq!(carry_out(&server, 1001, SendOp::Invalidate { rkey: key }).await, Ok(0));
    server.qp.destroy();
    assert!(buf.into_cpu(Released::by_nic()).iter().all(|byte| *byte == 0));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_bind_that_cannot_be_is_told_and_ends_the_connection() {
    if is_siw() {
        return;
    }
    let nic = device();
    let ((_client, _one), (server, _two)) = pair().await;
    let shut = Shut::new(&*nic);
    // Registered for Writes, not for windows.
    let open = server.take().into_nic(NicAccess::Write);
    let lkey = open.lkey().expect("registered");
    let rkey = shut.window.key().following();
    let op = SendOp::Bind { rkey, lkey, address: open.address(), len: 256 };
    let (sges, signal, inline) = (Sges::none(), Signal::Yes, Inline::No);
    let posted = server.qp.post_send(&[SendWr { id: WrId(1), op, sges, signal, inline }]);
    assert!(posted.is_err(), "this side knows which memory can be bound");
    let mut shorter = shut.bind(&open, rkey);
    let buf = shut.pool.take().expect("free").into_nic(NicAccess::Write);
    if let SendOp::Bind { lkey, address, len, .. } = &mut shorter {
        (*lkey, *address, *len) = (buf.lkey().expect("registered"), buf.address(), 1 << 30);
    }
    let refused = carry_out(&server, 1000, shorter).await;
    assert_eq!(refused, Err(WcStatus::WINDOW_BIND), "longer than its memory");
    server.qp.destroy();
    drop([open, buf].map(|buf| buf.into_cpu(Released::by_nic())));
}
