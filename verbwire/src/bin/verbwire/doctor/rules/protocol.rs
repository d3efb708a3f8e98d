//! Addresses and what stands in the way of packets.

use super::{active_ports, count, ports};
use crate::doctor::facts::{Device, Fabric, Facts, GidKind, Port};
use crate::doctor::finding::{Finding, Layer, Level};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(active_ports(facts).filter_map(|(device, port)| gids(device, port)));
    findings.extend(ipoib(facts));
    findings.extend(shared_subnets(facts));
    findings.extend(firewall(facts));
    findings
}

fn finding(level: Level, rule: &'static str, what: impl Into<String>) -> Finding {
    Finding::new(Layer::Protocol, level, rule, what)
}

/// GIDs name the ends of RoCE connections, and are made of the network device's addresses.
fn gids(device: &Device, port: &Port) -> Option<Finding> {
    if port.fabric != Fabric::Roce {
        return None;
    }
    let name = format!("{} port {}", device.name, port.number);
    let netdev = port.netdev.as_deref().unwrap_or("NETDEV");
    let addresses: Vec<String> = port
        .gids
        .iter()
        .filter(|gid| gid.kind == GidKind::V2 && gid.is_routable())
        .map(|gid| match gid.address.to_ipv4_mapped() {
            Some(v4) => format!("{v4} (index {})", gid.index),
            None => format!("{} (index {})", gid.address, gid.index),
        })
        .collect();
    if !addresses.is_empty() {
        let what = format!("{name} has GIDs of RoCE v2: {}", addresses.join(", "));
        return Some(finding(Level::Ok, "gids", what));
    }
    let give_address = format!(
        "give it one: 'ip address add 10.0.0.1/24 dev {netdev}', then look at 'rdma link' and \
                                'ibv_devinfo -v' again"
    );
    if port.gids.is_empty() {
        let what = format!("{name} has no GID: {netdev} is down or has no address");
        return Some(finding(Level::Problem, "no-gid", what).advise(give_address));
    }
    if port.gids.iter().any(|gid| gid.kind == GidKind::V2) {
        let what = format!(
            "{name} has GIDs of link-local addresses only ({}): no target can name it",
            count(port.gids.len(), "GID")
        );
        return Some(finding(Level::Problem, "no-address", what).advise(give_address));
    }
    if port.gids.iter().any(|gid| matches!(gid.kind, GidKind::Unknown(_))) {
        let what = format!(
            "{name}: the kind of its GIDs ({}) cannot be read, so it is not known whether it has RoCE v2",
            count(port.gids.len(), "GID")
        );
        return Some(finding(Level::Warning, "gid-kind", what).advise("see 'ibv_devinfo -v'"));
    }
    let what = format!(
        "{name} has GIDs of RoCE v1 only ({}): their packets are not IP, so no router and few networks carry them, \
         and peers that use v2 cannot be reached",
        count(port.gids.len(), "GID")
    );
    let action = "turn RoCE v2 on: in the driver or the firmware of the card; if it is an old card that has none, use \
                  tcp:// or v1 at both ends ('default_roce_mode' in /sys/kernel/config/rdma_cm)";
    Some(finding(Level::Problem, "roce-v1-only", what).advise(action))
}

/// Targets are IP addresses, which InfiniBand has by IPoIB alone.
fn ipoib(facts: &Facts) -> Option<Finding> {
    let (device, _) = ports(facts).find(|(_, port)| port.fabric == Fabric::InfiniBand)?;
    if facts.netdevs.iter().any(|netdev| netdev.is_ipoib) {
        return None;
    }
    let what = format!(
        "{} is on InfiniBand, and no network device gives it an IP address (IPoIB)",
        device.name
    );
    let action = "'modprobe ib_ipoib', then 'ip link set ib0 up' and 'ip address add 10.0.0.1/24 dev ib0': rdma:// \
                  targets name that address; the data does not go through IPoIB";
    Some(finding(Level::Problem, "no-ipoib", what).advise(action))
}

/// Linux answers ARP for any of its addresses on any device, so that the other side takes one port for another: rdma-core's
/// librdmacm.md.
fn shared_subnets(facts: &Facts) -> Option<Finding> {
    let is_rdma = |name: &str| {
        ports(facts).any(|(_, port)| port.netdev.as_deref() == Some(name))
            || facts.netdev(name).is_some_and(|netdev| netdev.is_ipoib || !netdev.rdma.is_empty())
    };
    let candidates: Vec<_> =
        facts.subnets.iter().filter(|subnet| is_rdma(&subnet.netdev)).collect();
    let (first, second) = candidates.iter().enumerate().find_map(|(index, first)| {
        let second = candidates[index + 1..].iter().find(|second| {
            second.netdev != first.netdev
                && (second.network, second.mask) == (first.network, first.mask)
        })?;
        Some((first, second))
    })?;
    let answers_for_others = [first, second]
        .into_iter()
        .any(|subnet| facts.netdev(&subnet.netdev).is_none_or(|netdev| netdev.arp_ignore == 0));
    if !answers_for_others {
        return None;
    }
    let (a, b) = (&first.netdev, &second.netdev);
    let what = format!(
        "{a} and {b} are on one subnet ({}/{}), and each may answer ARP for the other's address: connections then go to \
         the wrong port",
        first.network,
        u32::from(first.mask).count_ones()
    );
    let action = format!(
        "a subnet for each port; or 'sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2' and \
         routes by source address for {a} and {b} (docs/setup.md)"
    );
    Some(finding(Level::Warning, "shared-subnet", what).advise(action))
}

fn firewall(facts: &Facts) -> Option<Finding> {
    const FILTERS: [&str; 3] = ["nf_tables", "ip_tables", "ip6_tables"];
    let modules = facts.host.modules.as_ref()?;
    let loaded: Vec<&str> =
        FILTERS.into_iter().filter(|filter| modules.contains(*filter)).collect();
    if loaded.is_empty() || facts.devices.is_empty() {
        return None;
    }
    let has = |fabric| ports(facts).any(|(_, port)| port.fabric == fabric);
    let mut lets = vec!["the TCP port of tcp:// targets"];
    if has(Fabric::Roce) {
        lets.push("UDP port 4791 for RoCE v2");
    }
    if has(Fabric::Iwarp) {
        lets.push("the TCP port of rdma:// targets for iWARP");
    }
    let what = format!("a packet filter is loaded ({})", loaded.join(", "));
    let action = format!(
        "if connecting fails, let in {}: 'nft list ruleset' or 'iptables-save' shows the rules. Cards pass RoCE by the \
         host's filter, so there look at the network's",
        lets.join(", ")
    );
    Some(finding(Level::Note, "firewall", what).advise(action))
}
