//! What is free of a server's or service's bounds, and who holds the rest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, Semaphore};

use super::LoadLimits;
use crate::error_details::{ErrorDetails, RetryInfo};
use crate::server::size::Size;
use crate::status::{Executed, Status};

/// Lets calls in, for all services that share it.
#[derive(Debug)]
pub(in crate::server) struct Gate {
    calls: Option<Arc<Room>>,
    bytes: Option<Arc<Room>>,
    retry_after: Duration,
    whose: &'static str,
}

#[derive(Debug)]
struct Room {
    limit: usize,
    /// Nobody queues for it: who did would take what is free while it waits for the rest, and calls would be turned away
    /// for nothing.
    free: Semaphore,
    /// Told whenever something becomes free.
    freed: Notify,
    /// Held by the message of a stream that is the next to get room, so that they get it in turn.
    turn: Mutex<()>,
}

/// A part of a room, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    room: Arc<Room>,
    permits: u32,
}

/// What a call holds while it runs.
#[derive(Debug)]
pub(in crate::server) struct Held {
    _calls: Option<Taken>,
    _bytes: Option<Taken>,
}

/// Other requests take what there is.
#[derive(Debug)]
pub(super) struct NoRoom;

impl Gate {
    /// A gate of a server or service, which is how it calls itself.
    pub(in crate::server) fn new(limits: &LoadLimits, whose: &'static str) -> Self {
        let room = |limit: usize| {
            // As many as can be asked for at once.
            let limit = limit.min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
            let free = Semaphore::new(limit);
            Arc::new(Room { limit, free, freed: Notify::new(), turn: Mutex::new(()) })
        };
        Self {
            calls: limits.calls.map(room),
            bytes: limits.bytes.map(room),
            retry_after: limits.retry_after,
            whose,
        }
    }

    /// Whether lengths count.
    pub(super) fn bounds_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// Lets a call in whose request has `len` bytes, or says why not.
    pub(in crate::server) fn enter(&self, len: usize) -> Result<Held, Status> {
        self.enter_within(|_most| len)
    }

    /// The same for a request whose length is work to find out, as of one that is compressed: `len_within` is asked only if there
    /// is a place for the call and bytes are bounded, and says no more than that there are more than the bytes it is given.
    pub(super) fn enter_within(
        &self,
        len_within: impl FnOnce(usize) -> usize,
    ) -> Result<Held, Status> {
        let whose = self.whose;
        let calls = Room::take(self.calls.as_ref(), 1).map_err(|limit| {
            self.refusal(format!("{whose} runs max_running_calls of {limit} calls already"))
        })?;
        let bytes = self.bytes.as_ref().map(|room| {
            let free = room.free.available_permits();
            let len = len_within(free);
            // It may have become free meanwhile, but then this is not all that the request has. Alone it may have more.
            let fits = len <= free || free == room.limit;
            let taken = if fits { Room::take(Some(room), len) } else { Err(room.limit) };
            taken.map_err(|limit| {
                let at_least = if fits { "" } else { "at least " };
                self.refusal(format!(
                    "a request of {at_least}{} does not fit beside the others that {whose} runs within \
                     max_running_bytes of {}",
                    Size(len),
                    Size(limit)
                ))
            })
        });
        Ok(Held { _calls: calls, _bytes: bytes.transpose()?.flatten() })
    }

    /// Room for a message of a call that runs, once there is some; `None` where nothing bounds it. It takes nothing while it
    /// waits: calls that fit go before it, other messages after it.
    pub(super) async fn room(&self, len: usize) -> Option<Taken> {
        let room = self.bytes.as_ref()?;
        let _turn = room.turn.lock().await;
        loop {
            if let Ok(taken) = Room::take(Some(room), len) {
                return taken;
            }
            // Only who has the turn waits here, and a call of `notify_one` before this is remembered.
            room.freed.notified().await;
        }
    }

    /// The same, if there is room now and no message waits for it.
    pub(super) fn room_now(&self, len: usize) -> Result<Option<Taken>, NoRoom> {
        let Some(room) = &self.bytes else { return Ok(None) };
        let _turn = room.turn.try_lock().map_err(|_others_wait| NoRoom)?;
        Room::take(Some(room), len).map_err(|_limit| NoRoom)
    }

    fn refusal(&self, message: String) -> Status {
        let details = ErrorDetails::new().with(RetryInfo::after(self.retry_after));
        Status::resource_exhausted(format!("{message}; try again in {:?}", self.retry_after))
            .with_error_details(&details)
            .with_executed(Executed::No)
    }
}

impl Room {
    /// Takes `count` of what is free, or all there is where that is less; `Err` with the limit if it is not free.
    fn take(room: Option<&Arc<Self>>, count: usize) -> Result<Option<Taken>, usize> {
        let Some(room) = room else {
            return Ok(None);
        };
        if room.limit == 0 {
            return Err(0);
        }
        let permits = room.permits(count);
        room.free.try_acquire_many(permits).map_err(|_full| room.limit)?.forget();
        Ok(Some(Taken { room: Arc::clone(room), permits }))
    }

