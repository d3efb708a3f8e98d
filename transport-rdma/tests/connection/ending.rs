//! How connections end, and what each side is told.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use verbwire_core::transport::Flush;
use verbwire_core::{Error, ErrorKind};

use crate::pair::{
    Net, PROFILES, drive, exact, pattern, receive, receive_all, request, send, slot, step,
};

fn enough() -> Error {
    Error::new(ErrorKind::Closed, "enough")
}

#[tokio::test(start_paused = true)]
async fn closing_sends_what_is_queued_and_the_first_cause_is_what_all_are_told() {
    for profile in PROFILES {
        for seed in 0..20 {
            let net = Net::new(profile, seed);
            let (near, far) = net.pair().await;
            let driver = tokio::spawn(drive(Arc::clone(&near)));
            for number in 0..20 {
                let flush = [Flush::Now, Flush::Batch][number as usize % 2];
                send(&near, request(number, Bytes::from("queued")), flush).await.expect("open");
            }
            near.close(enough());
            near.close(Error::new(ErrorKind::Lost, "too late"));
            assert_eq!(driver.await.expect("no panic").to_string(), "enough");
            let refused = send(&near, request(2, Bytes::new()), Flush::Now).await;
            assert_eq!(refused.expect_err("closed").to_string(), "enough");
            let received = receive_all(&far, 20).await;
            assert_eq!(received.iter().map(slot).collect::<Vec<_>>(), Vec::from_iter(0..20));
            let error = receive(&far).await.expect_err("closed");
            assert_eq!(error.kind(), ErrorKind::Lost);
            // RoCE's connection manager says so, iWARP's has a stream that ends.
            let known = ["the peer has disconnected", "the connection's stream has ended"];
            assert!(known.contains(&error.to_string().as_str()), "{error}");
            net.close([&near, &far]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retiring_destroys_the_queue_pair_with_and_without_a_driver() {
    for has_driver in [true, false] {
        let net = Net::new(PROFILES[0], 1);
        let (near, far) = net.pair().await;
        let driver = has_driver.then(|| tokio::spawn(drive(Arc::clone(&near))));
        send(&near, request(1, Bytes::new()), Flush::Batch).await.expect("open");
        near.retire().await;
        near.retire().await;
        if let Some(driver) = driver {
            let error = driver.await.expect("no panic").to_string();
            assert_eq!(error, "this side retired the connection");
        }
        assert_eq!(slot(&receive_all(&far, 1).await[0]), 1);
        far.retire().await;
        net.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn retiring_resolves_while_long_bodies_wait_for_a_peer_that_takes_nothing() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        send(&near, request(1, pattern(1, 64 << 20)), Flush::Now).await.expect("open");
        tokio::time::sleep(Duration::from_millis(50)).await;
        near.retire().await;
        driver.await.expect("no panic");
        let error = receive(&far).await.expect_err("a body that never ends");
        assert!(error.to_string().contains("within a body"), "{error}");
        far.retire().await;
        net.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_an_end_tells_the_peer() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (near, far) = net.pair().await;
        send(&near, request(1, Bytes::from("last")), Flush::Now).await.expect("open");
        drop(near);
        assert_eq!(slot(&receive_all(&far, 1).await[0]), 1);
        receive(&far).await.expect_err("gone");
        far.retire().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        net.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn retiring_resolves_at_any_moment_of_sending_and_receiving() {
    for profile in PROFILES {
        for round in 0..24 {
            let mut config = exact();
            config.send_queue_messages = 8;
            let net = Net::with(profile, round as u64, [config.clone(), config]);
            let (near, far) = net.pair().await;
            let mut tasks: Vec<_> = [&near, &far]
                .map(|end| {
                    let end = Arc::clone(end);
                    tokio::spawn(async move { while receive(&end).await.is_ok() {} })
                })
                .into();
            for task in 0..4_usize {
                let end = Arc::clone([&near, &far][task % 2]);
                let flush = [Flush::Now, Flush::Batch][task / 2];
                tasks.push(tokio::spawn(async move {
                    for number in 0.. {
                        let len = [9, 5000, 100_000][number as usize % 3];
                        let number = number * 4 + u32::try_from(task).expect("few");
                        let sent = send(&end, request(number, pattern(number, len)), flush).await;
                        if sent.is_err() {
                            return;
                        }
                    }
                }));
            }
            for number in 0..round {
                step(number).await;
            }
            near.retire().await;
            for task in tasks {
                task.await.expect("no panic");
            }
            far.retire().await;
            net.assert_clean();
        }
    }
}

#[test]
fn a_runtime_that_ends_leaves_no_buffer_behind() {
    for profile in PROFILES {
        for steps in [0, 1, 5, 20, 100] {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
            let net = runtime.block_on(async {
                let net = Net::new(profile, steps as u64);
                let (near, far) = net.pair().await;
                for end in [&near, &far] {
                    tokio::spawn(drive(Arc::clone(end)));
                }
                for number in 0..50 {
                    let len = [9, 5000, 300_000][number as usize % 3];
                    let request = request(number, pattern(number, len));
                    send(&near, request, Flush::Now).await.expect("open");
                }
                for number in 0..steps {
                    step(number).await;
                }
                net
            });
            drop(runtime);
            net.assert_clean();
        }
    }
}
