//! The connection manager (`rdma_cm`): finds devices by address and connects queue pairs, over InfiniBand, RoCE and
//! iWARP alike.
//!
//! ```text
//!  connecting side                                    accepting side
//!  resolve_addr ─► ADDR_RESOLVED
//!  resolve_route ─► ROUTE_RESOLVED
//!  INIT, receives posted
//!  connect ─────────────────────────────────────────► CONNECT_REQUEST, its id moved to a channel of its own
//!                                                     INIT, receives posted, RTR, RTS
//!  InfiniBand: CONNECT_RESPONSE ◄──────────────────── accept
//!    RTR, RTS, establish ───────────────────────────► ESTABLISHED
//!  iWARP:      ESTABLISHED ◄───────────────────────── ESTABLISHED
//!    the kernel has moved the queue pair
//! ```
//!
//! Any event may come in any state, and every state that waits for somebody has a deadline: see [`state`], and the
//! table in ARCHITECTURE.md. An attempt that its caller drops is cleaned up from whatever state it is in ([`link`]).
//! Every id is destroyed on the reaper's threads.
//!
//! * `state`: what an event means. `partings`: ids that cannot be destroyed yet. Pure.
//! * `id`, `channel`: ids and their channels, the only files here that call the library.
//! * `event`, `address`: the library's structs, copied.
//! * `words`: why an address leads nowhere.
//! * `link`: an id on its way through the states.
//! * `connect`, `listen`, `conn`: the seam.

mod address;
mod channel;
mod conn;
mod connect;
mod event;
mod id;
mod link;
mod listen;
mod partings;
mod state;
mod sysfs;
mod words;

use std::sync::Arc;

use verbwire_core::transport::BoxFuture;
use verbwire_core::{Error, ErrorKind};

use super::nic::VerbsNic;
use super::qp::VerbsQp;
use crate::error;
use crate::nic::{Cm, CmListener, Qp, Resolved};

pub(super) use conn::removed;
pub(super) use id::CmId;
pub(super) use partings::{Parting, Partings, PortState};
pub(super) use state::{State, Step};

/// Settings of connections over real devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsConfig {
    /// How often a peer without a receive is asked again before the connection is lost; 7 is for ever.
    ///
    /// 7: credits make sure that there is a receive, and a bug in that should not look like a network
    /// fault. 0 in tests, where it should.
    pub rnr_retry: u8,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self { rnr_retry: 7 }
    }
}

/// The machine's connection manager.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerbsCm {
    config: VerbsConfig,
}

impl VerbsCm {
    /// The connection manager with these settings.
    pub fn new(config: VerbsConfig) -> Self {
        let rnr_retry = config.rnr_retry.min(7);
        Self { config: VerbsConfig { rnr_retry } }
    }
}

impl Cm for VerbsCm {
    fn resolve<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Resolved>, Error>> {
        Box::pin(async move {
            let resolved = connect::resolve(address, self.config).await?;
            Ok(Box::new(resolved) as Box<dyn Resolved>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn CmListener>, Error>> {
        Box::pin(async move {
            let listener = listen::listen(address, self.config).await?;
            Ok(Box::new(listener) as Box<dyn CmListener>)
        })
    }
}

/// The queue pair as this fence's own type.
fn own_qp<'a>(qp: &'a dyn Qp, nic: &Arc<VerbsNic>) -> Result<&'a VerbsQp, Error> {
    let pd = nic.pd().map_err(|error| error::lost("connecting", error))?;
    let own = qp.as_any().downcast_ref::<VerbsQp>().filter(|own| own.is_on(pd.context()));
    own.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "the queue pair belongs to another device")
    })
}
