//! A device as the seam has it, and the devices of this process by name.

mod probe;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_sys::ibv_transport_type;
use verbwire_core::Error;

use super::cm::{CmId, Parting};
use super::context::Context;
use super::cq::{RawCq, VerbsCq};
use super::fate::{Fates, PortNumber};
use super::mw::{HeldMw, Mw};
use super::pd::{Mr, Pd, SlabMr};
use super::qp::{QpSizes, VerbsQp};
use super::reaper::reap;
use super::siw;
use super::srq::{RawSrq, VerbsSrq};
use super::thread::{DeviceThread, Ward};
use crate::memory::{Region, Slab};
use crate::nic::{
    Access, Capabilities, Cq, Cqs, Depths, Nic, NicError, Qp, Srq, Window, Windows, Wire,
};

use probe::{can_allocate_window, capabilities, max_sge, probe_inline, reads};

pub(super) use probe::Reads;

/// An open device with a protection domain.
pub(super) struct VerbsNic {
    capabilities: Capabilities,
    reads: Reads,
    inline: u32,
    fates: Arc<Fates>,
    /// `None` once the device is gone.
    open: Mutex<Option<Open>>,
    /// Every registration, so that all can end with the device.
    mrs: Mutex<Vec<Weak<Mr>>>,
    /// Every window, for the same.
    mws: Mutex<Vec<Weak<Mw>>>,
    /// Every shared receive queue, for the same.
    srqs: Mutex<Vec<Weak<VerbsSrq>>>,
    /// Every further protection domain.
    pds: Mutex<Vec<Weak<PdSlot>>>,
}

/// What keeps a device open, besides the objects made of it.
struct Open {
    pd: Arc<Pd>,
    thread: DeviceThread,
    _plug: Option<RawCq>,
}

static DEVICES: Mutex<Vec<Arc<VerbsNic>>> = Mutex::new(Vec::new());

fn devices() -> MutexGuard<'static, Vec<Arc<VerbsNic>>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of this name, to which the connection manager has bound something at the local address `local`:
/// opened once in this process, however many transports use it, and open until it is removed.
///
/// It stays open because the connection manager's library does that with every device that it ever used. Were
/// nobody here to hear of its removal, the kernel would wait with that for the end of this process.
///
/// Opening takes milliseconds, and others that open a device wait meanwhile: not for a runtime's worker.
pub(super) fn open(name: &str, local: SocketAddr) -> Result<Arc<VerbsNic>, NicError> {
    let mut devices = devices();
    // A device that is gone may come again under its name.
    let known = devices.iter().find(|nic| nic.device() == name && !nic.is_gone());
    if let Some(nic) = known {
        return Ok(Arc::clone(nic));
    }
    let nic = VerbsNic::open(name, local)?;
    devices.push(Arc::clone(&nic));
    Ok(nic)
}

impl VerbsNic {
    fn open(name: &str, local: SocketAddr) -> Result<Arc<Self>, NicError> {
        let context = Arc::new(Context::open(name)?);
        let attributes = context.query()?;
        // Before anything else is made of the context.
        let plug = if siw::is_siw(&attributes) { Some(siw::plug(&context)?) } else { None };
        let pd = Pd::alloc(&context)?;
        let (asked, granted) = probe_inline(&context, &pd, max_sge(&attributes))?;
        let wire = match context.transport() {
            Some(ibv_transport_type::IBV_TRANSPORT_IWARP) => Wire::Iwarp,
            _ => Wire::InfiniBand,
        };
        let mut capabilities = capabilities(name, wire, &attributes, granted);
        if capabilities.memory_windows != Windows::No && !can_allocate_window(&pd) {
            capabilities.memory_windows = Windows::No;
        }
        tracing::debug!(?capabilities, "opened an RDMA device");
        let nic = Arc::new(Self {
            capabilities,
            reads: reads(&attributes),
            inline: asked,
            fates: Arc::default(),
            open: Mutex::default(),
            mrs: Mutex::default(),
            mws: Mutex::default(),
            srqs: Mutex::default(),
            pds: Mutex::default(),
        });
        // Locked meanwhile, so that a removal that the thread hears of at once finds what it has to end.
        let mut open = nic.lock_open();
        let thread = nic.start_thread(context, local)?;
        *open = Some(Open { pd, thread, _plug: plug });
        drop(open);
        Ok(nic)
    }

