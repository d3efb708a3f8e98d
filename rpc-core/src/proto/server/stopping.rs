//! How calls are stopped before their handlers return: by CANCEL, at their deadlines, and with their connection.

use tokio::time::Instant;

use super::{ServerCalls, Slot, State, Streaming, deadline, is_older};
use crate::message::CallId;
use crate::proto::entrance::stop;
use crate::status::Executed;

/// A call that was stopped before its handler returned.
#[derive(Debug, PartialEq, Eq)]
pub struct Stopped<H> {
    /// The call.
    pub call: CallId,
    /// Drops its handler. `None` where it had not been spawned yet.
    pub handle: Option<H>,
    /// Whether the handler was entered. `No` means also that it will not be.
    pub executed: Executed,
}

/// The result of a CANCEL.
#[derive(Debug, PartialEq, Eq)]
pub struct Cancelled<H> {
    /// What CANCELLED says.
    pub executed: Executed,
    /// Drops the handler, where one runs.
    pub handle: Option<H>,
}

impl<R: Streaming + Clone, H> ServerCalls<R, H> {
    /// The call cannot go on. `None` if it does not run.
    pub fn stop(&mut self, call: CallId) -> Option<Stopped<H>> {
        let executed = self.slot(call)?.executed();
        let handle = self.finish(call, executed)?.handle.take();
        self.retire(call);
        Some(Stopped { call, handle, executed })
    }

    /// The caller gave up. Says what to answer, and what to stop.
    ///
    /// # Errors
    ///
    /// A slot beyond the limit, as words for a protocol violation.
    pub fn handle_cancel(&mut self, call: CallId) -> Result<Cancelled<H>, String> {
        self.check_range(call)?;
        let none = |executed| Cancelled { executed, handle: None };
        match self.slots.get(call.slot as usize).and_then(Option::as_ref) {
            Some(slot) if is_older(call.generation, slot.generation) => Ok(none(Executed::Maybe)),
            Some(Slot { generation, state: State::Finished(executed), .. })
                if *generation == call.generation =>
            {
                Ok(none(*executed))
            }
            Some(slot) if slot.generation == call.generation => {
                let executed = slot.executed();
                let handle = self.finish(call, executed).and_then(|slot| slot.handle.take());
                self.retire(call);
                Ok(Cancelled { executed, handle })
            }
            // Its REQUEST is not here yet, and shall not run if it still comes.
            _ => {
                let handle = self.occupy(call, State::Finished(Executed::No));
                Ok(Cancelled { executed: Executed::No, handle })
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Stops the calls whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<Stopped<H>> {
        if !self.deadlines.is_due(now) {
            return Vec::new();
        }
        let mut stopped = Vec::new();
        for (entry, number) in self.slots.iter_mut().zip(0..) {
            let Some(slot) = entry else { continue };
            if deadline(slot.state).is_some_and(|deadline| deadline <= now) {
                let executed = slot.executed();
                slot.state = State::Finished(executed);
                let call = CallId { slot: number, generation: slot.generation };
                stopped.push(Stopped { call, handle: slot.handle.take(), executed });
                self.over.extend(slot.streams.take().map(|streams| *streams));
            }
        }
        self.running -= stopped.len();
        let earliest = self.slots.iter().flatten().filter_map(|slot| deadline(slot.state)).min();
        self.deadlines.handle_looked(earliest);
        stopped
    }

    /// Every handle that is left, of tasks that run or wait to hand over their answer.
    pub fn take_handles(&mut self) -> Vec<H> {
        let streams = self.slots.iter_mut().flatten().filter_map(|slot| slot.streams.take());
        self.over.extend(streams.map(|streams| *streams));
        self.slots.iter_mut().flatten().filter_map(|slot| slot.handle.take()).collect()
    }

    /// Takes the streams of a call that has ended out of its slot.
    fn retire(&mut self, call: CallId) {
        let streams = self.slot(call).and_then(|slot| slot.streams.take());
        self.over.extend(streams.map(|streams| *streams));
    }
}

impl<H> Slot<H> {
    /// What to say of the call, which ends now.
    fn executed(&self) -> Executed {
        match self.state {
            State::Admitted { .. } => Executed::No,
            State::Entered { .. } => stop(self.entrance.as_deref()),
            State::Finished(executed) => executed,
        }
    }
}
