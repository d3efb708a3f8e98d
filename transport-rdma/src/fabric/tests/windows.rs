//! Memory windows: what a peer reaches through one, and what it does not.

use std::sync::Arc;

use super::rig::{CHUNK, DEPTHS, Side, config, connect, pair, pair_of, slow};
use crate::fabric::{Binding, Profile};
use crate::memory::{NicAccess, NicBuf, Poison, Pool, Released, Rkey, Slab};
use crate::nic::{Access, Inline, SendOp, SendWr, Sges, Signal, WcStatus, Window, WrId};

/// Memory of a host that peers reach through windows only, and a window.
struct Shut {
    pool: Arc<Pool>,
    window: Box<dyn Window>,
}

impl Shut {
    fn new(side: &Side) -> Self {
        let pool = Pool::new(Slab::new(CHUNK, 4), Poison::Off);
        let region = side.nic.register(pool.slab(), Access::Windows).expect("within limits");
        pool.slab().set_region(region);
        Self { pool, window: side.nic.allocate_window().expect("it has some") }
    }

    fn take(&self) -> NicBuf {
        self.pool.take().expect("free").into_nic(NicAccess::Write)
    }

    fn bind(&self, buf: &NicBuf) -> (SendOp, Rkey) {
        let rkey = self.window.key().following();
        let lkey = buf.lkey().expect("registered");
        (SendOp::Bind { rkey, lkey, address: buf.address(), len: 100 }, rkey)
    }
}

fn wr(id: u64, op: SendOp) -> SendWr {
    SendWr { id: WrId(id), op, sges: Sges::none(), signal: Signal::Yes, inline: Inline::No }
}

fn post(side: &Side, id: u64, op: SendOp) {
    side.qp.post_send(&[wr(id, op)]).expect("room");
}

