//! How much memory for received messages this process holds, and who wants to know.
//!
//! A transport that gives long messages out in the memory that they landed in has a budget for what is held of it. It
//! owns a [`Gauge`] and offers a [`PressureWatch`] as a capability of its connections. What follows from pressure is its
//! own business.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;
use tracing::warn;

use super::Connection;

/// How much received messages hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pressure {
    /// Little.
    None,
    /// Three quarters of the budget, or a half since it was that much: drop what is not needed, copy what is.
    High,
}

/// Follows the [`Pressure`] of a transport's memory for received messages.
#[derive(Debug, Clone)]
pub struct PressureWatch {
    level: watch::Receiver<Pressure>,
    amounts: Arc<Amounts>,
}

#[derive(Debug)]
struct Amounts {
    held: AtomicUsize,
    budget: usize,
}

impl PressureWatch {
    /// That of a connection: there is never any if its transport has no budget.
    pub(crate) fn of(connection: &dyn Connection) -> Self {
        let own = connection.capability(std::any::TypeId::of::<Self>());
        let own = own.and_then(|own| own.downcast_ref::<Self>()).cloned();
        own.unwrap_or_else(Self::none)
    }

    /// That of memory without a budget.
    pub(crate) fn none() -> Self {
        Gauge::new(usize::MAX).watch()
    }

    /// The pressure now.
    pub fn now(&self) -> Pressure {
        *self.level.borrow()
    }

    /// Waits until it is another than when this was last asked; `None` when the memory is gone, or has no budget.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Option<Pressure> {
        self.level.changed().await.ok()?;
        Some(*self.level.borrow_and_update())
    }

    /// Bytes of memory that received messages hold now. A message holds all of its buffer.
    pub fn pinned(&self) -> usize {
        self.amounts.held.load(Ordering::Acquire)
    }

    /// Bytes that they may hold before long messages are received no more.
    pub fn budget(&self) -> usize {
        self.amounts.budget
    }

    /// Why no long message is received now, if that is because of what is held.
    pub(crate) fn excess(&self) -> Option<String> {
        self.amounts.excess()
    }
}

impl Amounts {
    fn excess(&self) -> Option<String> {
        let (pinned, budget) = (self.held.load(Ordering::Acquire), self.budget);
        (pinned >= budget).then(|| {
            format!(
                "messages that were received and are still held pin {pinned} bytes, the budget is {budget}: drop \
                 them sooner, copy what is kept (a server by place_payloads with Landing::Owned), or raise \
                 landing.pinned_budget of RdmaConfig"
            )
        })
    }
}

/// Counts what is held.
#[derive(Debug)]
pub struct Gauge {
    amounts: Arc<Amounts>,
    level: watch::Sender<Pressure>,
    /// Whether the log says already that the budget is spent. Until the pressure is over: what goes up and down around
    /// the budget is one event.
    told: AtomicBool,
}

impl Gauge {
    /// Nothing is held of `budget` bytes.
    pub fn new(budget: usize) -> Self {
        let amounts = Arc::new(Amounts { held: AtomicUsize::new(0), budget });
        Self { amounts, level: watch::Sender::new(Pressure::None), told: AtomicBool::new(false) }
    }

    /// The pressure now.
    pub fn now(&self) -> Pressure {
        *self.level.borrow()
    }

    /// Follows it.
    pub fn watch(&self) -> PressureWatch {
        PressureWatch { level: self.level.subscribe(), amounts: Arc::clone(&self.amounts) }
    }

    /// So many bytes are held from now on. That the budget is spent is logged as a warning, once for each time that there is
    /// pressure.
    pub fn pin(&self, bytes: usize) {
        self.amounts.held.fetch_add(bytes, Ordering::AcqRel);
        self.update();
        if let Some(words) = self.spent() {
            warn!("no long message is received for now: {words}");
        }
    }

    /// That the budget is spent, in words, unless they were said already.
    fn spent(&self) -> Option<String> {
        let words = self.amounts.excess()?;
        (!self.told.swap(true, Ordering::AcqRel)).then_some(words)
    }

    /// So many bytes are held no more.
    pub fn unpin(&self, bytes: usize) {
        self.amounts.held.fetch_sub(bytes, Ordering::AcqRel);
        self.update();
    }

    /// What is held is read under the channel's lock, so that of two updates at a time the later one tells the truth.
    fn update(&self) {
        let Amounts { held, budget } = &*self.amounts;
        self.level.send_if_modified(|level| {
            let held = held.load(Ordering::Acquire);
            let next = match *level {
                Pressure::None if held >= budget - budget / 4 => Pressure::High,
                Pressure::High if held < budget / 2 => {
                    self.told.store(false, Ordering::Release);
                    Pressure::None
                }
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

    #[test]
    fn who_follows_it_knows_the_amounts_and_the_excess_in_words() {
        let gauge = Gauge::new(100);
        let watch = gauge.watch();
        gauge.pin(99);
        assert_eq!((watch.pinned(), watch.budget(), watch.excess()), (99, 100, None));
        gauge.pin(2);
        let words = watch.excess().expect("too much is held");
        assert!(words.contains("pin 101 bytes, the budget is 100"), "{words}");
    }

    #[test]
    fn that_the_budget_is_spent_is_said_once_until_the_pressure_is_over() {
        let gauge = Gauge::new(100);
        let said = |change: fn(&Gauge)| {
            change(&gauge);
            gauge.spent().is_some()
        };
        // As `pin` does, which says it in the log.
        let more = |gauge: &Gauge| {
            gauge.amounts.held.fetch_add(30, Ordering::AcqRel);
            gauge.update();
        };
        assert_eq!([(); 5].map(|()| said(more)), [false, false, false, true, false]);
        assert!(!said(|gauge| gauge.unpin(60)), "90 of them are still pressure");
        assert!(!said(more), "it is the same pressure");
        assert!(!said(|gauge| gauge.unpin(90)));
        assert_eq!([(); 3].map(|()| said(more)), [false, false, true]);
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
