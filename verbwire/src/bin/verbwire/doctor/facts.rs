//! What this machine says of itself, as values. Reads; judges nothing: that is for `rules`.
//!
//! A fact that cannot be read is `None` or missing from its list. No tool is started and nothing needs root.

mod device;
mod host;
mod net;

pub(super) use device::{Device, Fabric, GidKind, Kind, Port, PortState};
pub(super) use host::{Container, Host};
pub(super) use net::{NetDevice, Subnet};

use super::tree::Tree;

/// All facts of a machine.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) devices: Vec<Device>,
    pub(super) netdevs: Vec<NetDevice>,
    pub(super) subnets: Vec<Subnet>,
    pub(super) host: Host,
}

impl Facts {
    pub(super) fn of(tree: &Tree) -> Self {
        Self {
            devices: device::all(tree),
            netdevs: net::all(tree),
            subnets: net::subnets(tree),
            host: Host::of(tree),
        }
    }

    pub(super) fn netdev(&self, name: &str) -> Option<&NetDevice> {
        self.netdevs.iter().find(|netdev| netdev.name == name)
    }
}
