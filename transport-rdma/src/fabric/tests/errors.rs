//! What goes wrong on the wire, as each device tells it.

use std::time::Duration;

use super::rig::{A_WHILE, ALL, pair, pair_of, slow, wrong_lkey};
use crate::fabric::{FabricConfig, Profile, ViolationKind};
use crate::memory::{Lkey, NicAccess, Rkey};
use crate::nic::{Access, Inline, RecvWr, Sge, Sges, Signal, WcStatus, WrId};

#[tokio::test(start_paused = true)]
async fn a_send_without_a_receive_kills_its_queue_pair_on_infiniband() {
    for profile in [Profile::Rxe, Profile::Mlx5Like] {
        let (fabric, mut a, mut b) = pair(profile, 0).await;
        a.send(1, b"x");
        a.send(2, b"x");
        let expected = [(1, Err(WcStatus::RNR_RETRY_EXCEEDED)), (2, Err(WcStatus::FLUSHED))];
        assert_eq!(a.outcomes().await, expected);
        assert_eq!(b.host.counters().rnr, 1);
        assert!(!b.is_disconnected().await);
        assert_eq!(fabric.violations(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_send_without_a_receive_succeeds_on_siw_and_then_the_connection_ends() {
    let (_fabric, mut a, mut b) = pair(Profile::Siw, 0).await;
    a.recv(2);
    a.send(1, b"x");
    assert_eq!(a.outcomes().await, [(1, Ok(0)), (2, Err(WcStatus::FLUSHED))]);
    assert!(a.is_disconnected().await && b.is_disconnected().await);
    assert_eq!(b.host.counters().rnr, 1);
}

#[tokio::test(start_paused = true)]
async fn with_retries_a_late_receive_is_found_and_order_stays() {
    let mut config = slow(Profile::Rxe);
    (config.rnr_retry, config.rnr_delay) = (7, Duration::from_millis(3));
    let (_fabric, mut a, mut b) = pair_of(config, 0).await;
    a.send(1, b"first");
    a.send(2, b"second");
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(a.poll(), []);
    b.recv(100);
    b.recv(101);
    assert_eq!(b.outcomes().await, [(100, Ok(5)), (101, Ok(6))]);
    assert_eq!(a.outcomes().await, [(1, Ok(0)), (2, Ok(0))]);
    assert!(b.host.counters().rnr > 5);
}

#[tokio::test(start_paused = true)]
async fn a_receive_that_is_too_short_fails_both_sides() {
    let expected = [
        (Profile::Rxe, WcStatus::LOCAL_QP_OPERATION, Err(WcStatus::REMOTE_OPERATION)),
        (Profile::Siw, WcStatus::LOCAL_LENGTH, Ok(0)),
        (Profile::Mlx5Like, WcStatus::LOCAL_LENGTH, Err(WcStatus::REMOTE_INVALID_REQUEST)),
    ];
    for (profile, receiver, sender) in expected {
        let (_fabric, mut a, mut b) = pair(profile, 0).await;
        b.recv_of(100, 3).expect("room");
        b.recv(101);
        a.send(1, b"four");
        assert_eq!(a.outcomes().await, [(1, sender)], "{profile:?}");
        let flushed = (101, Err(WcStatus::FLUSHED));
        assert_eq!(b.outcomes().await, [(100, Err(receiver)), flushed], "{profile:?}");
        assert_eq!(b.is_disconnected().await, profile == Profile::Siw);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_local_key_is_a_local_protection_error_in_order() {
    for profile in ALL {
        let (fabric, mut a, _b) = pair(profile, 3).await;
        let (good, mut bad, behind) = (a.wr(1, b"x"), a.wr(2, b"x"), a.wr(3, b"x"));
        wrong_lkey(&mut bad);
        a.qp.post_send(&[good, bad, behind]).expect("room");
        let expected =
            [(1, Ok(0)), (2, Err(WcStatus::LOCAL_PROTECTION)), (3, Err(WcStatus::FLUSHED))];
        assert_eq!(a.outcomes().await, expected, "{profile:?}");
        assert_eq!(fabric.violations(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_receive_with_a_wrong_key_fails_when_the_message_comes() {
    let (_fabric, mut a, b) = pair(Profile::Rxe, 0).await;
    let buf = b.pool.take().expect("free").into_nic(NicAccess::Write);
    let rkey_for_lkey = Lkey(buf.rkey().expect("registered").0);
    let sge = Sge { address: buf.address(), len: 8, lkey: rkey_for_lkey };
    b.qp.post_recv(&[RecvWr { id: WrId(100), sge }]).expect("room");
    a.send(1, b"x");
    assert_eq!(a.outcomes().await, [(1, Err(WcStatus::REMOTE_OPERATION))]);
    assert_eq!(b.outcomes().await, [(100, Err(WcStatus::LOCAL_PROTECTION))]);
}

/// Writes of all kinds that the peer's registration does not allow.
#[tokio::test(start_paused = true)]
async fn a_write_outside_of_its_rights_is_refused() {
    for case in 0..4 {
        for profile in ALL {
            let (fabric, mut a, mut b) = pair(profile, 0).await;
            let landing = b.pool.take().expect("free").into_nic(NicAccess::Write);
            let (mut address, mut rkey) = (landing.address(), landing.rkey().expect("registered"));
            let slab = b.pool.slab();
            let local = b.nic.register(slab, Access::Local).expect("within limits");
            match case {
                0 => rkey = Rkey(rkey.0 ^ 1),
                1 => rkey = Rkey(landing.lkey().expect("registered").0),
                2 => rkey = local.rkey(),
                _ => address = slab.address() + slab.len() as u64 - 2,
            }
            b.in_flight.insert(9, landing);
            a.write(1, b"xyz", address, rkey);
            let status = match profile {
                Profile::Siw => Ok(0),
                Profile::Rxe | Profile::Mlx5Like => Err(WcStatus::REMOTE_ACCESS),
            };
            assert_eq!(a.outcomes().await, [(1, status)], "case {case} on {profile:?}");
            assert_eq!(a.is_disconnected().await, profile == Profile::Siw);
            assert!(b.take_back(9).iter().all(|byte| *byte == 0xdb));
            assert_eq!(fabric.violations(), []);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn memory_that_was_deregistered_is_out_of_reach() {
    let (_fabric, mut a, b) = pair(Profile::Rxe, 0).await;
    let other = b.nic.register(b.pool.slab(), Access::RemoteWrite).expect("within limits");
    let (address, rkey) = (b.pool.slab().address(), other.rkey());
    drop(other);
    a.write(1, b"x", address, rkey);
    assert_eq!(a.outcomes().await, [(1, Err(WcStatus::REMOTE_ACCESS))]);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_was_taken_back_before_it_left_is_a_violation() {
    let (fabric, mut a, _b) = pair(Profile::Rxe, 1).await;
    a.send(1, b"x");
    a.take_back(1);
    assert_eq!(a.outcomes().await, [(1, Err(WcStatus::LOCAL_PROTECTION))]);
    let violations = fabric.violations();
    assert!(matches!(violations[0].kind, ViolationKind::Source(_)), "{violations:?}");
    assert_eq!(violations[0].host, "a");
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_used_again_before_its_completion_is_a_violation() {
    let (fabric, mut a, b) = pair_of(slow(Profile::Rxe), 2).await;
    a.send(1, b"first");
    tokio::time::sleep(Duration::from_millis(3)).await;
    a.take_back(1);
    // The pool gives out the same chunk again.
    a.send(2, b"second");
    b.outcomes().await;
    assert_eq!(fabric.violations()[0].kind, ViolationKind::SourceChanged);
}

#[tokio::test(start_paused = true)]
async fn siw_needs_the_source_of_a_large_unsignalled_send_beyond_its_completion() {
    let (fabric, mut a, b) = pair_of(slow(Profile::Siw), 2).await;
    let (mut large, small) = (a.wr(1, &[1; 4096]), a.wr(2, b"x"));
    large.signal = Signal::No;
    a.qp.post_send(&[large, small]).expect("room");
    // The signalled one covers it, and yet the bytes have not left.
    assert_eq!(a.wait().await.id.0, 2);
    a.take_back(2);
    assert_eq!(fabric.violations(), []);
    a.take_back(1);
    b.outcomes().await;
    assert!(matches!(fabric.violations()[0].kind, ViolationKind::Source(_)));
}

#[tokio::test(start_paused = true)]
async fn a_receive_buffer_that_was_taken_back_is_a_violation() {
    let (fabric, mut a, mut b) = pair(Profile::Rxe, 1).await;
    b.take_back(100);
    a.send(1, b"x");
    assert_eq!(b.outcomes().await, [(100, Err(WcStatus::LOCAL_PROTECTION))]);
    assert!(matches!(fabric.violations()[0].kind, ViolationKind::Receive(_)));
}

#[tokio::test(start_paused = true)]
async fn a_write_to_memory_that_its_owner_took_back_is_a_violation_of_the_peer() {
    let (fabric, mut a, b) = pair(Profile::Siw, 0).await;
    let landing = b.pool.take().expect("free");
    let (address, rkey) =
        (landing.as_ptr().addr() as u64, b.pool.slab().region().expect("registered").rkey());
    a.write(1, b"x", address, rkey);
    assert_eq!(a.outcomes().await, [(1, Ok(0))]);
    assert!(landing.iter().all(|byte| *byte == 0));
    let violations = fabric.violations();
    assert!(matches!(violations[0].kind, ViolationKind::RemoteWrite(_)), "{violations:?}");
    assert_eq!(violations[0].host, "b");
}

#[tokio::test(start_paused = true)]
async fn inline_bytes_outside_of_the_nics_memory_are_refused() {
    let (_fabric, mut a, _b) = pair(Profile::Rxe, 0).await;
    let mut wr = a.wr(1, b"x");
    wr.inline = Inline::Yes;
    wrong_lkey(&mut wr);
    a.qp.post_send(std::slice::from_ref(&wr)).expect("no key is looked at");
    wr.sges = Sges::one(Sge { address: 8, ..wr.sges.as_slice()[0] });
    assert!(a.qp.post_send(&[wr]).is_err());
}

#[tokio::test(start_paused = true)]
async fn the_retry_timeout_is_a_setting() {
    let retry_timeout = Some(Duration::from_secs(3));
    let config = FabricConfig { retry_timeout, ..slow(Profile::Rxe) };
    let (_fabric, mut a, b) = pair_of(config, 1).await;
    b.qp.destroy();
    let begin = tokio::time::Instant::now();
    a.send(1, b"x");
    assert_eq!(a.wait().await.result, Err(WcStatus::RETRY_EXCEEDED));
    assert!(begin.elapsed() >= Duration::from_secs(3));
}
