//! The transports that every case runs over.
//!
//! To add one: a row in [`BACKENDS`], and a target in `Place::target` if it needs a form of its own.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::case::{Need, Time};
use crate::doomed::Death;

/// A transport as cases see it: a column of the table.
#[derive(Debug)]
pub struct Backend {
    /// The column's name.
    pub name: &'static str,
    /// Where servers listen.
    pub place: Place,
    /// The clock of cases that do not ask for a real one.
    pub time: Time,
    /// How a server of it dies.
    pub death: Death,
    /// What it does not have, with the reason that the table gives.
    pub lacks: &'static [(Need, &'static str)],
}

/// Where the servers of a backend listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: the handler runs in the caller's task.
    InProcess,
    /// At a name in this process.
    Mem,
    /// At a port that the system chooses, of one of the loopback interface's addresses.
    Tcp,
    /// The same inside TLS, where both sides have to show certificates.
    Tls,
    /// The same by `auto://`, with RDMA beside it where there is a device.
    Auto,
    /// At a name in this process, and beside it at a host of a network of software NICs.
    AutoFabric,
    /// At a port of the loopback interface inside TLS, and beside it at a host of a network of software NICs.
    AutoTls,
    /// At a socket in the case's own folder.
    Unix,
    /// At a host of a network of software NICs of the case's own, in this process.
    Fabric,
    /// At the address of an RDMA device, which the device lab gives in `LAB_ADDRESS`.
    Rdma,
    /// There by `auto://`: TCP, and the device beside it.
    AutoRdma,
}

const WHOLE: (Need, &str) = (Need::Pieces, "bodies are handed over whole");
const MOVES: (Need, &str) =
    (Need::OnePath, "calls move to another path, which has places of its own");

/// Every transport.
pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "mem",
        place: Place::Mem,
        time: Time::Virtual,
        death: Death::Runtime,
        lacks: &[WHOLE],
    },
    // The same on several threads and the real clock, where tasks really race.
    Backend {
        name: "mem-threads",
        place: Place::Mem,
        time: Time::Real,
        death: Death::Runtime,
        lacks: &[WHOLE],
    },
    Backend { name: "tcp", place: Place::Tcp, time: Time::Real, death: Death::Process, lacks: &[] },
    Backend { name: "tls", place: Place::Tls, time: Time::Real, death: Death::Process, lacks: &[] },
    // TCP, as `auto://` begins, on a machine without RDMA.
    Backend {
        name: "auto",
        place: Place::Auto,
        time: Time::Real,
        death: Death::Process,
        lacks: &[],
    },
    // Calls move from this process to the software NIC while the case runs.
    Backend {
        name: "auto-fabric",
        place: Place::AutoFabric,
        time: Time::Virtual,
        death: Death::Runtime,
        lacks: &[WHOLE, MOVES],
    },
    Backend {
        name: "auto-fabric-threads",
        place: Place::AutoFabric,
        time: Time::Real,
        death: Death::Runtime,
        lacks: &[WHOLE, MOVES],
    },
    // Calls move from TLS to the software NIC, and who their client is with them.
    Backend {
        name: "auto-tls",
        place: Place::AutoTls,
        time: Time::Real,
        death: Death::Runtime,
        lacks: &[MOVES],
    },
    Backend {
        name: "unix",
        place: Place::Unix,
        time: Time::Real,
        death: Death::Process,
        lacks: &[],
    },
    Backend {
        name: "fabric",
        place: Place::Fabric,
        time: Time::Virtual,
        death: Death::Runtime,
        lacks: &[],
    },
    Backend {
        name: "fabric-threads",
        place: Place::Fabric,
        time: Time::Real,
        death: Death::Runtime,
        lacks: &[],
    },
    // Chosen by the device lab, which has one of the two devices at `LAB_ADDRESS` at a time.
    #[cfg(feature = "device")]
    Backend {
        name: "rxe",
        place: Place::Rdma,
        time: Time::Real,
        death: Death::Process,
        lacks: &[],
    },
    #[cfg(feature = "device")]
    Backend {
        name: "siw",
        place: Place::Rdma,
        time: Time::Real,
        death: Death::Process,
        lacks: &[],
    },
    // Calls move from TCP to the device while the case runs.
    #[cfg(feature = "device")]
    Backend {
        name: "auto-rxe",
        place: Place::AutoRdma,
        time: Time::Real,
        death: Death::Process,
        lacks: &[MOVES],
    },
    #[cfg(feature = "device")]
    Backend {
        name: "auto-siw",
        place: Place::AutoRdma,
        time: Time::Real,
        death: Death::Process,
        lacks: &[MOVES],
    },
    Backend {
        name: "in-process",
        place: Place::InProcess,
        time: Time::Virtual,
        death: Death::Runtime,
        lacks: &[(Need::Connection, "there is no connection"), WHOLE],
    },
];

/// The device lab's variable for the address of the device under test.
const LAB_ADDRESS: &str = "LAB_ADDRESS";

/// Whether this program runs in the device lab.
pub(crate) fn is_in_lab() -> bool {
    std::env::var_os(LAB_ADDRESS).is_some()
}

/// Addresses of the loopback interface that servers are given in turns.
pub(crate) const HOSTS: u32 = 250;

/// The address of this turn. Clients have the first one.
pub(crate) fn loopback(turn: u32) -> String {
    format!("127.0.0.{}", 2 + turn % HOSTS)
}

impl Backend {
    /// Why a case with these needs does not apply.
    pub fn lack(&self, needs: &[Need]) -> Option<&'static str> {
        let lack = self.lacks.iter().find(|(need, _)| needs.contains(need));
        lack.map(|(_, reason)| *reason)
    }
}

fn device_address() -> String {
    std::env::var(LAB_ADDRESS).unwrap_or_else(|_| "unset".to_owned())
}

impl Place {
    /// Whether calls go to a device of the lab, whose guest emulates each instruction.
    pub fn is_device(self) -> bool {
        matches!(self, Self::Rdma | Self::AutoRdma)
    }

    /// The transport that calls move to.
    pub fn second(self) -> Option<&'static str> {
        match self {
            Self::AutoFabric | Self::AutoTls => Some("fabric"),
            Self::AutoRdma => Some("rdma"),
            _ => None,
        }
    }

    /// A target that nobody listens at, for a server to bind.
    pub(crate) fn target(self, folder: &Path) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Nobody else takes a port there that a server has left for a moment.
        let host = loopback(number);
        match self {
            Self::InProcess => "none://".to_owned(),
            Self::Mem => format!("mem://conformance-{number}"),
            Self::Tcp => format!("tcp://{host}:0"),
            Self::Auto => format!("{host}:0"),
            Self::AutoFabric => format!("autofabric://conformance-{number}"),
            Self::AutoTls => format!("autofabric://{host}:0"),
            Self::Tls => format!("tls://{host}:0"),
            Self::Fabric => format!("fabric://conformance-{number}/server:0"),
            Self::Rdma => format!("rdma://{}:0", device_address()),
            Self::AutoRdma => format!("auto://{}:0", device_address()),
            Self::Unix => format!("unix://{}/{number}.sock", folder.display()),
        }
    }
}
