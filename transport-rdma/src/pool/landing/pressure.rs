//! How much of a landing pool received messages hold, and who wants to know.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// How much received messages hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pressure {
    /// Little.
    None,
    /// Three quarters of the budget, or a half since it was that much: drop what is not needed, copy what is.
    High,
}

/// Follows the [`Pressure`] of a pool.
#[derive(Debug, Clone)]
pub struct PressureWatch(watch::Receiver<Pressure>);

impl PressureWatch {
    /// The pressure now.
    pub fn now(&self) -> Pressure {
        *self.0.borrow()
    }

    /// Waits until it is another than when this was last asked; `None` when the pool is gone with all its bytes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Option<Pressure> {
        self.0.changed().await.ok()?;
        Some(*self.0.borrow_and_update())
    }
}

/// Counts what is held.
#[derive(Debug)]
pub(super) struct Gauge {
    held: AtomicUsize,
    budget: usize,
    level: watch::Sender<Pressure>,
}

impl Gauge {
    pub(super) fn new(budget: usize) -> Self {
        Self { held: AtomicUsize::new(0), budget, level: watch::Sender::new(Pressure::None) }
    }

    pub(super) fn now(&self) -> Pressure {
        *self.level.borrow()
    }

    pub(super) fn watch(&self) -> PressureWatch {
        PressureWatch(self.level.subscribe())
    }

    pub(super) fn pin(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::AcqRel);
        self.update();
    }

    pub(super) fn unpin(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
        self.update();
    }

    /// What is held is read under the channel's lock, so that of two updates at a time the later one tells the truth.
    fn update(&self) {
        self.level.send_if_modified(|level| {
            let held = self.held.load(Ordering::Acquire);
            let next = match *level {
                Pressure::None if held >= self.budget - self.budget / 4 => Pressure::High,
                Pressure::High if held < self.budget / 2 => Pressure::None,
                same => same,
            };
            std::mem::replace(level, next) != next
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_at_three_quarters_and_ends_below_a_half() {
        let gauge = Gauge::new(100);
        gauge.pin(74);
        assert_eq!(gauge.now(), Pressure::None);
        gauge.pin(1);
        assert_eq!(gauge.now(), Pressure::High);
        gauge.unpin(25);
        assert_eq!(gauge.now(), Pressure::High);
        gauge.unpin(1);
        assert_eq!(gauge.now(), Pressure::None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_follows_it_is_told_of_each_change_until_the_pool_is_gone() {
        let gauge = Gauge::new(4);
        let mut watch = gauge.watch();
        gauge.pin(4);
        assert_eq!(watch.changed().await, Some(Pressure::High));
        gauge.unpin(4);
        assert_eq!(watch.changed().await, Some(Pressure::None));
        assert_eq!(watch.now(), Pressure::None);
        drop(gauge);
        assert_eq!(watch.changed().await, None);
    }
}
