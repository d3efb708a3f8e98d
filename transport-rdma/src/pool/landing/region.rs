//! The states of a region between leaving its pool and coming back.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::proof::{Fenced, GrantClosed};
use super::window::RegionWindow;
use super::{Region, Shared, Tenant};
use crate::memory::{CpuBuf, IdleBuf, NicAccess, NicBuf, Released, Returned, Rkey};
use crate::nic::{NicError, SendOp};
use crate::pool::counts::Counts;
use crate::pool::error::PoolError;
use crate::pool::store::{Held, Origin};

/// What a peer must know of a region to write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Where it begins: on a page.
    pub address: u64,
    /// The key of the region's window, or of the pool's registration where there are no windows.
    pub rkey: Rkey,
    /// How long it is: the message's length and the slack.
    pub len: usize,
}

/// Why the peer's Writes cannot reach a region once its grant is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Its window was invalidated, and the completion of that was successful.
    Window,
    /// Only because the peer is configured to be trusted.
    Trusted,
    /// It can. What it wrote is copied out and the bytes that it can reach are never looked at.
    None,
}

/// Whether there is room for more regions that peers did not give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuarantineLevel {
    /// There is.
    Within,
    /// There is not: the queue pair that caused it is to be destroyed.
    Exceeded,
}

/// A FIN that names bytes outside of its grant: the peer broke the protocol. The region is back in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer finished {len} bytes at offset {offset} of a grant of {granted}")]
pub struct OutOfGrant {
    /// First byte, from the region's begin.
    pub offset: usize,
    /// Length.
    pub len: usize,
    /// Length of the grant.
    pub granted: usize,
}

/// The way back for a region.
#[derive(Clone)]
struct Home {
    origin: Origin<Region>,
    shared: Arc<Shared>,
    tenant: Tenant,
    used: usize,
}

/// A region that the peer may write to.
struct Open {
    /// `None` only after the region has moved on, when `self` is about to drop.
    buf: Option<NicBuf>,
    home: Home,
    target: Target,
    window: Option<RegionWindow>,
}

const MOVED: &str = "a region moves on only when its state is consumed";

impl Home {
    /// A region that comes back. One whose window may be bound loses it.
    fn region(&self, idle: IdleBuf, window: Option<RegionWindow>) -> Region {
        let window = window.and_then(RegionWindow::kept);
        Region { idle, last: Some(self.tenant), used: self.used, window }
    }
}

impl Open {
    fn buf(&self) -> &NicBuf {
        self.buf.as_ref().expect(MOVED)
    }

    /// A message is there, behind its FIN.
    fn landed(self, offset: usize, len: usize) -> Result<Landed, OutOfGrant> {
        let granted = self.target.len;
        let Some(end) = offset.checked_add(len).filter(|end| *end <= granted) else {
            self.close();
            return Err(OutOfGrant { offset, len, granted });
        };
        Ok(Landed { open: self, range: offset..end, kind: Kind::Whole })
    }

    /// Back to the pool.
    fn close(mut self) {
        let idle = self.buf.take().expect(MOVED).into_idle(Returned::by_peer());
        self.home.origin.put(self.home.region(idle, self.window.take()));
    }

    /// Read in place.
    fn pin(mut self, range: Range<usize>, kind: Kind) -> Pinned {
        let buf = self.buf.take().expect(MOVED).into_cpu(Released::by_isolated_peer());
        let home = self.home.clone();
        home.origin.pin(buf.len());
        home.shared.gauge.pin(buf.len());
        if kind == Kind::OfStream {
            home.shared.of_streams.fetch_add(buf.len(), Ordering::AcqRel);
        }
        Pinned { buf: Some(buf), home, range, kind, window: self.window.take() }
    }

    fn bind(&mut self) -> Option<SendOp> {
        let Target { address, len, .. } = self.target;
        self.window.as_mut().map(|window| window.bind(address, len))
    }

