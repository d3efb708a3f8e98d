//! Pools on a NIC that checks every access: payloads travel by Writes from where they lie to where they landed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::rig::*;
use crate::fabric::{Fabric, FabricConfig, Profile, ViolationKind};
use crate::memory::{Domain, Lent, Released};
use crate::nic::{Inline, SendOp, SendWr, Sge, Sges, Signal, WcStatus, WrId};
use crate::pool::{
    Fenced, GrantClosed, Granted, Isolation, Landing, LandingConfig, PoolSize, Sources, Staging,
    Tenant,
};
use crate::reaper::InPlace;

const LEN: usize = 1 << 20;

/// A host's pools.
struct Pools {
    domain: Domain,
    staging: Staging,
    landing: Landing,
}

impl Pools {
    fn new(side: &Side, cap: usize) -> Self {
        let (domain, sources) = (Domain::unique(), Sources::new());
        let size = PoolSize { longest: LEN, cap, slab_len: 1 };
        let config = LandingConfig { size, ..LandingConfig::default() };
        let staging = Staging::new(size, Arc::clone(&sources), Arc::new(InPlace));
        staging.attach(domain, Arc::clone(&side.nic)).expect("nothing to register yet");
        let landing =
            Landing::new(config, (domain, Arc::clone(&side.nic)), sources, Arc::new(InPlace));
        Self { domain, staging, landing }
    }

    async fn filled(&self, byte: u8) -> Bytes {
        let mut buffer = self.staging.alloc(LEN, soon()).await.expect("room");
        buffer.fill(byte);
        buffer.freeze()
    }

    fn lend(&self, bytes: &Bytes) -> Lent {
        self.staging.sources().lend(self.domain, bytes).expect("of the pool")
    }

