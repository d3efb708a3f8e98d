//! Cards, ports, cables, and what the network does to packets.

use super::{active_ports, count, family_of, ports};
use crate::doctor::facts::{Device, Fabric, Facts, Kind, Port, PortState};
use crate::doctor::finding::{Finding, Layer, Level};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(no_device(facts));
    findings.extend(cards_without_rdma(facts));
    findings.extend(ports(facts).map(|(device, port)| port_state(facts, device, port)));
    findings
        .extend(active_ports(facts).filter_map(|(device, port)| packet_size(facts, device, port)));
    findings.extend(ports(facts).flat_map(|(device, port)| counters(device, port)));
    findings.extend(facts.netdevs.iter().filter_map(|netdev| {
        let is_used = ports(facts).any(|(_, port)| port.netdev.as_ref() == Some(&netdev.name));
        (is_used && netdev.crc_errors > 0).then(|| {
            let what = format!("{} received {} frames with a wrong checksum", netdev.name, netdev.crc_errors);
            finding(Level::Warning, "crc-errors", what)
                .advise("if it grows from one run to the next, clean or replace the cable and the transceivers")
        })
    }));
    findings.extend(facts.devices.iter().filter_map(slow_slot));
    findings.extend(facts.devices.iter().filter_map(|device| numa(facts, device)));
    findings
        .extend(active_ports(facts).filter_map(|(device, port)| flow_control(facts, device, port)));
    findings.extend(software(facts));
    findings
}

fn finding(level: Level, rule: &'static str, what: impl Into<String>) -> Finding {
    Finding::new(Layer::Hardware, level, rule, what)
}

fn no_device(facts: &Facts) -> Option<Finding> {
    if !facts.devices.is_empty() {
        return None;
    }
    let netdev = facts.netdevs.iter().find(|netdev| netdev.name != "lo" && netdev.state == "up");
    let netdev = netdev.map_or("NETDEV", |netdev| netdev.name.as_str());
    let action = if facts.host.modules.is_none() {
        "use tcp:// targets here: this kernel shows no loadable modules, so no software device can be added either \
         (docs/lab.md)"
            .to_owned()
    } else {
        format!(
            "use tcp:// targets here; or for tests add a software device: 'modprobe rdma_rxe' and \
             'rdma link add rxe0 type rxe netdev {netdev}' (docs/setup.md)"
        )
    };
    let what = "this machine shows no RDMA device (/sys/class/infiniband is missing or empty): calls go over TCP";
    Some(finding(Level::Warning, "no-device", what).advise(action))
}

fn cards_without_rdma(facts: &Facts) -> impl Iterator<Item = Finding> {
    facts.netdevs.iter().filter_map(|netdev| {
        let family = family_of(netdev.driver.as_deref()?)?;
        let module = family.module;
        let is_loaded =
            facts.host.modules.as_ref().is_some_and(|modules| modules.contains(module));
        if !netdev.rdma.is_empty() || is_loaded {
            return None;
        }
        let what = format!(
            "{} is of a family that has RDMA (driver {}), but has no RDMA device: module {module} is not loaded",
            netdev.name, family.driver
        );
        let action = format!(
            "'modprobe {module}'; if that fails, see 'dmesg', and whether RDMA is off in the card's firmware or the \
             virtual machine's settings"
        );
        Some(finding(Level::Warning, "card-without-rdma", what).advise(action))
    })
}