    fn invalidation(&self) -> Option<SendOp> {
        self.window.as_ref().and_then(RegionWindow::invalidation)
    }

    fn unbind(&mut self) {
        self.window.iter_mut().for_each(RegionWindow::unbind);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.home.origin.counts().leaked.fetch_add(buf.chunk_len(), Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.target, self.home.tenant)
    }
}

/// A region that a peer may write to, or will be told that it may.
///
/// Dropped, it is never used again, because the peer may write to it at any time.
#[must_use = "a granted region comes back only through a proof"]
#[derive(Debug)]
pub struct Granted(Open);

impl Granted {
    /// Clears what another connection left in a region and makes it the NIC's.
    pub(super) fn new(
        shared: Arc<Shared>,
        held: Held<Region>,
        tenant: Tenant,
        len: usize,
    ) -> Result<Self, PoolError> {
        let Some((lkey, key)) = held.chunk().idle.keys_in(shared.domain) else {
            return Err(PoolError::Closed(shared.store.cause()));
        };
        let (mut region, origin) = held.split();
        let mut window = region.window.take();
        if let (None, Some(nic)) = (&window, &shared.windows) {
            match RegionWindow::allocate(&**nic) {
                Ok(allocated) => window = Some(allocated),
                Err(reason) => {
                    origin.put(region);
                    return Err(PoolError::Refused { len, reason });
                }
            }
        }
        let rkey = window.as_mut().map_or(key, |window| window.renew(lkey));
        if region.last != Some(tenant) && region.used > 0 {
            region.idle.zero(region.used);
            Counts::add(&origin.counts().zeroed, region.used);
            region.used = 0;
        }
        let used = region.used.max(len).min(region.idle.chunk_len());
        let buf = region.idle.into_nic(NicAccess::Write);
        let target = Target { address: buf.address(), rkey, len };
        let home = Home { origin, shared, tenant, used };
        Ok(Self(Open { buf: Some(buf), home, target, window }))
    }

    /// What the peer is told.
    pub fn target(&self) -> Target {
        self.0.target
    }

    /// How to bind the region's window, to be posted before the peer is told; `None` where there are no windows.
    /// From now on the region is the pool's again only after an invalidation, or its window is lost.
    pub(crate) fn bind(&mut self) -> Option<SendOp> {
        self.0.bind()
    }

    /// How to end the peer's rights, if it may have some through a window.
    pub(crate) fn invalidation(&self) -> Option<SendOp> {
        self.0.invalidation()
    }

    /// The invalidation succeeded, or the bind was not posted.
    pub(crate) fn unbind(&mut self) {
        self.0.unbind();
    }

    /// The memory, for a test that writes to it as a peer's NIC does.
    #[cfg(test)]
    pub(in crate::pool) fn slab(&self) -> &crate::memory::Slab {
        self.0.buf().slab()
    }

    /// The message is there.
    ///
    /// # Errors
    ///
    /// It is not within the grant.
    pub fn landed(self, _fin: Fenced, offset: usize, len: usize) -> Result<Landed, OutOfGrant> {
        self.0.landed(offset, len)
    }

    /// The grant is closed without a message.
    pub fn release(self, _proof: GrantClosed) {
        self.0.close();
    }

    /// The call is over and the grant is not: nobody waits for the message any more, and the peer may still write.
    pub fn quarantine(self) -> (Quarantined, QuarantineLevel) {
        let Open { buf, home, .. } = &self.0;
        let bytes = buf.as_ref().map_or(0, NicBuf::chunk_len);
        let before = home.origin.counts().quarantined.fetch_add(bytes, Ordering::AcqRel);
        let level = match before + bytes > home.shared.quarantine_cap {
            true => QuarantineLevel::Exceeded,
            false => QuarantineLevel::Within,
        };
        (Quarantined { home: home.clone(), open: Some(self.0), bytes }, level)
    }
}

