//! Peers that are killed, restarted, unreachable or simply gone.

use tokio::time::timeout;
use verbwire::{Code, ErrorKind, Executed, Request};
use verbwire_tests::backends::Place;
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::doomed::{CALLS, Doomed, Part};
use verbwire_tests::fixture::{Fixture, LONG, begin, connect, endpoint};
use verbwire_tests::pattern;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::step::Act;
use verbwire_tests::proto::conformance::{Blob, Ticket};
use verbwire_tests::streams::{fed, items};

use crate::streams::{ask, next, scan, take};

pub(crate) const CASES: &[Case] = &[
    case!(a_killed_server_ends_every_open_call).over_a_connection().in_real_time(),
    case!(a_killed_server_ends_every_open_stream).over_a_connection().in_real_time(),
    case!(a_killed_client_leaves_no_handler_behind).over_a_connection().in_real_time(),
    case!(a_server_killed_amid_a_long_request_ends_the_call).over_a_connection().in_real_time(),
    case!(a_restarted_server_answers_a_new_channel).over_a_connection().in_real_time(),
    case!(an_unreachable_server_is_one_sentence).over_a_connection(),
    case!(a_dropped_channel_ends_its_calls_at_the_server).over_a_connection(),
];

async fn client_of(doomed: &Doomed) -> ConformanceClient {
    ConformanceClient::new(connect(&endpoint(doomed.target())).await)
}

async fn a_killed_server_ends_every_open_call(fixture: Fixture) {
    let doomed = Doomed::start(&fixture, Part::Server, &fixture.target()).await;
    let client = client_of(&doomed).await;
    let mut calls = Vec::new();
    for number in 0..20 {
        calls.push(begin(client.hang(Ticket { number })).await);
    }
    // Heads arrive in order, and so this is answered after they were read.
    client.echo(Blob::default()).await.expect("echo");
    assert!(calls.iter().all(|call| !call.is_finished()));
    doomed.kill().await;
    for call in calls {
        let status = call.await.expect("no panic").expect_err("the server is dead");
        assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe));
        assert!(status.message().contains("connection"), "{status}");
    }
    let late = client.echo(Blob::default()).await.expect_err("the connection is gone");
    assert_eq!((late.code(), late.executed()), (Code::Unavailable, Executed::No));
}

async fn a_killed_server_ends_every_open_stream(fixture: Fixture) {
    let doomed = Doomed::start(&fixture, Part::Server, &fixture.target()).await;
    let client = client_of(&doomed).await;
    let request = scan(1, 1, &[10], Act::Hang);
    let mut hangs = client.scan(request).await.expect("scan").into_inner();
    next(&mut hangs).await;
    let (sender, requests) = fed();
    let mut talk = client.talk(requests).await.expect("talk").into_inner();
    ask(&sender, &mut talk, "a").await;
    // Amid messages, some of them long.
    let endless = std::iter::repeat_with(|| take(pattern::payload(300_000, 1)));
    let collect = tokio::spawn(client.collect(items(endless)));
    let request = scan(2, u64::MAX, &[10, 300_000], Act::Take);
    let mut amid = client.scan(request).await.expect("scan").into_inner();
    let amid = tokio::spawn(async move {
        loop {
            if let Err(status) = amid.message().await {
                return status;
            }
        }
    });
    ask(&sender, &mut talk, "b").await;
    doomed.kill().await;
    let ended = [
        hangs.message().await.expect_err("the server is dead"),
        talk.message().await.expect_err("the server is dead"),
        collect.await.expect("no panic").expect_err("the server is dead"),
        amid.await.expect("no panic"),
    ];
    for status in ended {
        let found = (status.code(), status.executed());
        assert_eq!(found, (Code::Unavailable, Executed::Maybe), "{status}");
        assert!(status.message().contains("connection"), "{status}");
        assert!(status.peer().is_some(), "{status} does not say whose");
    }
    timeout(LONG, sender.closed()).await.expect("the stream is dropped");
}

