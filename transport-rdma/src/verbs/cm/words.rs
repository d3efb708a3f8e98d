//! Why an address cannot be used for RDMA, in words.
//!
//! The libraries say `ENODEV`; this looks at what the machine has and says what to do. Owns nothing, and is
//! only called when something has failed.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use verbwire_core::{Error, ErrorKind};

use super::event::{CmEvent, CmEventKind};
use super::sysfs::{DEVICES, entries, text};
use crate::error::PortTaken;
use crate::nic::Wire;
use crate::verbs::channel::NEEDS_IO;
use crate::verbs::ret::{CallError, Errno};

/// What the machine has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Machine {
    /// Whether the connection manager's device file is there.
    has_cm: bool,
    /// Devices by name, in order, with the states of their ports as the kernel words them.
    devices: Vec<(String, Vec<String>)>,
}

impl Machine {
    fn look() -> Self {
        let described = |device: &PathBuf| {
            let name = device.file_name()?.to_str()?.to_owned();
            let ports = entries(&device.join("ports"));
            let states = ports.iter().filter_map(|port| text(&port.join("state")));
            Some((name, states.collect()))
        };
        let mut devices: Vec<_> =
            entries(Path::new(DEVICES)).iter().filter_map(described).collect();
        devices.sort();
        Self { has_cm: Path::new("/dev/infiniband/rdma_cm").exists(), devices }
    }

    /// Why nothing leads to `ip`, and what to do.
    fn explain(&self, ip: IpAddr) -> String {
        if !self.has_cm {
            return "the kernel's RDMA connection manager is not there (/dev/infiniband/rdma_cm): load \
                    the module rdma_ucm"
                .to_owned();
        }
        if self.devices.is_empty() {
            return "this machine has no RDMA device: load its driver, or make a software one with \
                    'rdma link add'"
                .to_owned();
        }
        let names: Vec<&str> = self.devices.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        if ip.is_loopback() {
            return format!(
                "{ip} is a loopback address, which no RDMA device carries: use the address of the \
                 network interface of one of {names}"
            );
        }
        let is_down = |states: &Vec<String>| !states.iter().any(|state| state.contains("ACTIVE"));
        let down: Vec<&str> = self
            .devices
            .iter()
            .filter(|(_, states)| is_down(states))
            .map(|(name, _)| name.as_str())
            .collect();
        let hint = match down.as_slice() {
            [] => String::new(),
            down => format!(" (the link of {} is down)", down.join(", ")),
        };
        format!("no RDMA device of this machine leads to {ip}; it has {names}{hint}")
    }
}

/// A call that failed while an address was looked for.
pub(super) fn unusable(doing: &str, address: SocketAddr, error: CallError) -> Error {
    let machine = Machine::look();
    let kind = match error.errno.0 {
        _ if error.call == NEEDS_IO => {
            let message = format!(
                "failed {doing} {address}: it needs a tokio runtime with I/O, so call 'enable_io' or \
                 'enable_all' on its builder"
            );
            return Error::with_source(ErrorKind::Unsupported, message, error);
        }
        libc::EADDRINUSE => {
            let message = format!(
                "failed {doing} {address}: the port is in use. iWARP devices share TCP's ports, so an \
                 RDMA listener needs one that no TCP listener has"
            );
            return Error::with_source(ErrorKind::LocalResource, message, error);
        }
        libc::EMFILE | libc::ENFILE => {
            let message =
                format!("failed {doing} {address}: out of descriptors, raise 'ulimit -n'");
            return Error::with_source(ErrorKind::LocalResource, message, error);
        }
        _ if !machine.has_cm => ErrorKind::Unsupported,
        _ => ErrorKind::Unreachable,
    };
    let message = format!("failed {doing} {address}: {}", machine.explain(address.ip()));
    Error::with_source(kind, message, error)
}

/// An event that says that an address leads nowhere.
pub(super) fn unresolved(address: SocketAddr, event: &CmEvent) -> Error {
    let call = match event.kind {
        CmEventKind::ROUTE_ERROR => "rdma_resolve_route",
        _ => "rdma_resolve_addr",
    };
    let errno = Errno::returned(event.status);
    if errno.0 == libc::ETIMEDOUT {
        let message = format!("{address} did not answer on its network: is the host up?");
        let error = CallError { call, errno };
        return Error::with_source(ErrorKind::Unreachable, message, error);
    }
    unusable("to resolve", address, CallError { call, errno })
}

/// `IB_CM_REJ_INVALID_SERVICE_ID`: nothing listens there.
const INVALID_SERVICE: i32 = 8;
/// `IB_CM_REJ_STALE_CONN`: the peer still has a connection of this side's.
const STALE: i32 = 10;
/// `IB_CM_REJ_CONSUMER_DEFINED`: the application said no.
const CONSUMER: i32 = 28;
/// What iWARP says when the peer closes instead of answering: an errno, negated.
const RESET: i32 = -libc::ECONNRESET;

