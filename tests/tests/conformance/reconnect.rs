//! Channels that lose their connections and make new ones.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::time::{Instant, timeout};
use verbwire::interceptor::{Interceptor, Next, Outcome, Payload};
use verbwire::{
    Channel, Code, ConnectivityState, Endpoint, Executed, Origin, Request, Sessions, Status,
};
use verbwire_tests::case;
use verbwire_tests::case::Case;
use verbwire_tests::doomed::{Doomed, Part};
use verbwire_tests::fixture::{Fixture, LONG, Serving, begin, endpoint, offering, short};
use verbwire_tests::pki;
use verbwire_tests::proto::conformance::conformance_client::ConformanceClient;
use verbwire_tests::proto::conformance::{Blob, Ticket};
use verbwire_tests::service::Desk;
use verbwire_tests::streams::{fed, items};

use crate::streams::{ask, take};

pub(crate) const CASES: &[Case] = &[
    case!(a_channel_finds_a_restarted_server_again).over_a_connection().in_real_time(),
    case!(a_lazy_channel_connects_with_its_first_call).over_a_connection(),
    case!(calls_fail_at_once_where_nothing_listens_and_say_what_comes_next).over_a_connection(),
    case!(a_call_that_waits_for_ready_is_made_when_the_server_is_back).over_a_connection(),
    case!(a_call_that_waits_for_a_connection_ends_at_its_deadline).over_a_connection(),
    case!(a_channel_goes_through_its_states).over_a_connection(),
    case!(new_calls_move_to_the_next_server_while_old_ones_finish).over_a_connection(),
    case!(an_idempotent_call_that_was_cut_off_is_made_again_once).over_a_connection(),
    case!(a_call_that_may_have_run_is_not_made_again).over_a_connection(),
    case!(a_call_with_a_slot_that_was_cut_off_runs_once).over_a_connection(),
    case!(a_call_that_had_not_begun_is_made_at_the_next_server).over_one_connection(),
    case!(a_stream_of_requests_that_was_read_is_not_sent_again).over_a_connection(),
    case!(a_stream_of_requests_that_nobody_read_is_sent_later).over_one_connection(),
    case!(a_channel_of_one_connection_stays_dead).over_a_connection(),
    case!(a_turn_of_a_lost_connection_is_worth_nothing).over_a_connection(),
    case!(a_cancelled_call_that_waits_for_a_connection_was_not_executed).over_a_connection(),
    case!(a_balanced_channel_goes_on_without_a_server_that_was_killed)
        .over_a_connection()
        .in_real_time(),
];

fn patient<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LONG);
    request.set_wait_for_ready(true);
    request
}

/// A server of `desk` at `target`.
async fn start(desk: &Desk, target: &str) -> Serving {
    Serving::start(offering(desk), target).await
}

/// The same where another server was a moment ago.
async fn restart(desk: &Desk, target: &str) -> Serving {
    Serving::restart(|| offering(desk), target).await
}

/// Waits until `channel` is in `state`.
async fn until(channel: &Channel, state: ConnectivityState) {
    let reached = async {
        let mut now = channel.state();
        while now != state {
            now = channel.state_changed(now).await;
        }
    };
    let is_reached = timeout(LONG, reached).await.is_ok();
    assert!(is_reached, "not {state}: {}", channel.state());
}

/// A client and a server that is gone, of which the client knows.
async fn client_of_none(fixture: &Fixture) -> (ConformanceClient, String) {
    let serving = start(&Desk::default(), &fixture.target()).await;
    let target = serving.target().to_owned();
    let client = serving.client().await;
    client.echo(Blob::default()).await.expect("echo");
    serving.drop_serving().await;
    until(client.channel(), ConnectivityState::TransientFailure).await;
    (client, target)
}

