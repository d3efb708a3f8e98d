//! From a target's scheme to the transport that carries it.

use std::sync::Arc;
#[cfg(feature = "rdma")]
use std::sync::LazyLock;
#[cfg(feature = "fabric")]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(any(feature = "tcp", feature = "fabric"))]
use verbwire_core::transport::Auto;
use verbwire_core::transport::Transport;
use verbwire_core::transport::mem::MemTransport;
use verbwire_core::{Error, ErrorKind, Target};

/// One for the process, so that its connections share devices, registered memory and completion queues.
#[cfg(feature = "rdma")]
static RDMA: LazyLock<Arc<verbwire_rdma::RdmaTransport>> = LazyLock::new(|| {
    Arc::new(verbwire_rdma::RdmaTransport::over_verbs(
        verbwire_rdma::RdmaConfig::default(),
        verbwire_rdma::verbs::VerbsConfig::default(),
    ))
});

/// What targets with TLS need besides their addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    #[cfg(feature = "tls")]
    pub(crate) client: Option<verbwire_tcp::ClientTls>,
    #[cfg(feature = "tls")]
    pub(crate) server: Option<verbwire_tcp::ServerTls>,
}

impl Tls {
    #[cfg(feature = "tls")]
    fn transport(&self) -> verbwire_tcp::TlsTransport {
        let mut transport = verbwire_tcp::TlsTransport::default();
        if let Some(client) = &self.client {
            transport = transport.connecting(client.clone());
        }
        if let Some(server) = &self.server {
            transport = transport.listening(server.clone());
        }
        transport
    }

    /// How `auto://` begins.
    #[cfg(feature = "tcp")]
    fn first(&self) -> (&'static str, Arc<dyn Transport>) {
        self.encrypted().unwrap_or_else(|| ("tcp", Arc::new(verbwire_tcp::TcpTransport::default())))
    }

    /// The transport with TLS, where that is set.
    #[cfg(any(feature = "tcp", feature = "fabric"))]
    fn encrypted(&self) -> Option<(&'static str, Arc<dyn Transport>)> {
        #[cfg(feature = "tls")]
        if self.client.is_some() || self.server.is_some() {
            return Some(("tls", Arc::new(self.transport())));
        }
        None
    }

