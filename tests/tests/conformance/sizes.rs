//! Sizes around each limit, in both directions, byte for byte.

use std::sync::Arc;

use tokio::task::JoinSet;
use verbwire::{Code, Executed, Request, Status};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::fixture::{Fixture, connect};
use verbwire_tests::island::Island;
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, ProduceRequest};
use verbwire_tests::service::Witness;

pub(crate) const CASES: &[Case] = &[
    case!(payloads_around_every_limit_come_back_unchanged),
    case!(bodies_around_every_limit_come_back_unchanged),
    case!(long_requests_arrive_with_the_hash_that_they_left_with),
    case!(long_replies_arrive_with_the_hash_that_they_left_with),
    case!(a_request_may_have_the_servers_limit_and_not_a_byte_more).over_a_connection(),
    case!(a_reply_may_have_the_clients_limit_and_not_a_byte_more).over_a_connection(),
    case!(a_request_beyond_the_landing_memory_is_refused).over_a_connection(),
    case!(long_bodies_share_the_connection),
    case!(a_small_call_overtakes_a_long_request).in_pieces().in_real_time(),
    case!(a_small_call_overtakes_a_long_reply).in_pieces().in_real_time(),
];

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Where something changes: short bytes are copied, frames end, the suite's own largest.
const EDGES: [usize; 4] = [4 * KIB, 16 * KIB, 256 * KIB, MIB];

/// Where the way of long bodies changes: a frame over RDMA, from where they are written into granted memory, pieces and
/// Writes, registered regions, the longest message.
const LONG_EDGES: [usize; 9] =
    [8 * KIB, 32 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB];

/// Lengths of bodies around them, none longer than the limit. An emulated device takes a tenth of a second for a
/// megabyte: there up to a megabyte.
fn around_long_edges(fixture: &Fixture) -> impl Iterator<Item = usize> {
    let longest = if fixture.backend().place.is_device() { MIB + 1 } else { 64 * MIB };
    let around = |edge| [edge - 1, edge, edge + 1];
    LONG_EDGES.into_iter().flat_map(around).filter(move |len| *len <= longest)
}

fn around_edges() -> impl Iterator<Item = usize> {
    let around = EDGES.into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]);
    [0, 1, 127, 128].into_iter().chain(around)
}

/// The payload that makes the body of a `Blob` exactly `body` bytes long.
fn payload_of_body(body: usize) -> usize {
    // A tag, and a length in seven bits per byte.
    let prefix = |payload: usize| 1 + (payload.max(1).ilog2() as usize) / 7 + 1;
    (0..8)
        .map(|prefix| body - prefix)
        .find(|payload| payload + prefix(*payload) == body)
        .expect("some body lengths cannot be met, but none of the suite's")
}

async fn echo(client: &ConformanceClient, len: usize) {
    let payload = pattern::payload(len, len as u64);
    let reply = client.echo(Blob { payload: payload.clone() }).await;
    let reply = reply.expect("echo").into_inner();
    assert!(reply.payload == payload, "{len} bytes came back changed");
}

async fn payloads_around_every_limit_come_back_unchanged(fixture: Fixture) {
    let pair = fixture.pair().await;
    for len in around_edges() {
        echo(&pair.client, len).await;
    }
}

async fn bodies_around_every_limit_come_back_unchanged(fixture: Fixture) {
    let pair = fixture.pair().await;
    for body in around_edges().filter(|body| *body > 200) {
        echo(&pair.client, payload_of_body(body)).await;
    }
}

async fn long_requests_arrive_with_the_hash_that_they_left_with(fixture: Fixture) {
    let pair = fixture.pair().await;
    for body in around_long_edges(&fixture) {
        let payload = pattern::payload(payload_of_body(body), body as u64);
        let sent = (payload.len() as u64, pattern::checksum(&payload));
        let reply = pair.client.digest(Blob { payload }).await.expect("digest").into_inner();
        assert_eq!((reply.len, reply.checksum), sent, "a request of {body} bytes came changed");
    }
}

async fn long_replies_arrive_with_the_hash_that_they_left_with(fixture: Fixture) {
    let pair = fixture.pair().await;
    for (number, body) in (0..).zip(around_long_edges(&fixture)) {
        let len = payload_of_body(body);
        let mut request = Request::new(ProduceRequest { len: len as u64, seed: number });
        // Asked for and announced in turns.
        if number % 2 == 0 {
            request.expect_reply(body as u64);
        }
        let reply = pair.client.produce(request).await.expect("produce").into_inner().payload;
        let expected = pattern::checksum(&pattern::payload(len, number));
        assert_eq!((reply.len(), pattern::checksum(&reply)), (len, expected), "a reply of {body}");
    }
}

fn assert_too_large(status: &Status, words: &str) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains(words), "{status}");
}

