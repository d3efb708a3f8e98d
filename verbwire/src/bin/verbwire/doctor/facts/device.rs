//! RDMA devices and their ports, from `/sys/class/infiniband`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use crate::doctor::tree::Tree;

const CLASS: &str = "sys/class/infiniband";

#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) firmware: Option<String>,
    /// The board, by its marketing or its part number, as the driver has it.
    pub(crate) board: Option<String>,
    pub(crate) numa: Option<u64>,
    pub(crate) pcie: Option<Pcie>,
    pub(crate) ports: Vec<Port>,
}

/// `node_type`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    /// A channel adapter: InfiniBand or RoCE.
    Ca,
    /// iWARP.
    Rnic,
    Unknown(String),
}

/// What drives the device, which decides the library that it needs in the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    SoftRoce,
    SoftIwarp,
    /// A card, with the kernel driver of its PCI function if that can be seen.
    Card(Option<String>),
}

/// The link of a card to its machine, as it is and as it could be: `16.0 GT/s PCIe` and lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pcie {
    pub(crate) speed: String,
    pub(crate) best_speed: String,
    pub(crate) width: u64,
    pub(crate) best_width: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Port {
    pub(crate) number: String,
    pub(crate) state: PortState,
    pub(crate) physical: String,
    pub(crate) fabric: Fabric,
    pub(crate) rate: String,
    pub(crate) lid: Option<u64>,
    /// Those that are not zero.
    pub(crate) gids: Vec<Gid>,
    /// The network device whose addresses the port has.
    pub(crate) netdev: Option<String>,
    /// `counters` and `hw_counters`.
    pub(crate) counters: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortState {
    Down,
    Init,
    Armed,
    Active,
    Unknown(String),
}

/// What a port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fabric {
    InfiniBand,
    Roce,
    Iwarp,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) index: String,
    pub(crate) address: Ipv6Addr,
    pub(crate) kind: GidKind,
}

/// `gid_attrs/types`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GidKind {
    /// Also of all GIDs of InfiniBand and iWARP.
    V1,
    V2,
    Unknown(String),
}

pub(super) fn all(tree: &Tree) -> Vec<Device> {
    tree.names(CLASS).into_iter().map(|name| device(tree, name)).collect()
}

fn device(tree: &Tree, name: String) -> Device {
    let at = format!("{CLASS}/{name}");
    let text = |file: &str| tree.text(&format!("{at}/{file}")).filter(|text| !text.is_empty());
    let node = match text("node_type") {
        Some(node) if node.starts_with("1:") => Node::Ca,
        Some(node) if node.starts_with("4:") => Node::Rnic,
        other => Node::Unknown(other.unwrap_or_default()),
    };
    let ports = tree.names(&format!("{at}/ports"));
    Device {
        kind: kind(tree, &at, &node),
        firmware: text("fw_ver"),
        board: text("board_id").or_else(|| text("hca_type")),
        // -1 where the machine does not say.
        numa: tree.number(&format!("{at}/device/numa_node")),
        pcie: pcie(tree, &format!("{at}/device")),
        ports: ports.into_iter().map(|number| port(tree, &at, &node, number)).collect(),
        name,
    }
}

/// soft-RoCE names the network device that it uses in `parent`, which no other driver does. A device of iWARP whose PCI driver, if
/// there is one, makes no RDMA devices is soft-iWARP, on whose parent it depends what `device` is.
fn kind(tree: &Tree, at: &str, node: &Node) -> Kind {
    const IWARP_CARDS: [&str; 5] = ["cxgb4", "i40e", "ice", "qede", "irdma"];
    let driver = tree.link(&format!("{at}/device/driver"));
    if tree.exists(&format!("{at}/parent")) {
        return Kind::SoftRoce;
    }
    match (node, driver) {
        (Node::Rnic, None) => Kind::SoftIwarp,
        (Node::Rnic, Some(driver)) if !IWARP_CARDS.contains(&driver.as_str()) => Kind::SoftIwarp,
        (_, driver) => Kind::Card(driver),
    }
}

