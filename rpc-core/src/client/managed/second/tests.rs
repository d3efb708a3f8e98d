use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Channel, Client};
use crate::config::{ClientConfig, PathPolicy, Random};
use crate::error::Error;
use crate::paths::Paths;
use crate::proto::reconnect::ConnectivityState::{Connecting, Idle, Ready};
use crate::request::{Request, Response};
use crate::server::rig::{Echo, Fickle, auto, call, echo, mem, second_of, serve, serve_with};
use crate::server::{Connections, Server};
use crate::status::{Code, Executed, Status};
use crate::transport::mem::MemTransport;
use crate::transport::{Auto, Target, Transport};
use crate::wire::paths::{OfferReply, OfferRequest, SERVICE};

fn config(policy: PathPolicy) -> ClientConfig {
    let random = Random::from_seed(9);
    ClientConfig { path_policy: policy, random, ..ClientConfig::default() }
}

async fn connect_as(name: &str, policy: PathPolicy) -> Result<Channel, Error> {
    let (transport, target) = auto(name, Arc::new(MemTransport));
    Channel::connect(transport, &target, &config(policy)).await
}

async fn connect(name: &str) -> Channel {
    connect_as(name, PathPolicy::Auto).await.expect("a server listens")
}

fn paths(channel: &Channel) -> Paths {
    channel.paths().expect("connected")
}

/// Where new calls go.
fn peer(channel: &Channel) -> String {
    paths(channel).current().path.peer.clone()
}

async fn moved(channel: &Channel) {
    let second = async {
        while paths(channel).second.is_none() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(200), second).await.expect("it moves");
}

fn break_second(connections: &Connections) {
    connections.list().iter().for_each(|one| one.close_second("a test breaks it"));
}

#[tokio::test(start_paused = true)]
async fn the_first_call_goes_out_at_once_and_later_ones_over_the_second_path() {
    serve("moves").await;
    let began = Instant::now();
    let channel = connect("moves").await;
    assert_eq!(peer(&channel), "moves");
    assert!(!paths(&channel).why_not.is_empty());
    assert_eq!(echo(&channel).await.expect("served"), 7);
    assert_eq!(began.elapsed(), Duration::ZERO, "nothing was waited for");
    moved(&channel).await;
    assert_eq!(peer(&channel), second_of("moves").address());
    for _ in 0..5 {
        assert_eq!(echo(&channel).await.expect("served"), 7);
    }
    let paths = paths(&channel);
    assert_eq!((paths.switches, paths.current().traffic.calls), (1, 5));
    assert!(paths.current().traffic.sent_bytes > 0, "{paths:?}");
    assert_eq!(paths.first.traffic.calls, 2, "one, and what asked for the second path");
}

