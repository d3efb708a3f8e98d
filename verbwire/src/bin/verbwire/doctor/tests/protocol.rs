use super::machine::Machine;
use super::{findings, fires, the};
use crate::doctor::finding::Level;

#[test]
fn gids_that_targets_can_name_are_shown_with_their_index() {
    assert!(the("gids", &Machine::soft_roce()).what.contains("10.0.0.1 (index 1)"));
}

#[test]
fn a_port_with_gids_of_v1_only_is_a_problem() {
    fires(
        "roce-v1-only",
        &Machine::roce(),
        |machine| machine.gids("mlx5_0", "IB/RoCE v1"),
        Level::Problem,
        &["mlx5_0 port 1 has GIDs of RoCE v1 only (2 GIDs)", "default_roce_mode"],
    );
}

#[test]
fn v1_beside_v2_is_usual() {
    let machine = Machine::roce();
    machine.port("mlx5_0", "gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0001");
    machine.port("mlx5_0", "gid_attrs/types/2", "IB/RoCE v1\n");
    assert!(findings(&machine).iter().all(|finding| finding.rule != "roce-v1-only"));
    assert_eq!(the("gids", &machine).level, Level::Ok);
}

#[test]
fn a_port_with_link_local_gids_only_has_no_address_that_a_target_could_name() {
    fires(
        "no-address",
        &Machine::roce(),
        |machine| machine.remove("sys/class/infiniband/mlx5_0/ports/1/gids/1"),
        Level::Problem,
        &["link-local addresses only (1 GID)", "ip address add", "dev eth0"],
    );
}

#[test]
fn a_roce_port_without_a_gid_is_a_problem() {
    fires(
        "no-gid",
        &Machine::roce(),
        |machine| machine.remove("sys/class/infiniband/mlx5_0/ports/1/gids"),
        Level::Problem,
        &["mlx5_0 port 1 has no GID"],
    );
}

#[test]
fn gids_whose_kind_cannot_be_read_are_not_taken_for_v1() {
    fires(
        "gid-kind",
        &Machine::roce(),
        |machine| machine.remove("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types"),
        Level::Warning,
        &["cannot be read", "ibv_devinfo -v"],
    );
}

#[test]
fn the_kind_of_gids_is_no_question_of_iwarp_and_infiniband() {
    for machine in [Machine::soft_iwarp(), Machine::infiniband()] {
        for rule in ["roce-v1-only", "no-address", "no-gid", "gids"] {
            assert!(findings(&machine).iter().all(|finding| finding.rule != rule), "{rule}");
        }
    }
}

#[test]
fn infiniband_without_ipoib_has_no_addresses() {
    fires(
        "no-ipoib",
        &Machine::infiniband(),
        |machine| machine.write("sys/class/net/ib0/type", "1\n"),
        Level::Problem,
        &["mlx5_0 is on InfiniBand", "modprobe ib_ipoib"],
    );
}

/// A card with a second network device, on the subnet that `route` says.
fn second_port(machine: &Machine, route: &str) {
    machine.netdev("eth1", "4200");
    machine.card("mlx5_1", "eth1", "mlx5_core");
    machine.write(
        "proc/net/route",
        format!(
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
             eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n\
             eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
             {route}\n"
        ),
    );
}

#[test]
fn two_ports_on_one_subnet_are_warned_of_unless_arp_keeps_them_apart() {
    let both = "eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF";
    fires(
        "shared-subnet",
        &Machine::roce(),
        |machine| second_port(machine, both),
        Level::Warning,
        &["eth0 and eth1", "10.0.0.0/24", "arp_announce=2"],
    );
    let apart = Machine::roce();
    second_port(&apart, "eth1\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF");
    assert!(findings(&apart).iter().all(|finding| finding.rule != "shared-subnet"));
    let set = Machine::roce();
    second_port(&set, both);
    set.write("proc/sys/net/ipv4/conf/all/arp_ignore", "1\n");
    assert!(findings(&set).iter().all(|finding| finding.rule != "shared-subnet"));
}

#[test]
fn a_packet_filter_is_noted_with_the_ports_of_the_fabric() {
    let filter = |machine: &Machine| machine.write("proc/modules", "nf_tables 1 0 - Live 0x0\n");
    fires("firewall", &Machine::roce(), filter, Level::Note, &["nf_tables", "UDP port 4791"]);
    fires(
        "firewall",
        &Machine::soft_iwarp(),
        filter,
        Level::Note,
        &["TCP port of rdma:// targets"],
    );
}