fn pcie(tree: &Tree, device: &str) -> Option<Pcie> {
    Some(Pcie {
        speed: tree.text(&format!("{device}/current_link_speed"))?,
        best_speed: tree.text(&format!("{device}/max_link_speed"))?,
        width: tree.number(&format!("{device}/current_link_width"))?,
        best_width: tree.number(&format!("{device}/max_link_width"))?,
    })
}

fn port(tree: &Tree, device: &str, node: &Node, number: String) -> Port {
    let at = format!("{device}/ports/{number}");
    let text = |file: &str| tree.text(&format!("{at}/{file}")).unwrap_or_default();
    let fabric = match (node, text("link_layer").as_str()) {
        (Node::Rnic, _) => Fabric::Iwarp,
        (_, "InfiniBand") => Fabric::InfiniBand,
        (_, "Ethernet") => Fabric::Roce,
        _ => Fabric::Unknown,
    };
    let gids = gids(tree, &at);
    Port {
        netdev: netdev(tree, device, &at, fabric, &gids),
        state: PortState::of(&text("state")),
        physical: text("phys_state"),
        fabric,
        rate: text("rate"),
        lid: tree.number(&format!("{at}/lid")),
        gids,
        counters: counters(tree, &at),
        number,
    }
}

fn gids(tree: &Tree, port: &str) -> Vec<Gid> {
    let indexes = tree.names(&format!("{port}/gids"));
    let gid = |index: String| {
        let address: Ipv6Addr = tree.text(&format!("{port}/gids/{index}"))?.parse().ok()?;
        // soft-RoCE has 1024 entries, nearly all of them unused.
        if address.is_unspecified() {
            return None;
        }
        let kind = match tree.text(&format!("{port}/gid_attrs/types/{index}")).unwrap_or_default() {
            kind if kind == "IB/RoCE v1" => GidKind::V1,
            kind if kind == "RoCE v2" => GidKind::V2,
            kind => GidKind::Unknown(kind),
        };
        Some(Gid { index, address, kind })
    };
    indexes.into_iter().filter_map(gid).collect()
}

/// The network device of the first GID that has one. iWARP's have none, and are made of its MAC. Else soft-RoCE's parent, or the
/// only one of the same card.
fn netdev(tree: &Tree, device: &str, port: &str, fabric: Fabric, gids: &[Gid]) -> Option<String> {
    let named = |path: String| tree.text(&path).filter(|name| !name.is_empty());
    if fabric == Fabric::Iwarp {
        return by_mac(tree, gids.first()?);
    }
    let of_a_gid =
        gids.iter().find_map(|gid| named(format!("{port}/gid_attrs/ndevs/{}", gid.index)));
    of_a_gid.or_else(|| named(format!("{device}/parent"))).or_else(|| {
        match tree.names(&format!("{device}/device/net")).as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        }
    })
}

fn by_mac(tree: &Tree, gid: &Gid) -> Option<String> {
    let [a, b, c, d, e, f, ..] = gid.address.octets();
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    let has_it =
        |name: &String| tree.text(&format!("sys/class/net/{name}/address")).as_ref() == Some(&mac);
    tree.names("sys/class/net").into_iter().find(has_it)
}

fn counters(tree: &Tree, port: &str) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for folder in ["counters", "hw_counters"] {
        let at = format!("{port}/{folder}");
        for name in tree.names(&at) {
            if let Some(count) = tree.number(&format!("{at}/{name}")) {
                counters.insert(name, count);
            }
        }
    }
    counters
}

impl PortState {
    /// From `4: ACTIVE`.
    fn of(text: &str) -> Self {
        match text.split(':').next().unwrap_or_default() {
            "1" => Self::Down,
            "2" => Self::Init,
            "3" => Self::Armed,
            "4" => Self::Active,
            _ => Self::Unknown(text.to_owned()),
        }
    }
}

impl Gid {
    /// Whether it is made of an IP address that can be connected to: rdma_cm finds a device by such.
    pub(crate) fn is_routable(&self) -> bool {
        !self.address.is_unicast_link_local()
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Unknown => "unknown link layer",
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SoftRoce => f.write_str("soft-RoCE"),
            Self::SoftIwarp => f.write_str("soft-iWARP"),
            Self::Card(Some(driver)) => write!(f, "a card driven by {driver}"),
            Self::Card(None) => f.write_str("a card of unknown driver"),
        }
    }
}
