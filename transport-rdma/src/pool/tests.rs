//! Pools over a device that only registers.

mod landing;
mod shared;
mod staging;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::memory::{Domain, Lkey, Region, Rkey, Slab};
use crate::nic::{
    Access, Capabilities, Cq, Cqs, Depths, Nic, NicError, Qp, Support, Windows, Wire,
};
use crate::reaper::{InPlace, Reaper};

/// A device that registers up to a limit.
struct FakeNic {
    capabilities: Capabilities,
    lockable: AtomicUsize,
    locked: Arc<AtomicUsize>,
    keys: AtomicU32,
}

struct FakeRegion {
    key: u32,
    len: usize,
    locked: Arc<AtomicUsize>,
}

impl FakeNic {
    fn new(lockable: usize) -> Arc<Self> {
        let capabilities = Capabilities {
            device: "fake".into(),
            wire: Wire::InfiniBand,
            max_cqe: 0,
            max_wr: 0,
            max_srq_wr: 0,
            max_sge: 1,
            max_read_sge: 1,
            max_inline: 0,
            own_sends: 0,
            atomics: Support::No,
            memory_windows: Windows::No,
            write_with_immediate: Support::No,
        };
        let (lockable, locked) = (AtomicUsize::new(lockable), Arc::default());
        Arc::new(Self { capabilities, lockable, locked, keys: AtomicU32::new(1) })
    }

    /// Bytes that are registered now.
    fn locked(&self) -> usize {
        self.locked.load(Ordering::Relaxed)
    }
}

impl Nic for FakeNic {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, slab: &Arc<Slab>, _access: Access) -> Result<Box<dyn Region>, NicError> {
        let len = slab.len();
        if self.locked() + len > self.lockable.load(Ordering::Relaxed) {
            return Err(NicError { verb: "ibv_reg_mr", reason: format!("ENOMEM: {len} bytes") });
        }
        self.locked.fetch_add(len, Ordering::Relaxed);
        let key = self.keys.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(FakeRegion { key, len, locked: Arc::clone(&self.locked) }))
    }

    fn create_cq(&self, _depth: u32) -> Result<Arc<dyn Cq>, NicError> {
        Err(NicError { verb: "ibv_create_cq", reason: "only registers".into() })
    }

    fn create_qp(&self, _cqs: &Cqs, _depths: Depths) -> Result<Arc<dyn Qp>, NicError> {
        Err(NicError { verb: "ibv_create_qp", reason: "only registers".into() })
    }
}

impl Region for FakeRegion {
    fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        self.locked.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Keeps work until it is told to do it.
#[derive(Default)]
struct Later(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl Reaper for Later {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        self.0.lock().expect("no panic").push(work);
    }
}

impl Later {
    /// Does what was kept; how much that was.
    fn run_all(&self) -> usize {
        let works = std::mem::take(&mut *self.0.lock().expect("no panic"));
        let count = works.len();
        works.into_iter().for_each(|work| work());
        count
    }
}

const PAGE: usize = 4096;

/// A pool of at most so many pages, in slabs of one page where buffers are that short.
fn pages(cap: usize) -> PoolSize {
    PoolSize { longest: 4 * PAGE, cap: cap * PAGE, slab_len: PAGE }
}

fn staging(size: PoolSize) -> Staging {
    Staging::new(size, Sources::new(), Arc::new(InPlace))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(50)
}
