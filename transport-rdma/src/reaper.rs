//! Where queue pairs are destroyed.
//!
//! Destroying may block, and a worker of a runtime must not. So it is handed to a [`Reaper`].

/// Runs work that may block, later or at once.
pub trait Reaper: Send + Sync + 'static {
    /// Runs `work`. Must not lose it: it releases memory that a NIC owns. Keeps no order.
    fn run(&self, work: Box<dyn FnOnce() + Send>);
}

/// Runs work at once where it comes up, for devices that never block: the software NIC, whose runs repeat
/// exactly by it.
#[derive(Debug, Clone, Copy, Default)]
pub struct InPlace;

impl Reaper for InPlace {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}
