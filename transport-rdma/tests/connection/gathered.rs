//! Short messages whose payload is sent from where it lies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use verbwire_core::Request;
use verbwire_core::message::Message;
use verbwire_core::transport::{Flush, Transport};
use verbwire_rdma::fabric::{FabricConfig, Fate, Profile};
use verbwire_rdma::nic::Capabilities;

use crate::dying::{at_each_of, send_and_answer};
use crate::faults::{drop_after, echo};
use crate::pair::{Net, PROFILES, drive, exact, pattern, receive_all, request, send, slot};

const BLOCK: usize = 4096;

/// A pattern in memory of the near side's transport.
async fn allocated(net: &Net, slot: u32, len: usize) -> Bytes {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut buffer = net.transports[0].alloc(len, deadline).await.expect("room");
    buffer.copy_from_slice(&pattern(slot, len));
    buffer.freeze()
}

/// A request of these segments.
fn of(slot: u32, segments: &[&Bytes]) -> Message {
    let mut message = request(slot, Bytes::new());
    segments.iter().for_each(|segment| message.body.push(Bytes::clone(segment)));
    message
}

fn joined(segments: &[&Bytes]) -> Bytes {
    segments.iter().flat_map(|segment| segment.iter().copied()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_allocated_block_is_not_copied_by_its_sender_wherever_it_stands() {
    for profile in PROFILES {
        let mut config = exact();
        config.eager_len = 32 << 10;
        let net = Net::with(profile, 1, [config.clone(), config]);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let [head, tail] = [Bytes::from_static(b"head"), Bytes::from_static(b"tail")];
        let (one, two) = (allocated(&net, 1, BLOCK).await, allocated(&net, 2, 2 * BLOCK).await);
        let shapes: [&[&Bytes]; 6] = [
            &[&one],
            &[&head, &one],
            &[&one, &tail],
            &[&head, &one, &tail],
            &[&head, &one, &two],
            &[&one, &head, &two, &tail],
        ];
        for (number, shape) in (0..).zip(shapes) {
            send(&near, of(number, shape), Flush::Now).await.expect("open");
            let received = receive_all(&far, 1).await.remove(0);
            assert!(received.body.into_bytes() == joined(shape), "shape {number}");
        }
        assert_eq!(net.transports[0].pools().eager_copied_bytes, 0);
        drop((one, two));
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_runs_are_gathered_than_the_device_takes() {
    for (max_sge, copied) in
        [(1, 2 * BLOCK), (2, 2 * BLOCK), (3, BLOCK), (4, BLOCK), (5, 0), (32, 0)]
    {
        let profile = Profile::Rxe;
        let capabilities = Capabilities { max_sge, ..profile.capabilities("rxe") };
        let capabilities = Some(capabilities);
        let fabric = FabricConfig { profile, capabilities, ..FabricConfig::new(1) };
        let mut config = exact();
        config.eager_len = 32 << 10;
        let net = Net::over(fabric, [config.clone(), config]);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let [head, tail] = [Bytes::from_static(b"head"), Bytes::from_static(b"tail")];
        let (one, two) = (allocated(&net, 1, BLOCK).await, allocated(&net, 2, BLOCK).await);
        let shape = [&head, &one, &head, &two, &tail];
        send(&near, of(1, &shape), Flush::Now).await.expect("open");
        let received = receive_all(&far, 1).await.remove(0);
        assert!(received.body.into_bytes() == joined(&shape), "{max_sge} entries");
        assert_eq!(net.transports[0].pools().eager_copied_bytes, copied as u64);
        drop((one, two));
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_short_or_lies_elsewhere_is_copied() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let short = allocated(&net, 1, BLOCK - 1).await;
        send(&near, of(1, &[&short]), Flush::Now).await.expect("open");
        assert_eq!(net.transports[0].pools().eager_copied_bytes, 0, "not long enough to count");
        let foreign = pattern(2, BLOCK);
        send(&near, of(2, &[&foreign]), Flush::Now).await.expect("open");
        let received = receive_all(&far, 2).await;
        assert!(received[0].body.clone().into_bytes() == short);
        assert!(received[1].body.clone().into_bytes() == foreign);
        assert_eq!(net.transports[0].pools().eager_copied_bytes, 4096);
        drop(short);
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn the_one_buffer_of_a_pool_comes_back_though_nothing_is_received() {
    for profile in PROFILES {
        let mut config = exact();
        config.staging.longest = BLOCK;
        config.staging.cap = BLOCK;
        let net = Net::with(profile, 1, [config, exact()]);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let begin = Instant::now();
        for number in 0..50 {
            let block = allocated(&net, number, BLOCK).await;
            send(&near, of(number, &[&block]), Flush::Now).await.expect("open");
        }
        assert!(begin.elapsed() < Duration::from_millis(50), "{:?}", begin.elapsed());
        for (number, message) in (0..).zip(receive_all(&far, 50).await) {
            assert!(message.body.into_bytes() == pattern(number, BLOCK), "request {number}");
        }
        sleep(Duration::from_secs(1)).await;
        let block = allocated(&net, 50, BLOCK).await;
        send(&near, of(50, &[&block]), Flush::Now).await.expect("open");
        drop(block);
        assert_eq!(slot(&receive_all(&far, 1).await[0]), 50);
        assert!(net.transports[0].pools().users.in_use_bytes > 0, "nobody has asked for it");
        sleep(Duration::from_millis(501)).await;
        net.assert_pools_idle();
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_is_its_nics_until_its_own_completion() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (near, far) = net.pair().await;
        let late = Duration::from_millis(40);
        let driver = tokio::spawn(drive(Arc::clone(&near)));
        let block = allocated(&net, 1, BLOCK).await;
        let posted = net.hosts[0].counters().work_requests;
        net.hosts[0].script(posted + 1, Fate::LateCompletion(late));
        send(&near, of(1, &[&block]), Flush::Now).await.expect("open");
        drop(block);
        let answer = receive_all(&far, 1).await.remove(0);
        send(&far, answer, Flush::Now).await.expect("open");
        sleep(Duration::from_millis(20)).await;
        assert!(net.transports[0].pools().users.in_use_bytes >= BLOCK, "a reply proves nothing");
        sleep(Duration::from_secs(1)).await;
        net.assert_pools_idle();
        assert_eq!(net.fabric.pending_fates(), 0);
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_with_a_block_dropped_at_every_step_leaves_no_buffer_behind() {
    for profile in PROFILES {
        let net = Net::new(profile, 1);
        let (client, server) = echo(&net).await;
        let mut steps = 0;
        loop {
            let body = allocated(&net, 1, 7000).await;
            if drop_after(client.unary::<_, Bytes>(0, Request::new(body)), steps).await {
                break;
            }
            sleep(Duration::from_secs(1)).await;
            net.assert_pools_idle();
            steps += 1;
        }
        assert!(steps > 5, "{steps} steps are not enough to drop a call in the middle");
        assert_eq!(net.transports[0].pools().eager_copied_bytes, 0);
        drop(client);
        sleep(Duration::from_secs(10)).await;
        server.abort();
        sleep(Duration::from_secs(10)).await;
        net.assert_clean();
    }
}

/// Blocks from one side, and what comes of them back, until one side dies.
async fn until_dead(net: &Net) {
    let block = async |number| of(number, &[&allocated(net, number, BLOCK).await]);
    send_and_answer(net, block, |message| request(slot(&message), Bytes::new())).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_may_die_at_any_work_request_of_a_block() {
    at_each_of(86..106, Net::new, until_dead).await;
}
