//! Thousands who come and shake no hands, or drop them at any step: how many have queue pairs at a time is bounded, they are expired and
//! counted, and who is a client already notices nothing.
//!
//! Strangers come in waves of more than the server takes at a time. In the device lab they are few, since each takes its
//! milliseconds there.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use verbwire_core::client::Client;
use verbwire_core::config::ClientConfig;
use verbwire_core::transport::{Ticket, Transport};
use verbwire_core::{Channel, Request, Response, Server, Target};
use verbwire_tests::fixture::LONG;
use verbwire_tests::raw_rdma::{RawHost, RawRdma};

use crate::over_nics;
use crate::site::{Over, Site};
use crate::tickets::{ECHO, Echo, MOST_HANDSHAKES, Upgradable, private_data, taken};

over_nics!(strangers_at_a_listener_for_second_paths_cost_nothing_at_any_step);

/// How far a peer gets within so many polls, or within the time of a handshake, is another thing on an emulated device.
mod counted {
    use super::*;

    over_nics!(
        software half_open_handshakes_are_bounded_expired_and_counted,
        a_client_that_drops_its_second_paths_harms_nobody,
    );
}

/// Time that each handshake has.
const SOON: Duration = Duration::from_millis(500);

/// Strangers at a time: more than the server takes.
const WAVE: usize = 40;

/// How many come: on a device, where each takes its time, a twentieth.
fn many(over: Over, count: usize) -> usize {
    match over {
        Over::Fabric(_) => count,
        #[cfg(feature = "device")]
        Over::Device => count / 20,
    }
}

/// A call over an old connection is answered soon.
async fn assert_served(client: &Client) {
    let mut request = Request::new(7_u32);
    request.set_timeout(LONG);
    let reply: Response<u32> = client.unary(0, request).await.expect("the server lives");
    assert_eq!(reply.into_inner(), 7);
}

