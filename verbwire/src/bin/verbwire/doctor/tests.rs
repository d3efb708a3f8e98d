//! Made-up machines: trees of files as kernels write them, one fault in each.

mod driver;
mod hardware;
mod machine;
mod odd;
mod paths;
mod protocol;

use self::machine::Machine;
use super::finding::{Finding, Level};
use super::rules::{self, Build};
use super::{Facts, Tree};

fn findings(machine: &Machine) -> Vec<Finding> {
    let facts = Facts::of(&Tree::new(machine.root()));
    rules::judge(&facts, Build { has_rdma: true })
}

/// The only finding of `rule`.
fn the(rule: &str, machine: &Machine) -> Finding {
    let all = findings(machine);
    let mut of_rule = all.iter().filter(|finding| finding.rule == rule);
    match (of_rule.next(), of_rule.next()) {
        (Some(only), None) => only.clone(),
        found => panic!("{rule}: {found:?} of {all:#?}"),
    }
}

/// Asserts that `rule` says nothing of a machine until `fault` happens to it, then `level` with each of `parts`.
fn fires(
    rule: &str,
    machine: &Machine,
    fault: impl FnOnce(&Machine),
    level: Level,
    parts: &[&str],
) {
    let before = findings(machine);
    assert!(before.iter().all(|finding| finding.rule != rule), "{rule} before: {before:#?}");
    fault(machine);
    let finding = the(rule, machine);
    assert_eq!(finding.level, level, "{finding:?}");
    let text = format!("{} {}", finding.what, finding.action.as_deref().unwrap_or_default());
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn healthy_machines_have_no_problem_and_no_warning() {
    for (name, machine) in [
        ("soft-RoCE", Machine::soft_roce()),
        ("soft-iWARP", Machine::soft_iwarp()),
        ("RoCE", Machine::roce()),
        ("InfiniBand", Machine::infiniband()),
    ] {
        let grave: Vec<_> = findings(&machine)
            .into_iter()
            .filter(|finding| finding.level >= Level::Warning)
            .collect();
        assert!(grave.is_empty(), "{name}: {grave:#?}");
        let port = the("port", &machine);
        assert_eq!(port.level, Level::Ok, "{name}");
        let netdev = if name == "InfiniBand" { " on ib0" } else { " on eth0" };
        assert!(port.what.contains(name) && port.what.contains(netdev), "{name}: {}", port.what);
    }
}
