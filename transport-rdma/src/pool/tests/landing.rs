use bytes::Bytes;
use verbwire_core::transport::pressure::Pressure;

use super::*;
use crate::memory::Released;

const LEN: usize = 100 << 10;

/// What a region for `LEN` takes: the class of 128 KiB.
const CHUNK: usize = (128 << 10) + 8192;

struct Rig {
    pool: Landing,
    nic: Arc<FakeNic>,
    domain: Domain,
}

/// A pool of at most so many regions for `LEN`.
fn rig(regions: usize) -> Rig {
    let size = PoolSize { longest: 120 << 10, cap: regions * (124 << 10), slab_len: 1 };
    rig_of(LandingConfig { size, pinned_budget: usize::MAX, quarantine_cap: 0 })
}

fn rig_of(config: LandingConfig) -> Rig {
    let (nic, domain) = (FakeNic::new(usize::MAX), Domain::unique());
    let device: Arc<dyn Nic> = nic.clone();
    let pool = Landing::new(config, (domain, device), Sources::new(), Arc::new(InPlace));
    Rig { pool, nic, domain }
}

impl Rig {
    async fn grant(&self, tenant: Tenant) -> Granted {
        self.pool.grant(tenant, LEN, soon()).await.expect("room")
    }
}

/// What a peer's NIC does.
fn write(region: &Granted, offset: usize, data: &[u8]) {
    let target = region.target();
    region.slab().dma_write(target.address + offset as u64, data).expect("granted");
}