/// An event that ends an attempt.
pub(super) fn refused(peer: &str, wire: Wire, event: &CmEvent) -> Error {
    let nothing =
        format!("nothing listens at {peer} over RDMA: check the port, and start the server");
    let words = String::from_utf8_lossy(&event.private_data);
    let words = words.trim_end_matches('\0');
    let status = event.status;
    let message = match (event.kind, status, wire) {
        (CmEventKind::REJECTED, INVALID_SERVICE, Wire::InfiniBand) => nothing,
        (CmEventKind::REJECTED, STALE, Wire::InfiniBand) => {
            format!("{peer} still has an old connection of this machine: try again later")
        }
        (CmEventKind::REJECTED, CONSUMER, _) | (CmEventKind::REJECTED, _, Wire::Iwarp)
            if !words.is_empty() =>
        {
            format!("{peer} refused the connection: {words}")
        }
        // iWARP shares TCP's ports: a TCP service that has heard of no MPA hangs up.
        (CmEventKind::REJECTED, RESET, Wire::Iwarp) => {
            format!("what listens at {peer} does not speak RDMA: is it a port of tcp://?")
        }
        (CmEventKind::REJECTED, ..) => {
            format!("{peer} refused the connection (reason {status})")
        }
        (CmEventKind::UNREACHABLE, ..) => {
            format!(
                "{peer} did not answer a connect request: check the host and the path, and start the server"
            )
        }
        (CmEventKind::DEVICE_REMOVAL, ..) => {
            "the RDMA device was removed while it connected".to_owned()
        }
        (CmEventKind::CONNECT_ERROR, ..) => {
            format!("connecting with {peer} failed: {}", Errno::returned(status))
        }
        (kind, ..) => {
            format!("connecting with {peer} ended with event {} and status {status}", kind.0)
        }
    };
    Error::new(ErrorKind::Unreachable, message)
}

/// `rdma_connect` that failed at once, as iWARP devices do where nothing listens.
pub(super) fn not_connected(peer: &str, error: CallError) -> Error {
    let message = match error.errno.0 {
        libc::ECONNREFUSED => {
            format!("nothing listens at {peer} over RDMA: check the port, and start the server")
        }
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            format!(
                "{peer} did not answer a connect request: check the host and the path, and start the server"
            )
        }
        libc::EADDRINUSE => {
            let message = format!("failed to connect to {peer}: no local port was free");
            return Error::with_source(ErrorKind::LocalResource, message, PortTaken(error.into()));
        }
        _ => format!("failed to connect to {peer}"),
    };
    Error::with_source(ErrorKind::Unreachable, message, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(devices: &[(&str, &str)]) -> Machine {
        let device = |(name, state): &(&str, &str)| ((*name).to_owned(), vec![(*state).to_owned()]);
        Machine { has_cm: true, devices: devices.iter().map(device).collect() }
    }

    fn event(kind: CmEventKind, status: i32, data: &[u8]) -> CmEvent {
        CmEvent { kind, status, private_data: data.to_vec(), request: None, peer_reads: (0, 0) }
    }

    #[test]
    fn each_reason_says_what_to_do() {
        let there: IpAddr = "10.9.0.1".parse().expect("an address");
        let here: IpAddr = "127.0.0.1".parse().expect("an address");
        let cases = [
            (Machine::default(), there, "load the module rdma_ucm"),
            (machine(&[]), there, "this machine has no RDMA device"),
            (machine(&[("rxe0", "4: ACTIVE")]), here, "127.0.0.1 is a loopback address"),
            (machine(&[("rxe0", "1: DOWN")]), there, "(the link of rxe0 is down)"),
            (machine(&[("rxe0", "4: ACTIVE")]), there, "leads to 10.9.0.1; it has rxe0"),
        ];
        for (machine, ip, words) in cases {
            let text = machine.explain(ip);
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_port_in_use_says_that_iwarp_shares_it_with_tcp() {
        let error = CallError { call: "rdma_listen", errno: Errno(libc::EADDRINUSE) };
        let error = unusable("listening at", "10.9.1.1:7000".parse().expect("an address"), error);
        assert_eq!(error.kind(), ErrorKind::LocalResource);
        assert!(error.to_string().contains("iWARP devices share TCP's ports"), "{error}");
    }

    #[test]
    fn a_connect_whose_local_port_is_taken_may_be_tried_again_and_no_other() {
        let failed = |errno| {
            let error = CallError { call: "rdma_connect", errno: Errno(errno) };
            not_connected("10.9.1.1:7000", error)
        };
        let taken = failed(libc::EADDRINUSE);
        assert!(PortTaken::is_cause_of(&taken), "{taken}");
        assert!(
            taken.to_string().contains("rdma_connect failed: Address already in use"),
            "{taken}"
        );
        assert!(!PortTaken::is_cause_of(&failed(libc::ECONNREFUSED)));
    }

    #[test]
    fn a_runtime_without_io_is_told_what_to_call() {
        let error = CallError { call: NEEDS_IO, errno: Errno(libc::ENOTSUP) };
        let error = unusable("to resolve", "10.9.1.1:7000".parse().expect("an address"), error);
        assert!(error.to_string().contains("call 'enable_io'"), "{error}");
    }

    #[test]
    fn a_closed_port_and_a_refusal_in_words_are_told_apart() {
        let told = |event| refused("10.9.0.1:7", Wire::InfiniBand, &event).to_string();
        let rejected = CmEventKind::REJECTED;
        assert!(told(event(rejected, INVALID_SERVICE, b"")).starts_with("nothing listens"));
        let words = told(event(rejected, CONSUMER, b"no room\0\0\0"));
        assert_eq!(words, "10.9.0.1:7 refused the connection: no room");
        assert!(told(event(rejected, 99, b"")).ends_with("(reason 99)"));
        assert!(told(event(CmEventKind(77), 5, b"")).contains("event 77"));
        let reset = refused("10.9.1.1:7", Wire::Iwarp, &event(rejected, RESET, b""));
        assert!(reset.to_string().contains("is it a port of tcp://?"), "{reset}");
    }
}
