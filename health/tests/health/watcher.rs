//! A watcher, on a clock that jumps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use verbwire::config::Random;
use verbwire::open::OpenService;
use verbwire::{Body, Channel, Code, Request, Server, Status};
use verbwire_health::{HealthReporter, ServingStatus, State, Watcher};

use crate::{health, serve};

const SECOND: Duration = Duration::from_secs(1);

fn watcher(service: &str, target: &'static str) -> Watcher {
    Watcher::new(service, move || verbwire::connect(target)).random(Random::from_seed(1))
}

async fn next(watcher: &mut Watcher) -> State {
    watcher.next().await.expect("there is a health service")
}

#[tokio::test(start_paused = true)]
async fn a_watcher_sees_a_server_come_change_go_and_come_back() {
    let target = "mem://health-comes-and-goes";
    let mut watcher = watcher("shop.Orders", target);
    let State::Lost(why) = next(&mut watcher).await else { panic!("nobody is there") };
    assert_eq!(why.code(), Code::Unavailable, "{why}");
    for _ in 0..3 {
        let reporter = HealthReporter::new();
        let serving = tokio::spawn(serve(&reporter, target).await.serve());
        assert!(matches!(next(&mut watcher).await, State::ServiceUnknown));
        reporter.set_service_status("shop.Orders", ServingStatus::Serving);
        assert!(next(&mut watcher).await.is_serving());
        reporter.set_service_status("shop.Orders", ServingStatus::Unknown);
        assert!(matches!(next(&mut watcher).await, State::Unknown));
        reporter.set_service_status("shop.Orders", ServingStatus::NotServing);
        assert!(matches!(next(&mut watcher).await, State::NotServing));
        // Not drained: its connections end as if it had been killed.
        serving.abort();
        assert!(matches!(next(&mut watcher).await, State::Lost(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_once_and_attempts_become_rare() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let connect = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        verbwire::connect("mem://health-nobody")
    };
    let mut watcher =
        Watcher::new("", connect).backoff(SECOND, 8 * SECOND).random(Random::from_seed(1));
    assert!(matches!(next(&mut watcher).await, State::Lost(_)));
    assert_eq!(attempts.load(Ordering::Relaxed), 1, "before the first wait");
    // Waits of 1, 1.6, 2.56, 4.096, 6.55 and then 8 seconds, each within a fifth.
    let watched = timeout(100 * SECOND, watcher.next()).await;
    assert!(watched.is_err(), "told again: {watched:?}");
    let attempts = attempts.load(Ordering::Relaxed);
    assert!((13..=20).contains(&attempts), "{attempts} attempts in 100 s");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_says_the_latest_of_several_changes() {
    let reporter = HealthReporter::new();
    tokio::spawn(serve(&reporter, "mem://health-latest").await.serve());
    let mut watcher = watcher("", "mem://health-latest");
    assert!(next(&mut watcher).await.is_serving());
    for status in [ServingStatus::NotServing, ServingStatus::Unknown, ServingStatus::NotServing] {
        reporter.set_service_status("", status);
        // The server has sent it, and nobody has taken it.
        tokio::time::sleep(SECOND).await;
    }
    assert!(matches!(next(&mut watcher).await, State::NotServing));
    assert!(timeout(SECOND, watcher.next()).await.is_err(), "what was true before is not told");
}

#[tokio::test(start_paused = true)]
async fn a_watch_outlasts_the_timeouts_of_calls() {
    let reporter = HealthReporter::new();
    tokio::spawn(serve(&reporter, "mem://health-long").await.serve());
    let mut watcher = watcher("", "mem://health-long");
    assert!(next(&mut watcher).await.is_serving());
    let day = Duration::from_secs(24 * 3600);
    assert!(timeout(day, watcher.next()).await.is_err(), "nothing has changed");
    reporter.set_service_status("", ServingStatus::NotServing);
    assert!(matches!(next(&mut watcher).await, State::NotServing));
}

#[tokio::test(start_paused = true)]
async fn dropping_what_waits_for_news_does_not_disturb_the_attempt() {
    let reporter = HealthReporter::new();
    let channel = Channel::in_process(health(&reporter));
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let mut watcher = Watcher::new("", move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let channel = channel.clone();
        async move {
            tokio::time::sleep(10 * SECOND).await;
            Ok(channel)
        }
    });
    let begun = Instant::now();
    let state = loop {
        if let Ok(state) = timeout(SECOND, watcher.next()).await {
            break state;
        }
    };
    assert!(state.expect("it is there").is_serving());
    assert_eq!(attempts.load(Ordering::Relaxed), 1);
    assert!(begun.elapsed() < 12 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_is_seen_to_go_and_is_not_asked_in_a_loop() {
    let reporter = HealthReporter::new();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let channel = Channel::in_process(health(&reporter));
    let mut watcher = Watcher::new("", move || {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(channel.clone()))
    });
    assert!(next(&mut watcher).await.is_serving());
    reporter.shutdown();
    let told = timeout(60 * SECOND, async {
        loop {
            let state = next(&mut watcher).await;
            assert!(!state.is_serving(), "it never serves again");
        }
    });
    assert!(told.await.is_err());
    let attempts = attempts.load(Ordering::Relaxed);
    assert!(attempts < 80, "{attempts} attempts in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_health_is_not_asked_again() {
    let other = |_path: Arc<str>, _request: Request<Body>| async { Err(Status::internal("it")) };
    let server = Server::builder().add_service(OpenService::new("shop.Orders", other));
    tokio::spawn(server.bind(&["mem://health-none"]).await.expect("fresh").serve());
    let mut watcher = watcher("", "mem://health-none");
    for _ in 0..2 {
        let status = watcher.next().await.expect_err("it has none");
        assert_eq!(status.code(), Code::Unimplemented, "{status}");
    }
}
