//! Registered memory: keys, rights and bounds, checked on every access.
//!
//! Owns a host's table of registrations, and what counts as a violation: an access that its keys allow, to
//! memory whose owner is not the NIC. A real NIC would have read or written it all the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::host::HostId;
use super::network::Network;
use super::nic::PdId;
use super::qp::QpId;
use super::shared::Shared;
use super::window::WindowTable;
use crate::memory::{DmaError, Lkey, Region, Rkey, Slab, Tenure};
use crate::nic::{Access, NicError, QpNumber, Sge, WcStatus};

/// Violations that are kept; a test that has one has failed, and the first ones tell why.
const MAX_VIOLATIONS: usize = 256;

/// An access to memory that did not belong to the NIC: a bug of whoever posted it, or a peer that writes where it
/// must not any more. A real NIC would have corrupted data; this one refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The host whose memory it is.
    pub host: String,
    /// Its queue pair.
    pub qp: QpNumber,
    /// Time since the fabric was made.
    pub at: Duration,
    /// What was accessed, and how.
    pub kind: ViolationKind,
}

/// What was accessed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViolationKind {
    /// A send's source, which the host itself took back before the completion.
    Source(DmaError),
    /// A send's source, which was taken back, changed and given to the NIC again before the completion.
    SourceChanged,
    /// A receive's buffer, which the host itself took back before the completion.
    Receive(DmaError),
    /// The target of a peer's Write, whose registration allows it.
    RemoteWrite(DmaError),
    /// The target of a peer's Write, which was taken back after the Write was posted and then granted anew: other bytes
    /// than those that were meant are overwritten.
    StaleWrite,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, qp, at, kind } = self;
        write!(f, "violation on host {host}, queue pair {}, after {at:?}: ", qp.0)?;
        match kind {
            ViolationKind::Source(error) => write!(f, "the source of a send: {error}"),
            ViolationKind::SourceChanged => f.write_str("the source of a send was changed"),
            ViolationKind::Receive(error) => write!(f, "the buffer of a receive: {error}"),
            ViolationKind::RemoteWrite(error) => write!(f, "the target of a Write: {error}"),
            ViolationKind::StaleWrite => f.write_str("a Write for an earlier grant of its target"),
        }
    }
}

/// A peer's bytes and where they are to lie.
pub(super) struct Landing {
    pub(super) address: u64,
    pub(super) rkey: Rkey,
    /// What was there when the Write was posted, if anything.
    pub(super) aim: Option<Aim>,
    pub(super) data: Vec<u8>,
}

/// A chunk that a Write is aimed at, with the count of its owners so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Aim(Tenure);

/// A host's registrations.
#[derive(Default)]
pub(super) struct MrTable {
    by_lkey: BTreeMap<u32, Mr>,
    /// From the remote key to the local one.
    lkeys: BTreeMap<u32, u32>,
    pub(super) windows: WindowTable,
    locked: u64,
}

struct Mr {
    domain: PdId,
    slab: Weak<Slab>,
    address: u64,
    len: u64,
    rkey: Rkey,
    access: Access,
}

/// Why memory was not accessed.
enum Refusal {
    /// The keys or bounds do not allow it.
    Denied,
    /// They do, but the memory is not the NIC's.
    NotOwned(DmaError),
}

/// How the memory of a send is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetch {
    /// By its keys: the NIC fetches it.
    ByKey,
    /// By its address: the CPU copies it into the work request, and no key is looked at.
    ByAddress,
}

impl MrTable {
    /// Memory that queue pairs of a domain name with a local key.
    pub(super) fn by_lkey(&self, domain: PdId, lkey: Lkey) -> Option<Arc<Slab>> {
        let mr = self.by_lkey.get(&lkey.0).filter(|mr| mr.domain == domain)?;
        mr.slab.upgrade()
    }

    fn by_address(&self, address: u64) -> Option<Arc<Slab>> {
        let holds =
            |mr: &&Mr| address.checked_sub(mr.address).is_some_and(|offset| offset < mr.len);
        self.by_lkey.values().find(holds)?.slab.upgrade()
    }

    /// Whether a key is one of a domain.
    fn is_in(&self, domain: PdId, rkey: Rkey) -> bool {
        let mr = self.lkeys.get(&rkey.0).and_then(|lkey| self.by_lkey.get(lkey));
        mr.is_some_and(|mr| mr.domain == domain)
    }

