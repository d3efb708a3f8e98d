//! Deaths and scripted fates.

use std::time::Duration;

use super::rig::{A_WHILE, ALL, DEPTHS, Side, connect, pair};
use crate::fabric::{Death, Fate, Profile};
use crate::nic::{Cqs, WcStatus};

#[tokio::test(start_paused = true)]
async fn peers_of_a_dead_host_find_out_by_their_own_requests() {
    for profile in [Profile::Rxe, Profile::Mlx5Like] {
        let (_fabric, mut a, mut b) = pair(profile, 1).await;
        b.host.kill(Death::Host);
        assert!(b.cq.poll(&mut Vec::new(), 1).is_err() && b.recv_of(1, 8).is_err());
        a.send(1, b"x");
        assert!(!a.is_disconnected().await);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(a.outcomes().await, [(1, Err(WcStatus::RETRY_EXCEEDED))]);
    }
}

#[tokio::test(start_paused = true)]
async fn siw_goes_on_sending_to_a_dead_host_for_long() {
    let (_fabric, mut a, b) = pair(Profile::Siw, 1).await;
    b.host.kill(Death::Host);
    a.send(1, b"x");
    assert_eq!(a.outcomes().await, [(1, Ok(0))]);
    tokio::time::sleep(Duration::from_secs(39)).await;
    assert!(!a.is_disconnected().await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(a.is_disconnected().await);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_disconnects() {
    for profile in ALL {
        let (_fabric, mut a, mut b) = pair(profile, 0).await;
        b.host.kill(Death::Process);
        assert!(a.is_disconnected().await && b.is_disconnected().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_can_die_at_any_work_request() {
    for nth in 1..=4 {
        let (fabric, mut a, b) = pair(Profile::Rxe, 8).await;
        a.host.kill_at(nth, Death::Host);
        let posted = (1..=4).take_while(|id| a.try_send(*id, b"x").is_ok()).count();
        assert_eq!(posted as u64, nth - 1);
        assert_eq!(fabric.pending_fates(), 0);
        // What it posted before may or may not have left, but nothing after.
        assert!(b.outcomes().await.len() <= posted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_whose_host_has_died_is_given_to_a_new_one() {
    let (fabric, mut a, b) = pair(Profile::Rxe, 0).await;
    b.host.kill(Death::Process);
    let mut again = Side::new(&fabric, "b", DEPTHS, 8);
    a.qp = a.nic.create_qp(&Cqs::one(&a.cq), DEPTHS).expect("within limits");
    connect(&fabric, &mut a, &mut again, 1).await;
    a.send(1, b"x");
    assert_eq!(again.wait().await.id.0, 100);
}

#[tokio::test(start_paused = true)]
async fn completions_come_late_or_never_as_the_script_says() {
    let (fabric, mut a, _b) = pair(Profile::Rxe, 3).await;
    a.host.script(1, Fate::LostCompletion);
    a.host.script(2, Fate::LateCompletion(2 * A_WHILE));
    (1..=3).for_each(|id| a.send(id, b"x"));
    assert_eq!(a.outcomes().await, []);
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(a.outcomes().await, [(2, Ok(0)), (3, Ok(0))]);
    assert_eq!(fabric.pending_fates(), 0);
}