async fn a_killed_client_leaves_no_handler_behind(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder.drain_timeout(LONG)).await;
    let doomed = Doomed::start(&fixture, Part::Client, serving.target()).await;
    pair.witness.until(|log| log.running as u64 == CALLS).await;
    doomed.kill().await;
    pair.witness.until(|log| log.running == 0).await;
    assert_eq!(pair.witness.log().dropped.len() as u64, CALLS, "they did not come to their end");
    pair.client.echo(Blob::default()).await.expect("other clients are served");
    drop(pair.client);
    serving.shut_down().await.expect("no panic").expect("no connection is left");
}

async fn a_server_killed_amid_a_long_request_ends_the_call(fixture: Fixture) {
    let doomed = Doomed::start(&fixture, Part::Server, &fixture.target()).await;
    let client = client_of(&doomed).await;
    let payload = pattern::payload(48 << 20, 1);
    let call = tokio::spawn(async move {
        // One after another until the server dies amid one of them.
        loop {
            let payload = payload.clone();
            if let Err(status) = client.digest(Blob { payload }).await {
                return status;
            }
        }
    });
    tokio::task::yield_now().await;
    doomed.kill().await;
    let status = call.await.expect("no panic");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_ne!(status.executed(), Executed::Yes);
}

async fn a_restarted_server_answers_a_new_channel(fixture: Fixture) {
    let first = Doomed::start(&fixture, Part::Server, &fixture.target()).await;
    let target = first.target().to_owned();
    let channel = endpoint(&target).connect_once().await.expect("a server listens there");
    let client = ConformanceClient::new(channel);
    client.echo(Blob::default()).await.expect("echo");
    first.kill().await;
    let second = Doomed::start(&fixture, Part::Server, &target).await;
    assert_eq!(second.target(), target);
    let status = client.echo(Blob::default()).await.expect_err("a connection is not resumed");
    assert_eq!(status.code(), Code::Unavailable);
    client_of(&second).await.echo(Blob::default()).await.expect("echo");
    second.kill().await;
}

async fn an_unreachable_server_is_one_sentence(fixture: Fixture) {
    let target = match fixture.backend().place {
        // A port that was free a moment ago, and that nobody else is given.
        place @ (Place::Tcp | Place::Tls | Place::Auto | Place::AutoTls | Place::AutoRdma) => {
            let anywhere = fixture.target();
            let anywhere = anywhere.split_once("://").map_or(&*anywhere, |(_, address)| address);
            let listener = std::net::TcpListener::bind(anywhere).expect("a free port");
            let address = listener.local_addr().expect("bound");
            let scheme = match place {
                Place::Tcp => "tcp",
                Place::Tls => "tls",
                Place::AutoTls => "autofabric",
                _ => "auto",
            };
            format!("{scheme}://{address}")
        }
        _ => fixture.target(),
    };
    let error = endpoint(&target).connect().await.expect_err("nothing listens");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let words = error.to_string();
    let (_, address) = target.split_once("://").expect("a target");
    assert!(words.contains(address) && words.contains(": "), "{words}");
    assert!(!words.contains('\n') && words.len() < 300, "{words}");
    assert!(words.contains("start the server") || words.contains("bind a server"), "{words}");
}

async fn a_dropped_channel_ends_its_calls_at_the_server(fixture: Fixture) {
    let (pair, serving) = fixture.pair_with(|builder| builder.drain_timeout(LONG)).await;
    let mut request = Request::new(Ticket { number: 1 });
    request.set_timeout(LONG * 10);
    let call = tokio::spawn(pair.client.hang(request));
    pair.witness.until(|log| log.entered.contains(&1)).await;
    drop(pair.client);
    assert!(pair.witness.log().dropped.is_empty(), "an open call keeps the connection");
    call.abort();
    pair.witness.until(|log| log.dropped.contains(&1)).await;
    serving.shut_down().await.expect("no panic").expect("no connection is left");
}
