//! A host of the network: its device's objects, its counters, and its death.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};

use super::cm::FabricCm;
use super::fate::{Death, Fate};
use super::mr::MrTable;
use super::network::Network;
use super::nic::FabricNic;
use super::profile::AfterDestroy;
use super::qp::QpId;
use super::shared::Shared;
use crate::nic::{Cm, Nic, NicError, QpNumber};

/// The first queue pair number; real devices keep the lowest for themselves.
const FIRST_QP: u32 = 17;

/// Which host of a fabric. A name that comes back after its host's death is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HostId(pub(super) usize);

/// What a host has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Work requests posted, sends and receives; [`FabricHost::script`] counts by it.
    pub work_requests: u64,
    /// SENDs that left.
    pub sends: u64,
    /// Writes that left.
    pub writes: u64,
    /// Bytes that left.
    pub bytes: u64,
    /// Messages that arrived here and found no receive, each try counted.
    pub rnr: u64,
    /// Completions that found their queue full.
    pub overflows: u64,
    /// Registrations made.
    pub registrations: u64,
    /// Windows bound.
    pub binds: u64,
    /// Windows invalidated.
    pub invalidations: u64,
}

impl Counters {
    pub(super) fn add(&mut self, other: &Self) {
        self.work_requests += other.work_requests;
        self.sends += other.sends;
        self.writes += other.writes;
        self.bytes += other.bytes;
        self.rnr += other.rnr;
        self.overflows += other.overflows;
        self.registrations += other.registrations;
        self.binds += other.binds;
        self.invalidations += other.invalidations;
    }
}

/// A host and its one device.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) life: Life,
    pub(super) counters: Counters,
    pub(super) mrs: MrTable,
    pub(super) next_port: u16,
    qp_numbers: BTreeSet<u32>,
    /// So that a host has one device, however often it is asked for.
    nic: Weak<FabricNic>,
}

/// Whether a host lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Alive,
    Dead,
}

impl Host {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            life: Life::Alive,
            counters: Counters::default(),
            mrs: MrTable::default(),
            next_port: 49_152,
            qp_numbers: BTreeSet::new(),
            nic: Weak::new(),
        }
    }

    /// The lowest free number: a number comes back as soon as it can, as on real devices.
    pub(super) fn take_qp_number(&mut self) -> QpNumber {
        let number = (FIRST_QP..).find(|number| !self.qp_numbers.contains(number));
        let number = number.expect("a device has far fewer than 2^32 queue pairs");
        self.qp_numbers.insert(number);
        QpNumber(number)
    }

    pub(super) fn free_qp_number(&mut self, number: QpNumber) {
        self.qp_numbers.remove(&number.0);
    }
}

impl Network {
    /// The living host of this name.
    pub(super) fn find_host(&self, name: &str) -> Option<HostId> {
        self.hosts.iter().position(|host| host.life == Life::Alive && host.name == name).map(HostId)
    }

    /// Whether there ever was a host of this name.
    pub(super) fn knows_host(&self, name: &str) -> bool {
        self.hosts.iter().any(|host| host.name == name)
    }

    pub(super) fn check_alive(&mut self, id: HostId, verb: &'static str) -> Result<(), NicError> {
        let host = self.host(id);
        match host.life {
            Life::Alive => Ok(()),
            Life::Dead => {
                let reason = format!("host {} is dead", host.name);
                Err(NicError { verb, reason })
            }
        }
    }

    /// Ends a host. Nothing of it does anything from now on; what it had on the wire still arrives.
    pub(super) fn kill(&mut self, id: HostId, death: Death) {
        let host = self.host(id);
        if host.life == Life::Dead {
            return;
        }
        host.life = Life::Dead;
        host.mrs = MrTable::default();
        self.faults.deaths += 1;
        let qps: Vec<QpId> =
            self.qps.iter().filter(|(_, qp)| qp.host == id).map(|(qp, _)| *qp).collect();
        if death == Death::Process {
            self.hang_up(id);
        }
        for qp in qps {
            self.remove_qp(qp, AfterDestroy::Purged);
        }
        self.srqs.retain(|_, srq| srq.host != id);
        let lost = NicError { verb: "ibv_poll_cq", reason: "the host is dead".to_owned() };
        for cq in self.cqs.values_mut().filter(|cq| cq.host == id) {
            cq.lose(lost.clone(), &mut self.after);
        }
        self.bury_connections(id);
    }
}

/// A host on a fabric, with one device. Cheap to clone.
#[derive(Clone)]
pub struct FabricHost {
    shared: Arc<Shared>,
    id: HostId,
    name: String,
    nic: Arc<FabricNic>,
}

impl FabricHost {
    pub(super) fn named(shared: &Arc<Shared>, name: &str) -> Self {
        let (id, nic) = shared.with(|network| {
            let id = network.find_host(name).unwrap_or_else(|| {
                network.hosts.push(Host::new(name));
                HostId(network.hosts.len() - 1)
            });
            let config = &network.config;
            let capabilities = match &config.capabilities {
                Some(given) => {
                    let mut given = given.clone();
                    given.device = format!("{}-{name}", given.device);
                    given
                }
                None => config.profile.capabilities(format!("{}-{name}", config.profile.device())),
            };
            let host = network.host(id);
            let nic = host
                .nic
                .upgrade()
                .unwrap_or_else(|| Arc::new(FabricNic::new(Arc::clone(shared), id, capabilities)));
            host.nic = Arc::downgrade(&nic);
            (id, nic)
        });
        Self { shared: Arc::clone(shared), id, name: name.to_owned(), nic }
    }

    /// Its name, the part of its addresses before the colon.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its device.
    pub fn nic(&self) -> Arc<dyn Nic> {
        Arc::clone(&self.nic) as Arc<dyn Nic>
    }

    /// Its connection manager. It listens at `name:port`, with port 0 for one that is free, and resolves the
    /// addresses of all hosts of the fabric.
    pub fn cm(&self) -> Arc<dyn Cm> {
        Arc::new(FabricCm::new(Arc::clone(&self.shared), Arc::clone(&self.nic)))
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        self.shared.with(|network| network.host(self.id).counters)
    }

    /// Ends it at once. Its objects fail from then on; the fabric gives its name to a new host when asked.
    pub fn kill(&self, death: Death) {
        self.shared.with(|network| network.kill(self.id, death));
    }

    /// Ends it when it posts its `nth` work request, counted from 1 over its whole life.
    pub fn kill_at(&self, nth: u64, death: Death) {
        self.script(nth, Fate::Kill(death));
    }

    /// Decides what happens to its `nth` work request, counted from 1 over its whole life.
    pub fn script(&self, nth: u64, fate: Fate) {
        self.shared.with(|network| network.script.write(self.id, nth, fate));
    }
}

impl fmt::Debug for FabricHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FabricHost({})", self.name)
    }
}