    fn start_thread(
        self: &Arc<Self>,
        context: Arc<Context>,
        local: SocketAddr,
    ) -> Result<DeviceThread, NicError> {
        let sentinel = CmId::watch(local)?;
        let name = self.device();
        if sentinel.device().as_deref() != Some(name) {
            let reason = format!(
                "{local} leads to {:?} and not to {name}: give each RDMA device an address of its own",
                sentinel.device()
            );
            return Err(NicError { verb: "rdma_bind_addr", reason });
        }
        let known = Arc::downgrade(self);
        let gone = move |cause: &Error| {
            if let Some(nic) = known.upgrade() {
                nic.remove(cause);
            }
        };
        let (device, fates) = (name.to_owned(), Arc::clone(&self.fates));
        let ward = Ward { device, context, fates, sentinel: Some(sentinel) };
        Ok(DeviceThread::start(ward, gone)?)
    }

    /// Its protection domain.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub(super) fn pd(&self) -> Result<Arc<Pd>, NicError> {
        let pd = self.lock_open().as_ref().map(|open| Arc::clone(&open.pd));
        pd.ok_or_else(|| self.gone())
    }

    pub(super) fn device(&self) -> &str {
        &self.capabilities.device
    }

    pub(super) fn wire(&self) -> Wire {
        self.capabilities.wire
    }

    /// Whether the device has said that a port is down.
    pub(super) fn is_down(&self, port: PortNumber) -> bool {
        self.fates.is_down(port)
    }

    /// Keeps an id until it can be destroyed.
    pub(super) fn part(&self, parting: Parting<CmId>) {
        if let Some(open) = &*self.lock_open() {
            open.thread.part(parting);
        }
    }

    /// The device is gone: ends all its connections and lets go of it.
    ///
    /// The kernel removes a device only when nothing of it is in use. So registrations end now, although
    /// buffers may live on: their memory stays, only no NIC reaches it any more. Queue pairs and completion
    /// queues go with their connections, and a shared receive queue with the last of them.
    fn remove(&self, cause: &Error) {
        self.fates.end_device(cause);
        let open = self.lock_open().take();
        let mrs: Vec<_> = self.mrs().drain(..).collect();
        let mws: Vec<_> = self.mws().drain(..).collect();
        let srqs: Vec<_> = self.srqs().drain(..).collect();
        let pds: Vec<_> = self.pds().drain(..).filter_map(|pd| pd.upgrade()).collect();
        let pds: Vec<_> = pds.iter().filter_map(|pd| lock_pd(pd).take()).collect();
        devices().retain(|nic| !nic.is_gone());
        reap(move || {
            mws.iter().filter_map(Weak::upgrade).for_each(|mw| mw.free());
            srqs.iter().filter_map(Weak::upgrade).for_each(|srq| srq.destroy());
            mrs.iter().filter_map(Weak::upgrade).for_each(|mr| mr.deregister());
            drop(pds);
            drop(open);
        });
    }

    pub(super) fn reads(&self) -> Reads {
        self.reads
    }

    fn lock_open(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pds(&self) -> MutexGuard<'_, Vec<Weak<PdSlot>>> {
        self.pds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mws(&self) -> MutexGuard<'_, Vec<Weak<Mw>>> {
        self.mws.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn srqs(&self) -> MutexGuard<'_, Vec<Weak<VerbsSrq>>> {
        self.srqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mrs(&self) -> MutexGuard<'_, Vec<Weak<Mr>>> {
        self.mrs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open device with a further protection domain.
struct OwnDomain {
    nic: Arc<VerbsNic>,
    pd: Arc<PdSlot>,
}

/// `None` once the device is gone.
type PdSlot = Mutex<Option<Arc<Pd>>>;

fn lock_pd(pd: &PdSlot) -> MutexGuard<'_, Option<Arc<Pd>>> {
    pd.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OwnDomain {
    fn pd(&self) -> Result<Arc<Pd>, NicError> {
        let pd = lock_pd(&self.pd).clone();
        pd.ok_or_else(|| self.nic.gone())
    }
}

impl Nic for OwnDomain {
    fn capabilities(&self) -> &Capabilities {
        &self.nic.capabilities
    }

    fn is_gone(&self) -> bool {
        self.nic.is_gone()
    }

    fn own_domain(&self) -> Result<Arc<dyn Nic>, NicError> {
        self.nic.own_domain()
    }

    fn register(&self, slab: &Arc<Slab>, access: Access) -> Result<Box<dyn Region>, NicError> {
        self.nic.register_in(&self.pd()?, slab, access)
    }

    fn allocate_window(&self) -> Result<Box<dyn Window>, NicError> {
        self.nic.allocate_window_in(&self.pd()?)
    }

    fn create_cq(&self, depth: u32) -> Result<Arc<dyn Cq>, NicError> {
        self.nic.create_cq(depth)
    }

    fn create_qp(&self, cqs: &Cqs, depths: Depths) -> Result<Arc<dyn Qp>, NicError> {
        self.nic.create_qp_in(&self.pd()?, cqs, depths, None)
    }

    fn create_srq(&self, depth: u32) -> Result<Arc<dyn Srq>, NicError> {
        self.nic.create_srq_in(&self.pd()?, depth)
    }

    fn create_qp_on(
        &self,
        srq: &Arc<dyn Srq>,
        cqs: &Cqs,
        send: u32,
    ) -> Result<Arc<dyn Qp>, NicError> {
        let (pd, srq) = (self.pd()?, own_srq(&**srq)?);
        self.nic.create_qp_in(&pd, cqs, Depths { send, recv: 0 }, Some(&srq))
    }
}

impl VerbsNic {
    fn gone(&self) -> NicError {
        NicError {
            verb: "ibv_alloc_pd",
            reason: format!("RDMA device {} was removed from this machine", self.device()),
        }
    }

    /// Puts what was made into the list of what ends with the device. A removal that came in between did not find it there, and the
    /// kernel waits for all that is left: so it is refused then, and dropped by the caller.
    fn keep<T>(
        &self,
        mut list: MutexGuard<'_, Vec<Weak<T>>>,
        made: &Arc<T>,
    ) -> Result<(), NicError> {
        list.retain(|one| one.strong_count() > 0);
        // Set before the lists are emptied.
        if self.fates.gone().is_some() {
            return Err(self.gone());
        }
        list.push(Arc::downgrade(made));
        Ok(())
    }

    fn register_in(
        &self,
        pd: &Arc<Pd>,
        slab: &Arc<Slab>,
        access: Access,
    ) -> Result<Box<dyn Region>, NicError> {
        let mr = Mr::register(pd, slab, access)?;
        self.keep(self.mrs(), &mr)?;
        Ok(Box::new(SlabMr(mr)))
    }

    fn allocate_window_in(&self, pd: &Arc<Pd>) -> Result<Box<dyn Window>, NicError> {
        let window = pd.alloc_window()?;
        self.keep(self.mws(), &window)?;
        Ok(Box::new(HeldMw(window)))
    }

    fn create_qp_in(
        &self,
        pd: &Arc<Pd>,
        cqs: &Cqs,
        depths: Depths,
        srq: Option<&Arc<RawSrq>>,
    ) -> Result<Arc<dyn Qp>, NicError> {
        if srq.is_some_and(|srq| !Arc::ptr_eq(srq.pd(), pd)) {
            let reason = "the shared receive queue is of another protection domain";
            return Err(NicError { verb: "ibv_create_qp", reason: reason.into() });
        }
        let send = depths.send.saturating_add(self.capabilities.own_sends);
        let depths = Depths { send, ..depths };
        let send_sges = u32::try_from(self.capabilities.max_sge).unwrap_or(1);
        let sizes = QpSizes { depths, send_sges, inline: self.inline };
        Ok(Arc::new(VerbsQp::create(pd, cqs, srq, sizes, &self.fates)?))
    }

    fn create_srq_in(&self, pd: &Arc<Pd>, depth: u32) -> Result<Arc<dyn Srq>, NicError> {
        let max = self.capabilities.max_srq_wr;
        if depth == 0 || depth > max {
            let device = &self.capabilities.device;
            let reason = format!("{depth} receives were asked for and {device} holds 1 to {max}");
            return Err(NicError { verb: "ibv_create_srq", reason });
        }
        let srq = Arc::new(VerbsSrq::create(pd, depth)?);
        self.keep(self.srqs(), &srq)?;
        Ok(srq)
    }
}

impl Nic for VerbsNic {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn is_gone(&self) -> bool {
        self.fates.gone().is_some()
    }

    fn own_domain(&self) -> Result<Arc<dyn Nic>, NicError> {
        let known = devices().iter().find(|nic| std::ptr::eq(Arc::as_ptr(nic), self)).cloned();
        let nic = known.ok_or_else(|| self.gone())?;
        // Held meanwhile: a removal finds the new domain in the list, or this finds the device gone.
        let open = self.lock_open();
        let open = open.as_ref().ok_or_else(|| self.gone())?;
        let pd = Arc::new(Mutex::new(Some(Pd::alloc(open.pd.context())?)));
        let mut pds = self.pds();
        pds.retain(|pd| pd.strong_count() > 0);
        pds.push(Arc::downgrade(&pd));
        Ok(Arc::new(OwnDomain { nic, pd }))
    }

    fn register(&self, slab: &Arc<Slab>, access: Access) -> Result<Box<dyn Region>, NicError> {
        self.register_in(&self.pd()?, slab, access)
    }

    fn allocate_window(&self) -> Result<Box<dyn Window>, NicError> {
        self.allocate_window_in(&self.pd()?)
    }

    fn create_cq(&self, depth: u32) -> Result<Arc<dyn Cq>, NicError> {
        const VERB: &str = "ibv_create_cq";
        let max = self.capabilities.max_cqe;
        if depth == 0 || depth > max {
            let device = &self.capabilities.device;
            let reason = format!(
                "{depth} completions were asked for and {device} holds 1 to {max} in a queue: lower the \
                 windows and the send depth"
            );
            return Err(NicError { verb: VERB, reason });
        }
        Ok(Arc::new(VerbsCq::create(self.pd()?.context(), &self.fates, depth)?))
    }

    fn create_qp(&self, cqs: &Cqs, depths: Depths) -> Result<Arc<dyn Qp>, NicError> {
        self.create_qp_in(&self.pd()?, cqs, depths, None)
    }

    fn create_srq(&self, depth: u32) -> Result<Arc<dyn Srq>, NicError> {
        self.create_srq_in(&self.pd()?, depth)
    }

    fn create_qp_on(
        &self,
        srq: &Arc<dyn Srq>,
        cqs: &Cqs,
        send: u32,
    ) -> Result<Arc<dyn Qp>, NicError> {
        let (pd, srq) = (self.pd()?, own_srq(&**srq)?);
        self.create_qp_in(&pd, cqs, Depths { send, recv: 0 }, Some(&srq))
    }
}

/// The queue as this fence's own type.
fn own_srq(srq: &dyn Srq) -> Result<Arc<RawSrq>, NicError> {
    let own = srq.as_any().downcast_ref::<VerbsSrq>().and_then(VerbsSrq::raw);
    own.ok_or_else(|| NicError {
        verb: "ibv_create_qp",
        reason: "the shared receive queue is of another device, or its device is gone".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        let local = SocketAddr::from(([10, 9, 0, 1], 0));
        assert!(open("no-such-device0", local).is_err());
    }
}