async fn a_channel_finds_a_restarted_server_again(fixture: Fixture) {
    let mut doomed = Doomed::start(&fixture, Part::Server, &fixture.target()).await;
    let target = doomed.target().to_owned();
    let client = ConformanceClient::new(endpoint(&target).connect().await.expect("it listens"));
    for round in 0..3_u8 {
        let payload = vec![round; 100_000];
        let reply = client.echo(patient(Blob { payload: payload.clone().into() })).await;
        assert_eq!(reply.expect("echo").get_ref().payload, payload);
        let steps = client.collect(patient(items([take(payload), take(vec![1])])));
        assert_eq!(steps.await.expect("collect").get_ref().messages, 2);
        doomed.kill().await;
        doomed = Doomed::start(&fixture, Part::Server, &target).await;
    }
    doomed.kill().await;
}

async fn a_lazy_channel_connects_with_its_first_call(fixture: Fixture) {
    let serving = start(&Desk::default(), &fixture.target()).await;
    let channel = serving.endpoint().connect_lazy().expect("this build has the transport");
    let client = ConformanceClient::new(channel.clone());
    tokio::task::yield_now().await;
    assert_eq!(channel.state(), ConnectivityState::Idle);
    assert!(channel.path().is_none());
    let (one, two) = tokio::join!(client.echo(Blob::default()), client.echo(Blob::default()));
    one.and(two).expect("both wait for the one connection");
    assert_eq!(channel.state(), ConnectivityState::Ready);
    assert!(channel.path().is_some());
    drop((client, channel));
    serving.shut_down().await.expect("no panic").expect("nothing is left open");
}

async fn calls_fail_at_once_where_nothing_listens_and_say_what_comes_next(fixture: Fixture) {
    let (client, target) = client_of_none(&fixture).await;
    let begun = Instant::now();
    let status = loop {
        let status = client.echo(Blob::default()).await.expect_err("nothing listens");
        // Not where an attempt was under way and failed meanwhile.
        if status.message().contains("next try") {
            break status;
        }
    };
    assert!(begun.elapsed() < LONG);
    let found = (status.code(), status.executed(), status.origin());
    assert_eq!(found, (Code::Unavailable, Executed::No, Origin::Transport), "{status}");
    assert!(status.message().contains(&target), "{status}");
    assert!(status.peer().is_some());
}

async fn a_call_that_waits_for_ready_is_made_when_the_server_is_back(fixture: Fixture) {
    let (client, target) = client_of_none(&fixture).await;
    let waiting = begin(client.gate(patient(Ticket { number: 1 }))).await;
    let desk = Desk::default();
    desk.witness().open(1);
    let _serving = restart(&desk, &target).await;
    let reply = waiting.await.expect("no panic").expect("gate");
    assert_eq!((reply.get_ref().number, desk.witness().log().entries), (1, 1));
}

async fn a_call_that_waits_for_a_connection_ends_at_its_deadline(fixture: Fixture) {
    let (client, target) = client_of_none(&fixture).await;
    let mut request = patient(Blob::default());
    request.set_timeout(short());
    let begun = Instant::now();
    let status = client.echo(request).await.expect_err("nothing listens");
    assert!(begun.elapsed() >= short() && begun.elapsed() < LONG);
    let found = (status.code(), status.executed());
    assert_eq!(found, (Code::DeadlineExceeded, Executed::No), "{status}");
    assert!(status.message().contains("waited for a connection"), "{status}");
    assert!(status.message().contains(&target), "{status}");
}

async fn a_channel_goes_through_its_states(fixture: Fixture) {
    let desk = Desk::default();
    let serving = start(&desk, &fixture.target()).await;
    let target = serving.target().to_owned();
    let channel = serving.connect().await;
    assert_eq!(channel.state(), ConnectivityState::Ready);
    ConformanceClient::new(channel.clone()).echo(Blob::default()).await.expect("echo");
    serving.drop_serving().await;
    until(&channel, ConnectivityState::TransientFailure).await;
    let _serving = restart(&desk, &target).await;
    until(&channel, ConnectivityState::Ready).await;
}

