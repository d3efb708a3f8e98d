//! From facts to findings. Pure: reads no file and connects nowhere.

mod driver;
mod hardware;
mod protocol;
mod tries;

pub(super) use tries::judge as judge_tries;

use super::facts::{Device, Facts, Port, PortState};
use super::finding::Finding;

/// What this program was built with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Build {
    pub(super) has_rdma: bool,
}

/// What is to be said about a machine.
pub(super) fn judge(facts: &Facts, build: Build) -> Vec<Finding> {
    let mut findings = hardware::judge(facts);
    findings.extend(driver::judge(facts, build));
    findings.extend(protocol::judge(facts));
    findings
}

/// A family of cards: the kernel driver of the PCI function, the module that makes RDMA devices of it, and the name of its
/// library in `/etc/libibverbs.d`. From `drivers/infiniband/hw` of the kernel and `providers` of rdma-core.
struct Family {
    driver: &'static str,
    module: &'static str,
    provider: &'static str,
}

const FAMILIES: [Family; 12] = [
    Family { driver: "mlx5_core", module: "mlx5_ib", provider: "mlx5" },
    Family { driver: "mlx4_core", module: "mlx4_ib", provider: "mlx4" },
    Family { driver: "ice", module: "irdma", provider: "irdma" },
    Family { driver: "i40e", module: "irdma", provider: "irdma" },
    Family { driver: "bnxt_en", module: "bnxt_re", provider: "bnxt_re" },
    Family { driver: "cxgb4", module: "iw_cxgb4", provider: "cxgb4" },
    Family { driver: "qede", module: "qedr", provider: "qedr" },
    Family { driver: "hns3", module: "hns_roce_hw_v2", provider: "hns" },
    Family { driver: "mana", module: "mana_ib", provider: "mana" },
    Family { driver: "efa", module: "efa", provider: "efa" },
    Family { driver: "vmw_pvrdma", module: "vmw_pvrdma", provider: "vmw_pvrdma" },
    Family { driver: "hfi1", module: "hfi1", provider: "hfi1verbs" },
];

fn family_of(driver: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.driver == driver)
}

/// Every port with its device.
fn ports(facts: &Facts) -> impl Iterator<Item = (&Device, &Port)> {
    facts.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

fn active_ports(facts: &Facts) -> impl Iterator<Item = (&Device, &Port)> {
    ports(facts).filter(|(_, port)| port.state == PortState::Active)
}

/// `3 things`, or `1 thing`.
fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}
