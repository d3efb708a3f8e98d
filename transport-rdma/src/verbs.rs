//! Real devices: the fence around everything that is C.
//!
//! Besides `memory/` this is the only place of the crate with `unsafe`, and the only one that names the
//! bindings. It implements the seam of [`nic`](crate::nic) over libibverbs' plain verbs and librdmacm; extended
//! verbs are not used, because the bindings get them wrong.
//!
//! ```text
//!   Context ─► Pd ─► Mr                     each holds an `Arc` of what it is made of,
//!           │     ├► RawSrq ─► RawQp        so it is destroyed first
//!           │     └► RawQp (and its Cq)
//!           └► CompChannel ─► RawCq
//!   RawChannel ─► CmId
//! ```
//!
//! * `ret`: how C says that a call failed; `abi`: what the bindings do not say.
//! * `context`, `pd`, `channel`, `cq`, `qp`, `srq`: one kind of object each.
//! * `nic`: a device as the seam has it. `events`, `fate`: what it says of itself, and to whom.
//! * `thread`: a device's own thread, which reads that and outlives every runtime.
//! * `cm`: the connection manager.
//! * `siw`: what soft-iWARP alone needs.
//! * `reaper`: what may block, off the runtime's workers.
//!
//! It does not know messages, credits or buffers: only the addresses in work requests.

mod abi;
mod channel;
mod cm;
mod context;
mod cq;
mod events;
mod fate;
mod mw;
mod nic;
mod pd;
mod qp;
mod reaper;
mod ret;
mod siw;
mod srq;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;

pub use cm::{VerbsCm, VerbsConfig};
pub use reaper::ReaperThread;

use crate::config::RdmaConfig;
use crate::rdma::RdmaTransport;

/// The scheme of targets on real devices.
const SCHEME: &str = "rdma";

impl RdmaTransport {
    /// A transport over the machine's RDMA devices. Its targets are `rdma://host:port`, where the host's address
    /// is that of a device's network interface.
    ///
    /// Devices are opened when they are first used, and shared by all transports of the process.
    pub fn over_verbs(config: RdmaConfig, verbs: VerbsConfig) -> Self {
        Self::new(SCHEME, Arc::new(VerbsCm::new(verbs)), ReaperThread, config)
    }
}