async fn a_request_may_have_the_servers_limit_and_not_a_byte_more(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_message_size(MIB)).await;
    for body in [MIB - 1, MIB] {
        let payload = pattern::payload(payload_of_body(body), 1);
        let checksum = pattern::checksum(&payload);
        let reply = pair.client.digest(Blob { payload }).await.expect("within the limit");
        assert_eq!(reply.get_ref().checksum, checksum);
    }
    for (body, size) in [(MIB + 1, "1048577 bytes"), (80 * MIB, "80 MiB")] {
        let payload = pattern::payload(payload_of_body(body), 1);
        let status = pair.client.digest(Blob { payload }).await.expect_err("too long");
        let words = "exceeds max_message_size of 1 MiB, set by the server's";
        assert_too_large(&status, &format!("request message of {size} {words}"));
        assert_eq!(status.executed(), Executed::No);
    }
    echo(&pair.client, 10).await;
}

async fn a_reply_may_have_the_clients_limit_and_not_a_byte_more(fixture: Fixture) {
    let (_, serving) = fixture.pair_with(|builder| builder).await;
    let client = ConformanceClient::new(connect(&serving.endpoint().max_message_size(MIB)).await);
    for body in [MIB - 1, MIB] {
        let len = payload_of_body(body);
        let request = ProduceRequest { len: len as u64, seed: 3 };
        let reply = client.produce(request).await.expect("within the limit");
        assert!(reply.get_ref().payload == pattern::payload(len, 3));
    }
    // The handler of the second does not even get memory for its payload, which is five bytes shorter.
    for (body, size) in [(MIB + 1, "1048577 bytes"), (8 * MIB, "8388603 bytes")] {
        let len = payload_of_body(body) as u64;
        let status = client.produce(ProduceRequest { len, seed: 3 }).await;
        let status = status.expect_err("too long");
        let words = "exceeds max_message_size of 1 MiB, set by the client's";
        assert_too_large(&status, &format!("reply message of {size} {words}"));
        assert_eq!(status.executed(), Executed::Yes);
    }
    echo(&client, 10).await;
}

async fn a_request_beyond_the_landing_memory_is_refused(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder.max_landing_bytes(MIB)).await;
    for _ in 0..3 {
        let payload = pattern::payload(3 * MIB, 1);
        let status = pair.client.digest(Blob { payload }).await.expect_err("no room");
        assert_too_large(&status, "max_landing_bytes of 1 MiB");
        assert_eq!(status.executed(), Executed::No);
        echo(&pair.client, MIB / 2).await;
    }
}

async fn long_bodies_share_the_connection(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut calls = JoinSet::new();
    for number in 0..8 {
        let client = pair.client.clone();
        calls.spawn(async move { echo(&client, 3 * MIB + number).await });
    }
    while let Some(ended) = calls.join_next().await {
        ended.expect("echo");
    }
}

/// A client on a thread of its own, which alone moves its bytes: however late it runs, the order of what it
/// sends and receives stays the same.
async fn on_an_island<F>(fixture: &Fixture, work: impl FnOnce(ConformanceClient, Arc<Witness>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (pair, serving) = fixture.pair_with(|builder| builder).await;
    let (island, endpoint) = (Island::new(), serving.endpoint());
    let channel = island.run(async move { connect(&endpoint).await }).await;
    island.run(work(ConformanceClient::new(channel), pair.witness)).await;
}

async fn a_small_call_overtakes_a_long_request(fixture: Fixture) {
    let work = |client: ConformanceClient, _| async move {
        let payload = pattern::payload(20 * MIB, 1);
        let checksum = pattern::checksum(&payload);
        let mut long = client.digest(Blob { payload });
        let is_overtaken = tokio::select! {
            biased;
            _ = &mut long => false,
            () = echo(&client, 100) => true,
        };
        assert!(is_overtaken, "the long request was faster than the small call");
        assert_eq!(long.await.expect("digest").get_ref().checksum, checksum);
    };
    on_an_island(&fixture, work).await;
}

async fn a_small_call_overtakes_a_long_reply(fixture: Fixture) {
    let work = |client: ConformanceClient, witness: Arc<Witness>| async move {
        let request = ProduceRequest { len: 20 * MIB as u64, seed: 4 };
        let mut long = client.produce(request);
        let small = async {
            // From here on the reply is on its way.
            witness.until(|log| log.produced > 0).await;
            echo(&client, 100).await;
        };
        let is_overtaken = tokio::select! {
            biased;
            _ = &mut long => false,
            () = small => true,
        };
        assert!(is_overtaken, "the long reply was faster than the small call");
        let reply = long.await.expect("produce");
        assert!(reply.get_ref().payload == pattern::payload(20 * MIB, 4));
    };
    on_an_island(&fixture, work).await;
}
