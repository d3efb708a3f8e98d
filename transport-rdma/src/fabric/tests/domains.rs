//! Protection domains: what is registered in one is out of reach for the queue pairs of another.

use super::rig::{ALL, CHUNK, pair};
use crate::memory::{NicAccess, Poison, Pool, Released, Slab};
use crate::nic::{Access, Sges, WcStatus};

#[tokio::test(start_paused = true)]
async fn memory_of_another_domain_is_neither_written_nor_sent() {
    for profile in ALL {
        let (fabric, mut a, b) = pair(profile, 1).await;
        let apart = b.nic.own_domain().expect("it has more");
        let pool = Pool::new(Slab::new(CHUNK, 2), Poison::Off);
        pool.slab().set_region(apart.register(pool.slab(), Access::RemoteWrite).expect("room"));
        let landing = pool.take().expect("free").into_nic(NicAccess::Write);
        a.write(1, b"foreign", landing.address(), landing.rkey().expect("registered"));
        let is_refused = match a.outcomes().await[..] {
            // iWARP reports success and ends the stream.
            [(1, Ok(0))] => a.is_disconnected().await,
            [(1, Err(status))] => status == WcStatus::REMOTE_ACCESS,
            _ => false,
        };
        assert!(is_refused, "{profile:?}");
        assert!(landing.into_cpu(Released::by_nic()).iter().all(|byte| *byte == 0));
        let (_fabric, mut other, _b) = pair(profile, 1).await;
        let region = other.nic.own_domain().expect("it has more");
        let region = region.register(other.pool.slab(), Access::Local).expect("room");
        let mut wr = other.wr(2, b"x");
        let mut sge = wr.sges.as_slice()[0];
        sge.lkey = region.lkey();
        wr.sges = Sges::one(sge);
        other.qp.post_send(&[wr]).expect("room");
        let outcomes = other.outcomes().await;
        assert_eq!(outcomes[0], (2, Err(WcStatus::LOCAL_PROTECTION)), "{profile:?}");
        assert_eq!(fabric.violations(), []);
    }
}
