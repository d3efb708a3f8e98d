//! Pools on a device: slabs made by the reaper's thread, payloads written from where they lie to where they land.

use tokio::time::Instant;

use super::*;
use crate::memory::Domain;
use crate::pool::{Fenced, Isolation, Landing, LandingConfig, Sources, Staging, Tenant};
use crate::verbs::ReaperThread;

const LEN: usize = 4 << 20;
const PART: u32 = 256 << 10;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_payload_goes_either_way_from_a_users_buffer_to_bytes_without_a_copy() {
    let ((mut client, _one), (mut server, _two)) = pair().await;
    let nic: Arc<dyn Nic> = device();
    let (domain, sources, reaper) = (Domain::unique(), Sources::new(), Arc::new(ReaperThread));
    let config = LandingConfig::default();
    let staging = Staging::new(config.size, Arc::clone(&sources), reaper.clone());
    // Before the device is attached.
    let mut buffer = staging.alloc(LEN, soon()).await.expect("room");
    buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = at.to_le_bytes()[1]);
    let bytes = buffer.freeze();
    staging.attach(domain, Arc::clone(&nic)).expect("registers");
    let landing = Landing::new(config, (domain, nic), Arc::clone(&sources), reaper);
    let tenant = Tenant::unique();

    for round in 0..4 {
        // The connecting side first, as iWARP has it.
        let [writer, owner] = match round % 2 {
            0 => [&mut client, &mut server],
            _ => [&mut server, &mut client],
        };
        let lent = sources.lend(domain, &bytes).expect("registered");
        let region = landing.grant(tenant, LEN, soon()).await.expect("room");
        let (target, offset) = (region.target(), round * 1000);
        for at in (0..LEN).step_by(PART as usize) {
            let address = lent.address() + at as u64;
            let sges = Sges::one(Sge { address, len: PART, lkey: lent.lkey() });
            let address = target.address + (offset + at) as u64;
            let op = SendOp::Write { address, rkey: target.rkey };
            let (id, signal, inline) = (WrId(at as u64), Signal::Yes, Inline::No);
            writer.qp.post_send(&[SendWr { id, op, sges, signal, inline }]).expect("posts");
            assert_eq!(writer.complete().await.result.map(|_| ()), Ok(()));
        }
        writer.send(1, SendOp::Send, b"finished", Inline::Yes);
        assert_eq!(owner.complete().await.result, Ok(8));
        assert_eq!(writer.complete().await.id, WrId(1));
        drop(lent.release(Released::by_nic()));
        let landed = region.landed(Fenced::by_fin(), offset, LEN).expect("within the grant");
        assert!(landed.into_bytes(Isolation::Trusted).expect("in place") == bytes);
    }
    let counts = [staging.snapshot(), landing.snapshot()];
    for count in counts {
        assert_eq!((count.copied_bytes, count.registrations), (0, 1), "{count:?}");
    }
    // The memory outlives the pool, its registration does not.
    drop((staging, landing));
    assert!(sources.lend(domain, &bytes).is_none());
    assert_eq!(bytes[LEN - 1], (LEN - 1).to_le_bytes()[1]);
}