    async fn grant(&self, tenant: Tenant) -> Granted {
        self.landing.grant(tenant, LEN, soon()).await.expect("room")
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(1)
}

/// A Write of a part of what is lent to the same part of a region.
fn write_wr(id: u64, lent: &Lent, part: Range<usize>, region: &Granted) -> SendWr {
    let len = u32::try_from(part.len()).expect("short");
    let sge = Sge { address: lent.address() + part.start as u64, len, lkey: lent.lkey() };
    let target = region.target();
    let op = SendOp::Write { address: target.address + part.start as u64, rkey: target.rkey };
    let sges = Sges::one(sge);
    SendWr { id: WrId(id), op, sges, signal: Signal::Yes, inline: Inline::No }
}

fn in_place(region: Granted) -> Bytes {
    let landed = region.landed(Fenced::by_fin(), 0, LEN).expect("within the grant");
    landed.into_bytes(Isolation::Trusted).expect("in place")
}

#[tokio::test(start_paused = true)]
async fn a_payload_goes_from_a_users_buffer_to_bytes_without_a_copy() {
    for profile in ALL {
        let (fabric, a, b) = pair(profile, 0).await;
        let (from, to) = (Pools::new(&a, 4 * LEN), Pools::new(&b, 4 * LEN));
        let bytes = from.filled(7).await;
        let lent = from.lend(&bytes);
        let region = to.grant(Tenant::unique()).await;
        let half = LEN / 2;
        let batch = [write_wr(1, &lent, 0..half, &region), write_wr(2, &lent, half..LEN, &region)];
        a.qp.post_send(&batch).expect("room");
        assert_eq!(a.outcomes().await, [(1, Ok(0)), (2, Ok(0))], "{profile:?}");
        drop(lent.release(Released::by_nic()));
        assert_eq!(in_place(region), bytes);
        assert_eq!(fabric.violations(), []);
        let counts = [from.staging.snapshot(), to.landing.snapshot()];
        for count in counts {
            assert_eq!((count.copied_bytes, count.registrations), (0, 1), "{profile:?}");
        }
        assert_eq!(to.landing.snapshot().in_use_bytes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_dropped_while_it_is_sent_is_not_used_again_before_it_left() {
    let (fabric, a, b) = pair_of(slow(Profile::Siw), 0).await;
    let (from, to) = (Pools::new(&a, LEN), Pools::new(&b, 4 * LEN));
    let bytes = from.filled(1).await;
    let lent = from.lend(&bytes);
    let region = to.grant(Tenant::unique()).await;
    a.qp.post_send(&[write_wr(1, &lent, 0..LEN, &region)]).expect("room");
    // The caller gives up and at once wants memory for other bytes, from a pool of one buffer.
    drop(bytes);
    let other = tokio::spawn(from.staging.alloc(LEN, soon()));
    assert_eq!(a.wait().await.result, Ok(0));
    assert!(!other.is_finished(), "it waits for the proof");
    drop(lent.release(Released::by_nic()));
    let mut other = other.await.expect("no panic").expect("room");
    other.fill(2);
    // The completion says that the source is free, not that the peer has the bytes.
    tokio::time::sleep(A_WHILE).await;
    assert!(in_place(region).iter().all(|byte| *byte == 1));
    assert_eq!(fabric.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_writes_behind_its_finish_reaches_no_byte_that_somebody_sees() {
    for (profile, isolation) in ALL.into_iter().flat_map(|profile| {
        [Isolation::Trusted, Isolation::None].map(|isolation| (profile, isolation))
    }) {
        let (fabric, a, b) = pair(profile, 0).await;
        let (from, to) = (Pools::new(&a, 4 * LEN), Pools::new(&b, 4 * LEN));
        let bytes = from.filled(7).await;
        let lent = from.lend(&bytes);
        let region = to.grant(Tenant::unique()).await;
        let late = write_wr(2, &lent, 0..LEN, &region);
        let landed = region.landed(Fenced::by_fin(), 0, LEN).expect("within the grant");
        let seen = landed.into_bytes(isolation).expect("memory");
        a.qp.post_send(&[late]).expect("room");
        a.outcomes().await;
        assert!(seen.iter().all(|byte| *byte == 0), "{profile:?} {isolation:?}");
        let violations = fabric.violations();
        assert!(matches!(violations[0].kind, ViolationKind::RemoteWrite(_)), "{violations:?}");
        drop((seen, lent.release(Released::by_nic())));
        assert_eq!(to.landing.snapshot().in_use_bytes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_writes_to_a_region_in_quarantine_harms_nobody() {
    let (fabric, a, b) = pair(Profile::Rxe, 0).await;
    let (from, to) = (Pools::new(&a, 4 * LEN), Pools::new(&b, LEN));
    let bytes = from.filled(7).await;
    let lent = from.lend(&bytes);
    let region = to.grant(Tenant::unique()).await;
    let late = write_wr(1, &lent, 0..LEN, &region);
    let (region, _level) = region.quarantine();
    a.qp.post_send(&[late]).expect("room");
    assert_eq!(a.outcomes().await, [(1, Ok(0))]);
    region.release(GrantClosed::by_abort_ack());
    drop(lent.release(Released::by_nic()));
    let next = to.grant(Tenant::unique()).await;
    assert!(in_place(next).iter().all(|byte| *byte == 0), "another connection sees nothing of it");
    assert_eq!(fabric.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_the_device_makes_a_smaller_pool() {
    let lockable_bytes = (64 * CHUNK + 2 * (LEN + 4096)) as u64;
    let (_fabric, _a, b) =
        pair_of(FabricConfig { lockable_bytes, ..config(Profile::Siw) }, 0).await;
    let pools = Pools::new(&b, 64 * LEN);
    let held = [pools.grant(Tenant::unique()).await, pools.grant(Tenant::unique()).await];
    let error = pools.landing.grant(Tenant::unique(), LEN, soon()).await.expect_err("no more");
    let text = error.to_string();
    assert!(text.contains("the device gave no more than 2105344: ibv_reg_mr failed"), "{text}");
    for region in held {
        region.release(GrantClosed::by_silence());
    }
    pools.grant(Tenant::unique()).await.release(GrantClosed::by_silence());
}

#[tokio::test(start_paused = true)]
async fn memory_that_is_detached_is_not_sent_from_any_more_and_can_be_read() {
    let (fabric, a, b) = pair(Profile::Rxe, 0).await;
    let (from, to) = (Pools::new(&a, 4 * LEN), Pools::new(&b, 4 * LEN));
    let bytes = from.filled(7).await;
    let lent = from.lend(&bytes);
    let region = to.grant(Tenant::unique()).await;
    from.staging.detach(from.domain);
    a.qp.post_send(&[write_wr(1, &lent, 0..LEN, &region)]).expect("room");
    assert_eq!(a.outcomes().await, [(1, Err(WcStatus::LOCAL_PROTECTION))]);
    drop(lent.release(Released::by_nic()));
    region.release(GrantClosed::by_destruction());
    assert!(bytes.iter().all(|byte| *byte == 7));
    assert_eq!(fabric.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_lent_any_more_are_a_violation_to_send_from() {
    let (fabric, a, b): (Fabric, _, _) = pair(Profile::Mlx5Like, 0).await;
    let (from, to) = (Pools::new(&a, 4 * LEN), Pools::new(&b, 4 * LEN));
    let bytes = from.filled(7).await;
    let lent = from.lend(&bytes);
    let region = to.grant(Tenant::unique()).await;
    let wr = write_wr(1, &lent, 0..LEN, &region);
    drop(lent.release(Released::by_nic()));
    a.qp.post_send(&[wr]).expect("room");
    assert_eq!(a.outcomes().await, [(1, Err(WcStatus::LOCAL_PROTECTION))]);
    assert!(matches!(fabric.violations()[0].kind, ViolationKind::Source(_)));
    region.release(GrantClosed::by_destruction());
}
