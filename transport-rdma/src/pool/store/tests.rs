use super::*;
use crate::nic::Access;
use crate::pool::sources::Sources;
use crate::reaper::InPlace;

fn store() -> Arc<Store<CpuBuf>> {
    let limits = Limits { cap: 4096, slab_len: 4096, pinned: usize::MAX };
    let registrar = Registrar::new(Access::Local, Sources::new());
    Store::new(Classes::new(4096, 0, 4096), limits, registrar, Arc::new(InPlace), None)
}

fn wait(store: &Arc<Store<CpuBuf>>) -> Waiting<CpuBuf> {
    match store.ask(1, |_| true).expect("possible") {
        Asked::Waiting(waiting) => waiting,
        Asked::Served(_) => panic!("the only buffer is out"),
    }
}

/// Between choosing who is served and the hand-over, no lock is held.
#[tokio::test(start_paused = true)]
async fn a_buffer_for_a_task_that_went_away_after_it_was_chosen_goes_to_the_next() {
    let store = store();
    let only = Arc::clone(&store).take(1, |_| true, Instant::now()).await.expect("made in place");
    let (chosen, next) = (wait(&store), wait(&store));
    let (chunk, origin) = only.split();
    store.lock().put(origin.place(), chunk).unwrap_or_else(|_| panic!("the pool is open"));
    let (waiter, place, chunk) = store.lock().stock.serve().expect("two wait");
    drop(chosen);
    store.hand_over(waiter, place, chunk);
    store.settle();
    let served = tokio::time::timeout(Duration::from_secs(1), next).await.expect("not forgotten");
    drop(served.expect("served"));
    assert_eq!(store.snapshot().in_use_bytes, 0);
}
