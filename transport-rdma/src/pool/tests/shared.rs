//! Landing pools that share a budget.

use std::future::Future;
use std::sync::Arc;

use tokio::task::{JoinHandle, yield_now};

use super::*;
use crate::pool::error::Shortage;

const LONG: usize = 120 << 10;
/// A region for `LONG`, the longest.
const REGION: usize = LONG + SLACK;
const SHORT: usize = 60 << 10;

fn config(cap: usize) -> LandingConfig {
    let size = PoolSize { longest: LONG, cap, slab_len: REGION };
    LandingConfig { size, pinned_budget: usize::MAX, quarantine_cap: 0 }
}

struct Rig {
    budget: Arc<Budget>,
    nic: Arc<FakeNic>,
    reaper: Arc<dyn Reaper>,
    cap: usize,
    /// Who was served, in order.
    served: Arc<Mutex<Vec<&'static str>>>,
}

/// Pools that have so much together.
fn rig(cap: usize, reaper: Arc<dyn Reaper>) -> Rig {
    let (budget, nic) = (Landing::budget(&config(cap)), FakeNic::new(usize::MAX));
    Rig { budget, nic, reaper, cap, served: Arc::default() }
}

impl Rig {
    /// A pool that could use all of it, and more.
    fn pool(&self) -> Landing {
        self.pool_of(4 * self.cap)
    }

    /// A pool of at most so much.
    fn pool_of(&self, cap: usize) -> Landing {
        let in_domain = (Domain::unique(), self.nic.clone() as Arc<dyn Nic>);
        let reaper = Arc::clone(&self.reaper);
        Landing::within(&self.budget, config(cap), in_domain, Sources::new(), reaper)
    }

    /// A task that waits; asks before this returns.
    async fn ask(&self, pool: &Landing, name: &'static str, len: usize) -> JoinHandle<Granted> {
        let (grant, served) = (wait_for(pool, len), Arc::clone(&self.served));
        let task = tokio::spawn(async move {
            let region = grant.await.expect("served in the end");
            served.lock().expect("no panic").push(name);
            region
        });
        yield_now().await;
        task
    }

    async fn served(&self) -> Vec<&'static str> {
        for _ in 0..10 {
            yield_now().await;
        }
        self.served.lock().expect("no panic").clone()
    }
}

fn wait_for(
    pool: &Landing,
    len: usize,
) -> impl Future<Output = Result<Granted, PoolError>> + use<> {
    pool.grant(Tenant::unique(), len, Instant::now() + Duration::from_secs(3600))
}

async fn release(task: JoinHandle<Granted>) {
    task.await.expect("served").release(GrantClosed::by_silence());
}

#[tokio::test(start_paused = true)]
async fn pools_take_turns_however_many_wait_in_each() {
    let rig = rig(REGION, Arc::new(InPlace));
    let [a, b, c] = [rig.pool(), rig.pool(), rig.pool()];
    let a1 = rig.ask(&a, "a1", LONG).await;
    let a2 = rig.ask(&a, "a2", LONG).await;
    let a3 = rig.ask(&a, "a3", LONG).await;
    let b1 = rig.ask(&b, "b1", LONG).await;
    let a4 = rig.ask(&a, "a4", LONG).await;
    let c1 = rig.ask(&c, "c1", LONG).await;
    assert_eq!(rig.served().await, ["a1"]);
    for (task, next) in [(a1, "a2"), (a2, "b1"), (b1, "c1"), (c1, "a3"), (a3, "a4")] {
        release(task).await;
        assert_eq!(rig.served().await.last(), Some(&next));
        assert_eq!(rig.nic.locked(), REGION, "one slab at a time");
    }
    release(a4).await;
    assert!(take(&a, LONG), "and nobody stands in line any more");
}