fn port_state(facts: &Facts, device: &Device, port: &Port) -> Finding {
    let name = format!("{} port {}", device.name, port.number);
    let netdev = port.netdev.as_deref();
    let on = netdev.map(|netdev| format!(" on {netdev}")).unwrap_or_default();
    let is_only = active_ports(facts).next().is_none();
    let down = if is_only { Level::Problem } else { Level::Warning };
    match &port.state {
        PortState::Active => {
            let firmware =
                device.firmware.as_deref().map(|version| format!(", firmware {version}"));
            let board = device.board.as_deref().map(|board| format!(", board {board}"));
            let what = format!(
                "{name} is active: {} by {}{on}, {}{}{}",
                port.fabric,
                device.kind,
                if port.rate.is_empty() { "unknown rate" } else { &port.rate },
                firmware.unwrap_or_default(),
                board.unwrap_or_default(),
            );
            finding(Level::Ok, "port", what)
        }
        PortState::Down => {
            let what =
                format!("{name} is down (physical state {}){on}", or_unknown(&port.physical));
            finding(down, "port-down", what).advise(bring_up(port))
        }
        PortState::Init if port.fabric == Fabric::InfiniBand => {
            let what = format!(
                "{name} has a link and waits in INIT for a subnet manager (its LID is {})",
                port.lid.map_or("unknown".to_owned(), |lid| lid.to_string())
            );
            finding(down, "port-init", what).advise(
                "start a subnet manager on the fabric: on a managed switch, or 'opensm' on one host; 'sminfo' shows \
                 which one is at work",
            )
        }
        PortState::Init | PortState::Armed => {
            let what = format!("{name} is not active yet{on}: its state is {:?}", port.state);
            finding(down, "port-not-active", what).advise(
                "run the doctor again in some seconds; if it stays so, see 'dmesg' and 'rdma link'",
            )
        }
        PortState::Unknown(text) => {
            let what = format!("{name} has no state that is known: {text:?}");
            finding(down, "port-not-active", what)
                .advise("see 'rdma link' and 'dmesg'; the device may just have gone")
        }
    }
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

fn bring_up(port: &Port) -> String {
    match (port.fabric, &port.netdev) {
        (Fabric::InfiniBand, _) => {
            "check the cable and the other end's port; 'ibstat' and 'iblinkinfo' show both ends"
                .to_owned()
        }
        (_, Some(netdev)) => {
            format!(
                "'ip link set {netdev} up'; if it stays down, check the cable, the transceiver and the switch's port \
                 ('ethtool {netdev}')"
            )
        }
        (_, None) => {
            "take the network device below it up ('rdma link' names it), and check its cable"
                .to_owned()
        }
    }
}

/// What a packet may carry over RoCE: the largest of InfiniBand's sizes that fits behind 96 bytes of headers, as the kernel
/// reckons (`iboe_get_mtu`). soft-RoCE leaves 80 for them, which gives the same size for the usual settings.
fn roce_payload(mtu: u64) -> Option<u64> {
    [4096, 2048, 1024, 512, 256].into_iter().find(|size| size + 96 <= mtu)
}

fn packet_size(facts: &Facts, device: &Device, port: &Port) -> Option<Finding> {
    if port.fabric != Fabric::Roce {
        return None;
    }
    let netdev = facts.netdev(port.netdev.as_deref()?)?;
    let mtu = netdev.mtu?;
    let payload = roce_payload(mtu).unwrap_or(0);
    if payload == 4096 {
        return None;
    }
    let what = format!(
        "{} port {}: packets carry at most {payload} bytes of 4096, because the MTU of {} is {mtu}",
        device.name, port.number, netdev.name
    );
    let action = format!(
        "if every switch and host on the way takes it: 'ip link set {} mtu 4200' or more (9000 is usual), at both ends; \
         'ping -M do -s 4172 PEER' shows whether it gets through",
        netdev.name
    );
    Some(finding(Level::Note, "roce-mtu", what).advise(action))
}

/// Counters that mean trouble, with what each counts. Those of the first kind are InfiniBand's own; of the others each driver
/// has some (mlx5, irdma, bnxt_re, rxe).
const BAD_LINK: [&str; 6] = [
    "port_rcv_errors",
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_remote_physical_errors",
];
const LOST_PACKETS: [&str; 9] = [
    "packet_seq_err",
    "out_of_sequence",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "port_xmit_discards",
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "completer_retry_err",
];
const NOT_READY: [&str; 4] =
    ["rnr_nak_retry_err", "out_of_buffer", "retry_rnr_exceeded_err", "rcvd_rnr_err"];

fn counters(device: &Device, port: &Port) -> impl Iterator<Item = Finding> {
    const AGAIN: &str =
        "they count since the driver was loaded; what grows from one run to the next matters";
    let seen = |names: &[&str]| {
        let counts = names.iter().filter_map(|name| {
            let count = port.counters.get(*name).filter(|count| **count > 0)?;
            Some(format!("{name} {count}"))
        });
        counts.collect::<Vec<_>>().join(", ")
    };
    let kinds: [(&[&str], _, _, &str); 3] = [
        (
            &BAD_LINK,
            "bad-link",
            "errors on the link",
            "clean or replace the cable and transceivers if they grow",
        ),
        (
            &LOST_PACKETS,
            "lost-packets",
            "packets were lost or came out of order",
            "if they grow under load, the network drops RDMA packets: set PFC or ECN on switches and hosts \
             (docs/setup.md), or look for a bad link",
        ),
        (
            &NOT_READY,
            "receiver-not-ready",
            "messages came where no receive was posted",
            "some program posts receives too slowly; verbwire's credits keep its own connections from that",
        ),
    ];
    let name = format!("{} port {}", device.name, port.number);
    kinds.into_iter().filter_map(move |(names, rule, meaning, action)| {
        let seen = seen(names);
        let what = format!("{name}: {meaning}: {seen}");
        (!seen.is_empty())
            .then(|| finding(Level::Warning, rule, what).advise(format!("{action}; {AGAIN}")))
    })
}

/// A card in a slot with fewer or slower lanes than it has itself.
fn slow_slot(device: &Device) -> Option<Finding> {
    let pcie = device.pcie.as_ref()?;
    if pcie.width == pcie.best_width && pcie.speed == pcie.best_speed {
        return None;
    }
    let what = format!(
        "{} is linked to this machine by {} lanes of {}, and could be by {} of {}",
        device.name, pcie.width, pcie.speed, pcie.best_width, pcie.best_speed
    );
    let action = "put the card into a slot of its own speed and width, or seat it anew; 'lspci -vv' shows LnkCap and LnkSta";
    Some(finding(Level::Warning, "slow-slot", what).advise(action))
}

fn numa(facts: &Facts, device: &Device) -> Option<Finding> {
    let node = device.numa.filter(|_| facts.host.numa_nodes > 1)?;
    let what = format!(
        "{} is at NUMA node {node} of {}",
        device.name,
        count(facts.host.numa_nodes, "node")
    );
    let action = format!(
        "run what calls over it there: 'numactl --cpunodebind={node} --membind={node} PROGRAM'"
    );
    Some(finding(Level::Note, "numa", what).advise(action))
}

/// Whether pauses and marks are on is in no file that all drivers have, so this names the commands.
fn flow_control(facts: &Facts, device: &Device, port: &Port) -> Option<Finding> {
    let Kind::Card(driver) = &device.kind else { return None };
    if port.fabric != Fabric::Roce {
        return None;
    }
    let netdev = port.netdev.as_deref().unwrap_or("NETDEV");
    let ecn = match facts.netdev(netdev).and_then(|netdev| netdev.ecn) {
        Some((on, of)) => format!("ECN answers for {on} of {of} priorities"),
        None => "this driver shows its ECN settings in no file".to_owned(),
    };
    let what = format!(
        "{} port {}: RoCE wants a network that drops little. {ecn}; priority flow control is in no file either",
        device.name, port.number
    );
    let vendor = match driver.as_deref() {
        Some("mlx5_core") => format!(", 'mlnx_qos -i {netdev}'"),
        _ => String::new(),
    };
    let action = format!(
        "look at both ends and the switches: 'dcb pfc show dev {netdev}'{vendor}, 'ethtool -a {netdev}', \
         'ethtool -S {netdev} | grep -i -e pause -e prio' (docs/setup.md)"
    );
    Some(finding(Level::Note, "flow-control", what).advise(action))
}

fn software(facts: &Facts) -> Option<Finding> {
    let names: Vec<&str> = facts
        .devices
        .iter()
        .filter(|device| !matches!(device.kind, Kind::Card(_)))
        .map(|device| device.name.as_str())
        .collect();
    let what =
        format!("{}: devices in software, for tests; their speed says nothing", names.join(", "));
    (!names.is_empty()).then(|| finding(Level::Note, "software-device", what))
}