fn bytes(buf: NicBuf) -> Vec<u8> {
    buf.into_cpu(Released::by_nic()).to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_bound_window_gives_rights_to_its_bounds_until_it_is_invalidated() {
    let (fabric, mut a, b) = pair(Profile::Mlx5Like, 0).await;
    let shut = Shut::new(&b);
    let buf = shut.take();
    let (bind, rkey) = shut.bind(&buf);
    post(&b, 1, bind);
    assert_eq!(b.outcomes().await, [(1, Ok(0))]);
    a.write(1, &[7; 60], buf.address() + 40, rkey);
    assert_eq!(a.outcomes().await, [(1, Ok(0))]);
    post(&b, 2, SendOp::Invalidate { rkey });
    assert_eq!(b.outcomes().await, [(2, Ok(0))]);
    a.write(2, b"late", buf.address(), rkey);
    assert_eq!(a.outcomes().await, [(2, Err(WcStatus::REMOTE_ACCESS))]);
    let counters = b.host.counters();
    assert_eq!((counters.binds, counters.invalidations), (1, 1));
    let address = buf.address();
    let bytes = bytes(buf);
    assert_eq!((&bytes[..40], &bytes[40..100], bytes[100]), (&[0; 40][..], &[7; 60][..], 0));
    assert_eq!((fabric.violations(), address % 4096), (Vec::new(), 0));
}

/// What is not covered by the window, one case each; on soft-RoCE the bounds are not.
#[tokio::test(start_paused = true)]
async fn a_write_beside_the_window_is_refused() {
    for profile in [Profile::Mlx5Like, Profile::Rxe] {
        for case in 0..5 {
            let (fabric, mut a, b) = pair(profile, 0).await;
            let shut = Shut::new(&b);
            let (buf, other) = (shut.take(), shut.take());
            let (bind, rkey) = shut.bind(&buf);
            post(&b, 1, bind);
            assert_eq!(b.outcomes().await, [(1, Ok(0))]);
            let (address, key) = match case {
                0 => (buf.address() + 98, rkey),
                1 => (other.address(), rkey),
                2 => (buf.address(), shut.window.key()),
                3 => (buf.address(), rkey.following()),
                _ => (buf.address(), buf.rkey().expect("registered")),
            };
            a.write(1, b"xyz", address, key);
            let is_let_through = profile == Profile::Rxe && case < 2;
            let expected = if is_let_through { Ok(0) } else { Err(WcStatus::REMOTE_ACCESS) };
            assert_eq!(a.outcomes().await, [(1, expected)], "case {case} on {profile:?}");
            let is_clean = [buf, other].map(bytes).iter().flatten().all(|byte| *byte == 0);
            assert_eq!(is_clean, !is_let_through, "case {case} on {profile:?}");
            assert_eq!(fabric.violations(), []);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_belongs_to_the_queue_pair_that_it_was_bound_on() {
    for profile in [Profile::Mlx5Like, Profile::Rxe] {
        let (fabric, mut a, b) = pair(profile, 0).await;
        let [mut c, mut other] = ["c", "b"].map(|name| Side::new(&fabric, name, DEPTHS, 64));
        connect(&fabric, &mut c, &mut other, 0).await;
        let shut = Shut::new(&b);
        let buf = shut.take();
        let (bind, rkey) = shut.bind(&buf);
        post(&b, 1, bind);
        assert_eq!(b.outcomes().await, [(1, Ok(0))]);
        c.write(1, b"foreign", buf.address(), rkey);
        assert_eq!(c.outcomes().await, [(1, Err(WcStatus::REMOTE_ACCESS))], "{profile:?}");
        a.write(1, b"own", buf.address(), rkey);
        assert_eq!(a.outcomes().await, [(1, Ok(0))], "{profile:?}");
        // Nor can it be invalidated from another one.
        let mut third = Side::new(&fabric, "b", DEPTHS, 64);
        let mut d = Side::new(&fabric, "d", DEPTHS, 64);
        connect(&fabric, &mut d, &mut third, 0).await;
        post(&third, 2, SendOp::Invalidate { rkey });
        assert_eq!(third.outcomes().await, [(2, Err(WcStatus::LOCAL_QP_OPERATION))]);
        assert_eq!(&bytes(buf)[..4], b"own\0");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bind_that_the_device_cannot_carry_out_kills_the_queue_pair() {
    for case in 0..5 {
        let mut config = config(Profile::Mlx5Like);
        if case == 0 {
            config.binding = Binding::Refused;
        }
        let (_fabric, _a, b) = pair_of(config, 0).await;
        let shut = Shut::new(&b);
        let (buf, open) = (shut.take(), b.pool.take().expect("free").into_nic(NicAccess::Write));
        let (SendOp::Bind { mut rkey, mut lkey, address, mut len }, _) = shut.bind(&buf) else {
            unreachable!("it is one")
        };
        match case {
            1 => rkey = shut.window.key(),
            2 => lkey = open.lkey().expect("registered"),
            3 => len = 5 * CHUNK as u64,
            4 => len = 0,
            _ => {}
        }
        post(&b, 1, SendOp::Bind { rkey, lkey, address, len });
        post(&b, 2, SendOp::Invalidate { rkey });
        let outcomes = b.outcomes().await;
        assert_eq!(outcomes[0], (1, Err(WcStatus::WINDOW_BIND)), "case {case}");
        assert_eq!(outcomes[1], (2, Err(WcStatus::FLUSHED)), "case {case}");
        drop([buf, open].map(bytes));
    }
}

#[tokio::test(start_paused = true)]
async fn invalidating_under_a_write_kills_the_connection_and_the_bytes_stay_out() {
    let (fabric, mut a, mut b) = pair_of(slow(Profile::Mlx5Like), 0).await;
    b.recv(100);
    let shut = Shut::new(&b);
    let buf = shut.take();
    let (bind, rkey) = shut.bind(&buf);
    post(&b, 1, bind);
    assert_eq!(b.wait().await.result, Ok(0));
    a.write(1, b"under way", buf.address(), rkey);
    post(&b, 2, SendOp::Invalidate { rkey });
    assert_eq!(a.outcomes().await, [(1, Err(WcStatus::REMOTE_ACCESS))]);
    assert_eq!(b.outcomes().await, [(2, Ok(0)), (100, Err(WcStatus::FLUSHED))]);
    assert!(bytes(buf).iter().all(|byte| *byte == 0));
    assert_eq!(fabric.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_window_that_is_bound_twice_or_has_lost_its_memory_is_of_no_use() {
    let (_fabric, mut a, b) = pair(Profile::Mlx5Like, 0).await;
    let shut = Shut::new(&b);
    let buf = shut.take();
    let region = b.nic.register(shut.pool.slab(), Access::Windows).expect("within limits");
    let rkey = shut.window.key().following();
    let (lkey, address) = (region.lkey(), buf.address());
    post(&b, 1, SendOp::Bind { rkey, lkey, address, len: 8 });
    assert_eq!(b.outcomes().await, [(1, Ok(0))]);
    drop(region);
    a.write(1, b"x", address, rkey);
    assert_eq!(a.outcomes().await, [(1, Err(WcStatus::REMOTE_ACCESS))]);
    let (_fabric, _a, b) = pair(Profile::Mlx5Like, 0).await;
    let again = Shut::new(&b);
    let two = again.take();
    let (bind, rkey) = again.bind(&two);
    let SendOp::Bind { lkey, address, len, .. } = bind else { unreachable!("it is one") };
    post(&b, 1, bind);
    post(&b, 2, SendOp::Bind { rkey: rkey.following(), lkey, address, len });
    assert_eq!(b.outcomes().await, [(1, Ok(0)), (2, Err(WcStatus::WINDOW_BIND))]);
    drop([buf, two].map(bytes));
}

#[tokio::test(start_paused = true)]
async fn a_device_without_windows_says_so() {
    let (_fabric, _a, b) = pair(Profile::Siw, 0).await;
    assert!(b.nic.allocate_window().is_err());
    assert!(b.qp.post_send(&[wr(1, SendOp::Invalidate { rkey: Rkey(1) })]).is_err());
}
