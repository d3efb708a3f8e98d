//! The device: makes registrations, completion queues and queue pairs on its host.

use std::sync::Arc;

use super::cq::{CqIds, FabricCq};
use super::host::HostId;
use super::mr::FabricRegion;
use super::qp::{Abilities, FabricQp};
use super::shared::Shared;
use super::srq::{FabricSrq, SrqId};
use super::window::FabricWindow;
use crate::memory::{Region, Slab};
use crate::nic::{Access, Capabilities, Cq, Cqs, Depths, Nic, NicError, Qp, Srq, Window};

/// A host's device.
pub(super) struct FabricNic {
    shared: Arc<Shared>,
    host: HostId,
    domain: PdId,
    capabilities: Capabilities,
}

/// A protection domain of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PdId(u64);

impl FabricNic {
    pub(super) fn new(shared: Arc<Shared>, host: HostId, capabilities: Capabilities) -> Self {
        Self { shared, host, domain: PdId::default(), capabilities }
    }

    pub(super) fn host(&self) -> HostId {
        self.host
    }
}

impl Nic for FabricNic {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&self, slab: &Arc<Slab>, access: Access) -> Result<Box<dyn Region>, NicError> {
        let (lkey, rkey) =
            self.shared.with(|network| network.register((self.host, self.domain), slab, access))?;
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(FabricRegion { shared, host: self.host, lkey, rkey }))
    }

    fn own_domain(&self) -> Result<Arc<dyn Nic>, NicError> {
        let domain = self.shared.with(|network| {
            network.check_alive(self.host, "ibv_alloc_pd")?;
            Ok::<_, NicError>(PdId(network.next_id()))
        })?;
        let (shared, capabilities) = (Arc::clone(&self.shared), self.capabilities.clone());
        Ok(Arc::new(Self { shared, host: self.host, domain, capabilities }))
    }

    fn allocate_window(&self) -> Result<Box<dyn Window>, NicError> {
        let key = self.shared.with(|network| network.allocate_window(self.host))?;
        Ok(Box::new(FabricWindow::new(Arc::clone(&self.shared), self.host, key)))
    }

    fn create_cq(&self, depth: u32) -> Result<Arc<dyn Cq>, NicError> {
        let max = self.capabilities.max_cqe;
        let id = self.shared.with(|network| network.create_cq(self.host, depth, max))?;
        Ok(Arc::new(FabricCq::new(Arc::clone(&self.shared), id)))
    }

    fn create_srq(&self, depth: u32) -> Result<Arc<dyn Srq>, NicError> {
        let domain = (self.host, self.domain);
        let id =
            self.shared.with(|network| network.create_srq(domain, depth, &self.capabilities))?;
        Ok(Arc::new(FabricSrq::new(Arc::clone(&self.shared), id)))
    }

    fn create_qp(&self, cqs: &Cqs, depths: Depths) -> Result<Arc<dyn Qp>, NicError> {
        self.make_qp(cqs, depths, None)
    }

    fn create_qp_on(
        &self,
        srq: &Arc<dyn Srq>,
        cqs: &Cqs,
        send: u32,
    ) -> Result<Arc<dyn Qp>, NicError> {
        let own = srq.as_any().downcast_ref::<FabricSrq>();
        let id = own.and_then(|own| own.id_on(&self.shared)).ok_or_else(|| NicError {
            verb: CREATE_QP,
            reason: "EINVAL: the shared receive queue belongs to another device".to_owned(),
        })?;
        self.make_qp(cqs, Depths { send, recv: 0 }, Some(id))
    }
}

const CREATE_QP: &str = "ibv_create_qp";

fn refused(reason: impl Into<String>) -> NicError {
    NicError { verb: CREATE_QP, reason: reason.into() }
}

impl FabricNic {
    fn make_qp(
        &self,
        cqs: &Cqs,
        depths: Depths,
        srq: Option<SrqId>,
    ) -> Result<Arc<dyn Qp>, NicError> {
        let foreign = || refused("EINVAL: the completion queue belongs to another device");
        let claimed = self.capabilities.clone();
        let real = self.shared.with(|network| network.config.really.clone());
        let real = real.unwrap_or_else(|| claimed.clone());
        let max = real.max_wr;
        if depths.send > max || depths.recv > max {
            let Depths { send, recv } = depths;
            let is_lie = send <= claimed.max_wr && recv <= claimed.max_wr;
            self.shared.with(|network| network.faults.lies += u64::from(is_lie));
            return Err(refused(format!(
                "EINVAL: depths {send} and {recv} are not both within {max}"
            )));
        }
        let own = |cq: &Arc<dyn Cq>| {
            let own = cq.as_any().downcast_ref::<FabricCq>();
            own.filter(|own| own.is_on(&self.shared)).map(FabricCq::id).ok_or_else(foreign)
        };
        let ids = CqIds { send: own(&cqs.send)?, recv: own(&cqs.recv)? };
        let (id, number) = self.shared.with(|network| {
            network.check_alive(self.host, CREATE_QP)?;
            let is_own = |id| network.cqs.get(&id).is_some_and(|state| state.host == self.host);
            if !is_own(ids.send) || !is_own(ids.recv) {
                return Err(foreign());
            }
            let domain = (self.host, self.domain);
            if srq.is_some_and(|srq| !network.fits_srq(srq, domain)) {
                let reason = "EINVAL: the shared receive queue is of another protection domain";
                return Err(refused(reason));
            }
            Ok(network.create_qp(domain, ids, (depths, srq), Abilities { claimed, real }))
        })?;
        Ok(Arc::new(FabricQp::new(Arc::clone(&self.shared), (id, number), cqs.clone())))
    }
}
