//! What is free of a server's or service's bounds, and who holds the rest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::LoadLimits;
use crate::error_details::{ErrorDetails, RetryInfo};
use crate::server::size::Size;
use crate::status::{Executed, Status};

/// Lets calls in, for all services that share it.
#[derive(Debug)]
pub(in crate::server) struct Gate {
    calls: Option<Room>,
    bytes: Option<Room>,
    retry_after: Duration,
    whose: &'static str,
}

#[derive(Debug)]
struct Room {
    limit: usize,
    free: Arc<Semaphore>,
}

/// What a call holds while it runs.
#[derive(Debug)]
pub(in crate::server) struct Held {
    _calls: Option<OwnedSemaphorePermit>,
    _bytes: Option<OwnedSemaphorePermit>,
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
            Room { limit, free: Arc::new(Semaphore::new(limit)) }
        };
        Self {
            calls: limits.calls.map(room),
            bytes: limits.bytes.map(room),
            retry_after: limits.retry_after,
            whose,
        }
    }

    /// Lets a call in whose request has `len` bytes, or says why not.
    pub(in crate::server) fn enter(&self, len: usize) -> Result<Held, Status> {
        let whose = self.whose;
        let calls = Room::take(self.calls.as_ref(), 1).map_err(|limit| {
            self.refusal(format!("{whose} runs max_running_calls of {limit} calls already"))
        })?;
        let bytes = Room::take(self.bytes.as_ref(), len).map_err(|limit| {
            self.refusal(format!(
                "a request of {} does not fit beside the others that {whose} runs within \
                 max_running_bytes of {}",
                Size(len),
                Size(limit)
            ))
        })?;
        Ok(Held { _calls: calls, _bytes: bytes })
    }

    /// Room for a message of a call that runs, once there is some; `None` where nothing bounds it.
    pub(super) async fn room(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        let room = self.bytes.as_ref()?;
        let permits = Arc::clone(&room.free).acquire_many_owned(room.permits(len)).await;
        Some(permits.expect("it is never closed"))
    }

    /// The same, if there is room now.
    pub(super) fn room_now(&self, len: usize) -> Result<Option<OwnedSemaphorePermit>, NoRoom> {
        Room::take(self.bytes.as_ref(), len).map_err(|_limit| NoRoom)
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
    fn take(room: Option<&Self>, count: usize) -> Result<Option<OwnedSemaphorePermit>, usize> {
        let Some(room) = room else {
            return Ok(None);
        };
        if room.limit == 0 {
            return Err(0);
        }
        let free = Arc::clone(&room.free);
        free.try_acquire_many_owned(room.permits(count)).map(Some).map_err(|_full| room.limit)
    }

    /// What something of `count` takes: all there is where that is less.
    fn permits(&self, count: usize) -> u32 {
        u32::try_from(count.min(self.limit)).expect("limits are cut to 32 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_bound_of_nothing_lets_nothing_in() {
        let gate = Gate::new(&LoadLimits::new().max_running_bytes(0), "the server");
        assert!(gate.enter(0).is_err());
    }
}