#[tokio::test(start_paused = true)]
async fn running_calls_finish_where_they_are() {
    serve("stays").await;
    let channel = connect("stays").await;
    let slow = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel, 1, 5000).await }
    });
    moved(&channel).await;
    assert_eq!(echo(&channel).await.expect("over the second"), 7);
    assert_eq!(slow.await.expect("no panic").expect("over the first"), 5000);
    assert_eq!(paths(&channel).current().traffic.calls, 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_path_that_breaks_is_left_at_once_and_made_again() {
    let connections = serve("breaks").await;
    let channel = connect("breaks").await;
    moved(&channel).await;
    let slow = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel, 1, 5000).await }
    });
    sleep(Duration::from_millis(1)).await;
    break_second(&connections);
    assert_eq!(echo(&channel).await.expect("over the first, or again"), 7);
    let cut_off = slow.await.expect("no panic").expect_err("its path is gone");
    assert_eq!((cut_off.code(), cut_off.executed()), (Code::Unavailable, Executed::Maybe));
    assert_eq!(peer(&channel), "breaks");
    let why = paths(&channel).why_not;
    assert!(
        why.starts_with("the last one was lost: ") && why.contains("the next try is in"),
        "{why}"
    );
    let fell_back = Instant::now();
    moved(&channel).await;
    assert!(fell_back.elapsed() >= Duration::from_millis(100), "not without a delay");
    assert_eq!(paths(&channel).switches, 2);
    assert_eq!(connections.list().len(), 1, "the first path stayed");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_first_path_ends_the_second_and_both_come_back() {
    let connections = serve("first-ends").await;
    let channel = connect("first-ends").await;
    moved(&channel).await;
    assert_eq!(echo(&channel).await.expect("served"), 7);
    let slow = tokio::spawn({
        let channel = channel.clone();
        async move { call(&channel, 1, 5000).await }
    });
    sleep(Duration::from_millis(1)).await;
    connections.list()[0].retire().await;
    let cut_off = slow.await.expect("no panic").expect_err("both paths are gone");
    assert_eq!((cut_off.code(), cut_off.executed()), (Code::Unavailable, Executed::Maybe));
    assert_eq!(echo(&channel).await.expect("over a new connection"), 7);
    moved(&channel).await;
    assert_eq!(paths(&channel).switches, 1, "of this connection");
    assert_eq!(connections.list().len(), 1);
}

/// A call over the current path that has begun, for who does not wait for it.
async fn begun(channel: &Channel) -> impl Future<Output = Result<u32, Status>> + use<> {
    let channel = channel.clone();
    let mut call = Box::pin(async move { call(&channel, 1, 5000).await });
    poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
    call
}