    fn for_remote_write(&self, rkey: Rkey) -> Option<Arc<Slab>> {
        let mr = self.by_lkey.get(self.lkeys.get(&rkey.0)?)?;
        match mr.access {
            Access::Local | Access::Windows => None,
            Access::RemoteWrite => mr.slab.upgrade(),
        }
    }

    /// Whether a window can be bound to this memory.
    pub(super) fn allows_window(&self, domain: PdId, lkey: Lkey, address: u64, len: u64) -> bool {
        let mr = self.by_lkey.get(&lkey.0).filter(|mr| mr.domain == domain);
        let Some(mr) = mr else { return false };
        let end = address.checked_add(len).filter(|_| len > 0);
        let within = mr.address <= address && end.is_some_and(|end| end <= mr.address + mr.len);
        within && mr.access == Access::Windows
    }

    fn add(&mut self, lkey: Lkey, mr: Mr) {
        self.locked += mr.len;
        self.lkeys.insert(mr.rkey.0, lkey.0);
        self.by_lkey.insert(lkey.0, mr);
    }

    fn remove(&mut self, lkey: Lkey) {
        if let Some(mr) = self.by_lkey.remove(&lkey.0) {
            self.locked -= mr.len;
            self.lkeys.remove(&mr.rkey.0);
        }
    }

    fn has_key(&self, key: u32) -> bool {
        self.by_lkey.contains_key(&key)
            || self.lkeys.contains_key(&key)
            || self.windows.has_key(Rkey(key))
    }

    /// Whether a window can have this number.
    pub(super) fn has_room_for_window(&self, number: u32) -> bool {
        let keys = (number << 8)..=(number << 8 | 0xff);
        self.by_lkey.range(keys.clone()).next().is_none() && self.lkeys.range(keys).next().is_none()
    }
}

impl Network {
    /// Registers a slab; returns its keys.
    pub(super) fn register(
        &mut self,
        (host, domain): (HostId, PdId),
        slab: &Arc<Slab>,
        access: Access,
    ) -> Result<(Lkey, Rkey), NicError> {
        const VERB: &str = "ibv_reg_mr";
        self.check_alive(host, VERB)?;
        let (len, limit) = (slab.len() as u64, self.config.lockable_bytes);
        let locked = self.host(host).mrs.locked;
        if len > limit.saturating_sub(locked) {
            let reason = format!(
                "ENOMEM: {len} bytes more than the {locked} that are locked exceed the limit of {limit}"
            );
            return Err(NicError { verb: VERB, reason });
        }
        let lkey = Lkey(self.free_key(host));
        // Never the local key, as on some devices: who takes one for the other shall notice.
        let rkey = std::iter::repeat_with(|| self.free_key(host)).find(|key| *key != lkey.0);
        let rkey = Rkey(rkey.expect("the iterator is endless"));
        let host = self.host(host);
        let (slab, address) = (Arc::downgrade(slab), slab.address());
        host.mrs.add(lkey, Mr { domain, slab, address, len, rkey, access });
        host.counters.registrations += 1;
        Ok((lkey, rkey))
    }

    fn free_key(&mut self, host: HostId) -> u32 {
        loop {
            let key = self.rng.u32(..);
            if !self.host(host).mrs.has_key(key) {
                return key;
            }
        }
    }