fn land(region: Granted, offset: usize, len: usize) -> Landed {
    region.landed(Fenced::by_fin(), offset, len).expect("within the grant")
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_read_in_place_and_the_last_slice_frees_the_region() {
    let rig = rig(1);
    let region = rig.grant(Tenant::unique()).await;
    let target = region.target();
    assert_eq!((target.len, target.address % 4096), (LEN + SLACK, 0));
    write(&region, 4090, b"abcdef");
    let bytes = land(region, 4090, 6).into_bytes(Isolation::Trusted).expect("in place");
    assert_eq!((&bytes[..], bytes.as_ptr().addr() as u64), (&b"abcdef"[..], target.address + 4090));
    let slice = bytes.slice(2..4);
    drop(bytes);
    assert!(rig.pool.try_grant(Tenant::unique(), LEN).expect("possible").is_none());
    let counts = rig.pool.snapshot();
    assert_eq!((counts.pinned_bytes, counts.in_use_bytes), (124 << 10, 124 << 10));
    drop(slice);
    let counts = rig.pool.snapshot();
    assert_eq!((counts.pinned_bytes, counts.in_use_bytes, counts.copied_bytes), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn from_a_peer_that_could_still_write_bytes_are_copied_and_the_region_is_free_at_once() {
    let rig = rig(1);
    let region = rig.grant(Tenant::unique()).await;
    write(&region, 5, b"abcdef");
    let bytes = land(region, 5, 6).into_bytes(Isolation::None).expect("memory");
    assert_eq!(bytes, "abcdef");
    let counts = rig.pool.snapshot();
    assert_eq!((counts.in_use_bytes, counts.pinned_bytes, counts.copied_bytes), (0, 0, 6));
}

#[tokio::test(start_paused = true)]
async fn a_finish_without_writes_shows_zeroes_or_this_connections_bytes_never_anothers() {
    let rig = rig(1);
    let (first, second) = (Tenant::unique(), Tenant::unique());
    let all =
        |region| land(region, 0, LEN + SLACK).into_bytes(Isolation::Trusted).expect("in place");
    let region = rig.grant(first).await;
    write(&region, LEN, b"secret");
    drop(all(region));
    assert_eq!(all(rig.grant(first).await).slice(LEN..LEN + 6), "secret", "its own");
    assert_eq!(rig.pool.snapshot().zeroed_bytes, 0);
    assert!(all(rig.grant(second).await).iter().all(|byte| *byte == 0));
    assert_eq!(rig.pool.snapshot().zeroed_bytes, (LEN + SLACK) as u64);
    // Also where the grant before was shorter, the copy was made, or the message thrown away.
    let region = rig.grant(second).await;
    write(&region, LEN, b"secret");
    drop(land(region, LEN, 6).into_bytes(Isolation::None));
    let short = rig.pool.grant(second, 80 << 10, soon()).await.expect("room");
    short.release(GrantClosed::by_abort_ack());
    assert!(all(rig.grant(first).await).iter().all(|byte| *byte == 0));
}

#[tokio::test(start_paused = true)]
async fn a_region_comes_back_by_each_proof_and_without_one_never() {
    let rig = rig(1);
    let proofs =
        [GrantClosed::by_abort_ack, GrantClosed::by_destruction, GrantClosed::by_silence, || {
            Fenced::by_fin().into()
        }];
    for proof in proofs {
        rig.grant(Tenant::unique()).await.release(proof());
        let (region, _) = rig.grant(Tenant::unique()).await.quarantine();
        assert_eq!(rig.pool.snapshot().quarantined_bytes, 124 << 10);
        region.release(proof());
    }
    land(rig.grant(Tenant::unique()).await, 0, 1).discard();
    let nothing = land(rig.grant(Tenant::unique()).await, 9, 0).into_bytes(Isolation::Trusted);
    assert_eq!(nothing.expect("nothing"), Bytes::new());
    let counts = rig.pool.snapshot();
    assert_eq!((counts.in_use_bytes, counts.quarantined_bytes, counts.leaked_bytes), (0, 0, 0));

    drop(rig.grant(Tenant::unique()).await);
    let counts = rig.pool.snapshot();
    assert_eq!((counts.in_use_bytes, counts.leaked_bytes), (124 << 10, 124 << 10));
    assert!(rig.pool.grant(Tenant::unique(), LEN, soon()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_region_that_is_dropped_is_lost_and_not_quarantined_any_more() {
    let rig = rig(2);
    drop(rig.grant(Tenant::unique()).await.quarantine());
    let counts = rig.pool.snapshot();
    assert_eq!((counts.quarantined_bytes, counts.leaked_bytes), (0, 124 << 10));
    drop(rig.pool);
    assert_eq!(rig.nic.locked(), 0, "the registration ends with the pool; the memory stays");
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_one_gives_a_quarantined_region_to_who_waits_when_the_proof_comes() {
    let rig = rig(1);
    let region = rig.grant(Tenant::unique()).await;
    write(&region, 0, b"of a call that is over");
    let (region, level) = region.quarantine();
    assert_eq!(level, QuarantineLevel::Within);
    let waiting = tokio::spawn(rig.pool.grant(Tenant::unique(), LEN, soon()));
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert!(!waiting.is_finished());
    region.release(GrantClosed::by_abort_ack());
    let region = waiting.await.expect("no panic").expect("handed over");
    let bytes = land(region, 0, LEN).into_bytes(Isolation::Trusted).expect("in place");
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[tokio::test(start_paused = true)]
async fn quarantine_has_a_cap_of_one_message_at_least() {
    let rig = rig(3);
    let (first, level) = rig.grant(Tenant::unique()).await.quarantine();
    assert_eq!(level, QuarantineLevel::Within);
    let (second, level) = rig.grant(Tenant::unique()).await.quarantine();
    assert_eq!(level, QuarantineLevel::Exceeded);
    first.release(GrantClosed::by_destruction());
    let (third, level) = rig.grant(Tenant::unique()).await.quarantine();
    assert_eq!(level, QuarantineLevel::Exceeded);
    second.release(GrantClosed::by_destruction());
    third.release(GrantClosed::by_destruction());
}

#[tokio::test(start_paused = true)]
async fn a_finish_outside_of_its_grant_is_an_error_with_the_numbers() {
    let rig = rig(1);
    for (offset, len) in [(0, LEN + SLACK + 1), (LEN + SLACK, 1), (usize::MAX, 2)] {
        let region = rig.grant(Tenant::unique()).await;
        let error = region.landed(Fenced::by_fin(), offset, len).expect_err("outside");
        assert_eq!(error, OutOfGrant { offset, len, granted: LEN + SLACK });
    }
    assert_eq!(rig.pool.snapshot().in_use_bytes, 0);
    land(rig.grant(Tenant::unique()).await, LEN + SLACK, 0).discard();
}

#[tokio::test(start_paused = true)]
async fn what_users_hold_is_bounded_and_they_are_told_before() {
    let size = PoolSize { longest: LEN, cap: 100 << 20, slab_len: 1 };
    let chunk = LEN + SLACK;
    let rig = rig_of(LandingConfig { size, pinned_budget: 4 * chunk, quarantine_cap: 0 });
    let mut pressure = rig.pool.pressure();
    let mut held = Vec::new();
    let receive = async || {
        let region = rig.grant(Tenant::unique()).await;
        land(region, 0, LEN).into_bytes(Isolation::Window).expect("in place")
    };
    for _ in 0..2 {
        held.push(receive().await);
    }
    assert_eq!(pressure.now(), Pressure::None);
    held.push(receive().await);
    assert_eq!(pressure.changed().await, Some(Pressure::High));
    held.push(receive().await);
    // Now it is too much, although the pool has plenty of room.
    assert!(rig.pool.try_grant(Tenant::unique(), LEN).expect("possible").is_none());
    let error = rig.pool.grant(Tenant::unique(), LEN, soon()).await.expect_err("too much is held");
    let text = error.to_string();
    assert!(text.contains(&format!("pin {} bytes, the budget is {0}", 4 * chunk)), "{text}");
    let waiting = tokio::spawn(rig.pool.grant(Tenant::unique(), LEN, soon()));
    tokio::task::yield_now().await;
    held.truncate(1);
    waiting.await.expect("no panic").expect("room again").release(GrantClosed::by_silence());
    assert_eq!(pressure.changed().await, Some(Pressure::None));
}

#[tokio::test(start_paused = true)]
async fn received_bytes_can_be_forwarded_from_where_they_landed() {
    let (rig, sources) = (rig(1), Sources::new());
    let Rig { nic, domain, .. } = &rig;
    let config = LandingConfig::default();
    let pool =
        Landing::new(config, (*domain, nic.clone()), Arc::clone(&sources), Arc::new(InPlace));
    let region = pool.grant(Tenant::unique(), LEN, soon()).await.expect("room");
    let address = region.target().address;
    let bytes = land(region, 7, 9).into_bytes(Isolation::Trusted).expect("in place");
    let lent = sources.lend(*domain, &bytes).expect("the same domain");
    assert_eq!((lent.address(), lent.len()), (address + 7, 9));
    drop(bytes);
    assert_eq!(pool.snapshot().pinned_bytes, CHUNK, "the NIC still reads it");
    drop(lent.release(Released::by_nic()));
    assert_eq!(pool.snapshot().pinned_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn bytes_stay_when_the_device_goes_and_who_waits_is_told_why() {
    let rig = rig(1);
    let region = rig.grant(Tenant::unique()).await;
    write(&region, 0, b"abc");
    let bytes = land(region, 0, 3).into_bytes(Isolation::Trusted).expect("in place");
    let waiting = tokio::spawn(rig.pool.grant(Tenant::unique(), LEN, soon()));
    tokio::task::yield_now().await;
    let cause = verbwire_core::Error::new(verbwire_core::ErrorKind::Lost, "the device was removed");
    rig.pool.close(&cause);
    assert_eq!(rig.nic.locked(), 0);
    let error = waiting.await.expect("no panic").expect_err("told");
    assert_eq!(error.to_string(), "the device was removed");
    let error = rig.pool.try_grant(Tenant::unique(), LEN).expect_err("closed");
    assert!(matches!(error, PoolError::Closed(_)));
    assert_eq!(bytes, "abc");
}