    /// A client that was told whom to trust is not connected in the open.
    fn check(&self, target: &Target) -> Result<(), Error> {
        #[cfg(feature = "tls")]
        if self.client.is_some() && !matches!(target.scheme(), "tls" | "auto" | "autofabric") {
            let message = format!(
                "TLS is set for {target}, which does not speak it: write tls://{}",
                target.address()
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let _known = target;
        Ok(())
    }
}

/// The transport of `target`.
///
/// # Errors
///
/// `Unsupported`, with what to use instead: no transport has that name, or this build does not have it. `InvalidInput`: TLS
/// is set for a target without it.
pub(crate) fn of(target: &Target, tls: &Tls) -> Result<Arc<dyn Transport>, Error> {
    tls.check(target)?;
    match target.scheme() {
        "mem" => Ok(Arc::new(MemTransport)),
        #[cfg(feature = "tcp")]
        "tcp" => Ok(Arc::new(verbwire_tcp::TcpTransport::default())),
        #[cfg(feature = "tcp")]
        "unix" => Ok(Arc::new(verbwire_tcp::UnixTransport::default())),
        #[cfg(feature = "tls")]
        "tls" => Ok(Arc::new(tls.transport())),
        #[cfg(not(feature = "tls"))]
        "tls" => {
            Err(unsupported(target, "was left out of this build: turn feature tls of verbwire on"))
        }
        #[cfg(not(feature = "tcp"))]
        "tcp" | "unix" => {
            Err(unsupported(target, "was left out of this build: turn feature tcp of verbwire on"))
        }
        #[cfg(feature = "fabric")]
        "fabric" => Ok(Arc::new(verbwire_rdma::FabricTransport::default())),
        #[cfg(not(feature = "fabric"))]
        "fabric" => Err(unsupported(
            target,
            "was left out of this build: turn feature fabric of verbwire on",
        )),
        #[cfg(feature = "rdma")]
        "rdma" => Ok(Arc::clone(&RDMA) as Arc<dyn Transport>),
        #[cfg(not(feature = "rdma"))]
        "rdma" => Err(unsupported(
            target,
            "was left out of this build: turn feature rdma of verbwire on, or use tcp:// with the same service",
        )),
        #[cfg(feature = "tcp")]
        "auto" => Ok(Arc::new(auto(tls))),
        #[cfg(not(feature = "tcp"))]
        "auto" => Err(unsupported(
            target,
            "begins over TCP, which was left out of this build: turn feature tcp of verbwire on",
        )),
        #[cfg(feature = "fabric")]
        "autofabric" => Ok(Arc::new(auto_fabric(tls))),
        _ => {
            let known: Vec<_> = BUILT.iter().map(|scheme| format!("{scheme}://")).collect();
            let why = format!("is no transport: this build has {}", known.join(", "));
            Err(unsupported(target, &why))
        }
    }
}

/// TCP first, inside TLS where that is set, and RDMA beside it.
#[cfg(feature = "tcp")]
fn auto(tls: &Tls) -> Auto {
    let (scheme, first) = tls.first();
    #[cfg(feature = "rdma")]
    return Auto::new((scheme, first), ("rdma", Arc::clone(&RDMA) as Arc<dyn Transport>));
    #[cfg(not(feature = "rdma"))]
    Auto::alone(scheme, first, "this build has no RDMA: turn feature rdma of verbwire on")
}

/// The same for tests, with the software NIC beside the first: that is this process, and targets are names; or, where TLS is
/// set, TCP inside TLS, and targets are addresses.
#[cfg(feature = "fabric")]
fn auto_fabric(tls: &Tls) -> Auto {
    // A net of its own: the port of an address may not be known yet, and clients are told where to go.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let beside = Target::new("fabric", format!("beside-{number}/server:0"));
    let fabric = Arc::new(verbwire_rdma::FabricTransport::default());
    let first = tls.encrypted().unwrap_or_else(|| ("mem", Arc::new(MemTransport)));
    Auto::new(first, ("fabric", fabric)).listening_at(beside).named("autofabric")
}

/// The schemes of this build.
const BUILT: &[&str] = &[
    #[cfg(feature = "tcp")]
    "auto",
    "mem",
    #[cfg(feature = "tcp")]
    "tcp",
    #[cfg(feature = "tcp")]
    "unix",
    #[cfg(feature = "tls")]
    "tls",
    #[cfg(feature = "rdma")]
    "rdma",
    #[cfg(feature = "fabric")]
    "fabric",
    #[cfg(feature = "fabric")]
    "autofabric",
];

fn unsupported(target: &Target, why: &str) -> Error {
    let message = format!("{target} cannot be used, {}:// {why}", target.scheme());
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(target: &str) -> String {
        let target = target.parse().expect("well-formed");
        let error = of(&target, &Tls::default()).err().expect("no such transport");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        error.to_string()
    }

    #[cfg(not(feature = "rdma"))]
    #[test]
    fn rdma_says_that_this_build_does_not_have_it() {
        assert!(refusal("rdma://10.0.0.1:7000").contains("turn feature rdma of verbwire on"));
    }

    #[test]
    fn an_unknown_scheme_names_the_known_ones() {
        let known = refusal("http://10.0.0.1:7000");
        for scheme in ["mem", "auto", "tcp", "unix", "tls", "rdma", "fabric", "autofabric"] {
            let target = format!("{scheme}://a/b:1").parse().expect("well-formed");
            let is_built = of(&target, &Tls::default()).is_ok();
            assert_eq!(known.contains(&format!("{scheme}://")), is_built, "{scheme}: {known}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn who_is_to_be_trusted_is_not_connected_to_in_the_open() {
        // Nothing is trusted or proved here; only that something was set counts.
        let certificate = rcgen::generate_simple_self_signed(["a".to_owned()]).expect("rcgen");
        let client = verbwire_tcp::ClientTls::from_authority(certificate.cert.pem()).ok();
        let tls = Tls { client, ..Tls::default() };
        let way_to = |target: &str| of(&target.parse().expect("well-formed"), &tls);
        let error = way_to("tcp://10.0.0.1:7000").err().expect("no TLS");
        assert!(error.to_string().ends_with("write tls://10.0.0.1:7000"), "{error}");
        assert!(way_to("tls://10.0.0.1:7000").is_ok());
        assert!(way_to("10.0.0.1:7000").is_ok(), "auto:// begins with TLS then");
    }

    #[cfg(all(feature = "tcp", not(feature = "rdma")))]
    #[test]
    fn without_rdma_auto_says_why_there_is_one_path() {
        let auto = auto(&Tls::default());
        let beside = auto.beside();
        assert!(format!("{beside:?}").contains("turn feature rdma of verbwire on"), "{beside:?}");
    }
}
