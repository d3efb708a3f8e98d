//! What looks like an attack and is none.

use std::time::Duration;

use tokio::time::Instant;
use verbwire_core::Body;
use verbwire_core::transport::Transport;
use verbwire_rdma::Peers;
use verbwire_tests::pattern;

use crate::end::{receive_one, request, send, while_driven};
use crate::over_nics;
use crate::site::{Over, Site, exact};

over_nics!(a_message_may_have_more_segments_than_a_work_request_has_entries,);

async fn a_message_may_have_more_segments_than_a_work_request_has_entries(over: Over) {
    for peers in [Peers::Untrusted, Peers::Trusted] {
        let mut config = exact();
        config.peers = peers;
        let mut site = Site::with(over, config).await;
        let [near, far] = site.pair().await;
        // Runs of registered memory that do not touch, with others in between.
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut buffer = site.transports[0].alloc(1 << 20, deadline).await.expect("room");
        pattern::fill(&mut buffer, 1);
        let registered = buffer.freeze();
        for number in 0..3 {
            let mut body = Body::default();
            for at in 0..50 {
                body.push(registered.slice(at * 20_000..at * 20_000 + 9000));
                body.push(pattern::payload(70 + at, at as u64));
            }
            let whole = body.clone().into_bytes();
            send(&near, request(number, body)).await.expect("open");
            let received = while_driven(&near, receive_one(&far)).await.body.into_bytes();
            assert!(received == whole, "message {number} from {peers:?} peers");
        }
        drop(registered);
        near.retire().await;
        site.retired(far).await;
        site.close_clean().await;
    }
}
