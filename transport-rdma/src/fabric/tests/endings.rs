//! The error state, destruction and disconnecting: where the devices differ most.

use std::time::Duration;

use super::rig::{A_WHILE, ALL, pair, pair_of, slow};
use crate::fabric::Profile;
use crate::nic::WcStatus;

const FLUSHED: Result<u32, WcStatus> = Err(WcStatus::FLUSHED);

#[tokio::test(start_paused = true)]
async fn failing_flushes_what_is_posted_in_order() {
    for profile in ALL {
        let (_fabric, mut a, _b) = pair_of(slow(profile), 2).await;
        a.recv(1);
        a.recv(2);
        a.send(3, b"x");
        a.qp.fail();
        a.qp.fail();
        let mut outcomes = a.outcomes().await;
        outcomes.sort_by_key(|(id, _)| *id);
        assert_eq!(outcomes, [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)], "{profile:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_receive_posted_after_the_error_never_completes() {
    for profile in ALL {
        let (_fabric, mut a, _b) = pair(profile, 0).await;
        a.qp.fail();
        a.recv(1);
        assert_eq!(a.outcomes().await, [], "{profile:?}");
        a.qp.destroy();
        assert_eq!(a.outcomes().await, [], "{profile:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_send_posted_after_the_error_is_flushed_except_on_siw() {
    for profile in ALL {
        let (_fabric, mut a, _b) = pair(profile, 0).await;
        a.qp.fail();
        a.send(1, b"x");
        let expected = if profile == Profile::Siw { vec![] } else { vec![(1, FLUSHED)] };
        assert_eq!(a.outcomes().await, expected, "{profile:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_siw_completes_what_was_outstanding_at_destruction() {
    for profile in ALL {
        let (_fabric, mut a, _b) = pair_of(slow(profile), 1).await;
        a.recv(1);
        a.send(2, b"x");
        a.qp.destroy();
        let mut outcomes = a.outcomes().await;
        outcomes.sort_by_key(|(id, _)| *id);
        let expected =
            if profile == Profile::Siw { vec![(1, FLUSHED), (2, FLUSHED)] } else { vec![] };
        assert_eq!(outcomes, expected, "{profile:?}");
        assert!(a.try_send(3, b"x").is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn completions_in_the_queue_survive_destruction_except_on_mlx5() {
    for profile in ALL {
        let (_fabric, mut a, _b) = pair(profile, 1).await;
        a.send(1, b"x");
        tokio::time::sleep(A_WHILE).await;
        a.qp.destroy();
        let expected = if profile == Profile::Mlx5Like { vec![] } else { vec![(1, Ok(0))] };
        assert_eq!(a.outcomes().await, expected, "{profile:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_peer_learns_of_a_failed_queue_pair_only_on_siw() {
    for profile in ALL {
        let (_fabric, a, mut b) = pair(profile, 1).await;
        a.qp.fail();
        assert_eq!(b.is_disconnected().await, profile == Profile::Siw);
        let expected = if profile == Profile::Siw { vec![(100, FLUSHED)] } else { vec![] };
        assert_eq!(b.outcomes().await, expected, "{profile:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_send_to_a_failed_queue_pair_exceeds_its_retries_on_infiniband() {
    for profile in [Profile::Rxe, Profile::Mlx5Like] {
        let (_fabric, mut a, b) = pair(profile, 1).await;
        b.qp.fail();
        a.send(1, b"x");
        a.send(2, b"x");
        assert_eq!(a.outcomes().await, []);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let expected = [(1, Err(WcStatus::RETRY_EXCEEDED)), (2, FLUSHED)];
        assert_eq!(a.outcomes().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_reaches_both_sides_and_flushes_only_on_siw() {
    for profile in ALL {
        let (_fabric, mut a, mut b) = pair(profile, 1).await;
        a.events.as_mut().expect("connected").disconnect();
        assert_eq!(a.disconnected().await, "this side has disconnected");
        assert!(b.is_disconnected().await);
        let expected = if profile == Profile::Siw { vec![(100, FLUSHED)] } else { vec![] };
        assert_eq!(b.outcomes().await, expected, "{profile:?}");
        b.qp.fail();
        let rest = if profile == Profile::Siw { vec![] } else { vec![(100, FLUSHED)] };
        assert_eq!(b.outcomes().await, rest, "{profile:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn letting_go_of_the_connection_disconnects_it() {
    let (_fabric, mut a, mut b) = pair(Profile::Rxe, 0).await;
    drop(a.events.take());
    assert_eq!(b.disconnected().await, "the peer has disconnected");
}

#[tokio::test(start_paused = true)]
async fn on_a_stream_everything_sent_arrives_before_its_end() {
    let (_fabric, mut a, b) = pair_of(slow(Profile::Siw), 3).await;
    a.send(1, b"one");
    a.send(2, b"two");
    a.wait().await;
    a.wait().await;
    a.qp.fail();
    assert_eq!(b.outcomes().await, [(100, Ok(3)), (101, Ok(3)), (102, FLUSHED)]);
}

#[tokio::test(start_paused = true)]
async fn what_has_left_still_arrives_after_destruction() {
    for profile in ALL {
        let (_fabric, mut a, b) = pair_of(slow(profile), 1).await;
        a.send(1, b"x");
        tokio::time::sleep(Duration::from_millis(3)).await;
        a.qp.destroy();
        assert_eq!(b.outcomes().await[0], (100, Ok(1)), "{profile:?}");
    }
}
