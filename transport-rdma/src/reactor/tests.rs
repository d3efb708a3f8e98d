use std::any::Any;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::*;
use crate::config::Polling;
use crate::memory::{Region, Slab};
use crate::nic::{Access, Capabilities, Cq, Qp, QpNumber, Support, Windows, Wire, WrId};
use crate::work::{Kind, WorkId};

/// A completion queue that a test fills.
#[derive(Default)]
struct FakeCq {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Wc>,
    armed: bool,
    event: bool,
    /// The next event is lost.
    loses_event: bool,
    lost: Option<NicError>,
    waker: Option<Waker>,
    arms: usize,
    polls: usize,
}

impl FakeCq {
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.state.lock())
    }

    fn complete(&self, id: WrId) {
        let wc = Wc { id, qp: QpNumber(1), result: Ok(0) };
        let waker = self.with(|state| {
            state.ready.push_back(wc);
            if !std::mem::take(&mut state.armed) || std::mem::take(&mut state.loses_event) {
                return None;
            }
            state.event = true;
            state.waker.take()
        });
        waker.into_iter().for_each(Waker::wake);
    }

    fn lose(&self, reason: &str) {
        let lost = NicError { verb: "ibv_poll_cq", reason: reason.into() };
        let waker = self.with(|state| {
            state.lost = Some(lost);
            state.waker.take()
        });
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Cq for FakeCq {
    fn poll(&self, out: &mut Vec<Wc>, max: usize) -> Result<usize, NicError> {
        self.with(|state| {
            state.polls += 1;
            state.lost.clone().map_or(Ok(()), Err)?;
            let count = max.min(state.ready.len());
            out.extend(state.ready.drain(..count));
            Ok(count)
        })
    }

    fn arm(&self) -> Result<(), NicError> {
        self.with(|state| {
            state.arms += 1;
            state.armed = true;
        });
        Ok(())
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Result<(), NicError>> {
        self.with(|state| {
            state.lost.clone().map_or(Ok(()), Err)?;
            if std::mem::take(&mut state.event) {
                return Poll::Ready(Ok(()));
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A device that makes such queues, and nothing else.
#[derive(Default)]
struct FakeNic {
    made: Mutex<Vec<(u32, Arc<FakeCq>)>>,
}

impl FakeNic {
    /// The queues that were made: of sends, of receives, and so on.
    fn queue(&self, at: usize) -> Arc<FakeCq> {
        Arc::clone(&self.made.lock()[at].1)
    }

    fn depths(&self) -> Vec<u32> {
        let made = self.made.lock();
        made.iter().map(|(depth, _)| *depth).collect()
    }
}

const MAX_CQE: u32 = 1000;

static CAPABILITIES: Capabilities = Capabilities {
    device: String::new(),
    wire: Wire::Iwarp,
    max_cqe: MAX_CQE,
    max_wr: 1000,
    max_srq_wr: 0,
    max_sge: 1,
    max_read_sge: 1,
    max_inline: 0,
    own_sends: 3,
    atomics: Support::No,
    memory_windows: Windows::No,
    write_with_immediate: Support::No,
};

impl Nic for FakeNic {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn register(&self, _slab: &Arc<Slab>, _access: Access) -> Result<Box<dyn Region>, NicError> {
        Err(NicError { verb: "ibv_reg_mr", reason: "this device registers nothing".into() })
    }

    fn create_cq(&self, depth: u32) -> Result<Arc<dyn Cq>, NicError> {
        if depth > MAX_CQE {
            return Err(NicError { verb: "ibv_create_cq", reason: format!("{depth} is too deep") });
        }
        let cq = Arc::new(FakeCq::default());
        self.made.lock().push((depth, Arc::clone(&cq)));
        Ok(cq)
    }

    fn create_qp(&self, _cqs: &Cqs, _depths: Depths) -> Result<Arc<dyn Qp>, NicError> {
        Err(NicError { verb: "ibv_create_qp", reason: "this device has no queue pairs".into() })
    }
}

const DEPTHS: Depths = Depths { send: 7, recv: 20 };

fn config(completion_queue_depth: u32, polling: Polling) -> RdmaConfig {
    RdmaConfig { completion_queue_depth, polling, ..RdmaConfig::default() }
}

fn admit(reactors: &Reactors, nic: &FakeNic, depth: u32) -> Share {
    reactors.admit(nic, (DEPTHS, None), &config(depth, Polling::Events)).expect("room")
}

fn id(share: &Share, sequence: u64) -> WrId {
    WorkId { kind: Kind::Receive, connection: share.number(), sequence }.encode()
}

fn counts(reactors: &Reactors) -> ReactorCounts {
    let mut counts = ReactorCounts::default();
    reactors.count(&mut counts);
    counts
}

/// The next completions of a share, as sequence numbers.
async fn take(share: &Share) -> Result<Vec<u64>, NicError> {
    let mut out = Vec::new();
    poll_fn(|cx| share.poll(cx, &mut out, 100)).await?;
    Ok(out.iter().map(|wc| WorkId::decode(wc.id).expect("an id of a test").sequence).collect())
}

/// Lets the reactor's task run until it waits.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn each_connection_gets_its_own_completions_in_order() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let (one, two) = (admit(&reactors, &nic, 100), admit(&reactors, &nic, 100));
    let recv = nic.queue(1);
    for sequence in 0..3 {
        recv.complete(id(&one, sequence));
        recv.complete(id(&two, 10 + sequence));
    }
    assert_eq!(take(&one).await, Ok(vec![0, 1, 2]));
    assert_eq!(take(&two).await, Ok(vec![10, 11, 12]));
    let ReactorCounts { reactors, connections, completions, .. } = counts(&reactors);
    assert_eq!((reactors, connections, completions), (1, 2, 6));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_spent_gets_a_second_one_beside_it() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    // 20 receives each: the third does not fit 50.
    let shares: Vec<_> = (0..3).map(|_| admit(&reactors, &nic, 50)).collect();
    assert_eq!(nic.depths(), [50; 4]);
    drop(shares);
    settle().await;
    assert_eq!(counts(&reactors).reactors, 1, "one is kept for the next connection");
    let _again: Vec<_> = (0..4).map(|_| admit(&reactors, &nic, 50)).collect();
    assert_eq!(counts(&reactors).reactors, 2, "what was given back is admitted again");
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_as_deep_as_one_connection_needs_and_as_the_device_allows() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let _small = admit(&reactors, &nic, 0);
    assert_eq!(nic.depths(), [10, 20], "7 sends and 3 of the device's own");
    let _large = admit(&reactors, &nic, u32::MAX);
    assert_eq!(nic.depths(), [10, 20, MAX_CQE, MAX_CQE]);
    let too_deep = Depths { send: 7, recv: MAX_CQE + 1 };
    let refused = reactors.admit(&nic, (too_deep, None), &config(0, Polling::Events));
    assert!(refused.is_err_and(|error| error.reason.contains("too deep")));
}

#[tokio::test(start_paused = true)]
async fn completions_of_a_connection_that_has_left_reach_nobody() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let first = admit(&reactors, &nic, 100);
    let late = id(&first, 1);
    drop(first);
    let next = admit(&reactors, &nic, 100);
    nic.queue(1).complete(late);
    nic.queue(1).complete(WrId(u64::MAX));
    nic.queue(1).complete(id(&next, 2));
    assert_eq!(take(&next).await, Ok(vec![2]));
    assert_eq!(counts(&reactors).strays, 2);
}

#[tokio::test(start_paused = true)]
async fn sends_make_events_only_while_they_are_awaited() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let share = admit(&reactors, &nic, 100);
    let (send, recv) = (nic.queue(0), nic.queue(1));
    settle().await;
    assert_eq!(send.with(|state| state.arms), 0);
    send.complete(id(&share, 1));
    let in_vain = timeout(Duration::from_millis(450), take(&share)).await;
    assert!(in_vain.is_err(), "nobody was told");
    recv.complete(id(&share, 2));
    assert_eq!(take(&share).await, Ok(vec![2, 1]), "it comes along with a receive");
    share.await_sends(Awaited::Yes);
    settle().await;
    send.complete(id(&share, 3));
    assert_eq!(take(&share).await, Ok(vec![3]));
    share.await_sends(Awaited::No);
    settle().await;
    let arms = send.with(|state| state.arms);
    recv.complete(id(&share, 4));
    assert_eq!(take(&share).await, Ok(vec![4]));
    settle().await;
    assert_eq!(send.with(|state| state.arms), arms);
}

#[tokio::test(start_paused = true)]
async fn sends_that_nobody_awaits_are_taken_by_the_watchdog_which_suspects_nothing() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let share = admit(&reactors, &nic, 100);
    settle().await;
    for sequence in 1..4 {
        nic.queue(0).complete(id(&share, sequence));
        let taken = timeout(Duration::from_millis(501), take(&share)).await;
        assert_eq!(taken.expect("half a second at most"), Ok(vec![sequence]));
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(counts(&reactors).lost_events, 0);
    assert_eq!(nic.queue(0).with(|state| state.arms), 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_sends_of_all_gets_events_for_them_until_he_stops() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let share = admit(&reactors, &nic, 100);
    settle().await;
    nic.queue(0).complete(id(&share, 1));
    let awaiting = reactors.await_sends();
    assert_eq!(soon(&share).await, Ok(vec![1]), "it was there before");
    nic.queue(0).complete(id(&share, 2));
    assert_eq!(soon(&share).await, Ok(vec![2]));
    drop(awaiting);
    nic.queue(0).complete(id(&share, 3));
    assert!(timeout(Duration::from_millis(10), take(&share)).await.is_err());
}

/// What comes within a moment.
async fn soon(share: &Share) -> Result<Vec<u64>, NicError> {
    timeout(Duration::from_millis(10), take(share)).await.expect("at once")
}

#[tokio::test(start_paused = true)]
async fn sends_that_completed_before_they_were_awaited_are_found() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let share = admit(&reactors, &nic, 100);
    settle().await;
    nic.queue(0).complete(id(&share, 1));
    settle().await;
    share.await_sends(Awaited::Yes);
    assert_eq!(take(&share).await, Ok(vec![1]));
}

#[tokio::test(start_paused = true)]
async fn a_lost_event_is_found_and_counted_and_a_late_one_is_not() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let share = admit(&reactors, &nic, 100);
    let recv = nic.queue(1);
    settle().await;
    for sequence in 0..3 {
        recv.complete(id(&share, sequence));
        assert_eq!(take(&share).await, Ok(vec![sequence]));
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(counts(&reactors).lost_events, 0);
    recv.with(|state| state.loses_event = true);
    recv.complete(id(&share, 7));
    let found = timeout(Duration::from_millis(500), take(&share)).await;
    assert_eq!(found.expect("within the watchdog's time"), Ok(vec![7]));
    sleep(Duration::from_millis(20)).await;
    assert_eq!(counts(&reactors).lost_events, 1);
    recv.complete(id(&share, 8));
    let found = timeout(Duration::from_millis(1), take(&share)).await;
    assert_eq!(found.expect("by an event"), Ok(vec![8]), "it is armed anew");
}

#[tokio::test(start_paused = true)]
async fn completions_that_come_with_their_events_when_the_watchdog_looks_are_no_loss() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let share = admit(&reactors, &nic, 100);
    settle().await;
    let recv = nic.queue(1);
    for sequence in 0..20 {
        // Like a runtime that was kept busy past the watchdog's time.
        tokio::time::advance(Duration::from_millis(700)).await;
        recv.complete(id(&share, sequence));
        assert_eq!(take(&share).await, Ok(vec![sequence]));
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(counts(&reactors).lost_events, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_queue_ends_all_its_connections_behind_what_came_before() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let (one, two) = (admit(&reactors, &nic, 100), admit(&reactors, &nic, 100));
    settle().await;
    nic.queue(1).complete(id(&one, 1));
    settle().await;
    nic.queue(0).lose("overflow");
    nic.queue(1).lose("overflow");
    assert_eq!(take(&one).await, Ok(vec![1]));
    for share in [&one, &two] {
        assert!(take(share).await.is_err_and(|error| error.reason == "overflow"));
    }
    let next = admit(&reactors, &nic, 100);
    nic.queue(3).complete(id(&next, 5));
    assert_eq!(take(&next).await, Ok(vec![5]), "a new one has other queues");
}

#[test]
fn a_runtime_that_shuts_down_says_so_to_those_who_share_its_queues() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().expect("a runtime")
    };
    let first = runtime();
    let share = first.block_on(async { admit(&reactors, &nic, 100) });
    drop(first);
    runtime().block_on(async {
        let error = take(&share).await.expect_err("nobody polls");
        assert!(error.reason.contains("shut down"), "{error}");
        let next = admit(&reactors, &nic, 100);
        nic.queue(3).complete(id(&next, 5));
        assert_eq!(take(&next).await, Ok(vec![5]));
    });
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_the_last_share_of_a_device_that_is_let_go() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let share = admit(&reactors, &nic, 100);
    drop(reactors);
    nic.queue(1).complete(id(&share, 1));
    assert_eq!(take(&share).await, Ok(vec![1]), "a connection outlives its transport");
    drop(share);
    settle().await;
    let queue = nic.queue(1);
    assert_eq!(Arc::strong_count(&queue), 2, "only this test and the device hold the queue");
}

#[tokio::test(start_paused = true)]
async fn adaptive_polling_finds_completions_without_an_event() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let polling = Polling::Adaptive { most: 64 };
    let share = reactors.admit(&nic, (DEPTHS, None), &config(100, polling)).expect("room");
    let recv = nic.queue(1);
    let filled = Arc::clone(&recv);
    // In a task, so that it takes turns with the reactor's.
    let calls = tokio::spawn(async move {
        for sequence in 0..10 {
            filled.complete(id(&share, sequence));
            assert_eq!(take(&share).await, Ok(vec![sequence]));
        }
        share
    });
    let _share = calls.await.expect("no panic");
    assert_eq!((counts(&reactors).events, recv.with(|state| state.arms)), (0, 0));
    settle().await;
    assert_eq!(recv.with(|state| state.arms), 1, "it sleeps in the end");
}

#[tokio::test]
async fn busy_polling_never_arms_and_rests_without_connections() {
    let (nic, reactors) = (FakeNic::default(), Reactors::default());
    let share = reactors.admit(&nic, (DEPTHS, None), &config(100, Polling::Busy)).expect("room");
    let recv = nic.queue(1);
    for sequence in 0..10 {
        recv.complete(id(&share, sequence));
        assert_eq!(take(&share).await, Ok(vec![sequence]));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(recv.with(|state| state.arms), 0);
    drop(share);
    sleep(Duration::from_millis(1)).await;
    let polls = recv.with(|state| state.polls);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(recv.with(|state| state.polls), polls);
}
