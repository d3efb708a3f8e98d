use super::machine::Machine;
use super::{findings, fires, the};
use crate::doctor::finding::Level;

#[test]
fn a_machine_without_a_device_is_told_so_and_what_to_add() {
    fires(
        "no-device",
        &Machine::soft_roce(),
        |machine| machine.remove("sys/class/infiniband/rxe0"),
        Level::Warning,
        &["no RDMA device", "rdma link add rxe0 type rxe netdev eth0"],
    );
    assert!(the("no-device", &Machine::plain()).what.contains("no RDMA device"));
}

#[test]
fn a_kernel_without_modules_is_not_told_to_load_one() {
    let machine = Machine::plain();
    machine.remove("proc/modules");
    let action = the("no-device", &machine).action.expect("something to do");
    assert!(!action.contains("modprobe"), "{action}");
}

#[test]
fn a_card_whose_rdma_module_is_missing_is_named() {
    let without = Machine::plain();
    without.card("mlx5_0", "eth0", "mlx5_core");
    fires(
        "card-without-rdma",
        &without,
        |machine| machine.remove("sys/devices/pci0000:00/mlx5_0/infiniband"),
        Level::Warning,
        &["eth0", "mlx5_core", "modprobe mlx5_ib"],
    );
}

#[test]
fn the_only_port_that_is_down_is_a_problem() {
    fires(
        "port-down",
        &Machine::soft_roce(),
        |machine| {
            machine.port("rxe0", "state", "1: DOWN\n");
            machine.port("rxe0", "phys_state", "3: Disabled\n");
        },
        Level::Problem,
        &["rxe0 port 1 is down", "3: Disabled", "ip link set eth0 up"],
    );
}

#[test]
fn a_port_that_is_down_beside_an_active_one_is_a_warning() {
    let machine = Machine::roce();
    machine.write("sys/class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
    assert_eq!(the("port-down", &machine).level, Level::Warning);
}

#[test]
fn an_infiniband_port_in_init_lacks_a_subnet_manager() {
    fires(
        "port-init",
        &Machine::infiniband(),
        |machine| machine.port("mlx5_0", "state", "2: INIT\n"),
        Level::Problem,
        &["waits in INIT for a subnet manager", "opensm"],
    );
}

#[test]
fn a_state_that_nobody_knows_is_shown_as_it_is() {
    for state in ["7: DREAMING\n", "", "4 ACTIVE"] {
        let machine = Machine::roce();
        machine.port("mlx5_0", "state", state);
        let finding = the("port-not-active", &machine);
        assert_eq!(finding.level, Level::Problem, "{state:?}");
        assert!(finding.what.contains(state.trim()), "{state:?}: {}", finding.what);
    }
}

#[test]
fn an_mtu_that_makes_packets_small_is_noted_with_the_size_that_results() {
    for (mtu, payload) in [("1500", "1024"), ("4191", "2048"), ("2143", "1024")] {
        fires(
            "roce-mtu",
            &Machine::roce(),
            |machine| machine.netdev("eth0", mtu),
            Level::Note,
            &[&format!("at most {payload} bytes of 4096"), &format!("MTU of eth0 is {mtu}")],
        );
    }
    let large = Machine::roce();
    large.netdev("eth0", "4192");
    assert!(findings(&large).iter().all(|finding| finding.rule != "roce-mtu"));
    let iwarp = Machine::soft_iwarp();
    iwarp.netdev("eth0", "1500");
    assert!(findings(&iwarp).iter().all(|finding| finding.rule != "roce-mtu"));
}

#[test]
fn counters_that_mean_trouble_are_shown_with_their_numbers() {
    for (counter, rule) in [
        ("counters/port_rcv_errors", "bad-link"),
        ("hw_counters/packet_seq_err", "lost-packets"),
        ("hw_counters/out_of_sequence", "lost-packets"),
        ("hw_counters/local_ack_timeout_err", "lost-packets"),
        ("hw_counters/rnr_nak_retry_err", "receiver-not-ready"),
    ] {
        let name = counter.rsplit('/').next().expect("a name");
        fires(
            rule,
            &Machine::roce(),
            |machine| machine.port("mlx5_0", counter, "17\n"),
            Level::Warning,
            &[&format!("{name} 17"), "mlx5_0 port 1"],
        );
    }
}

#[test]
fn frames_with_wrong_checksums_point_at_the_cable() {
    fires(
        "crc-errors",
        &Machine::roce(),
        |machine| machine.write("sys/class/net/eth0/statistics/rx_crc_errors", "3\n"),
        Level::Warning,
        &["eth0 received 3 frames", "cable"],
    );
}

#[test]
fn a_card_in_a_slow_slot_is_named_with_both_widths() {
    fires(
        "slow-slot",
        &Machine::roce(),
        |machine| machine.write("sys/devices/pci0000:00/mlx5_0/current_link_width", "8\n"),
        Level::Warning,
        &["by 8 lanes of 16.0 GT/s PCIe, and could be by 16"],
    );
}

#[test]
fn the_node_of_a_card_matters_where_there_are_several() {
    fires(
        "numa",
        &Machine::roce(),
        |machine| machine.write("sys/devices/system/node/node1/cpulist", "8-15\n"),
        Level::Note,
        &["NUMA node 0 of 2 nodes", "numactl --cpunodebind=0"],
    );
    let unknown = Machine::roce();
    unknown.write("sys/devices/system/node/node1/cpulist", "8-15\n");
    unknown.write("sys/devices/pci0000:00/mlx5_0/numa_node", "-1\n");
    assert!(findings(&unknown).iter().all(|finding| finding.rule != "numa"));
}

#[test]
fn flow_control_is_a_question_of_roce_cards_only() {
    let finding = the("flow-control", &Machine::roce());
    let action = finding.action.expect("commands");
    assert!(
        action.contains("dcb pfc show dev eth0") && action.contains("mlnx_qos -i eth0"),
        "{action}"
    );
    for machine in [Machine::soft_roce(), Machine::soft_iwarp(), Machine::infiniband()] {
        assert!(findings(&machine).iter().all(|finding| finding.rule != "flow-control"));
    }
}

#[test]
fn ecn_is_shown_where_the_driver_shows_it() {
    let machine = Machine::roce();
    for priority in 0..8 {
        let path = format!("sys/class/net/eth0/ecn/roce_np/enable/{priority}");
        machine.write(&path, if priority == 3 { "1\n" } else { "0\n" });
    }
    let finding = the("flow-control", &machine);
    assert!(finding.what.contains("ECN answers for 1 of 8 priorities"), "{}", finding.what);
}

#[test]
fn devices_in_software_are_called_so() {
    assert!(the("software-device", &Machine::soft_roce()).what.starts_with("rxe0:"));
    assert!(the("software-device", &Machine::soft_iwarp()).what.starts_with("siw0:"));
    assert!(findings(&Machine::roce()).iter().all(|finding| finding.rule != "software-device"));
}
