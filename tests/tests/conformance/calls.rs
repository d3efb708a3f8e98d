//! Calls that succeed, and methods that are not there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use verbwire::{Channel, Code, Executed, NamedService, Paths, Request};
use verbwire_tests::case;
use verbwire_tests::case::{Case, Need};
use verbwire_tests::fixture::{Fixture, LONG, Serving, connect};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::conformance_server::ConformanceServer;
use verbwire_tests::proto::conformance::second_client::SecondClient;
use verbwire_tests::proto::conformance::second_server::SecondServer;
use verbwire_tests::proto::conformance::{Blob, InlineRequest, Nothing, ProduceRequest, Ticket};
use verbwire_tests::service::Desk;

pub(crate) const CASES: &[Case] = &[
    case!(a_call_returns_its_reply),
    case!(a_call_can_be_spawned_away_from_its_client),
    case!(five_hundred_calls_run_at_once_and_end_in_any_order),
    case!(many_callers_get_their_own_answers),
    case!(many_channels_share_a_server).over_a_connection(),
    case!(inline_handlers_answer_at_once_and_later),
    case!(two_services_share_a_server_and_a_channel).over_a_connection(),
    case!(an_unknown_method_is_unimplemented_and_harms_nothing).over_a_connection(),
    case!(a_handler_knows_the_way_of_its_request).over_one_connection(),
    case!(calls_take_the_best_path_and_the_channel_says_which).over_a_connection(),
    case!(an_allocated_buffer_is_filled_and_sent_in_place).over_one_path(),
    case!(the_callers_own_memory_is_sent_by_reference_and_let_go),
    case!(a_reply_can_be_made_in_allocated_memory),
];

async fn a_call_returns_its_reply(fixture: Fixture) {
    let pair = fixture.pair().await;
    for text in ["", "a", "größer"] {
        let payload = text.into();
        let reply = pair.client.echo(Blob { payload }).await.expect("echo");
        assert_eq!(reply.get_ref().payload, text);
    }
    let request = Request::new(Blob::default());
    assert_eq!(pair.client.echo(request).await.expect("echo").into_inner(), Blob::default());
}

async fn a_call_can_be_spawned_away_from_its_client(fixture: Fixture) {
    fn is_shareable<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn is_spawnable<T: Send + Unpin + 'static>(_: &T) {}
    let pair = fixture.pair().await;
    is_shareable(&pair.client);
    is_shareable::<Channel>(pair.client.channel());
    let call = pair.client.echo(Blob { payload: "x".into() });
    is_spawnable(&call);
    drop(pair.client);
    let reply = tokio::spawn(call).await.expect("no panic").expect("echo");
    assert_eq!(reply.get_ref().payload, "x");
}

async fn five_hundred_calls_run_at_once_and_end_in_any_order(fixture: Fixture) {
    const CALLS: u64 = 500;
    let pair = fixture.pair().await;
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        calls.spawn(pair.client.gate(Ticket { number }));
    }
    pair.witness.until(|log| log.running == 500).await;
    // 201 and 500 have no common divisor, so every ticket comes once.
    for turn in 0..CALLS {
        let number = turn * 201 % CALLS;
        pair.witness.open(number);
        let reply = calls.join_next().await.expect("one left");
        let reply = reply.expect("no panic").expect("gate");
        assert_eq!(reply.get_ref().number, number);
    }
    let log = pair.witness.log();
    assert_eq!((log.entries, log.finished.len()), (500, 500));
}

