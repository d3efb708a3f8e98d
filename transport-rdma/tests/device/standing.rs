//! Long requests that are written at once, into memory that their server granted before it knew of them.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use verbwire_core::message::Message;
use verbwire_core::transport::Transport;
use verbwire_rdma::{Peers, RdmaConfig, RdmaTransport};

use crate::{
    End, anywhere, assert_clean, connect, pattern, receive, request, send, slot, transport,
};

const LEN: usize = 1 << 20;
/// A region for so much.
const REGION: usize = LEN + 8192;

fn config() -> RdmaConfig {
    let mut config = RdmaConfig::default();
    (config.standing_grants, config.peers) = (2, Peers::Trusted);
    // Each region is registered for itself.
    config.landing.size.slab_len = 1;
    config
}

/// The message that `far` receives while both ends are driven.
async fn received(near: &End, far: &End) -> Message {
    let receiving = async {
        tokio::select! {
            biased;
            ended = receive(near) => panic!("{ended:?}"),
            received = receive(far) => received.expect("open").remove(0),
        }
    };
    timeout(Duration::from_secs(20), receiving).await.expect("in time")
}

/// Drives both ends until all grants stand, and a while longer; neither receives a message meanwhile.
async fn settle(transport: &RdmaTransport, near: &End, far: &End) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let received = timeout(Duration::from_millis(500), received(near, far)).await;
        assert!(received.is_err(), "{received:?}");
        let landing = transport.pools().landing;
        if landing.in_use_bytes == 2 * REGION {
            return;
        }
        assert!(Instant::now() < until, "not two regions of {REGION} bytes stand: {landing:?}");
    }
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn long_requests_are_written_where_grants_stand() {
    let transport = transport(config());
    let mut listener = transport.listen(&anywhere()).await.expect("listens");
    let (near, far) = connect(&transport, &mut *listener, 1).await.expect("connected");
    settle(&transport, &near, &far).await;
    let registrations = || transport.pools().landing.registrations;
    assert_eq!(registrations(), 2);
    for (number, len) in (0..).zip([LEN, 40_000, LEN - 1, 300_000, LEN]) {
        send(&near, request(number, pattern(number, len))).await.expect("open");
        let message = received(&near, &far).await;
        assert_eq!(slot(&message), number);
        assert!(message.body.into_bytes() == pattern(number, len), "{len} bytes came changed");
        // What was used is given anew.
        settle(&transport, &near, &far).await;
        assert_eq!(registrations(), 2, "there was no other memory");
    }
    // What is longer asks.
    send(&near, request(9, pattern(9, LEN + 1))).await.expect("open");
    let message = received(&near, &far).await;
    assert!(message.body.into_bytes() == pattern(9, LEN + 1));
    assert_eq!(registrations(), 3, "it was granted memory beside that");
    assert_clean(&transport, [near, far]).await;
}