async fn new_calls_move_to_the_next_server_while_old_ones_finish(fixture: Fixture) {
    let (old, new) = (Desk::default(), Desk::default());
    let serving = start(&old, &fixture.target()).await;
    let target = serving.target().to_owned();
    let client = serving.client().await;
    let running = tokio::spawn(client.gate(Ticket { number: 1 }));
    old.witness().until(|log| log.running == 1).await;
    let draining = serving.shut_down();
    // It listens no more, once the channel has found that out.
    until(client.channel(), ConnectivityState::TransientFailure).await;
    let _serving = restart(&new, &target).await;
    new.witness().open(2);
    client.gate(patient(Ticket { number: 2 })).await.expect("the new server answers");
    assert!(!running.is_finished() && !draining.is_finished());
    assert_eq!((new.witness().log().entries, old.witness().log().entries), (1, 1));
    old.witness().open(1);
    running.await.expect("no panic").expect("the old server answers");
    draining.await.expect("no panic").expect("drained");
}

/// Keeps calls from their handlers, until it is told otherwise.
#[derive(Default)]
struct Hold {
    seen: AtomicUsize,
    lets_go: AtomicBool,
}

struct Holding(Arc<Hold>);

impl Interceptor for Holding {
    async fn intercept(&self, request: Request<Payload>, next: Next) -> Outcome {
        // Before it is seen: whoever waits for that sets it for the next call.
        let lets_go = self.0.lets_go.load(Ordering::SeqCst);
        self.0.seen.fetch_add(1, Ordering::SeqCst);
        // A handler that was entered: else the call was not executed, and would be made again for that.
        if !lets_go {
            let _entered = next.clone().run(request.copy().expect("not a stream")).await;
            pending::<()>().await;
        }
        next.run(request).await
    }
}

/// A server whose calls of `Echo` run and are not answered, and a client with one of them under way.
async fn cut_off(fixture: &Fixture, hold: &Arc<Hold>) -> (Serving, ConformanceClient) {
    let builder = offering(&Desk::default()).intercept(Holding(Arc::clone(hold)));
    let serving = Serving::start(builder, &fixture.target()).await;
    let client = serving.client().await;
    (serving, client)
}

