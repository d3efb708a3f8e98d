use std::fs;

use super::machine::Machine;
use super::{findings, fires, the};
use crate::doctor::finding::Level;
use crate::doctor::rules::{self, Build};
use crate::doctor::{Facts, Tree};

#[test]
fn verbs_without_ib_uverbs_are_a_problem() {
    fires(
        "no-uverbs",
        &Machine::soft_roce(),
        |machine| machine.remove("sys/class/infiniband_verbs"),
        Level::Problem,
        &["modprobe ib_uverbs"],
    );
}

#[test]
fn a_missing_device_folder_is_the_containers_fault_in_a_container() {
    fires(
        "no-device-files",
        &Machine::roce(),
        |machine| machine.remove("dev/infiniband"),
        Level::Problem,
        &["/dev/infiniband is missing", "mlx5_0", "udevadm trigger"],
    );
    for (sign, part) in [
        (".dockerenv", "--device /dev/infiniband"),
        ("run/.containerenv", "--ulimit memlock=-1"),
        ("run/systemd/container", "DeviceAllow="),
        ("run/secrets/kubernetes.io/serviceaccount/token", "device plugin"),
    ] {
        let machine = Machine::roce();
        machine.remove("dev/infiniband");
        machine.write(sign, "");
        let action = the("no-device-files", &machine).action.expect("something to do");
        assert!(action.contains(part), "{sign}: {action}");
    }
}

#[test]
fn a_device_file_that_is_missing_or_shut_is_named() {
    fires(
        "device-file",
        &Machine::roce(),
        |machine| machine.remove("dev/infiniband/uverbs0"),
        Level::Problem,
        &["/dev/infiniband/uverbs0", "mlx5_0", "is missing"],
    );
    // A folder cannot be opened for writing by anybody; the tests may run as root, who may open every file.
    fires(
        "device-file",
        &Machine::roce(),
        |machine| {
            machine.remove("dev/infiniband/uverbs0");
            fs::create_dir(machine.root().join("dev/infiniband/uverbs0")).expect("a folder");
        },
        Level::Problem,
        &["/dev/infiniband/uverbs0", "cannot be opened", "ls -l"],
    );
}

#[test]
fn no_connection_is_made_without_rdma_cm() {
    fires(
        "no-rdma-cm",
        &Machine::soft_iwarp(),
        |machine| machine.remove("dev/infiniband/rdma_cm"),
        Level::Problem,
        &["modprobe rdma_ucm"],
    );
    fires(
        "no-rdma-cm",
        &Machine::soft_iwarp(),
        |machine| {
            machine.remove("dev/infiniband/rdma_cm");
            fs::create_dir(machine.root().join("dev/infiniband/rdma_cm")).expect("a folder");
        },
        Level::Problem,
        &["rdma_cm cannot be opened"],
    );
}

#[test]
fn each_library_that_is_missing_is_named() {
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        fires(
            "libraries",
            &Machine::roce(),
            |machine| machine.remove(&format!("usr/lib64/{library}")),
            Level::Problem,
            &[library, "ibverbs-providers", "dnf install"],
        );
    }
}

#[test]
fn libraries_are_found_where_the_linkers_configuration_says() {
    let machine = Machine::roce();
    machine.remove("usr/lib64/libibverbs.so.1");
    machine.write("opt/rdma/libibverbs.so.1", "");
    machine.write("etc/ld.so.conf.d/rdma.conf", "# ours\n/opt/rdma\n");
    assert!(findings(&machine).iter().all(|finding| finding.rule != "libraries"));
}

#[test]
fn the_library_of_a_device_must_be_named_and_there() {
    for (machine, name) in
        [(Machine::soft_roce(), "rxe"), (Machine::soft_iwarp(), "siw"), (Machine::roce(), "mlx5")]
    {
        let library = format!("usr/lib64/libibverbs/lib{name}-rdmav34.so");
        fires(
            "provider",
            &machine,
            |machine| machine.remove(&library),
            Level::Problem,
            &[&format!("lib{name}-rdmavN.so"), "no folder has", "ibverbs-providers"],
        );
        machine.write(&library, "");
        fires(
            "provider",
            &machine,
            |machine| machine.remove(&format!("etc/libibverbs.d/{name}.driver")),
            Level::Problem,
            &[&format!("driver {name}"), "does not name"],
        );
    }
}