    /// Reads the source of a send.
    pub(super) fn gather(
        &mut self,
        qp: QpId,
        sges: &[Sge],
        fetch: Fetch,
    ) -> Result<Vec<u8>, WcStatus> {
        let found = self.qps.get(&qp).map(|state| (state.host, state.domain));
        let Some((host, domain)) = found else {
            return Err(WcStatus::FLUSHED);
        };
        // At once: to grow it takes a debug build a step for each byte.
        let mut bytes = vec![0; sges.iter().map(|sge| sge.len as usize).sum()];
        let mut rest = &mut bytes[..];
        // Of an entry without bytes no key is looked at.
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            let mrs = &self.host(host).mrs;
            let slab = match fetch {
                Fetch::ByKey => mrs.by_lkey(domain, sge.lkey),
                Fetch::ByAddress => mrs.by_address(sge.address),
            };
            let (part, behind) = rest.split_at_mut(sge.len as usize);
            rest = behind;
            let read = self.access(slab, |slab| slab.dma_read(sge.address, part));
            self.judge(qp, read, ViolationKind::Source).map_err(|()| WcStatus::LOCAL_PROTECTION)?;
        }
        Ok(bytes)
    }

    /// Writes a message to the buffer of a receive.
    pub(super) fn fill(&mut self, qp: QpId, sge: &Sge, data: &[u8]) -> Result<(), ()> {
        let found = self.qps.get(&qp).map(|state| (state.host, state.domain));
        let Some((host, domain)) = found else { return Err(()) };
        if data.is_empty() {
            return Ok(());
        }
        let slab = self.host(host).mrs.by_lkey(domain, sge.lkey);
        let written = self.access(slab, |slab| slab.dma_write(sge.address, data));
        self.judge(qp, written, ViolationKind::Receive)
    }

    /// What a Write to that memory of `host` is aimed at now.
    pub(super) fn aim_at(&mut self, host: HostId, address: u64, rkey: Rkey) -> Option<Aim> {
        let slab = self.host(host).mrs.for_remote_write(rkey)?;
        let aim = slab.tenure(address).map(Aim);
        self.after.let_go(slab);
        aim
    }

    /// Whether keys, rights and bounds allow a Write that arrived on `qp`, whoever owns the memory.
    pub(super) fn may_land(&mut self, qp: QpId, landing: &Landing) -> bool {
        let Some(host) = self.qps.get(&qp).map(|state| state.host) else { return false };
        let Some(slab) = self.reached(host, qp, landing) else { return false };
        let within = slab.holds(landing.address, landing.data.len());
        self.after.let_go(slab);
        within
    }

    /// Carries out a peer's Write that arrived on `qp`.
    pub(super) fn land(&mut self, qp: QpId, landing: &Landing) -> Result<(), ()> {
        let Landing { address, rkey, aim, data } = landing;
        let Some(host) = self.qps.get(&qp).map(|state| state.host) else { return Err(()) };
        if data.is_empty() {
            return Ok(());
        }
        let now = self.aim_at(host, *address, *rkey);
        let slab = self.reached(host, qp, landing);
        let written = self.access(slab, |slab| slab.dma_write(*address, data));
        // What lies outside of a registration when it is posted is not aimed at anything.
        if written.is_ok() && aim.is_some() && *aim != now {
            self.violate(qp, ViolationKind::StaleWrite);
        }
        self.judge(qp, written, ViolationKind::RemoteWrite)
    }

    /// The memory that a Write's key opens, to whoever owns it.
    fn reached(&mut self, host: HostId, qp: QpId, landing: &Landing) -> Option<Arc<Slab>> {
        let (rkey, bounds) = (landing.rkey, self.behaviour.windows);
        let domain = self.qps.get(&qp)?.domain;
        let mrs = &self.host(host).mrs;
        match mrs.windows.has_key(rkey) {
            true => {
                let run = (landing.address, landing.data.len() as u64);
                mrs.through_window(qp, rkey, run, bounds)
            }
            false => mrs.for_remote_write(rkey).filter(|_| mrs.is_in(domain, rkey)),
        }
    }

    fn access(
        &mut self,
        slab: Option<Arc<Slab>>,
        dma: impl FnOnce(&Slab) -> Result<(), DmaError>,
    ) -> Result<(), Refusal> {
        let slab = slab.ok_or(Refusal::Denied)?;
        let done = dma(&slab);
        self.after.let_go(slab);
        done.map_err(|error| match error {
            DmaError::OutOfSlab { .. } => Refusal::Denied,
            DmaError::NotOwned { .. } => Refusal::NotOwned(error),
        })
    }

    fn judge(
        &mut self,
        qp: QpId,
        access: Result<(), Refusal>,
        kind: fn(DmaError) -> ViolationKind,
    ) -> Result<(), ()> {
        access.map_err(|refusal| {
            if let Refusal::NotOwned(error) = refusal {
                self.violate(qp, kind(error));
            }
        })
    }

    /// Records a violation.
    pub(super) fn violate(&mut self, qp: QpId, kind: ViolationKind) {
        let Some(state) = self.qps.get(&qp) else { return };
        let (host, number) = (state.host, state.number);
        let host = self.host(host).name.clone();
        let violation = Violation { host, qp: number, at: self.now, kind };
        tracing::error!(%violation, seed = self.config.seed, "fabric");
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        }
    }
}

/// A registration. Dropping it deregisters.
pub(super) struct FabricRegion {
    pub(super) shared: Arc<Shared>,
    pub(super) host: HostId,
    pub(super) lkey: Lkey,
    pub(super) rkey: Rkey,
}

impl Region for FabricRegion {
    fn lkey(&self) -> Lkey {
        self.lkey
    }

    fn rkey(&self) -> Rkey {
        self.rkey
    }
}

impl Drop for FabricRegion {
    fn drop(&mut self) {
        self.shared.with(|network| network.host(self.host).mrs.remove(self.lkey));
    }
}
