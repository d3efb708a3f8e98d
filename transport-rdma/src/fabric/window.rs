//! Memory windows: who may write where, until when.
//!
//! Type 2B, as strictly as the specification allows: a window is bound on one queue pair, and gives rights to what is
//! written over that one only, under the key of its last bind, within its bounds (which soft-RoCE does not check), as
//! long as its memory is registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::Binding;
use super::host::HostId;
use super::mr::MrTable;
use super::network::Network;
use super::nic::PdId;
use super::qp::QpId;
use super::shared::Shared;
use crate::memory::{Lkey, Rkey, Slab};
use crate::nic::{NicError, SendOp, WcStatus, Window, Windows};

/// A host's windows, by number.
#[derive(Default)]
pub(super) struct WindowTable(BTreeMap<u32, State>);

struct State {
    /// The last key that it had.
    key: Rkey,
    bound: Option<Bound>,
}

#[derive(Clone, Copy)]
struct Bound {
    qp: QpId,
    domain: PdId,
    lkey: Lkey,
    address: u64,
    len: u64,
}

impl WindowTable {
    /// Whether a window has this key, or may get it.
    pub(super) fn has_key(&self, key: Rkey) -> bool {
        self.0.contains_key(&key.window())
    }

    fn bind(&mut self, key: Rkey, bound: Bound) -> Result<(), WcStatus> {
        let free = |state: &&mut State| state.bound.is_none() && state.key != key;
        let state = self.0.get_mut(&key.window()).filter(free).ok_or(WcStatus::WINDOW_BIND)?;
        *state = State { key, bound: Some(bound) };
        Ok(())
    }

    fn invalidate(&mut self, key: Rkey, qp: QpId) -> Result<(), WcStatus> {
        let own = |state: &&mut State| {
            state.key == key && state.bound.is_some_and(|bound| bound.qp == qp)
        };
        let state =
            self.0.get_mut(&key.window()).filter(own).ok_or(WcStatus::LOCAL_QP_OPERATION)?;
        state.bound = None;
        Ok(())
    }
}

impl MrTable {
    /// The memory that a peer reaches with a window's key over `qp`.
    pub(super) fn through_window(
        &self,
        qp: QpId,
        key: Rkey,
        (address, len): (u64, u64),
        bounds: Windows,
    ) -> Option<Arc<Slab>> {
        let state = self.windows.0.get(&key.window()).filter(|state| state.key == key)?;
        let bound = state.bound.filter(|bound| bound.qp == qp)?;
        let end = address.checked_add(len)?;
        let within = bound.address <= address && end <= bound.address + bound.len;
        if !within && bounds != Windows::Porous {
            return None;
        }
        self.by_lkey(bound.domain, bound.lkey)
    }
}

impl Network {
    pub(super) fn allocate_window(&mut self, host: HostId) -> Result<Rkey, NicError> {
        const VERB: &str = "ibv_alloc_mw";
        self.check_alive(host, VERB)?;
        if self.behaviour.windows == Windows::No {
            return Err(NicError { verb: VERB, reason: "EOPNOTSUPP: there are no windows".into() });
        }
        loop {
            let key = Rkey(self.rng.u32(..));
            let mrs = &mut self.host(host).mrs;
            if mrs.has_room_for_window(key.window()) && !mrs.windows.has_key(key) {
                mrs.windows.0.insert(key.window(), State { key, bound: None });
                return Ok(key);
            }
        }
    }

    /// Carries out a bind or an invalidation of a queue pair.
    pub(super) fn change_window(&mut self, qp: QpId, op: SendOp) -> Result<(), WcStatus> {
        let found = self.qps.get(&qp).map(|state| (state.host, state.domain));
        let Some((host, domain)) = found else {
            return Err(WcStatus::FLUSHED);
        };
        let binding = self.config.binding;
        let host = self.host(host);
        match op {
            SendOp::Bind { rkey, lkey, address, len } => {
                if !host.mrs.allows_window(domain, lkey, address, len)
                    || binding == Binding::Refused
                {
                    return Err(WcStatus::WINDOW_BIND);
                }
                host.mrs.windows.bind(rkey, Bound { qp, domain, lkey, address, len })?;
                host.counters.binds += 1;
            }
            SendOp::Invalidate { rkey } => {
                host.mrs.windows.invalidate(rkey, qp)?;
                host.counters.invalidations += 1;
            }
            SendOp::Send | SendOp::Write { .. } => {}
        }
        Ok(())
    }
}

/// A window. Dropping it frees it.
pub(super) struct FabricWindow {
    shared: Arc<Shared>,
    host: HostId,
    key: Rkey,
}

impl FabricWindow {
    pub(super) fn new(shared: Arc<Shared>, host: HostId, key: Rkey) -> Self {
        Self { shared, host, key }
    }
}

impl Window for FabricWindow {
    fn key(&self) -> Rkey {
        self.key
    }
}

impl Drop for FabricWindow {
    fn drop(&mut self) {
        self.shared
            .with(|network| network.host(self.host).mrs.windows.0.remove(&self.key.window()));
    }
}
