//! What the kernel says in sysfs of this machine's RDMA devices: their ports, and the addresses of those that speak RoCE.
//!
//! Anything may be missing there, change or vanish meanwhile: what cannot be read is left out.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use crate::verbs::fate::PortNumber;

/// Where the kernel has its RDMA devices.
pub(super) const DEVICES: &str = "/sys/class/infiniband";

/// Whether the kernel says that a port is down.
pub(super) fn says_down(device: &str, PortNumber(port): PortNumber) -> bool {
    let state = Path::new(DEVICES).join(format!("{device}/ports/{port}/state"));
    text(&state).is_some_and(|state| state.contains("DOWN"))
}

/// Each address once, of ports that are up, in the order of the devices' names.
///
/// Only RoCE's are known: the GIDs of such a port are the addresses of its network interface (Annex A17 of the InfiniBand
/// specification). GIDs of InfiniBand and iWARP are other numbers.
pub(super) fn addresses(devices: &Path) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for device in entries(devices) {
        for port in entries(&device.join("ports")).iter().filter(|port| is_roce(&device, port)) {
            for address in entries(&port.join("gids")).iter().filter_map(|gid| address(gid)) {
                if !found.contains(&address) {
                    found.push(address);
                }
            }
        }
    }
    found
}

/// Whether a port of a device is up and speaks RoCE: on Ethernet that is what is no iWARP, whose devices are RNICs.
fn is_roce(device: &Path, port: &Path) -> bool {
    let says = |file: PathBuf, word: &str| text(&file).is_some_and(|text| text.contains(word));
    says(device.join("node_type"), "CA")
        && says(port.join("link_layer"), "Ethernet")
        && says(port.join("state"), "ACTIVE")
}

/// The address that a GID is, if another machine can use it: not where it means this machine, or this link without saying which.
fn address(gid: &Path) -> Option<IpAddr> {
    let gid: Ipv6Addr = text(gid)?.parse().ok()?;
    let address = gid.to_canonical();
    let is_local = gid.is_unicast_link_local() || address.is_loopback();
    (!is_local && !address.is_unspecified()).then_some(address)
}

/// What is in a folder, by name.
pub(super) fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = found.map(|entry| entry.path()).collect();
    // A number is shorter than those that are greater.
    found.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    found
}

/// A file without the space around it.
pub(super) fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with one port as sysfs shows it.
    fn device(folder: &Path, [kind, state, layer]: [&str; 3], gids: &[&str]) {
        let port = folder.join("ports/1");
        fs::create_dir_all(port.join("gids")).expect("a folder");
        let write = |path: PathBuf, text: &str| fs::write(path, format!("{text}\n"));
        write(folder.join("node_type"), kind).expect("a file");
        write(port.join("state"), state).expect("a file");
        write(port.join("link_layer"), layer).expect("a file");
        for (number, gid) in gids.iter().enumerate() {
            write(port.join(format!("gids/{number}")), gid).expect("a file");
        }
    }

    #[test]
    fn addresses_are_the_gids_of_roce_ports_that_are_up() {
        let root = std::env::temp_dir().join(format!("verbwire-sysfs-{}", std::process::id()));
        let add = |name: &str, is: [&str; 3], gids: &[&str]| device(&root.join(name), is, gids);
        let roce = ["1: CA", "4: ACTIVE", "Ethernet"];
        let v4 = "0000:0000:0000:0000:0000:ffff:0a00:0001";
        let second = "0000:0000:0000:0000:0000:ffff:0a01:0001";
        let global = "fd00:0000:0000:0000:0000:0000:0000:0007";
        let link_local = "fe80:0000:0000:0000:5054:00ff:fe12:3456";
        let unused = "0000:0000:0000:0000:0000:0000:0000:0000";
        let of_interface = "5254:0012:3456:0000:0000:0000:0000:0000";
        let loopback = "0000:0000:0000:0000:0000:ffff:7f00:0001";
        // Each address has a GID of RoCE v1 and one of RoCE v2.
        add("mlx5_0", roce, &[link_local, link_local, v4, v4, global, unused, loopback]);
        add("mlx5_1", roce, &[second]);
        add("mlx5_2", ["1: CA", "1: DOWN", "Ethernet"], &["fd00::1"]);
        add("mlx4_0", ["1: CA", "4: ACTIVE", "InfiniBand"], &["fec0::2"]);
        add("siw0", ["4: RNIC", "4: ACTIVE", "Ethernet"], &[of_interface]);
        fs::create_dir_all(root.join("half/ports/1/gids")).expect("a folder");
        let found = addresses(&root);
        assert!(addresses(&root.join("nowhere")).is_empty());
        fs::remove_dir_all(&root).expect("the test's own");
        let expected = ["10.0.0.1", "fd00::7", "10.1.0.1"];
        assert_eq!(found, expected.map(|address| address.parse::<IpAddr>().expect("an address")));
    }
}