async fn many_callers_get_their_own_answers(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut callers = JoinSet::new();
    for caller in 0..64_u64 {
        let client = pair.client.clone();
        callers.spawn(async move {
            for round in 0..20_usize {
                let len = if round % 10 == 9 { 10_000 } else { round };
                let payload = pattern::payload(len, caller << 32 | round as u64);
                let blob = Blob { payload: payload.clone() };
                let reply = client.echo(blob).await.expect("echo");
                assert_eq!(reply.get_ref().payload, payload);
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.expect("no caller failed");
    }
}

async fn many_channels_share_a_server(fixture: Fixture) {
    // An emulated device takes seconds for the handshakes, and longer than a server gives one by default.
    let count = if fixture.backend().place.is_device() { 12 } else { 60 };
    let (pair, serving) = fixture.pair_with(|builder| builder.handshake_timeout(LONG)).await;
    let mut channels = JoinSet::new();
    for number in 0..count {
        let endpoint = serving.endpoint();
        channels.spawn(async move {
            let client = ConformanceClient::new(connect(&endpoint).await);
            for _ in 0..10 {
                let reply = client.gate(Ticket { number }).await.expect("gate");
                assert_eq!(reply.get_ref().number, number);
            }
        });
    }
    for number in 0..count {
        (0..10).for_each(|_| pair.witness.open(number));
    }
    let calls = 10 * channels.len();
    while let Some(ended) = channels.join_next().await {
        ended.expect("no channel failed");
    }
    assert_eq!(pair.witness.log().entries, calls);
}

async fn inline_handlers_answer_at_once_and_later(fixture: Fixture) {
    let pair = fixture.pair().await;
    let mut calls = JoinSet::new();
    for number in 0..200_u32 {
        let call = pair
            .client
            .echo_inline(InlineRequest { payload: number.to_string().into(), yields: number % 3 });
        calls.spawn(async move { (number, call.await) });
    }
    let mut answered = BTreeSet::new();
    while let Some(ended) = calls.join_next().await {
        let (number, reply) = ended.expect("no panic");
        assert_eq!(reply.expect("echo").get_ref().payload, number.to_string());
        answered.insert(number);
    }
    assert_eq!(answered.len(), 200);
}

async fn two_services_share_a_server_and_a_channel(fixture: Fixture) {
    let (pair, _serving) = fixture.pair_with(|builder| builder).await;
    let second = SecondClient::new(pair.client.channel().clone());
    // Twice each: the second time their methods travel as numbers.
    for _ in 0..2 {
        let reply = pair.client.echo(Blob { payload: "x".into() }).await;
        assert_eq!(reply.expect("echo").get_ref().payload, "x");
        let reply = second.echo(Blob { payload: "x".into() }).await;
        assert_eq!(reply.expect("echo").get_ref().payload, "second x");
    }
    assert_ne!(
        <ConformanceServer<Desk> as NamedService>::NAME,
        <SecondServer<Desk> as NamedService>::NAME
    );
}

async fn an_unknown_method_is_unimplemented_and_harms_nothing(fixture: Fixture) {
    let builder = verbwire::Server::builder().add_service(SecondServer::new(Desk::default()));
    let serving = Serving::start(builder, &fixture.target()).await;
    let channel = serving.connect().await;
    let (absent, second) = (ConformanceClient::new(channel.clone()), SecondClient::new(channel));
    // Several times, with and without a long body: the number of an unknown method is remembered too.
    for len in [0, 10, 300_000, 10] {
        let payload = pattern::payload(len, 1);
        let status = absent.echo(Blob { payload }).await.expect_err("not offered");
        assert_eq!((status.code(), status.executed()), (Code::Unimplemented, Executed::No));
        assert!(status.message().contains("/conformance.Conformance/Echo"), "{status}");
        let reply = second.echo(Blob { payload: "x".into() }).await;
        assert_eq!(reply.expect("echo").get_ref().payload, "second x");
    }
}

async fn a_handler_knows_the_way_of_its_request(fixture: Fixture) {
    let pair = fixture.pair().await;
    let path = pair.client.channel().path().expect("a connection has a path");
    let reply = pair.client.inspect(Nothing {}).await.expect("inspect").into_inner();
    assert_eq!(reply.transport, path.transport);
}

async fn calls_take_the_best_path_and_the_channel_says_which(fixture: Fixture) {
    let pair = fixture.pair().await;
    let paths = || pair.client.channel().paths().expect("a connection has paths");
    let inspect = async || {
        let reply = pair.client.inspect(Nothing {}).await.expect("inspect");
        reply.into_inner().transport
    };
    let Some(second) = fixture.backend().place.second() else {
        assert_eq!(inspect().await, paths().first.path.transport);
        assert!(paths().second.is_none(), "{}", paths());
        return;
    };
    let moved = async {
        while inspect().await != second {
            sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(timeout(LONG, moved).await.is_ok(), "no call moved: {}", paths());
    let before = paths();
    for _ in 0..10 {
        assert_eq!(inspect().await, second);
    }
    let after = paths();
    assert_eq!((after.current().path.transport, after.switches), (second, 1));
    let calls = |paths: &Paths| paths.current().traffic.calls;
    assert_eq!(calls(&after), calls(&before) + 10, "{after:?}");
}

async fn an_allocated_buffer_is_filled_and_sent_in_place(fixture: Fixture) {
    let pair = fixture.pair().await;
    let len = 3 << 20;
    let mut buffer = pair.client.channel().alloc(len).await.expect("room");
    assert_eq!(buffer.len(), len);
    pattern::fill(&mut buffer, 5);
    let start = buffer.as_ptr().addr();
    let payload = buffer.freeze();
    let checksum = pattern::checksum(&payload);
    let reply = pair.client.digest(Blob { payload }).await.expect("digest").into_inner();
    assert_eq!((reply.len, reply.checksum), (len as u64, checksum));
    // Where bodies are handed over whole, the handler reads the very memory that was filled.
    if fixture.backend().lack(&[Need::Pieces]).is_some() {
        assert_eq!(reply.address, start as u64);
    }
}

/// Memory of the caller's own, which shows when it is let go.
struct Lent {
    memory: Vec<u8>,
    _token: Arc<()>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

async fn the_callers_own_memory_is_sent_by_reference_and_let_go(fixture: Fixture) {
    let pair = fixture.pair().await;
    let token = Arc::new(());
    let memory = pattern::payload(3 << 20, 6).to_vec();
    let checksum = pattern::checksum(&memory);
    let payload = Bytes::from_owner(Lent { memory, _token: Arc::clone(&token) });
    let call = pair.client.digest(Blob { payload });
    // The request is encoded and its message gone: what holds the memory now is the encoded body.
    assert_eq!(Arc::strong_count(&token), 2, "the encoded request is a copy");
    assert_eq!(call.await.expect("digest").get_ref().checksum, checksum);
    while Arc::strong_count(&token) > 1 {
        sleep(Duration::from_millis(1)).await;
    }
}

async fn a_reply_can_be_made_in_allocated_memory(fixture: Fixture) {
    let pair = fixture.pair().await;
    let request = ProduceRequest { len: 700_001, seed: 9 };
    let reply = pair.client.produce(request).await.expect("produce");
    assert_eq!(reply.get_ref().payload, pattern::payload(700_001, 9));
}