#[test]
fn a_link_to_a_library_that_has_gone_is_no_library() {
    let machine = Machine::roce();
    machine.remove("usr/lib64/libibverbs/libmlx5-rdmav34.so");
    machine.link("usr/lib64/libibverbs/libmlx5-rdmav34.so", "../libmlx5.so.1");
    assert_eq!(the("provider", &machine).level, Level::Problem);
    machine.write("usr/lib64/libmlx5.so.1", "");
    assert!(findings(&machine).iter().all(|finding| finding.rule != "provider"));
}

#[test]
fn a_library_may_be_named_by_its_path() {
    let machine = Machine::roce();
    machine.remove("usr/lib64/libibverbs");
    machine.write("etc/libibverbs.d/mlx5.driver", "driver /opt/rdma/libmlx5\n");
    machine.write("opt/rdma/libmlx5-rdmav34.so", "");
    assert!(findings(&machine).iter().all(|finding| finding.rule != "provider"));
}

#[test]
fn a_card_of_an_unknown_family_is_not_said_to_lack_its_library() {
    let machine = Machine::roce();
    machine.remove("sys/devices/pci0000:00/mlx5_0/driver");
    machine.link("sys/devices/pci0000:00/mlx5_0/driver", "../../../bus/pci/drivers/new_core");
    machine.remove("etc/libibverbs.d");
    assert!(findings(&machine).iter().all(|finding| finding.rule != "provider"));
}

#[test]
fn a_memlock_of_64_kib_is_a_problem_and_one_of_8_mib_a_warning() {
    for (limit, level, part) in [
        ("65536", Level::Problem, "may lock 64 KiB"),
        ("0", Level::Problem, "may lock 0 bytes"),
        ("8388608", Level::Warning, "may lock 8 MiB"),
    ] {
        fires(
            "memlock",
            &Machine::roce(),
            |machine| machine.memlock(limit),
            level,
            &[part, "LimitMEMLOCK=infinity", "/etc/security/limits.d"],
        );
    }
    let enough = Machine::roce();
    enough.memlock("1073741824");
    assert!(findings(&enough).iter().all(|finding| finding.rule != "memlock"));
}

#[test]
fn the_limit_does_not_hold_for_a_process_that_may_exceed_it_but_on_soft_iwarp() {
    for (machine, level) in
        [(Machine::roce(), Level::Note), (Machine::soft_iwarp(), Level::Warning)]
    {
        machine.memlock("65536");
        machine.write("proc/self/status", "CapEff:\t000001ffffffffff\n");
        let finding = the("memlock", &machine);
        assert_eq!(finding.level, level, "{}", finding.what);
        assert!(finding.what.contains("CAP_IPC_LOCK"), "{}", finding.what);
    }
}

#[test]
fn limits_of_a_control_group_or_one_above_it_are_shown() {
    for (group, shown) in
        [("/system.slice/x.service", "/system.slice/x.service"), ("/system.slice", "/system.slice")]
    {
        fires(
            "group-limit",
            &Machine::roce(),
            |machine| {
                let max = "mlx5_0 hca_handle=2 hca_object=max\nother hca_handle=1 hca_object=1\n";
                machine.write(&format!("sys/fs/cgroup{group}/rdma.max"), max);
            },
            Level::Warning,
            &[&format!("control group {shown} limits mlx5_0 to hca_handle=2"), "EAGAIN"],
        );
    }
    let shut = Machine::roce();
    shut.write("proc/self/cgroup", "5:rdma:/a\n4:memory:/b\n");
    shut.write("sys/fs/cgroup/rdma/a/rdma.max", "mlx5_0 hca_handle=0 hca_object=max\n");
    assert_eq!(the("group-limit", &shut).level, Level::Problem);
    let free = Machine::roce();
    free.write(
        "sys/fs/cgroup/system.slice/x.service/rdma.max",
        "mlx5_0 hca_handle=max hca_object=max\n",
    );
    assert!(findings(&free).iter().all(|finding| finding.rule != "group-limit"));
}

#[test]
fn a_build_without_rdma_says_so_and_looks_at_the_machine_all_the_same() {
    let machine = Machine::soft_roce();
    machine.port("rxe0", "state", "1: DOWN\n");
    let facts = Facts::of(&Tree::new(machine.root()));
    let rules_of = |has_rdma| -> Vec<&str> {
        rules::judge(&facts, Build { has_rdma }).iter().map(|finding| finding.rule).collect()
    };
    assert!(rules_of(false).contains(&"build") && rules_of(false).contains(&"port-down"));
    assert!(!rules_of(true).contains(&"build"));
}