    /// What something of `count` takes: all there is where that is less.
    fn permits(&self, count: usize) -> u32 {
        u32::try_from(count.min(self.limit)).expect("limits are cut to 32 bits")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.free.add_permits(self.permits as usize);
        self.room.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    fn waiting(gate: &Arc<Gate>, len: usize) -> JoinHandle<Option<Taken>> {
        let gate = Arc::clone(gate);
        tokio::spawn(async move { gate.room(len).await })
    }

    #[tokio::test]
    async fn a_message_that_waits_takes_nothing_from_calls_and_keeps_its_place() {
        let gate = Arc::new(Gate::new(&LoadLimits::new().max_running_bytes(10), "the server"));
        let first = gate.enter(6).expect("room");
        let (large, small) = (waiting(&gate, 8), waiting(&gate, 2));
        yield_now().await;
        let other = gate.enter(4).expect("the message that waits has taken nothing");
        assert!(gate.enter(1).is_err(), "now it is full");
        drop(other);
        yield_now().await;
        assert!(!large.is_finished(), "6 and 8 are more than 10");
        assert!(!small.is_finished(), "it is behind the large one");
        assert!(gate.room_now(1).is_err(), "so is a third message");
        drop(first);
        let large = large.await.expect("no panic").expect("a bound");
        let small = small.await.expect("no panic").expect("a bound");
        assert!(gate.enter(1).is_err(), "both hold their room");
        drop((large, small));
        assert!(gate.enter(10).is_ok());
    }

    #[tokio::test]
    async fn a_message_that_waits_no_more_lets_the_next_one_go() {
        let gate = Arc::new(Gate::new(&LoadLimits::new().max_running_bytes(10), "the server"));
        let held = gate.enter(6).expect("room");
        let (large, small) = (waiting(&gate, 8), waiting(&gate, 2));
        yield_now().await;
        large.abort();
        assert!(small.await.expect("no panic").is_some());
        drop(held);
    }

    #[test]
    fn a_call_beyond_a_bound_is_turned_away_with_a_hint() {
        let limits = LoadLimits::new().max_running_calls(1).retry_after(Duration::from_secs(3));
        let gate = Gate::new(&limits, "the server");
        let held = gate.enter(1).expect("room");
        let status = gate.enter(1).expect_err("full");
        assert!(status.message().contains("max_running_calls of 1"), "{status}");
        let details = status.error_details().expect("the standard form");
        let delay = details.retry_info().and_then(RetryInfo::delay);
        assert_eq!(delay, Some(Duration::from_secs(3)));
        drop(held);
        assert!(gate.enter(1).is_ok());
    }

    #[test]
    fn a_request_of_more_than_the_bound_is_let_in_alone() {
        let gate = Gate::new(&LoadLimits::new().max_running_bytes(10), "the server");
        let small = gate.enter(1).expect("room");
        assert!(gate.enter(100).is_err());
        drop(small);
        let large = gate.enter(100).expect("alone");
        assert!(gate.enter(1).is_err());
        drop(large);
        assert!(gate.enter(5).is_ok() && gate.enter(10).is_ok());
    }

    #[test]
    fn nobody_counts_the_bytes_of_a_call_that_is_turned_away_anyhow_nor_more_than_there_is_room_for()
     {
        let gate = Gate::new(&LoadLimits::new().max_running_calls(2).max_running_bytes(10), "x");
        // As of a message that is decompressed as far as that matters.
        let counted = |most: usize| 1000.min(most + 1);
        let large = gate.enter_within(counted).expect("alone");
        assert!(gate.enter(1).is_err(), "it has all the bytes that there are");
        drop(large);
        let small = gate.enter_within(|most| 6.min(most + 1)).expect("room");
        let status = gate.enter_within(counted).expect_err("4 are free");
        let said = "a request of at least 5 bytes does not fit";
        assert!(status.message().contains(said), "{status}");
        let other = gate.enter_within(|most| 4.min(most + 1)).expect("the other 4");
        let status = gate.enter_within(|_| unreachable!("no place")).expect_err("two calls run");
        assert!(status.message().contains("max_running_calls of 2"), "{status}");
        drop((small, other));
        let uncounted = Gate::new(&LoadLimits::new().max_running_calls(1), "x");
        assert!(uncounted.enter_within(|_| unreachable!("no bound on bytes")).is_ok());
    }

    #[test]
    fn bytes_that_become_free_while_they_are_counted_are_not_given_for_less_than_there_are() {
        let gate = Gate::new(&LoadLimits::new().max_running_bytes(10), "the server");
        let mut first = Some(gate.enter(6).expect("room"));
        let counted = |most: usize| {
            drop(first.take());
            1000.min(most + 1)
        };
        assert!(gate.enter_within(counted).is_err(), "5 of 1000 would be counted");
        assert!(gate.enter(10).is_ok(), "nothing is kept");
    }

    #[test]
    fn a_bound_of_nothing_lets_nothing_in() {
        let gate = Gate::new(&LoadLimits::new().max_running_bytes(0), "the server");
        assert!(gate.enter(0).is_err());
    }
}