async fn an_idempotent_call_that_was_cut_off_is_made_again_once(fixture: Fixture) {
    for comes_back in [true, false] {
        let hold = Arc::new(Hold::default());
        let (serving, client) = cut_off(&fixture, &hold).await;
        let target = serving.target().to_owned();
        let call = tokio::spawn(client.echo(patient(Blob { payload: vec![7; 10].into() })));
        let seen = |count| {
            let hold = Arc::clone(&hold);
            async move {
                while hold.seen.load(Ordering::SeqCst) < count {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            }
        };
        timeout(LONG, seen(1)).await.expect("it comes");
        hold.lets_go.store(comes_back, Ordering::SeqCst);
        serving.drop_serving().await;
        let builder = || offering(&Desk::default()).intercept(Holding(Arc::clone(&hold)));
        let again = Serving::restart(builder, &target).await;
        if comes_back {
            let reply = call.await.expect("no panic").expect("the second attempt is answered");
            assert_eq!(reply.get_ref().payload.len(), 10);
        } else {
            // Cut off again: once is enough.
            timeout(LONG, seen(2)).await.expect("it is made again");
            again.drop_serving().await;
            let _third = Serving::restart(builder, &target).await;
            let status = call.await.expect("no panic").expect_err("cut off twice");
            let found = (status.code(), status.executed());
            assert_eq!(found, (Code::Unavailable, Executed::Maybe), "{status}");
            until(client.channel(), ConnectivityState::Ready).await;
        }
        assert_eq!(hold.seen.load(Ordering::SeqCst), 2);
    }
}

fn assert_cut_off(status: &Status) {
    let found = (status.code(), status.executed());
    assert_eq!(found, (Code::Unavailable, Executed::Maybe), "{status}");
}

async fn a_call_that_may_have_run_is_not_made_again(fixture: Fixture) {
    let desk = Desk::default();
    let serving = start(&desk, &fixture.target()).await;
    let target = serving.target().to_owned();
    let client = serving.client().await;
    let call = tokio::spawn(client.gate(patient(Ticket { number: 1 })));
    desk.witness().until(|log| log.running == 1).await;
    serving.drop_serving().await;
    let _serving = restart(&desk, &target).await;
    assert_cut_off(&call.await.expect("no panic").expect_err("cut off"));
    client.echo(patient(Blob::default())).await.expect("the channel goes on");
    assert_eq!(desk.witness().log().entries, 1);
}

async fn a_call_with_a_slot_that_was_cut_off_runs_once(fixture: Fixture) {
    let (desk, sessions) = (Desk::default(), Sessions::default());
    let target = fixture.target();
    let serving = Serving::start(offering(&desk).sessions(&sessions), &target).await;
    let target = serving.target().to_owned();
    let client = serving.client().await;
    let session = client.channel().open_session().await.expect("the server has sessions");
    let slot = session.slot().await;
    let mut request = patient(Ticket { number: 1 });
    request.set_slot(slot.id());
    let call = tokio::spawn(client.gate(request));
    desk.witness().until(|log| log.running == 1).await;
    serving.drop_serving().await;
    // The sessions outlive their server.
    let _serving = Serving::restart(|| offering(&desk).sessions(&sessions), &target).await;
    let status = call.await.expect("no panic").expect_err("its server has stopped it");
    // Only the sessions say this: the call was made again, with its slot.
    assert_eq!((status.code(), status.origin()), (Code::Aborted, Origin::Peer), "{status}");
    assert_eq!(status.executed(), Executed::Maybe);
    desk.witness().open(1);
    client.echo(patient(Blob::default())).await.expect("echo");
    let log = desk.witness().log();
    assert_eq!((log.entries, log.finished.len()), (1, 0), "{log:?}");
}

async fn a_call_that_had_not_begun_is_made_at_the_next_server(fixture: Fixture) {
    let desk = Desk::default();
    let builder = offering(&desk).max_concurrent_calls(1);
    let serving = Serving::start(builder, &fixture.target()).await;
    let target = serving.target().to_owned();
    let client = serving.client().await;
    let running = tokio::spawn(client.gate(patient(Ticket { number: 1 })));
    desk.witness().until(|log| log.running == 1).await;
    let waiting = begin(client.gate(patient(Ticket { number: 2 }))).await;
    serving.drop_serving().await;
    let _serving = restart(&desk, &target).await;
    assert_cut_off(&running.await.expect("no panic").expect_err("cut off"));
    desk.witness().open(2);
    assert_eq!(waiting.await.expect("no panic").expect("gate").get_ref().number, 2);
    assert_eq!(desk.witness().log().entries, 2);
}

async fn a_stream_of_requests_that_was_read_is_not_sent_again(fixture: Fixture) {
    let desk = Desk::default();
    let serving = start(&desk, &fixture.target()).await;
    let target = serving.target().to_owned();
    let client = serving.client().await;
    let (sender, requests) = fed();
    let mut talk = client.talk(patient(requests)).await.expect("talk").into_inner();
    ask(&sender, &mut talk, "a").await;
    let (collecting, steps) = fed();
    let collect = tokio::spawn(client.collect(patient(steps)));
    collecting.send(take(vec![1])).await.expect("it is read");
    // Taken as well, so that something has been read for certain.
    collecting.send(take(vec![2])).await.expect("it is read");
    ask(&sender, &mut talk, "b").await;
    serving.drop_serving().await;
    let _serving = restart(&desk, &target).await;
    assert_cut_off(&collect.await.expect("no panic").expect_err("cut off"));
    assert_cut_off(&talk.message().await.expect_err("cut off"));
}

async fn a_stream_of_requests_that_nobody_read_is_sent_later(fixture: Fixture) {
    let desk = Desk::default();
    let builder = offering(&desk).max_concurrent_calls(1);
    let serving = Serving::start(builder, &fixture.target()).await;
    let target = serving.target().to_owned();
    let client = serving.client().await;
    let _running = tokio::spawn(client.gate(patient(Ticket { number: 1 })));
    desk.witness().until(|log| log.running == 1).await;
    let steps = [take(vec![1; 9]), take(vec![1])];
    let waiting = begin(client.collect(patient(items(steps)))).await;
    serving.drop_serving().await;
    let _serving = restart(&desk, &target).await;
    let reply = waiting.await.expect("no panic").expect("the whole stream is sent");
    assert_eq!((reply.get_ref().messages, reply.get_ref().len), (2, 10));
}

async fn a_channel_of_one_connection_stays_dead(fixture: Fixture) {
    let desk = Desk::default();
    let serving = start(&desk, &fixture.target()).await;
    let target = serving.target().to_owned();
    let channel = serving.endpoint().connect_once().await.expect("it listens");
    assert_eq!(channel.state(), ConnectivityState::Ready);
    let client = ConformanceClient::new(channel.clone());
    client.echo(Blob::default()).await.expect("echo");
    serving.drop_serving().await;
    until(&channel, ConnectivityState::Shutdown).await;
    let _serving = restart(&desk, &target).await;
    let status = client.echo(patient(Blob::default())).await.expect_err("it is dead");
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::No), "{status}");
}