#[tokio::test(start_paused = true)]
async fn what_still_holds_a_dead_second_path_says_nothing_of_the_one_after_it() {
    let builder = Server::builder().add_service(Echo);
    let bound = builder.bind([auto("held", Arc::new(MemTransport))]).await.expect("free names");
    let connections = bound.connections();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(bound.serve_with_shutdown(async { drop(stopped.await) }));
    let channel = connect("held").await;
    moved(&channel).await;
    let kept = begun(&channel).await;
    break_second(&connections);
    sleep(Duration::from_millis(1)).await;
    moved(&channel).await;
    drop(kept);
    let slow = begun(&channel).await;
    stop.send(()).expect("it serves");
    assert_eq!(slow.await.expect("a drain waits for it"), 5000);
    serving.await.expect("no panic").expect("drained");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_each_connection_once_it_was_asked_for_a_path_is_not_stormed() {
    let connections = serve("storm").await;
    let _channel = connect("storm").await;
    let mut ended = 0;
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        for one in connections.list().iter().filter(|one| one.paths().first.traffic.calls > 0) {
            one.retire().await;
            ended += 1;
        }
        sleep(Duration::from_millis(5)).await;
    }
    assert!((3..30).contains(&ended), "{ended} connections in a minute, and no call");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_path_that_is_too_long_is_not_looked_at() {
    serve("greedy").await;
    let (transport, target) = mem("greedy");
    let channel = Channel::connect(transport, &target, &config(PathPolicy::TcpOnly)).await;
    let client = Client::new(channel.expect("a server listens"), &SERVICE);
    let request = OfferRequest { transports: vec![String::new(); 4096] };
    let reply: Result<Response<OfferReply>, _> = client.unary(0, Request::new(request)).await;
    let refused = reply.expect_err("it has 8 KiB");
    assert_eq!((refused.code(), refused.executed()), (Code::InvalidArgument, Executed::No));
    assert!(refused.message().contains("8192 bytes"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_channel_ends_both_paths() {
    let connections = serve("dropped").await;
    let channel = connect("dropped").await;
    moved(&channel).await;
    assert!(connections.list()[0].paths().second.is_some());
    drop(channel);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(connections.list().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_comes_later_is_found_and_until_then_the_reason_is_known() {
    let device = Arc::new(Fickle::default());
    let second = Arc::clone(&device) as Arc<dyn Transport>;
    serve_with(Server::builder(), "later", second).await;
    let channel = connect("later").await;
    sleep(Duration::from_secs(30)).await;
    let why = paths(&channel).why_not;
    assert!(why.contains("there is no device"), "{why}");
    assert_eq!(echo(&channel).await.expect("over the first"), 7);
    device.0.store(true, Ordering::Relaxed);
    moved(&channel).await;
    assert_eq!(peer(&channel), second_of("later").address());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_no_second_paths_is_asked_once_per_minute() {
    let bound = Server::builder().add_service(Echo).bind([mem("plain")]).await.expect("free");
    let connections = bound.connections();
    tokio::spawn(bound.serve());
    let channel = connect("plain").await;
    sleep(Duration::from_secs(3600)).await;
    let why = paths(&channel).why_not;
    assert!(why.contains("bind auto://"), "{why}");
    let asked = connections.list()[0].paths().first.traffic.calls;
    assert!((45..80).contains(&asked), "asked {asked} times in an hour");
}

#[tokio::test(start_paused = true)]
async fn policies_keep_calls_where_they_may_go() {
    serve("policies").await;
    let tcp_only = connect_as("policies", PathPolicy::TcpOnly).await.expect("connected");
    sleep(Duration::from_secs(300)).await;
    assert_eq!(peer(&tcp_only), "policies");
    assert!(paths(&tcp_only).why_not.contains("TcpOnly"));
    assert_eq!(paths(&tcp_only).first.traffic.calls, 0, "nobody was asked");
    let refused = connect_as("policies", PathPolicy::RequireEncryption).await;
    let refused = refused.expect_err("mem does not encrypt").to_string();
    assert!(refused.contains("RequireEncryption"), "{refused}");
    let required = connect_as("policies", PathPolicy::RequireRdma).await.expect("connected");
    assert_eq!(echo(&required).await.expect("it waits for its path"), 7);
    assert_eq!(paths(&required).first.traffic.calls, 1, "what asked");
    assert_eq!(paths(&required).current().traffic.calls, 1);
}

#[tokio::test(start_paused = true)]
async fn where_rdma_is_required_calls_wait_for_it_until_their_deadline() {
    let device = Arc::new(Fickle::default());
    let second = Arc::clone(&device) as Arc<dyn Transport>;
    serve_with(Server::builder(), "required", second).await;
    let channel = connect_as("required", PathPolicy::RequireRdma).await.expect("connected");
    let began = Instant::now();
    let late = echo(&channel).await.expect_err("there is no device");
    assert_eq!((late.code(), late.executed()), (Code::Unavailable, Executed::No));
    assert!(late.message().contains("there is no device"), "{}", late.message());
    assert!(began.elapsed() >= Duration::from_secs(60), "the default deadline");
    device.0.store(true, Ordering::Relaxed);
    assert_eq!(echo(&channel).await.expect("it has come"), 7);
}

#[tokio::test(start_paused = true)]
async fn where_rdma_is_required_a_channel_is_ready_only_with_that_path() {
    let device = Arc::new(Fickle::default());
    let second = Arc::clone(&device) as Arc<dyn Transport>;
    let connections = serve_with(Server::builder(), "required-state", second).await;
    let channel = connect_as("required-state", PathPolicy::RequireRdma).await.expect("connected");
    assert_eq!(connections.list().len(), 1, "the first path stands");
    assert_eq!(channel.state(), Connecting);
    let ready = channel.clone();
    let ready = tokio::spawn(async move { ready.state_changed(Connecting).await });
    let waiting = channel.clone();
    let waiting = tokio::spawn(async move { waiting.connect_now().await });
    sleep(Duration::from_secs(30)).await;
    assert!(!ready.is_finished() && !waiting.is_finished(), "{:?}", channel.state());
    device.0.store(true, Ordering::Relaxed);
    assert_eq!(ready.await.expect("no panic"), Ready);
    waiting.await.expect("no panic").expect("calls could go out");
    assert!(paths(&channel).second.is_some());
    assert_eq!(echo(&channel).await.expect("over RDMA"), 7);
    device.0.store(false, Ordering::Relaxed);
    break_second(&connections);
    assert_eq!(channel.state_changed(Ready).await, Connecting);
    assert_eq!(connections.list().len(), 1, "the first path stays");
    assert_eq!(channel.state_changed(Connecting).await, Ready);
    assert_eq!(paths(&channel).switches, 2);
}

#[tokio::test(start_paused = true)]
async fn where_rdma_is_required_a_balanced_channel_is_ready_with_its_first_such_path() {
    let names = ["required-one", "required-two"];
    let devices = [(); 2].map(|()| Arc::new(Fickle::default()));
    for (name, device) in names.iter().zip(&devices) {
        serve_with(Server::builder(), name, Arc::clone(device) as Arc<dyn Transport>).await;
    }
    let transport = |target: &Target| Ok(auto(target.address(), Arc::new(MemTransport)).0);
    let targets = names.map(|name| mem(name).1);
    let channel = Channel::balanced(transport, &targets, &config(PathPolicy::RequireRdma));
    let channel = channel.expect("well-formed");
    assert_eq!(channel.state(), Idle);
    let late = echo(&channel).await.expect_err("there is no device");
    assert_eq!((late.code(), late.executed()), (Code::Unavailable, Executed::No));
    assert!(late.message().contains("there is no device"), "{}", late.message());
    let states = || {
        let infos = channel.endpoints().expect("it has several").list();
        infos.into_iter().map(|info| info.state).collect::<Vec<_>>()
    };
    assert_eq!((channel.state(), states()), (Connecting, vec![Connecting; 2]));
    devices[1].0.store(true, Ordering::Relaxed);
    assert_eq!(channel.state_changed(Connecting).await, Ready);
    assert_eq!(states(), [Connecting, Ready]);
    for _ in 0..4 {
        assert_eq!(echo(&channel).await.expect("at the one with RDMA"), 7);
    }
}

#[tokio::test(start_paused = true)]
async fn where_rdma_is_required_a_channel_of_one_connection_is_refused() {
    let connections = serve("required-once").await;
    let (transport, target) = auto("required-once", Arc::new(MemTransport));
    let policy = config(PathPolicy::RequireRdma);
    let refused = Channel::connect_once(Arc::clone(&transport), &target, &policy).await;
    let words = refused.expect_err("its calls would go over the first path").to_string();
    assert!(words.contains("RequireRdma") && words.contains("use connect()"), "{words}");
    assert!(connections.list().is_empty());
    let policy = config(PathPolicy::Auto);
    let once = Channel::connect_once(transport, &target, &policy).await.expect("it serves");
    assert_eq!(echo(&once).await.expect("over the first path"), 7);
}

#[tokio::test(start_paused = true)]
async fn without_rdma_on_this_side_the_reason_is_known_and_to_require_it_fails() {
    serve("without").await;
    let (first, target) = mem("without");
    let auto = Arc::new(Auto::alone("mem", first, "this build has no RDMA")) as Arc<dyn Transport>;
    let channel = Channel::connect(Arc::clone(&auto), &target, &config(PathPolicy::Auto)).await;
    let channel = channel.expect("connected");
    sleep(Duration::from_secs(100)).await;
    assert_eq!(paths(&channel).why_not, "this build has no RDMA");
    let required = Channel::connect(auto, &target, &config(PathPolicy::RequireRdma)).await;
    let error = required.expect_err("it cannot be").to_string();
    assert!(error.contains("this build has no RDMA"), "{error}");
    let (plain, target) = mem("without");
    let plain = Channel::connect(plain, &target, &config(PathPolicy::Auto)).await;
    let why = paths(&plain.expect("connected")).why_not;
    assert!(why.contains("means one path"), "{why}");
}