/// Takes a region if one is there, and gives it back.
fn take(pool: &Landing, len: usize) -> bool {
    let taken = pool.try_grant(Tenant::unique(), len).expect("possible");
    let is_there = taken.is_some();
    taken.into_iter().for_each(|region| region.release(GrantClosed::by_silence()));
    is_there
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_has_all_that_it_may_have_keeps_no_other_waiting() {
    let rig = rig(2 * REGION, Arc::new(InPlace));
    let (a, b) = (rig.pool_of(REGION), rig.pool_of(REGION));
    let a1 = rig.ask(&a, "a1", LONG).await;
    let a2 = rig.ask(&a, "a2", LONG).await;
    let b1 = rig.ask(&b, "b1", LONG).await;
    assert_eq!(rig.served().await, ["a1", "b1"]);
    release(a1).await;
    assert_eq!(rig.served().await, ["a1", "b1", "a2"]);
    release(a2).await;
    release(b1).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_overtakes_who_waits_with_memory_that_is_free() {
    let rig = rig(2 * REGION, Arc::new(InPlace));
    let [a, b] = [rig.pool(), rig.pool()];
    let held = rig.ask(&b, "b1", LONG).await;
    // One slab of one short region, and no room for more.
    let short = rig.ask(&a, "a1", SHORT).await;
    let other = rig.ask(&a, "a2", SHORT).await;
    release(short).await;
    assert_eq!(rig.served().await, ["b1", "a1", "a2"], "nobody waits yet");
    let long = rig.ask(&b, "b2", LONG).await;
    let late = rig.ask(&a, "a3", SHORT).await;
    assert_eq!(rig.served().await.len(), 3, "b2 waits for room, a3 for b2");
    assert!(!take(&a, SHORT), "though one is free");
    release(other).await;
    assert_eq!(rig.served().await[3..], ["b2"], "what was idle made room");
    release(held).await;
    assert_eq!(rig.served().await[4..], ["a3"]);
    release(long).await;
    release(late).await;
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_lets_the_next_one_go_on() {
    let rig = rig(2 * REGION - 1, Arc::new(InPlace));
    let [a, b, c] = [rig.pool(), rig.pool(), rig.pool()];
    let held = rig.ask(&a, "a1", LONG).await;
    let gone = rig.ask(&b, "b1", LONG).await;
    let next = rig.ask(&c, "c1", SHORT).await;
    assert_eq!(rig.served().await, ["a1"], "there is room for c1, which waits for b1");
    gone.abort();
    assert_eq!(rig.served().await, ["a1", "c1"]);
    release(held).await;
    release(next).await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_is_told_what_all_have_together() {
    let rig = rig(REGION, Arc::new(InPlace));
    let [a, b] = [rig.pool(), rig.pool()];
    let held = rig.ask(&a, "a1", LONG).await;
    let error = b.grant(Tenant::unique(), LONG, soon()).await.expect_err("all is in use");
    let PoolError::TimedOut { why: Shortage::Shared { in_use, limit }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*in_use, *limit), (REGION, REGION));
    assert!(error.to_string().contains("raise landing.size.cap"), "{error}");
    assert_eq!(b.snapshot().waiting, 0);
    release(held).await;
    assert!(take(&a, LONG), "nobody stands in line for it any more");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_ends_makes_room_when_its_last_region_is_back() {
    let rig = rig(REGION, Arc::new(InPlace));
    let [a, b] = [rig.pool(), rig.pool()];
    let held = rig.ask(&a, "a1", LONG).await.await.expect("served");
    let waiting = rig.ask(&b, "b1", LONG).await;
    drop(a);
    assert_eq!(rig.served().await, ["a1"], "its peer may still write there");
    held.release(GrantClosed::by_destruction());
    assert_eq!(rig.served().await, ["a1", "b1"]);
    release(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_ends_while_it_waits_is_passed_over() {
    let rig = rig(REGION, Arc::new(InPlace));
    let [a, b, c] = [rig.pool(), rig.pool(), rig.pool()];
    let held = rig.ask(&a, "a1", LONG).await;
    let told = tokio::spawn(wait_for(&b, LONG));
    yield_now().await;
    let next = rig.ask(&c, "c1", LONG).await;
    drop(b);
    assert!(matches!(told.await.expect("no panic"), Err(PoolError::Closed(_))));
    release(held).await;
    assert_eq!(rig.served().await, ["a1", "c1"]);
    release(next).await;
}

/// Registering and deregistering block: neither is done where somebody asks or lets go.
#[tokio::test(start_paused = true)]
async fn slabs_are_made_and_given_up_where_that_may_block() {
    let later = Arc::new(Later::default());
    let rig = rig(REGION, Arc::clone(&later) as Arc<dyn Reaper>);
    let [a, b] = [rig.pool(), rig.pool()];
    let first = rig.ask(&a, "a1", LONG).await;
    assert_eq!((rig.nic.locked(), later.run_all()), (0, 1));
    assert_eq!(rig.served().await, ["a1"]);
    let second = rig.ask(&b, "b1", LONG).await;
    assert_eq!(later.run_all(), 0, "nothing is idle");
    release(first).await;
    assert_eq!(rig.nic.locked(), REGION);
    assert_eq!((later.run_all(), rig.nic.locked()), (1, 0), "it is given up");
    assert_eq!((later.run_all(), rig.nic.locked()), (1, REGION), "and the next one made");
    assert_eq!(rig.served().await, ["a1", "b1"]);
    release(second).await;
}

/// Many tasks on several threads; a lost wake-up would leave one of them waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_order_of_asking_and_letting_go_leaves_anybody_waiting() {
    let rig = rig(2 * REGION, Arc::new(InPlace));
    let caps = [REGION, 2 * REGION, 9 * REGION, REGION, 9 * REGION];
    let pools = caps.map(|cap| Arc::new(rig.pool_of(cap)));
    let tasks: Vec<_> = (0..40)
        .map(|number| {
            let pool = Arc::clone(&pools[number % pools.len()]);
            tokio::spawn(async move {
                for round in 0..50 {
                    let len = if (number + round) % 3 == 0 { LONG } else { SHORT };
                    let region = wait_for(&pool, len);
                    let region = tokio::time::timeout(Duration::from_secs(60), region).await;
                    let region = region.expect("not forgotten").expect("room");
                    if round % 2 == 0 {
                        yield_now().await;
                    }
                    region.release(GrantClosed::by_silence());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("served each time");
    }
    let in_use: usize = pools.iter().map(|pool| pool.snapshot().in_use_bytes).sum();
    assert_eq!(in_use, 0);
    assert!(rig.nic.locked() <= rig.cap);
}