/// Polls `attempt` so many times and then drops it.
async fn given_up<T>(mut polls: usize, attempt: impl Future<Output = T>) -> Option<T> {
    let mut attempt = pin!(attempt);
    poll_fn(|cx| match attempt.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if polls == 0 => Poll::Ready(None),
        Poll::Pending => {
            polls -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Connects, and says nothing, half a HELLO, or HELLO.
async fn half_open(raw: RawHost, address: String, number: usize) -> RawRdma {
    let mut stranger = raw.knock(&address, private_data(None)).await.expect("accepted in its turn");
    let hello = RawRdma::hello().encode_framed();
    if number % 4 == 1 {
        stranger.send(&hello[..hello.len() / 2]);
    }
    stranger
}

async fn half_open_handshakes_are_bounded_expired_and_counted(over: Over) {
    let mut site = Site::new(over).await;
    // Of one connection.
    let each = site.transports[1].buffers().total;
    let target = Target::new(site.scheme(), site.anywhere());
    let transport = Arc::new(site.transports[1].clone()) as Arc<dyn Transport>;
    let builder = Server::builder().add_service(Echo);
    let builder = builder.max_handshakes(MOST_HANDSHAKES).handshake_timeout(SOON);
    let bound = builder.bind([(transport, target)]).await.expect("a free port");
    let (connections, at) = (bound.connections(), bound.local_targets()[0].clone());
    let serving = tokio::spawn(bound.serve());
    let near = Arc::new(site.transports[0].clone());
    let channel = Channel::connect(near, &at, &ClientConfig::default()).await.expect("it serves");
    let client = Client::new(channel, &ECHO);
    assert_served(&client).await;
    let strangers = 25 * WAVE;
    let mut most = 0;
    for _ in 0..strangers / WAVE {
        let mut wave = JoinSet::new();
        for number in 0..WAVE {
            wave.spawn(half_open(site.raw.clone(), at.address().to_owned(), number));
        }
        let mut waiting = Vec::new();
        while let Some(stranger) = wave.join_next().await {
            waiting.push(stranger.expect("no panic"));
            assert_served(&client).await;
            let counts = connections.newcomers();
            assert!(counts.waiting <= MOST_HANDSHAKES as u64, "{counts:?}");
            most = most.max(counts.waiting);
        }
        for mut stranger in waiting {
            stranger.ended().await;
        }
    }
    assert_eq!(most, MOST_HANDSHAKES as u64, "there was a crowd");
    let until = Instant::now() + LONG;
    while connections.newcomers().waiting > 0 {
        assert!(Instant::now() < until, "{:?}", connections.newcomers());
        sleep(Duration::from_millis(5)).await;
    }
    let counts = connections.newcomers();
    let ended = counts.timed_out + counts.at_fault + counts.lost;
    assert_eq!((ended, counts.let_in), (strangers as u64, 1), "{counts:?}");
    assert!(counts.timed_out >= strangers as u64 * 3 / 4, "{counts:?}");
    assert!(counts.at_fault >= strangers as u64 / 8, "{counts:?}");
    // The other connection's, the client's, and those of as many as may shake hands while others are still being taken down.
    let buffers = site.transports[1].buffers().total;
    assert!(buffers <= each * (2 * MOST_HANDSHAKES + 2), "{buffers}, each {each}");
    assert_served(&client).await;
    site.assert_others_served().await;
    drop(client);
    serving.abort();
    settle(&site).await;
    site.close_clean().await;
}

/// Waits until all that ends has ended.
async fn settle(site: &Site) {
    let until = Instant::now() + LONG;
    let used = || {
        let counts = site.transports[1].buffers();
        counts.total - counts.free
    };
    let before = used();
    while site.transports[1].reactors().connections > 1 {
        assert!(Instant::now() < until, "{} of {before} buffers are in use", used());
        sleep(Duration::from_millis(5)).await;
    }
}

async fn strangers_at_a_listener_for_second_paths_cost_nothing_at_any_step(over: Over) {
    let mut site = Site::new(over).await;
    let server = Upgradable::at(&site, &format!("knocks-{over:?}")).await;
    let (at, good) = server.ask().await;
    let client = Client::new(server.moved(&site).await, &ECHO);
    assert_served(&client).await;
    let before = taken(&site.transports[1]);
    let strangers = many(over, 3400);
    let mut dropped = 0;
    for number in 0..strangers {
        let token = [u8::try_from(number % 256).expect("below"); 16];
        let ticket = (number % 2 == 0).then_some(Ticket { token, ..good });
        let knock = site.raw.knock(at.address(), private_data(ticket));
        match number % 10 {
            // Before it is resolved, before it is sent, before it is answered.
            0..3 => match given_up(number % 3, knock).await {
                Some(refused) => assert!(refused.is_err(), "{number}"),
                None => dropped += 1,
            },
            _ => assert!(knock.await.is_err(), "{number}"),
        }
        if number % 50 == 0 {
            assert_served(&client).await;
            assert_eq!(taken(&site.transports[1]), before, "after {number}");
        }
    }
    let tickets = server.connections.tickets();
    let (missing, unknown) = (tickets.missing, tickets.unknown);
    assert!(dropped >= strangers / 10, "{dropped} were dropped");
    let refused = (strangers * 7 / 10) as u64;
    assert!((refused..=strangers as u64).contains(&(missing + unknown)), "{tickets:?}");
    assert!(missing >= refused * 2 / 5 && unknown >= refused * 2 / 5, "{tickets:?}");
    assert_eq!(tickets.redeemed, 1, "the client's");
    assert_eq!(taken(&site.transports[1]), before);
    let paths = server.connections.list().into_iter().map(|one| one.paths());
    assert_eq!(paths.filter(|paths| paths.second.is_some()).count(), 1, "its path stands");
    site.assert_others_served().await;
}

async fn a_client_that_drops_its_second_paths_harms_nobody(over: Over) {
    let mut site = Site::new(over).await;
    let server = Upgradable::at(&site, &format!("knocks-dropped-{over:?}")).await;
    let client = Client::new(server.moved(&site).await, &ECHO);
    let each = site.transports[1].buffers().total / 2;
    let rounds = 120;
    let hello = RawRdma::hello();
    for number in 0..rounds {
        let (at, ticket) = server.ask().await;
        let come = async {
            let data = private_data(Some(ticket));
            let mut raw = site.raw.knock(at.address(), data).await.expect("let near");
            if number % 3 > 0 {
                raw.send(&hello.encode_framed());
            }
            if number % 3 > 1 {
                // Not the incarnation of the first path.
                raw.ended().await;
            }
        };
        // Dropped at each step, or when it has got as far as it can.
        let _done = given_up(number % 12, timeout(LONG, come)).await;
        assert_served(&client).await;
    }
    let until = Instant::now() + LONG;
    while server.connections.newcomers().waiting > 0 {
        assert!(Instant::now() < until, "{:?}", server.connections.newcomers());
        sleep(Duration::from_millis(5)).await;
    }
    let (tickets, counts) = (server.connections.tickets(), server.connections.newcomers());
    // Both clients' first paths, and the second of one of them.
    assert_eq!(counts.let_in, 3, "{counts:?}");
    let redeemed = tickets.redeemed - 1;
    assert_eq!(counts.lost + counts.at_fault + counts.timed_out, redeemed, "{counts:?}");
    assert!(redeemed >= rounds as u64 / 3, "{tickets:?}");
    let buffers = site.transports[1].buffers().total;
    assert!(buffers <= each * (MOST_HANDSHAKES + 2), "{buffers}, each {each}");
    assert_served(&client).await;
    site.assert_others_served().await;
}
