//! The budget of a send queue, and which work requests are signalled.
//!
//! A slot of the queue is free again only when its own or a later signalled work request has completed. So
//! not every one needs a completion, but enough must have one: every sixteenth, twice per round of a short queue, and each
//! one while few slots are left. What must be signalled for its own sake, its caller says.

use std::collections::VecDeque;

use crate::nic::Signal;

/// Unsignalled work requests in a row, at most.
pub const SIGNAL_EVERY: u32 = 16;

/// Slots of one send queue.
#[derive(Debug)]
pub struct SendQueue {
    depth: u32,
    in_use: u32,
    /// Posted since the last signalled one.
    unsignalled: u32,
    /// For each signalled work request that has not completed: the slots that its completion frees.
    runs: VecDeque<u32>,
}

impl SendQueue {
    /// An empty queue of `depth` slots.
    pub fn new(depth: u32) -> Self {
        Self { depth, in_use: 0, unsignalled: 0, runs: VecDeque::new() }
    }

    /// Slots that are free.
    pub fn free(&self) -> u32 {
        self.depth - self.in_use
    }

    /// Whether the last work request that was posted has no completion to come.
    pub fn ends_unsignalled(&self) -> bool {
        self.unsignalled > 0
    }

    /// A work request takes a slot; there must be one. Says whether it is signalled: as `wanted`, or because
    /// the queue needs it.
    pub fn handle_post(&mut self, wanted: Signal) -> Signal {
        debug_assert!(self.free() > 0, "the caller looks for a free slot first");
        self.in_use += 1;
        self.unsignalled += 1;
        let few_left = self.free() < self.depth / 4 || self.free() == 0;
        let every = SIGNAL_EVERY.min(self.depth / 2);
        if wanted == Signal::No && self.unsignalled < every && !few_left {
            return Signal::No;
        }
        self.runs.push_back(std::mem::take(&mut self.unsignalled));
        Signal::Yes
    }

    /// The oldest signalled work request has completed. Returns how many slots, its own the last, are free
    /// again; 0 if none was in flight, which no device should say.
    pub fn handle_completed(&mut self) -> u32 {
        let freed = self.runs.pop_front().unwrap_or(0);
        self.in_use -= freed;
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sixteenth_is_signalled() {
        let mut queue = SendQueue::new(256);
        let signals: Vec<_> = (0..32).map(|_| queue.handle_post(Signal::No)).collect();
        let signalled: Vec<_> = (0..32).filter(|at| signals[*at] == Signal::Yes).collect();
        assert_eq!(signalled, [15, 31]);
        assert_eq!(queue.handle_completed(), 16);
        assert_eq!(queue.free(), 240);
    }

    #[test]
    fn when_few_slots_are_left_each_is_signalled() {
        let mut queue = SendQueue::new(8);
        let signals: Vec<_> = (0..8).map(|_| queue.handle_post(Signal::No)).collect();
        assert_eq!(signals[..3], [Signal::No; 3]);
        assert_eq!(signals[3], Signal::Yes, "half of them");
        assert_eq!(signals[4..6], [Signal::No; 2]);
        assert_eq!(signals[6..], [Signal::Yes; 2]);
        assert_eq!(queue.free(), 0);
        let freed = [(); 3].map(|()| queue.handle_completed());
        assert_eq!((freed, queue.free()), ([4, 3, 1], 8));
    }

    #[test]
    fn a_full_queue_always_has_a_completion_to_come() {
        for depth in 1..40 {
            let mut queue = SendQueue::new(depth);
            for _ in 0..3 * depth {
                if queue.free() == 0 {
                    assert!(queue.handle_completed() > 0, "depth {depth} stands still");
                }
                queue.handle_post(Signal::No);
            }
        }
    }

    #[test]
    fn a_wanted_signal_frees_what_came_before_it() {
        let mut queue = SendQueue::new(64);
        queue.handle_post(Signal::No);
        assert_eq!(queue.handle_post(Signal::Yes), Signal::Yes);
        assert_eq!(queue.handle_completed(), 2);
        assert_eq!(queue.handle_completed(), 0);
    }
}
