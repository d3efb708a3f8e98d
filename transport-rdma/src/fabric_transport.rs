//! `fabric://net/host:port`: connections over the software NIC, by name.
//!
//! A [`Fabric`] is a value, and whoever has one makes a transport over a host of it. Targets are strings, so
//! for them this module keeps a table of fabrics by name. It belongs to the process; a name is free again
//! when everybody who used it is gone.
//!
//! ```text
//!   fabric://net/host:port
//!            net    a fabric that was published under this name; else one that is made for who listens
//!            host   the host that listens
//!            port   0 for one that is free
//! ```
//!
//! Who connects does so from a host named `client`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use tokio::time::Instant;
use verbwire_core::transport::{Accepting, BoxFuture, Established, Listener, LocalSide, Transport};
use verbwire_core::{Buffer, Error, ErrorKind, Target};

use crate::config::RdmaConfig;
use crate::device::Memory;
use crate::fabric::{Fabric, FabricConfig, FabricHost};
use crate::memory::Poison;
use crate::rdma::RdmaTransport;
use crate::reaper::{InPlace, Reaper};

/// The scheme of these targets.
const SCHEME: &str = "fabric";

/// The host that clients connect from.
const CLIENT: &str = "client";

static NETS: Mutex<BTreeMap<String, Weak<Net>>> = Mutex::new(BTreeMap::new());

/// A fabric under a name of this process.
struct Net {
    fabric: Fabric,
}

/// Keeps a fabric's name; see [`FabricTransport::publish`].
#[must_use = "the name is free again when this is dropped"]
pub struct Published {
    _net: Arc<Net>,
}

impl RdmaTransport {
    /// A transport over a host of a fabric. Its targets are `fabric://host:port`.
    ///
    /// Buffers are poisoned while the NIC owns them, and queue pairs are destroyed in place, so that runs
    /// repeat.
    pub fn over_fabric(host: &FabricHost, mut config: RdmaConfig) -> Self {
        config.poison = Poison::WhileNicOwns;
        Self::new(SCHEME, host.cm(), InPlace, config)
    }
}

/// The transport of `fabric://net/host:port` targets.
///
/// Each connection has a device of its own; what is allocated is registered with all of them.
#[derive(Clone)]
pub struct FabricTransport {
    config: RdmaConfig,
    memory: Arc<Memory>,
}

impl FabricTransport {
    /// A transport with these settings.
    pub fn new(mut config: RdmaConfig) -> Self {
        config.poison = Poison::WhileNicOwns;
        let reaper: Arc<dyn Reaper> = Arc::new(InPlace);
        let memory = Memory::new(&config, &reaper);
        Self { config, memory }
    }

    /// Gives a fabric a name, so that targets can name it. The test that made it still decides its seed, its
    /// device and its faults.
    ///
    /// # Errors
    ///
    /// The name is in use.
    pub fn publish(name: &str, fabric: &Fabric) -> Result<Published, Error> {
        let mut nets = nets();
        if nets.get(name).is_some_and(|net| net.strong_count() > 0) {
            let message = format!("a fabric {name} exists in this process: take another name");
            return Err(Error::new(ErrorKind::LocalResource, message));
        }
        let net = Arc::new(Net { fabric: fabric.clone() });
        nets.insert(name.to_owned(), Arc::downgrade(&net));
        Ok(Published { _net: net })
    }

    fn over(&self, net: &Net, host: &str) -> RdmaTransport {
        let memory = (Arc::new(InPlace) as Arc<dyn Reaper>, Arc::clone(&self.memory));
        let cm = net.fabric.host(host).cm();
        RdmaTransport::with_memory(SCHEME, cm, memory, self.config.clone())
    }
}

impl Default for FabricTransport {
    fn default() -> Self {
        Self::new(RdmaConfig::default())
    }
}

impl fmt::Debug for FabricTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FabricTransport").field(&self.memory.users().snapshot()).finish()
    }
}

impl Transport for FabricTransport {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        Box::pin(async move {
            let place = Place::parse(target)?;
            let net = find(place.net).ok_or_else(|| {
                let message = format!(
                    "nothing listens at {target} in this process: bind a server there first"
                );
                Error::new(ErrorKind::Unreachable, message)
            })?;
            let inner = Target::new(SCHEME, place.address);
            self.over(&net, CLIENT).connect(&inner, local).await
        })
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        Box::pin(async move {
            let place = Place::parse(target)?;
            let net = find_or_make(place.net);
            let inner = Target::new(SCHEME, place.address);
            let listener = self.over(&net, place.host).listen(&inner).await?;
            let address = format!("{}/{}", place.net, listener.local_target().address());
            let local = Target::new(SCHEME, address);
            Ok(Box::new(FabricListener { listener, local, _net: net }) as Box<dyn Listener>)
        })
    }

    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(self.memory.alloc(len, deadline))
    }
}

/// A target taken apart.
struct Place<'a> {
    net: &'a str,
    /// `host:port`.
    address: &'a str,
    host: &'a str,
}

impl<'a> Place<'a> {
    fn parse(target: &'a Target) -> Result<Self, Error> {
        let parts = target.address().split_once('/').and_then(|(net, address)| {
            let (host, port) = address.rsplit_once(':')?;
            let is_whole = !net.is_empty() && !host.is_empty() && port.parse::<u16>().is_ok();
            is_whole.then_some(Self { net, address, host })
        });
        parts.ok_or_else(|| {
            let message = format!(
                "target \"{target}\" is not fabric://net/host:port, write for example \
                 fabric://test/server:0"
            );
            Error::new(ErrorKind::InvalidInput, message)
        })
    }
}

/// Listens on a fabric, and keeps its name.
struct FabricListener {
    listener: Box<dyn Listener>,
    local: Target,
    _net: Arc<Net>,
}

impl Listener for FabricListener {
    fn local_target(&self) -> &Target {
        &self.local
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        self.listener.poll_accept(cx)
    }
}

fn find(name: &str) -> Option<Arc<Net>> {
    nets().get(name)?.upgrade()
}

fn find_or_make(name: &str) -> Arc<Net> {
    let mut nets = nets();
    nets.retain(|_, net| net.strong_count() > 0);
    if let Some(net) = nets.get(name).and_then(Weak::upgrade) {
        return net;
    }
    let net = Arc::new(Net { fabric: Fabric::new(FabricConfig::default()) });
    nets.insert(name.to_owned(), Arc::downgrade(&net));
    net
}

fn nets() -> MutexGuard<'static, BTreeMap<String, Weak<Net>>> {
    NETS.lock().unwrap_or_else(PoisonError::into_inner)
}
