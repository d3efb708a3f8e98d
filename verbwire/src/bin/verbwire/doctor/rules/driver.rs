//! The kernel's modules, device files, libraries and limits.

use super::{Build, family_of};
use crate::doctor::facts::{Container, Facts, Kind};
use crate::doctor::finding::{Finding, Layer, Level};
use crate::doctor::tree::Access;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// What one connection locks with default settings, of the size of its receives and sends, and its queues
/// (docs/large-payloads.md).
const ONE_CONNECTION: u64 = 2 * MIB;
/// What a device may lock for long messages with default settings: `landing.size.cap` and `staging.cap`.
const LONG_MESSAGES: u64 = 1024 * MIB;

pub(super) fn judge(facts: &Facts, build: Build) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !build.has_rdma {
        let what = "this build has no rdma:// targets: it was built without the feature rdma";
        let action = "cargo build -p verbwire --features rdma (docs/setup.md says what that needs)";
        findings.push(finding(Level::Note, "build", what).advise(action));
    }
    // Without a device these would be advice for nothing.
    if facts.devices.is_empty() {
        return findings;
    }
    findings.extend(device_files(facts));
    findings.extend(connection_manager(facts));
    findings.extend(libraries(facts));
    findings.extend(providers(facts));
    findings.extend(memlock(facts));
    findings.extend(group_limits(facts));
    findings
}

fn finding(level: Level, rule: &'static str, what: impl Into<String>) -> Finding {
    Finding::new(Layer::Driver, level, rule, what)
}

/// How a container is given the device files.
fn into_container(container: Container) -> &'static str {
    match container {
        Container::Kubernetes => {
            "this is a container of Kubernetes: the pod must ask for the resource of an RDMA device plugin \
             (docs/setup.md)"
        }
        Container::Podman | Container::Docker => {
            "this is a container: start it with '--device /dev/infiniband --ulimit memlock=-1'"
        }
        Container::Systemd => {
            "this is a container of systemd: bind /dev/infiniband into it and allow its devices ('DeviceAllow=')"
        }
    }
}

fn device_files(facts: &Facts) -> Vec<Finding> {
    let host = &facts.host;
    if !host.has_verbs_class {
        let what =
            "there are RDMA devices, but programs cannot use them: module ib_uverbs is not loaded";
        let action = "'modprobe ib_uverbs', and add it to /etc/modules-load.d";
        return vec![finding(Level::Problem, "no-uverbs", what).advise(action)];
    }
    if !host.has_device_folder {
        let what =
            format!("/dev/infiniband is missing, and with it every device file: {}", names(facts));
        let action = host.container.map_or(
            "the kernel makes them where /dev is a devtmpfs ('findmnt /dev'); elsewhere 'udevadm trigger' or mdev does",
            into_container,
        );
        return vec![finding(Level::Problem, "no-device-files", what).advise(action)];
    }
    let shut = |(node, device, access): &(String, String, Access)| match access {
        Access::Opens => None,
        Access::Missing => {
            let action = host.container.map_or(
                "'udevadm trigger --subsystem-match=infiniband_verbs'; did the device go just now?",
                into_container,
            );
            let what = format!("/dev/infiniband/{node}, the device file of {device}, is missing");
            Some(finding(Level::Problem, "device-file", what).advise(action))
        }
        Access::Refused(why) => {
            let what = format!(
                "/dev/infiniband/{node}, the device file of {device}, cannot be opened: {why}"
            );
            Some(finding(Level::Problem, "device-file", what).advise(permissions(node)))
        }
    };
    host.uverbs.iter().filter_map(shut).collect()
}

fn names(facts: &Facts) -> String {
    let names: Vec<&str> = facts.devices.iter().map(|device| device.name.as_str()).collect();
    names.join(", ")
}

fn permissions(node: &str) -> String {
    format!(
        "'ls -l /dev/infiniband/{node}' shows who may: the kernel lets everybody (0666); where a rule of udev \
         gives it to a group, often rdma, join that; in a container its device must be allowed as well"
    )
}

fn connection_manager(facts: &Facts) -> Option<Finding> {
    // The folder's own finding says it already.
    if !facts.host.has_device_folder {
        return None;
    }
    match &facts.host.rdma_cm {
        Access::Opens => None,
        Access::Missing => {
            let what = "/dev/infiniband/rdma_cm is missing: no connection can be made or taken";
            let action = facts
                .host
                .container
                .map_or("'modprobe rdma_ucm', and add it to /etc/modules-load.d", into_container);
            Some(finding(Level::Problem, "no-rdma-cm", what).advise(action))
        }
        Access::Refused(why) => {
            let what = format!("/dev/infiniband/rdma_cm cannot be opened: {why}");
            Some(finding(Level::Problem, "no-rdma-cm", what).advise(permissions("rdma_cm")))
        }
    }
}

