use bytes::Bytes;
use tokio::task::yield_now;
use verbwire_core::ErrorKind;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_buffer_is_there_before_any_device_and_is_sent_in_place_on_each_that_comes() {
    let pool = staging(pages(64));
    let mut buffer = pool.alloc(5000, soon()).await.expect("room");
    buffer[..3].copy_from_slice(b"abc");
    let bytes = buffer.freeze();
    let (first, second, other) = (Domain::unique(), Domain::unique(), Domain::unique());
    assert!(pool.sources().lend(first, &bytes).is_none(), "no device yet");
    pool.attach(first, FakeNic::new(usize::MAX)).expect("within limits");
    pool.attach(second, FakeNic::new(usize::MAX)).expect("within limits");
    // One that comes later has both, too.
    let later = pool.alloc(1, soon()).await.expect("room").freeze();
    for (domain, bytes) in [(first, &bytes), (second, &bytes), (first, &later), (second, &later)] {
        let lent = pool.sources().lend(domain, &bytes.slice(1..)).or_else(|| {
            assert_eq!(bytes.len(), 1);
            pool.sources().lend(domain, bytes)
        });
        let lent = lent.expect("registered with both");
        drop(lent.release(crate::memory::Released::by_nic()));
    }
    assert!(pool.sources().lend(other, &bytes).is_none());
    assert!(pool.sources().lend(first, &Bytes::from(vec![0; 5000])).is_none(), "of the heap");
    pool.detach(first);
    assert!(
        pool.sources().lend(first, &bytes).is_none()
            && pool.sources().lend(second, &bytes).is_some()
    );
    assert_eq!(pool.snapshot().registrations, 4);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_of_a_user_shows_nothing_of_what_was_in_it_before() {
    let pool = staging(pages(4));
    let mut staged = pool.stage(4 * PAGE, soon()).await.expect("room");
    staged.as_mut().fill(7);
    drop(staged);
    let stale = pool.try_stage(4 * PAGE).expect("possible").expect("free");
    assert!(stale.as_ref().iter().all(|byte| *byte == 7), "the same memory");
    drop(stale);
    let buffer = pool.alloc(3 * PAGE, soon()).await.expect("room");
    assert!(buffer.len() == 3 * PAGE && buffer.iter().all(|byte| *byte == 0));
}

#[tokio::test(start_paused = true)]
async fn bytes_outlive_the_pool_and_its_registrations_do_not() {
    let (pool, nic) = (staging(pages(64)), FakeNic::new(usize::MAX));
    pool.attach(Domain::unique(), nic.clone()).expect("within limits");
    let sources = Arc::clone(pool.sources());
    let mut buffer = pool.alloc(8192, soon()).await.expect("room");
    let other = pool.alloc(1, soon()).await.expect("room");
    buffer.fill(7);
    let slice = buffer.freeze().slice(8000..);
    assert_eq!(nic.locked(), 2 * 8192 - PAGE);
    drop((pool, other));
    assert_eq!((nic.locked(), Arc::strong_count(&nic)), (0, 1), "the device can go");
    assert!(slice.iter().all(|byte| *byte == 7));
    drop(slice);
    assert_eq!(format!("{sources:?}"), "Sources(2 slabs)", "forgotten when the next one is added");
    assert!(sources.is_empty(), "their memory is freed");
    let next = Staging::new(pages(64), Arc::clone(&sources), Arc::new(InPlace));
    let _held = next.alloc(1, soon()).await.expect("room");
    assert_eq!(format!("{sources:?}"), "Sources(1 slabs)");
}

#[tokio::test(start_paused = true)]
async fn calls_that_repeat_register_nothing() {
    let (pool, nic) = (staging(PoolSize::default()), FakeNic::new(usize::MAX));
    pool.attach(Domain::unique(), nic).expect("within limits");
    let round = async |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let lens: Vec<_> = (0..8).map(|_| random.usize(..3 << 20)).collect();
        let mut held = Vec::new();
        for len in lens {
            held.push(pool.alloc(len, soon()).await.expect("room").freeze());
        }
    };
    for seed in 0..20 {
        round(seed).await;
    }
    let before = pool.snapshot();
    for seed in 0..20 {
        round(seed).await;
    }
    let after = pool.snapshot();
    assert!(before.registrations > 0);
    assert_eq!(after, PoolSnapshot { waits: after.waits, wait_time: after.wait_time, ..before });
    assert_eq!(after.in_use_bytes, 0);
    pool.trim();
    assert_eq!(pool.snapshot().slab_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_in_order_and_a_dropped_future_leaves_the_line() {
    let pool = Arc::new(staging(pages(4)));
    let only = pool.alloc(4 * PAGE, soon()).await.expect("room");
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for number in 0..4 {
        let (pool, served) = (Arc::clone(&pool), served.clone());
        tasks.push(tokio::spawn(async move {
            let buffer = pool.alloc(4 * PAGE, Instant::now() + Duration::from_secs(9)).await;
            served.send((number, buffer.is_ok())).expect("the test listens");
        }));
        yield_now().await;
    }
    assert_eq!(pool.snapshot().waiting, 4);
    tasks[1].abort();
    yield_now().await;
    assert_eq!(pool.snapshot().waiting, 3);
    drop(only);
    for number in [0, 2, 3] {
        assert_eq!(order.recv().await, Some((number, true)));
    }
    let counts = pool.snapshot();
    assert_eq!((counts.waiting, counts.in_use_bytes, counts.waits), (0, 0, 4 + 1));
}

#[tokio::test(start_paused = true)]
async fn a_buffer_handed_to_a_future_that_is_dropped_before_it_looks_goes_to_the_next() {
    let pool = staging(pages(4));
    let only = pool.alloc(4 * PAGE, soon()).await.expect("room");
    let mut first = Box::pin(pool.alloc(4 * PAGE, soon()));
    let mut second = Box::pin(pool.alloc(4 * PAGE, soon()));
    assert!(futures_poll(&mut first).is_none() && futures_poll(&mut second).is_none());
    drop(only);
    drop(first);
    assert!(futures_poll(&mut second).expect("handed on").is_ok());
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_the_error_says_what_is_in_the_way() {
    let pool = staging(pages(4));
    let _only = pool.alloc(4 * PAGE, soon()).await.expect("room");
    let begin = Instant::now();
    let error = pool.alloc(9000, soon()).await.expect_err("all is in use");
    assert_eq!(
        (error.kind(), begin.elapsed()),
        (ErrorKind::LocalResource, Duration::from_millis(50))
    );
    let text = error.to_string();
    assert!(text.contains("9000 bytes") && text.contains("16384 of at most 16384"), "{text}");
    let counts = pool.snapshot();
    assert_eq!((counts.timeouts, counts.waiting), (1, 0));
    assert!(counts.wait_time >= Duration::from_millis(50));
    let error = pool.alloc(4 * PAGE + 1, soon()).await.expect_err("too long");
    assert!(error.to_string().contains("raise `longest`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_locked_memory_makes_a_smaller_pool_and_one_clear_error() {
    let (pool, nic) = (staging(pages(64)), FakeNic::new(3 * PAGE));
    pool.attach(Domain::unique(), nic.clone()).expect("nothing yet");
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(pool.alloc(1, soon()).await.expect("within the limit"));
    }
    let error = pool.alloc(1, soon()).await.expect_err("beyond the limit");
    let text = error.to_string();
    assert!(text.contains("12288 bytes are in use and the device gave no more"), "{text}");
    assert!(text.contains("ENOMEM"), "{text}");
    // The pool goes on with what it has: also for another length, for which idle buffers are given up.
    held.pop();
    drop(pool.alloc(1, soon()).await.expect("came back"));
    held.clear();
    drop(pool.alloc(2 * PAGE, soon()).await.expect("in the place of short ones"));
    // What can never fit is refused at once, with the device's reason.
    let begin = Instant::now();
    let error = pool.alloc(4 * PAGE, soon()).await.expect_err("never");
    assert!(error.to_string().contains("there can be no buffer of 16384 bytes"), "{error}");
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(pool.snapshot().refusals, 1, "asked once, not at each call");
    // Somebody raises the limit; the pool notices.
    nic.lockable.store(usize::MAX, Ordering::Relaxed);
    assert!(pool.alloc(4 * PAGE, soon()).await.is_err(), "not at each call");
    tokio::time::advance(Duration::from_secs(10)).await;
    drop(pool.alloc(4 * PAGE, soon()).await.expect("asked again"));
    assert_eq!(nic.locked(), pool.snapshot().slab_bytes);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_takes_not_all_of_what_is_there_leaves_the_rest_to_be_staged() {
    let pool = staging(pages(64));
    let held = [pool.alloc(1, soon()).await, pool.alloc(1, soon()).await];
    let held = held.map(|buffer| buffer.expect("no device, no limit").freeze());
    let (domain, nic) = (Domain::unique(), FakeNic::new(PAGE));
    let error = pool.attach(domain, nic).expect_err("one page is too little");
    assert!(error.to_string().contains("ENOMEM"), "{error}");
    let lent = held.iter().filter(|bytes| pool.sources().lend(domain, bytes).is_some());
    assert_eq!(lent.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn slabs_are_made_where_the_reaper_runs_and_none_after_the_pool_is_closed() {
    let later = Arc::new(Later::default());
    let nic = FakeNic::new(usize::MAX);
    let pool = Staging::new(pages(64), Sources::new(), later.clone());
    pool.attach(Domain::unique(), nic.clone()).expect("nothing yet");
    let mut waiting = Box::pin(pool.alloc(1, soon()));
    assert!(futures_poll(&mut waiting).is_none());
    assert_eq!((nic.locked(), later.run_all(), nic.locked()), (0, 1, PAGE));
    let _held = futures_poll(&mut waiting).expect("made").expect("room");
    let mut waiting = Box::pin(pool.alloc(1, soon()));
    assert!(futures_poll(&mut waiting).is_none());
    drop(pool);
    let error = futures_poll(&mut waiting).expect("told").expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(later.run_all(), 1);
    assert_eq!(nic.locked(), 0, "the slab that came too late is gone");
}

/// The future's value, if it is ready.
fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut cx) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

/// Threads that run at the same time, each asking, giving up and dropping at random: real concurrency, which the
/// exhaustive test of the stock cannot have. At the end everything is back, and nobody hangs.
#[test]
fn threads_that_ask_and_give_up_at_random_leave_the_pool_as_it_was() {
    let pool = Arc::new(Staging::new(pages(8), Sources::new(), Arc::new(InPlace)));
    let run = |seed: u64| {
        let pool = Arc::clone(&pool);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.expect("a runtime").block_on(one_task(&pool, seed))
        })
    };
    let threads: Vec<_> = (0..6).map(run).collect();
    let served: usize = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert!(served > 100, "{served}");
    let counts = pool.snapshot();
    assert_eq!((counts.in_use_bytes, counts.waiting), (0, 0), "{counts:?}");
    assert!(counts.waits > 100, "there was no contention: {counts:?}");
}

async fn one_task(pool: &Staging, seed: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut served, mut held) = (0, Vec::new());
    for _ in 0..400 {
        let deadline = Instant::now() + Duration::from_micros(random.u64(..2000));
        let mut ask = Box::pin(pool.alloc(random.usize(1..4 * PAGE), deadline));
        // One in four is given up while it waits, as a dropped call does.
        if random.u8(..4) == 0 {
            drop(futures_poll(&mut ask));
            continue;
        }
        if let Ok(buffer) = ask.await {
            served += 1;
            held.push(buffer);
        }
        if held.len() > 2 || random.bool() {
            held.clear();
        }
    }
    served
}
