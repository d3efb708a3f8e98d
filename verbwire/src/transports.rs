//! From a target's scheme to the transport that carries it.

use std::sync::Arc;
#[cfg(feature = "rdma")]
use std::sync::LazyLock;

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

/// The transport of `target`.
///
/// # Errors
///
/// `Unsupported`, with what to use instead: no transport has that name, or this build does not have it.
pub(crate) fn of(target: &Target) -> Result<Arc<dyn Transport>, Error> {
    match target.scheme() {
        "mem" => Ok(Arc::new(MemTransport)),
        #[cfg(feature = "tcp")]
        "tcp" => Ok(Arc::new(verbwire_tcp::TcpTransport::default())),
        #[cfg(feature = "tcp")]
        "unix" => Ok(Arc::new(verbwire_tcp::UnixTransport::default())),
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
        "auto" => Err(unsupported(target, "comes later: name the transport until then")),
        _ => {
            let known: Vec<_> = BUILT.iter().map(|scheme| format!("{scheme}://")).collect();
            let why = format!("is no transport: this build has {}", known.join(", "));
            Err(unsupported(target, &why))
        }
    }
}

/// The schemes of this build.
const BUILT: &[&str] = &[
    "mem",
    #[cfg(feature = "tcp")]
    "tcp",
    #[cfg(feature = "tcp")]
    "unix",
    #[cfg(feature = "rdma")]
    "rdma",
    #[cfg(feature = "fabric")]
    "fabric",
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
        let error = of(&target).err().expect("no such transport");
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
        for scheme in ["mem", "tcp", "unix", "rdma", "fabric"] {
            let target = format!("{scheme}://a/b:1").parse().expect("well-formed");
            let is_built = of(&target).is_ok();
            assert_eq!(known.contains(&format!("{scheme}://")), is_built, "{scheme}: {known}");
        }
    }

    #[test]
    fn auto_says_that_it_comes_later() {
        assert!(refusal("auto://10.0.0.1:7000").contains("comes later"));
    }
}
