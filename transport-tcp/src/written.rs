//! The count of written bytes, by which the driver sees that the peer takes some.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that the socket ever took: the poster counts, the driver looks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Written(Arc<AtomicU64>);

impl Written {
    /// The socket took `count` bytes.
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// All bytes so far.
    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
