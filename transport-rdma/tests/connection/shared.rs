//! Connections that share completion queues.

use std::time::Duration;

use verbwire_core::transport::Flush;
use verbwire_rdma::RdmaConfig;

use crate::pair::{Net, PROFILES, drive, pattern, receive_all, request, send, slot};

#[tokio::test(start_paused = true)]
async fn many_connections_on_one_pair_of_queues_get_their_own_messages() {
    for profile in PROFILES {
        let net = Net::with(profile, 11, [RdmaConfig::default(), RdmaConfig::default()]);
        let mut pairs = Vec::new();
        for _ in 0..12 {
            pairs.push(net.pair().await);
        }
        for transport in &net.transports {
            let counts = transport.reactors();
            assert_eq!((counts.reactors, counts.connections), (1, 12));
        }
        let drivers: Vec<_> =
            pairs.iter().map(|(near, _)| tokio::spawn(drive(near.clone()))).collect();
        for round in 0..20 {
            for (number, (near, _)) in (0..).zip(&pairs) {
                let body = pattern(number, 50 + round);
                send(near, request(number, body), Flush::Batch).await.expect("open");
            }
        }
        for (number, (_, far)) in (0..).zip(&pairs) {
            let messages = receive_all(far, 20).await;
            assert!(messages.iter().all(|message| slot(message) == number));
        }
        for (near, far) in &pairs {
            near.retire().await;
            far.retire().await;
        }
        net.assert_clean();
        for driver in drivers {
            driver.await.expect("no panic");
        }
        let counts = net.transports[0].reactors();
        assert_eq!((counts.connections, counts.lost_events), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_leaves_the_others_on_its_queues_alone() {
    for profile in PROFILES {
        let net = Net::with(profile, 12, [RdmaConfig::default(), RdmaConfig::default()]);
        let (near, far) = net.pair().await;
        let driver = tokio::spawn(drive(near.clone()));
        for number in 0..10 {
            let (other, peer) = net.pair().await;
            send(&other, request(9, pattern(9, 5000)), Flush::Now).await.expect("open");
            drop((other, peer));
            send(&near, request(number, pattern(number, 100)), Flush::Now).await.expect("open");
            assert_eq!(slot(&receive_all(&far, 1).await[0]), number);
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(net.transports[0].reactors().connections, 1);
        net.close([&near, &far]).await;
        driver.await.expect("no panic");
    }
}