fn libraries(facts: &Facts) -> Option<Finding> {
    let host = &facts.host;
    let wanted = [("libibverbs.so.1", &host.verbs_library), ("librdmacm.so.1", &host.cm_library)];
    let missing: Vec<&str> =
        wanted.into_iter().filter(|(_, found)| found.is_none()).map(|(name, _)| name).collect();
    if missing.is_empty() {
        return None;
    }
    let what = format!("not found where the linker looks: {}", missing.join(", "));
    let action = "Debian, Ubuntu: apt-get install ibverbs-providers librdmacm1; RHEL, Fedora: dnf install libibverbs librdmacm";
    Some(finding(Level::Problem, "libraries", what).advise(action))
}

/// The name in `/etc/libibverbs.d` of the library that a device needs, where that is known.
fn provider_of(kind: &Kind) -> Option<&'static str> {
    match kind {
        Kind::SoftRoce => Some("rxe"),
        Kind::SoftIwarp => Some("siw"),
        Kind::Card(driver) => family_of(driver.as_deref()?).map(|family| family.provider),
    }
}

fn providers(facts: &Facts) -> Vec<Finding> {
    let install = "Debian, Ubuntu: apt-get install ibverbs-providers; RHEL, Fedora: dnf install libibverbs; \
                   'ibv_devices' then lists the device";
    let mut findings = Vec::new();
    for device in &facts.devices {
        let Some(name) = provider_of(&device.kind) else { continue };
        let is_it = |known: &str| known == name || known.ends_with(&format!("/lib{name}"));
        let known = facts.host.providers.iter().find(|provider| is_it(&provider.name));
        let what = match known {
            Some(provider) if provider.file.is_some() => continue,
            Some(_) => format!(
                "{} needs the library lib{name}-rdmavN.so, which /etc/libibverbs.d names and no folder has",
                device.name
            ),
            None => format!(
                "{} needs the library of driver {name}, which /etc/libibverbs.d does not name",
                device.name
            ),
        };
        findings.push(finding(Level::Problem, "provider", what).advise(install));
    }
    findings
}

fn memlock(facts: &Facts) -> Option<Finding> {
    let limit = facts.host.memlock?;
    let bytes = limit.soft.filter(|bytes| *bytes < LONG_MESSAGES)?;
    let has_siw = facts.devices.iter().any(|device| device.kind == Kind::SoftIwarp);
    let mut level = if bytes < ONE_CONNECTION { Level::Problem } else { Level::Warning };
    let mut what = format!(
        "this process may lock {} of memory; one connection takes about 1 MiB, long messages up to 1 GiB per device",
        size(bytes)
    );
    if facts.host.may_exceed_memlock {
        // soft-iWARP of kernel 6.1 does not ask for the capability (seen in the lab).
        level = if has_siw { Level::Warning } else { Level::Note };
        what += if has_siw {
            "; it has CAP_IPC_LOCK, for which soft-iWARP of older kernels does not ask"
        } else {
            "; it has CAP_IPC_LOCK, for which the limit does not hold, as programs of other users may not"
        };
    }
    let above = match limit.hard {
        None => "'ulimit -l unlimited' in this shell",
        Some(_) => {
            "its hard limit is too low as well: raise it in /etc/security/limits.d and log in anew"
        }
    };
    let action = format!(
        "{above}; 'LimitMEMLOCK=infinity' in a unit of systemd; '--ulimit memlock=-1' of a container"
    );
    Some(finding(level, "memlock", what).advise(action))
}

fn size(bytes: u64) -> String {
    match bytes {
        0..KIB => format!("{bytes} bytes"),
        KIB..MIB => format!("{} KiB", bytes / KIB),
        _ => format!("{} MiB", bytes / MIB),
    }
}

/// Lines as `mlx5_0 hca_handle=2 hca_object=max`.
fn group_limits(facts: &Facts) -> impl Iterator<Item = Finding> {
    let is_here = |device: &str| facts.devices.iter().any(|known| known.name == device);
    facts.host.rdma_limits.iter().filter_map(move |(group, line)| {
        let (device, limits) = line.split_once(' ')?;
        let limited: Vec<&str> =
            limits.split_whitespace().filter(|limit| !limit.ends_with("=max")).collect();
        if limited.is_empty() || !is_here(device) {
            return None;
        }
        let is_shut = limited.iter().any(|limit| limit.ends_with("=0"));
        let level = if is_shut { Level::Problem } else { Level::Warning };
        let what = format!("control group {group} limits {device} to {}", limited.join(", "));
        let action = format!(
            "beyond it verbs fail with EAGAIN; raise it: echo '{device} hca_handle=max hca_object=max' > the group's \
             rdma.max, or ask who set it"
        );
        Some(finding(level, "group-limit", what).advise(action))
    })
}
