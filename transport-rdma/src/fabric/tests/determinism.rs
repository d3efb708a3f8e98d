//! The same seed is the same run.

use super::rig::{DEPTHS, Side, connect};
use crate::fabric::{Fabric, FabricConfig};
use crate::nic::Cqs;

/// Two connections send to each other; returns the digest and the order of completions on `b`.
async fn run(seed: u64) -> (u64, Vec<(u32, u64)>) {
    let fabric = Fabric::new(FabricConfig::new(seed));
    let (mut a, mut b) = (Side::new(&fabric, "a", DEPTHS, 64), Side::new(&fabric, "b", DEPTHS, 64));
    connect(&fabric, &mut a, &mut b, 8).await;
    let (mut c, mut d) = (Side::new(&fabric, "a", DEPTHS, 64), Side::new(&fabric, "b", DEPTHS, 64));
    d.qp = d.nic.create_qp(&Cqs::one(&b.cq), DEPTHS).expect("within limits");
    connect(&fabric, &mut c, &mut d, 8).await;
    for id in 0..8 {
        a.send(id, &[1; 100]);
        c.send(id, &[2; 200]);
    }
    let mut order = Vec::new();
    for _ in 0..16 {
        let wc = b.wait().await;
        order.push((wc.qp.0, wc.id.0));
    }
    (fabric.trace_digest(), order)
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_run_and_another_seed_another_order() {
    let first = run(1).await;
    assert_eq!(first, run(1).await);
    let other = run(2).await;
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
}
