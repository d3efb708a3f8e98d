//! Buffers that payloads are sent from.
//!
//! A pool serves one purpose: what users allocate and what the transport stages for itself are two pools, so
//! that users who hold all of theirs cannot keep replies from going out.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use verbwire_core::buf::Storage;
use verbwire_core::{Buffer, Error};

use super::classes::{Classes, PAGE};
use super::counts::Counts;
use super::error::PoolError;
use super::registrar::Registrar;
use super::sources::Sources;
use super::stock::Limits;
use super::store::{Held, Store, closed};
use super::{PoolSize, PoolSnapshot};
use crate::memory::{CpuBuf, Domain};
use crate::nic::{Access, Nic, NicError};
use crate::reaper::Reaper;

/// A pool of buffers to send from. It is there before any device is; dropped, it closes.
pub struct Staging {
    store: Arc<Store<CpuBuf>>,
}

impl Staging {
    /// An empty pool. Its slabs can be found in `sources`; they are made where `reaper` runs work.
    pub fn new(size: PoolSize, sources: Arc<Sources>, reaper: Arc<dyn Reaper>) -> Self {
        Self::with_classes(Classes::new(PAGE, 0, size.longest), size, (sources, reaper))
    }

    /// The same with buffers of one length, `longest`: for a small pool, in which shorter ones would take turns in being
    /// registered.
    pub fn of_one_length(size: PoolSize, sources: Arc<Sources>, reaper: Arc<dyn Reaper>) -> Self {
        let classes = Classes::new(size.longest, 0, size.longest);
        Self::with_classes(classes, size, (sources, reaper))
    }

    fn with_classes(
        classes: Classes,
        size: PoolSize,
        (sources, reaper): (Arc<Sources>, Arc<dyn Reaper>),
    ) -> Self {
        let limits = Limits { cap: size.cap, slab_len: size.slab_len, pinned: usize::MAX };
        let registrar = Registrar::new(Access::Local, sources);
        Self { store: Store::new(classes, limits, registrar, reaper, None) }
    }

    /// Registers the pool's memory with a protection domain, also what is to come, so that queue pairs of that domain
    /// send from it. May block for as long as registering takes.
    ///
    /// # Errors
    ///
    /// The device refuses memory that is there already. What it did not take is staged there, like foreign memory.
    pub fn attach(&self, domain: Domain, nic: Arc<dyn Nic>) -> Result<(), NicError> {
        self.store.registrar.attach(domain, nic)
    }

    /// Ends the registrations with a domain: its device is gone, or all its queue pairs are destroyed.
    pub fn detach(&self, domain: Domain) {
        self.store.registrar.detach(domain);
    }

    /// A buffer of `len` zeroed bytes for a user, waited for until `deadline`.
    ///
    /// Cleared, because a user may fill a part and send all: nobody shall see what the buffer had before.
    ///
    /// # Errors
    ///
    /// See [`PoolError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the line.
    pub fn alloc(
        &self,
        len: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Buffer, Error>> + Send + use<> {
        let stage = self.stage(len, deadline);
        async move {
            let mut buf = stage.await?;
            buf.as_mut().fill(0);
            Ok(Buffer::new(buf, len))
        }
    }

    /// A buffer of `len` bytes for the transport, which overwrites what is in it, waited for until `deadline`.
    ///
    /// # Errors
    ///
    /// See [`PoolError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the line.
    pub fn stage(
        &self,
        len: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<StagingBuf, PoolError>> + Send + use<> {
        let taken = Arc::clone(&self.store).take(len, |_| true, deadline);
        async move { Ok(StagingBuf { held: taken.await?, len }) }
    }

    /// The same without waiting: `None` where one would have to.
    ///
    /// # Errors
    ///
    /// See [`PoolError`].
    pub fn try_stage(&self, len: usize) -> Result<Option<StagingBuf>, PoolError> {
        let taken = self.store.try_take(len, |_| true)?;
        Ok(taken.map(|held| StagingBuf { held, len }))
    }

    /// Where the pool's slabs can be found by address.
    pub fn sources(&self) -> &Arc<Sources> {
        self.store.registrar.sources()
    }

    /// Gives up slabs that nobody uses. The pool does it by itself only where it needs their room.
    pub fn trim(&self) {
        self.store.trim();
    }

    /// What is where.
    pub fn snapshot(&self) -> PoolSnapshot {
        self.store.snapshot()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.store.close(&closed());
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Staging").field(&self.snapshot()).finish()
    }
}

/// A buffer to send from. Dropped, it returns to its pool, also when the pool is closed by then.
pub struct StagingBuf {
    held: Held<CpuBuf>,
    len: usize,
}

impl StagingBuf {
    /// Copies foreign bytes to `offset`, as many as there is room for; how many. They are counted.
    pub fn copy_from(&mut self, offset: usize, bytes: &[u8]) -> usize {
        let room = self.as_mut().get_mut(offset..).unwrap_or_default();
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        Counts::add(&self.held.store().counts.copied, len);
        len
    }

    /// Ends the filling: the bytes, without a copy. The buffer returns when the last of them is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for StagingBuf {
    fn as_ref(&self) -> &[u8] {
        &self.held.chunk()[..self.len]
    }
}

impl AsMut<[u8]> for StagingBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.held.chunk_mut()[..self.len]
    }
}

impl Storage for StagingBuf {}

impl fmt::Debug for StagingBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagingBuf({} bytes)", self.len)
    }
}
