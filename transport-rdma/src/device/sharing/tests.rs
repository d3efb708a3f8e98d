use std::sync::Barrier;
use std::thread;

use super::*;
use crate::config::Peers;
use crate::device::Memory;
use crate::fabric::{Fabric, FabricConfig};
use crate::reaper::InPlace;

struct Rig {
    device: Device,
    config: RdmaConfig,
    reaper: Arc<dyn Reaper>,
}

impl Rig {
    fn new(shared_receives: u32) -> Self {
        let mut config = RdmaConfig::for_many(0);
        (config.peers, config.shared_receives) = (Peers::Trusted, shared_receives);
        let reaper: Arc<dyn Reaper> = Arc::new(InPlace);
        let memory = Memory::new(&config, &reaper);
        let nic = Fabric::new(FabricConfig::new(1)).host("near").nic();
        let device = Device::new(nic, &config, &memory, &reaper);
        Self { device, config, reaper }
    }

    fn share(&self) -> Result<Membership, Error> {
        let shared = self.device.share_receives(&self.config, &self.reaper);
        shared.map(|shared| shared.expect("the device has such queues"))
    }

    fn shares(&self) -> Shares {
        let mut shares = Shares::default();
        self.device.count_shared(&mut shares);
        shares
    }
}

#[tokio::test]
async fn those_who_come_first_at_once_make_one_queue() {
    for _ in 0..20 {
        let (rig, barrier) = (Rig::new(256), Barrier::new(8));
        let join = || {
            barrier.wait();
            rig.share().expect("room")
        };
        let members: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(join)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let Shares { posted, members: joined, .. } = rig.shares();
        assert_eq!((posted, joined, members.len()), (256, 8, 8));
    }
}

#[tokio::test]
async fn a_device_has_so_many_queues_and_says_so_beyond() {
    let rig = Rig::new(64);
    let mut members = Vec::new();
    for _ in 0..QUEUES {
        let member = rig.share().expect("another queue");
        member.shared().lack_numbers();
        members.push(member);
    }
    let refused = rig.share().err().expect("none is left").to_string();
    assert!(refused.contains("share 8 queues of receives"), "{refused}");
    drop(members.pop());
    rig.share().expect("there is room for one more");
}

#[tokio::test]
async fn where_one_queue_is_full_the_next_is_joined() {
    let rig = Rig::new(64);
    let first = rig.share().expect("room");
    first.shared().lack_numbers();
    let other = rig.share().expect("another queue");
    assert_ne!(first.shared().number(), other.shared().number());
    // Once all that was posted has completed, there are numbers again.
    (0..64).for_each(|entry| first.shared().arrived(1 << 16 | entry));
    let rest: Vec<_> = (0..8).map(|_| rig.share().expect("room")).collect();
    let on_first = |member: &&Membership| member.shared().number() == first.shared().number();
    assert_eq!(rest.iter().filter(on_first).count(), 7, "8 times 7, and 8 are kept");
    assert_eq!(rig.shares().members, 10);
}