/// A region whose call is over and whose grant is not closed.
///
/// Dropped, it is never used again, as for [`Granted`].
#[must_use = "a quarantined region comes back only through a proof"]
pub struct Quarantined {
    open: Option<Open>,
    home: Home,
    bytes: usize,
}

impl Quarantined {
    /// As for [`Granted::invalidation`].
    pub(crate) fn invalidation(&self) -> Option<SendOp> {
        self.open.as_ref().expect(MOVED).invalidation()
    }

    /// As for [`Granted::unbind`].
    pub(crate) fn unbind(&mut self) {
        self.open.as_mut().expect(MOVED).unbind();
    }

    /// The grant is closed; what the peer wrote is never looked at.
    pub fn release(mut self, _proof: GrantClosed) {
        self.open.take().expect(MOVED).close();
    }

    /// A message is there that is wanted after all: the grant was standing, and its revocation crossed the message.
    ///
    /// # Errors
    ///
    /// It is not within the grant.
    pub fn landed(mut self, _fin: Fenced, offset: usize, len: usize) -> Result<Landed, OutOfGrant> {
        self.open.take().expect(MOVED).landed(offset, len)
    }
}

impl Drop for Quarantined {
    fn drop(&mut self) {
        self.home.origin.counts().quarantined.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl fmt::Debug for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Quarantined").field(&self.open).finish()
    }
}

/// A region whose message is there; dropped, it returns to its pool.
pub struct Landed {
    open: Open,
    range: Range<usize>,
    kind: Kind,
}

/// Of which messages it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole request or reply.
    Whole,
    /// It waits in its stream until somebody takes it.
    OfStream,
}

impl Landed {
    /// It is one of many of its call: held in place, it counts in the share of streams.
    #[must_use]
    pub fn of_stream(mut self) -> Self {
        self.kind = Kind::OfStream;
        self
    }

    /// The message. Where a window or trust allows it, in place: the region returns when the last slice is dropped.
    /// Else copied out, and the region returns now.
    ///
    /// # Errors
    ///
    /// There is no memory for a copy.
    pub fn into_bytes(self, isolation: Isolation) -> Result<Bytes, PoolError> {
        if self.range.is_empty() {
            self.open.close();
            return Ok(Bytes::new());
        }
        match isolation {
            Isolation::Window | Isolation::Trusted => {
                Ok(Bytes::from_owner(self.open.pin(self.range, self.kind)))
            }
            Isolation::None => self.copy_out(),
        }
    }

    /// Nobody wants the message.
    pub fn discard(self) {
        self.open.close();
    }

    fn copy_out(self) -> Result<Bytes, PoolError> {
        let len = self.range.len();
        let mut out = Vec::new();
        let reserved = out.try_reserve_exact(len);
        if reserved.is_ok() {
            self.open.buf().copy_out(self.range, &mut out);
            Counts::add(&self.open.home.origin.counts().copied, len);
        }
        self.open.close();
        match reserved {
            Ok(()) => Ok(Bytes::from(out)),
            Err(error) => {
                let (verb, reason) = ("copying a message out", error.to_string());
                Err(PoolError::Refused { len, reason: NicError { verb, reason } })
            }
        }
    }
}

impl fmt::Debug for Landed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landed({:?} of {:?})", self.range, self.open)
    }
}

/// What `Bytes` over a region own.
struct Pinned {
    /// `None` only when `self` is about to drop.
    buf: Option<CpuBuf>,
    home: Home,
    range: Range<usize>,
    kind: Kind,
    /// Invalidated.
    window: Option<RegionWindow>,
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.buf.as_ref().expect(MOVED)[self.range.clone()]
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Some(buf) = self.buf.take() else { return };
        let bytes = buf.len();
        self.home.shared.gauge.unpin(bytes);
        if self.kind == Kind::OfStream {
            self.home.shared.of_streams.fetch_sub(bytes, Ordering::AcqRel);
        }
        let region = self.home.region(buf.into_idle(), self.window.take());
        self.home.origin.unpin(region, bytes);
    }
}
