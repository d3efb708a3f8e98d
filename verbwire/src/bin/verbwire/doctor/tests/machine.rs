//! A folder that looks like a machine with one RDMA device, all of it well.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed when dropped.
pub(super) struct Machine(PathBuf);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Machine {
    /// Without any RDMA device, and with one network device.
    pub(super) fn plain() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("verbwire-doctor-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let machine = Self(std::env::temp_dir().join(name));
        machine.netdev("eth0", "4200");
        machine.write(
            "proc/modules",
            "ib_uverbs 163840 1 rdma_rxe, Live 0x0\nrdma_ucm 32768 0 - Live 0x0\n",
        );
        machine.memlock("unlimited");
        machine.write("proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
        machine.write(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n",
        );
        machine.write("proc/self/cgroup", "0::/system.slice/x.service\n");
        machine.write("sys/devices/system/node/node0/cpulist", "0-7\n");
        machine.write("sys/devices/system/node/possible", "0\n");
        machine
    }

    pub(super) fn soft_roce() -> Self {
        let machine = Self::plain();
        machine.device("rxe0", "1: CA", "Ethernet");
        machine.write("sys/class/infiniband/rxe0/parent", "eth0\n");
        machine.gids("rxe0", "RoCE v2");
        machine.provider("rxe");
        machine
    }

    pub(super) fn soft_iwarp() -> Self {
        let machine = Self::plain();
        machine.device("siw0", "4: RNIC", "Ethernet");
        // As kernel 6.1 has it: a MAC, and no file that names the network device.
        machine.port("siw0", "gids/0", "3260:c798:d6a1:0000:0000:0000:0000:0000\n");
        machine.port("siw0", "gid_attrs/types/0", "IB/RoCE v1\n");
        machine.write("sys/class/net/eth0/address", "32:60:c7:98:d6:a1\n");
        machine.provider("siw");
        machine
    }

    /// A card of the family mlx5.
    pub(super) fn roce() -> Self {
        let machine = Self::plain();
        machine.device("mlx5_0", "1: CA", "Ethernet");
        machine.gids("mlx5_0", "RoCE v2");
        machine.card("mlx5_0", "eth0", "mlx5_core");
        machine.provider("mlx5");
        machine
    }

    pub(super) fn infiniband() -> Self {
        let machine = Self::plain();
        machine.device("mlx5_0", "1: CA", "InfiniBand");
        machine.write("sys/class/infiniband/mlx5_0/ports/1/lid", "0x1a\n");
        machine.write(
            "sys/class/infiniband/mlx5_0/ports/1/gids/0",
            "fe80:0000:0000:0000:506b:4b03:00aa:bb01\n",
        );
        machine.write("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1\n");
        machine.netdev("ib0", "2044");
        machine.write("sys/class/net/ib0/type", "32\n");
        machine.card("mlx5_0", "ib0", "mlx5_core");
        machine.provider("mlx5");
        machine
    }

    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    pub(super) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("folders");
        fs::write(path, content).expect("a file");
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.0.join(path);
        assert!(path.exists(), "{} is there to be removed", path.display());
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.expect("removed");
    }

    /// The port's file `name`, of the one device.
    pub(super) fn port(&self, device: &str, name: &str, content: &str) {
        self.write(&format!("sys/class/infiniband/{device}/ports/1/{name}"), content);
    }

    pub(super) fn netdev(&self, name: &str, mtu: &str) {
        let at = format!("sys/class/net/{name}");
        self.write(&format!("{at}/mtu"), mtu);
        self.write(&format!("{at}/operstate"), "up\n");
        self.write(&format!("{at}/type"), "1\n");
    }

    pub(super) fn memlock(&self, limit: &str) {
        let line = format!("Max locked memory         {limit:20} {limit:20} bytes     \n");
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 4096                 files     \n{line}"
        );
        self.write("proc/self/limits", text);
    }

    /// The driver of the card behind an RDMA and a network device.
    pub(super) fn card(&self, device: &str, netdev: &str, driver: &str) {
        let card = format!("sys/devices/pci0000:00/{device}");
        self.write(&format!("{card}/infiniband/{device}/x"), "");
        self.write(&format!("{card}/net/{netdev}/x"), "");
        self.write(&format!("{card}/numa_node"), "0\n");
        for (file, value) in [
            ("current_link_speed", "16.0 GT/s PCIe\n"),
            ("max_link_speed", "16.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
            ("max_link_width", "16\n"),
        ] {
            self.write(&format!("{card}/{file}"), value);
        }
        self.write(&format!("sys/bus/pci/drivers/{driver}/x"), "");
        self.link(&format!("{card}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
        self.link(
            &format!("sys/class/infiniband/{device}/device"),
            &format!("../../../devices/pci0000:00/{device}"),
        );
        self.link(
            &format!("sys/class/net/{netdev}/device"),
            &format!("../../../devices/pci0000:00/{device}"),
        );
    }

    pub(super) fn link(&self, path: &str, to: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("folders");
        symlink(to, path).expect("a link");
    }

    fn device(&self, name: &str, node: &str, link_layer: &str) {
        let at = format!("sys/class/infiniband/{name}");
        self.write(&format!("{at}/node_type"), format!("{node}\n"));
        self.write(&format!("{at}/fw_ver"), "16.35.2000\n");
        for (file, content) in [
            ("state", "4: ACTIVE\n"),
            ("phys_state", "5: LinkUp\n"),
            ("link_layer", &format!("{link_layer}\n")),
            ("rate", "100 Gb/sec (4X EDR)\n"),
            ("lid", "0x0\n"),
            ("counters/port_rcv_errors", "0\n"),
            ("counters/port_rcv_packets", "1000\n"),
            ("hw_counters/packet_seq_err", "0\n"),
            ("hw_counters/rnr_nak_retry_err", "0\n"),
        ] {
            self.port(name, file, content);
        }
        self.write("sys/class/infiniband_verbs/uverbs0/ibdev", format!("{name}\n"));
        self.write("dev/infiniband/uverbs0", "");
        self.write("dev/infiniband/rdma_cm", "");
    }

    /// A link-local GID and one of 10.0.0.1, both of `kind`, and an unused entry.
    pub(super) fn gids(&self, device: &str, kind: &str) {
        for (index, gid) in
            ["fe80:0000:0000:0000:0202:c9ff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a00:0001"]
                .iter()
                .enumerate()
        {
            self.port(device, &format!("gids/{index}"), gid);
            self.port(device, &format!("gid_attrs/types/{index}"), kind);
            self.port(device, &format!("gid_attrs/ndevs/{index}"), "eth0\n");
        }
        self.port(device, "gids/10", "0000:0000:0000:0000:0000:0000:0000:0000");
    }

    /// The libraries, with that of one family.
    fn provider(&self, name: &str) {
        self.write("usr/lib64/libibverbs.so.1", "");
        self.write("usr/lib64/librdmacm.so.1", "");
        self.write(&format!("usr/lib64/libibverbs/lib{name}-rdmav34.so"), "");
        self.write(&format!("etc/libibverbs.d/{name}.driver"), format!("driver {name}\n"));
    }
}
