//! Network devices and the subnets that they are on, from `/sys/class/net` and `/proc/net/route`.

use std::net::Ipv4Addr;

use crate::doctor::tree::Tree;

/// `type` of an IPoIB device (`ARPHRD_INFINIBAND` of the kernel's `if_arp.h`).
const IPOIB: u64 = 32;

#[derive(Debug, Clone)]
pub(crate) struct NetDevice {
    pub(crate) name: String,
    pub(crate) mtu: Option<u64>,
    /// `up`, `down`, `unknown`.
    pub(crate) state: String,
    pub(crate) is_ipoib: bool,
    /// The kernel driver of its PCI function.
    pub(crate) driver: Option<String>,
    /// RDMA devices of the same function.
    pub(crate) rdma: Vec<String>,
    /// Priorities for which ECN of RoCE is on, of how many; only some vendors' drivers say.
    pub(crate) ecn: Option<(usize, usize)>,
    /// Frames that came with a wrong checksum: a bad cable or transceiver.
    pub(crate) crc_errors: u64,
    /// The larger of the device's own setting and that for all, as the kernel takes it.
    pub(crate) arp_ignore: u64,
}

/// An IPv4 subnet that is reached through a device directly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subnet {
    pub(crate) netdev: String,
    pub(crate) network: Ipv4Addr,
    pub(crate) mask: Ipv4Addr,
}

pub(super) fn all(tree: &Tree) -> Vec<NetDevice> {
    tree.names("sys/class/net").into_iter().map(|name| netdev(tree, name)).collect()
}

fn netdev(tree: &Tree, name: String) -> NetDevice {
    let at = format!("sys/class/net/{name}");
    let ignore = |scope: &str| tree.number(&format!("proc/sys/net/ipv4/conf/{scope}/arp_ignore"));
    let arp_ignore = ignore("all").unwrap_or(0).max(ignore(&name).unwrap_or(0));
    NetDevice {
        mtu: tree.number(&format!("{at}/mtu")),
        state: tree.text(&format!("{at}/operstate")).unwrap_or_default(),
        is_ipoib: tree.number(&format!("{at}/type")) == Some(IPOIB),
        driver: tree.link(&format!("{at}/device/driver")),
        rdma: tree.names(&format!("{at}/device/infiniband")),
        ecn: ecn(tree, &format!("{at}/ecn/roce_np/enable")),
        crc_errors: tree.number(&format!("{at}/statistics/rx_crc_errors")).unwrap_or(0),
        arp_ignore,
        name,
    }
}

fn ecn(tree: &Tree, folder: &str) -> Option<(usize, usize)> {
    let priorities = tree.names(folder);
    let on = priorities.iter().filter(|p| tree.number(&format!("{folder}/{p}")) == Some(1)).count();
    (!priorities.is_empty()).then_some((on, priorities.len()))
}

/// Lines as `eth0 000200C0 00000000 0001 0 0 0 00FFFFFF ...`: addresses in hex, in the machine's byte order, which is
/// little-endian on all that this is built for.
pub(super) fn subnets(tree: &Tree) -> Vec<Subnet> {
    let address = |hex: &str| {
        u32::from_str_radix(hex, 16).ok().map(|bits| Ipv4Addr::from(bits.to_ne_bytes()))
    };
    let subnet = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[netdev, network, gateway, _, _, _, _, mask, ..] = fields.as_slice() else {
            return None;
        };
        let (network, gateway, mask) = (address(network)?, address(gateway)?, address(mask)?);
        let is_direct = gateway.is_unspecified() && !mask.is_unspecified();
        is_direct.then(|| Subnet { netdev: netdev.to_owned(), network, mask })
    };
    tree.text("proc/net/route").unwrap_or_default().lines().skip(1).filter_map(subnet).collect()
}
