//! A software NIC: reliable connected queue pairs in one process, for tests.
//!
//! A [`Fabric`] is a network of hosts, each with one device behind the seam of [`nic`](crate::nic). It needs
//! neither libibverbs nor a kernel module, and it is stricter than real devices: every access to memory is
//! checked against keys, rights, bounds *and* the owner of the memory, queues have exactly the depth that
//! was asked for, and every rule that real devices leave unpunished until production is an error here.
//!
//! * **Deterministic.** All that happens comes from one schedule, ordered by time and by a seed. On tokio's paused
//!   clock and one thread, the same seed and the same use give the same run ([`Fabric::trace_digest`]). On a
//!   running clock it works as well, with whatever order the tasks then have.
//! * **Three devices.** [`Profile`] says which one it plays; they differ in what they do after errors.
//! * **Violations.** Memory that a work request names but that the NIC does not own is not touched; the access is
//!   recorded ([`Fabric::violations`]). A test that ends with violations has found a bug.
//! * **Faults.** [`FabricHost::kill`], [`FabricHost::kill_at`] and [`FabricHost::script`] decide the [`Fate`] of
//!   hosts and work requests; [`Malice`] does where they say nothing. [`Fabric::faults`] counts what came true.
//!
//! Fabrics are independent of each other. One fabric belongs to one runtime's clock: make one per test.
//!
//! Not modelled: loss on the wire, Reads, atomics, immediate data.

mod cm;
mod config;
mod cq;
mod fate;
mod host;
mod mr;
mod network;
mod nic;
mod placing;
mod post;
mod profile;
mod qp;
mod schedule;
mod shared;
mod srq;
#[cfg(test)]
mod tests;
mod window;
mod wire;

use std::fmt;
use std::sync::Arc;

pub use config::{Binding, FabricConfig, Latency};
pub use fate::{Death, Fate, FaultCounts, Malice};
pub use host::{Counters, FabricHost};
pub use mr::{Violation, ViolationKind};
pub use profile::Profile;

use shared::Shared;

/// A network of hosts. Cheap to clone; gone with its last clone, host and object.
#[derive(Clone)]
pub struct Fabric(Arc<Shared>);

impl Fabric {
    /// A network without hosts.
    ///
    /// Call it within the runtime that will use it, so that its time begins on that runtime's clock.
    pub fn new(config: FabricConfig) -> Self {
        Self(Shared::new(config))
    }

    /// The host of this name: the one that lives, or a new one.
    pub fn host(&self, name: &str) -> FabricHost {
        FabricHost::named(&self.0, name)
    }

    /// What all hosts have done so far, dead ones included.
    pub fn counters(&self) -> Counters {
        self.0.with(|network| {
            let mut sum = Counters::default();
            network.hosts.iter().for_each(|host| sum.add(&host.counters));
            sum
        })
    }

    /// Accesses to memory that did not belong to the NIC, the first 256. A test asserts that there is none.
    pub fn violations(&self) -> Vec<Violation> {
        self.0.with(|network| network.violations.clone())
    }

    /// Fates of the script that have not come true. A test of a fault asserts that it is 0.
    pub fn pending_fates(&self) -> usize {
        self.0.with(|network| network.script.pending())
    }

    /// Faults that came true so far.
    pub fn faults(&self) -> FaultCounts {
        self.0.with(|network| network.faults)
    }

    /// Decides anew how often faults befall what is posted from now on.
    pub fn set_malice(&self, malice: Malice) {
        self.0.with(|network| network.config.malice = malice);
    }

    /// A digest of everything that has happened so far, in order. Two equal runs have the same.
    pub fn trace_digest(&self) -> u64 {
        self.0.with(|network| network.trace.digest())
    }

    /// The seed, to be printed when a test fails.
    pub fn seed(&self) -> u64 {
        self.0.with(|network| network.config.seed)
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fabric(seed {})", self.seed())
    }
}
