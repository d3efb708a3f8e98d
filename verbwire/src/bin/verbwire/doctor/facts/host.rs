//! What the machine gives to a process for RDMA: device files, modules, libraries, limits.

use std::collections::BTreeSet;
use std::env::consts::ARCH;

use crate::doctor::tree::{Access, Tree};

#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// Whether the kernel offers verbs to processes (`ib_uverbs`).
    pub(crate) has_verbs_class: bool,
    /// Whether there is a folder `/dev/infiniband`.
    pub(crate) has_device_folder: bool,
    /// `uverbs0` and the RDMA device behind it, with what opening it gave.
    pub(crate) uverbs: Vec<(String, String, Access)>,
    pub(crate) rdma_cm: Access,
    /// `None` where the kernel has no loadable modules or hides them.
    pub(crate) modules: Option<BTreeSet<String>>,
    pub(crate) memlock: Option<Limit>,
    /// Whether the process has CAP_IPC_LOCK, for which the limit does not hold.
    pub(crate) may_exceed_memlock: bool,
    pub(crate) verbs_library: Option<String>,
    pub(crate) cm_library: Option<String>,
    pub(crate) providers: Vec<Provider>,
    pub(crate) container: Option<Container>,
    /// Lines of `rdma.max` of this process's control groups, each with the group's path.
    pub(crate) rdma_limits: Vec<(String, String)>,
    pub(crate) numa_nodes: usize,
}

/// A limit of a process, in bytes. `None` is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) soft: Option<u64>,
    pub(crate) hard: Option<u64>,
}

/// A library of `/etc/libibverbs.d` that drives one family of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Provider {
    /// As `rxe`, or a path.
    pub(crate) name: String,
    pub(crate) file: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    Kubernetes,
    Podman,
    Docker,
    Systemd,
}

impl Host {
    pub(super) fn of(tree: &Tree) -> Self {
        let folders = library_folders(tree);
        let library = |name: &str| {
            let paths = folders.iter().map(|folder| format!("{folder}/{name}"));
            paths.into_iter().find(|path| tree.exists(path))
        };
        Self {
            has_verbs_class: tree.is_folder("sys/class/infiniband_verbs"),
            has_device_folder: tree.is_folder("dev/infiniband"),
            uverbs: uverbs(tree),
            rdma_cm: tree.access("dev/infiniband/rdma_cm"),
            modules: tree.text("proc/modules").map(|text| module_names(&text)),
            memlock: tree.text("proc/self/limits").and_then(|text| memlock(&text)),
            may_exceed_memlock: tree
                .text("proc/self/status")
                .is_some_and(|text| has_ipc_lock(&text)),
            verbs_library: library("libibverbs.so.1"),
            cm_library: library("librdmacm.so.1"),
            providers: providers(tree, &folders),
            container: container(tree),
            rdma_limits: rdma_limits(tree),
            numa_nodes: numa_nodes(tree),
        }
    }
}

fn uverbs(tree: &Tree) -> Vec<(String, String, Access)> {
    let class = "sys/class/infiniband_verbs";
    let nodes = tree.names(class).into_iter();
    nodes
        .filter_map(|node| {
            let device = tree.text(&format!("{class}/{node}/ibdev"))?;
            let access = tree.access(&format!("dev/infiniband/{node}"));
            Some((node, device, access))
        })
        .collect()
}

fn module_names(text: &str) -> BTreeSet<String> {
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// From `Max locked memory  8388608  8388608  bytes`.
fn memlock(text: &str) -> Option<Limit> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut words = line.split_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    };
    Some(Limit { soft: limit()?, hard: limit()? })
}

/// From `CapEff: 000001ffffffffff`.
fn has_ipc_lock(status: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    capabilities.is_some_and(|bits| bits & (1 << CAP_IPC_LOCK) != 0)
}

/// Where the dynamic linker looks, without its cache, whose format is its own affair.
fn library_folders(tree: &Tree) -> Vec<String> {
    let mut folders: Vec<String> = Vec::new();
    if tree.is_this_machine() {
        let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        folders.extend(path.split(':').filter(|folder| folder.starts_with('/')).map(str::to_owned));
    }
    for file in tree.names("etc/ld.so.conf.d") {
        let text = tree.text(&format!("etc/ld.so.conf.d/{file}")).unwrap_or_default();
        folders.extend(text.lines().filter(|line| line.starts_with('/')).map(str::to_owned));
    }
    folders.push(format!("/usr/lib/{ARCH}-linux-gnu"));
    folders.push(format!("/lib/{ARCH}-linux-gnu"));
    folders.extend(["/usr/lib64", "/lib64", "/usr/lib", "/lib"].map(str::to_owned));
    folders
}

/// Lines `driver NAME` of `/etc/libibverbs.d/*.driver`: libibverbs loads `libNAME-rdmavN.so`, from the folder `libibverbs` of its own
/// folder or by the linker's search, and a NAME with a `/` as that path.
fn providers(tree: &Tree, folders: &[String]) -> Vec<Provider> {
    let mut providers = Vec::new();
    for file in tree.names("etc/libibverbs.d").iter().filter(|name| name.ends_with(".driver")) {
        let text = tree.text(&format!("etc/libibverbs.d/{file}")).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("driver"));
        for name in names.map(str::trim).filter(|name| !name.is_empty()) {
            providers
                .push(Provider { name: name.to_owned(), file: provider_file(tree, folders, name) });
        }
    }
    providers
}

fn provider_file(tree: &Tree, folders: &[String], name: &str) -> Option<String> {
    if let Some((folder, name)) = name.rsplit_once('/') {
        let start = format!("{name}-rdmav");
        let file = tree.names(folder).into_iter().find(|file| file.starts_with(&start))?;
        return Some(format!("{folder}/{file}"));
    }
    let start = format!("lib{name}-rdmav");
    folders.iter().flat_map(|folder| [format!("{folder}/libibverbs"), folder.clone()]).find_map(
        |folder| {
            let file = tree.names(&folder).into_iter().find(|file| file.starts_with(&start))?;
            // The link of a package may point to nothing.
            Some(format!("{folder}/{file}")).filter(|path| tree.exists(path))
        },
    )
}

fn container(tree: &Tree) -> Option<Container> {
    let signs = [
        ("var/run/secrets/kubernetes.io", Container::Kubernetes),
        ("run/secrets/kubernetes.io", Container::Kubernetes),
        ("run/.containerenv", Container::Podman),
        (".dockerenv", Container::Docker),
        ("run/systemd/container", Container::Systemd),
    ];
    signs.into_iter().find(|(path, _)| tree.exists(path)).map(|(_, container)| container)
}

/// A limit of any group above holds as well.
fn rdma_limits(tree: &Tree) -> Vec<(String, String)> {
    let text = tree.text("proc/self/cgroup").unwrap_or_default();
    let mut limits = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => "sys/fs/cgroup",
            "rdma" => "sys/fs/cgroup/rdma",
            _ => continue,
        };
        let mut group = path.trim_end_matches('/');
        loop {
            let max = tree.text(&format!("{mount}{group}/rdma.max")).unwrap_or_default();
            let name = if group.is_empty() { "/" } else { group };
            limits.extend(max.lines().map(|line| (name.to_owned(), line.to_owned())));
            match group.rsplit_once('/') {
                Some((above, _)) => group = above,
                None => break,
            }
        }
    }
    limits
}

fn numa_nodes(tree: &Tree) -> usize {
    let is_node = |name: &String| {
        name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
    };
    tree.names("sys/devices/system/node").iter().filter(|name| is_node(name)).count()
}