async fn a_turn_of_a_lost_connection_is_worth_nothing(fixture: Fixture) {
    let desk = Desk::default();
    let serving = start(&desk, &fixture.target()).await;
    let target = serving.target().to_owned();
    let client = serving.client().await;
    client.echo(Blob::default()).await.expect("echo");
    let turn = client.channel().turn().await;
    serving.drop_serving().await;
    until(client.channel(), ConnectivityState::TransientFailure).await;
    // Nobody is kept waiting where there is no connection.
    drop(client.channel().turn().await);
    let _serving = restart(&desk, &target).await;
    until(client.channel(), ConnectivityState::Ready).await;
    let mut request = patient(Blob::default());
    request.set_turn(turn);
    client.echo(request).await.expect("echo");
    let mut request = patient(Blob::default());
    request.set_turn(client.channel().turn().await);
    client.echo(request).await.expect("echo");
}

async fn a_cancelled_call_that_waits_for_a_connection_was_not_executed(fixture: Fixture) {
    let (client, _target) = client_of_none(&fixture).await;
    let mut call = client.hang(patient(Ticket { number: 1 }));
    let cancel = call.cancel_handle();
    let call = begin(call).await;
    cancel.cancel();
    let status = call.await.expect("no panic").expect_err("cancelled");
    assert_eq!((status.code(), status.executed()), (Code::Cancelled, Executed::No), "{status}");
}

async fn a_balanced_channel_goes_on_without_a_server_that_was_killed(fixture: Fixture) {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Doomed::start(&fixture, Part::Server, &fixture.target()).await);
    }
    let targets: Vec<_> = servers.iter().map(|server| server.target().to_owned()).collect();
    let several = Endpoint::balanced(&targets).expect("targets");
    let channel = pki::trusted(several, &targets[0]).connect().await.expect("they listen");
    let endpoints = channel.endpoints().expect("it has several");
    assert_eq!(endpoints.list().len(), 3);
    let client = ConformanceClient::new(channel);
    let echo = async |round: u8| {
        // The method is idempotent, so that no call is lost with a server.
        let reply = client.echo(patient(Blob { payload: vec![round; 9].into() })).await;
        assert_eq!(reply.expect("echo").get_ref().payload, vec![round; 9]);
    };
    for round in 0..30 {
        if round == 10 || round == 20 {
            servers.pop().expect("there are three").kill().await;
        }
        echo(round).await;
    }
    let moved = Doomed::start(&fixture, Part::Server, &fixture.target()).await;
    let target = moved.target().parse().expect("a target");
    endpoints.replace(&[target]).expect("this build has the transport");
    servers.pop().expect("there is one").kill().await;
    echo(99).await;
    moved.kill().await;
}
