//! The certificates of the suite's servers and clients: one authority for a run, which its child processes are given too.

use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use verbwire::tls::{ClientTls, ServerTls};
use verbwire::{Endpoint, Error};

use crate::backends::{HOSTS, loopback};

/// The variables of a child process: authority, certificate, key.
const VARIABLES: [&str; 3] =
    ["VERBWIRE_TEST_AUTHORITY", "VERBWIRE_TEST_CHAIN", "VERBWIRE_TEST_KEY"];

static PKI: LazyLock<Pki> = LazyLock::new(|| {
    let given = VARIABLES.map(|name| std::env::var(name).ok());
    match given {
        [Some(authority), Some(chain), Some(key)] => Pki { authority, chain, key },
        _ => Pki::new().expect("rcgen makes certificates"),
    }
});

/// All in PEM. Servers and clients show the same certificate.
struct Pki {
    authority: String,
    chain: String,
    key: String,
}

impl Pki {
    fn new() -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the suite's authority");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let turns = (0..HOSTS).map(loopback);
        let hosts = ["127.0.0.1".to_owned()].into_iter().chain(turns);
        let params = CertificateParams::new(Vec::from_iter(hosts))?;
        let certificate = params.signed_by(&key, &authority)?;
        Ok(Self { authority: authority.pem(), chain: certificate.pem(), key: key.serialize_pem() })
    }

    fn server(&self) -> Result<ServerTls, Error> {
        ServerTls::from_pem(&self.chain, &self.key)?.require_client_certificates(&self.authority)
    }

    fn client(&self) -> Result<ClientTls, Error> {
        ClientTls::from_authority(&self.authority)?.identity(&self.chain, &self.key)
    }
}

/// What a child process needs to be trusted.
pub(crate) fn environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    VARIABLES.into_iter().zip([&*PKI.authority, &PKI.chain, &PKI.key])
}

/// What the suite's servers show, and demand of their clients.
///
/// # Panics
///
/// If the run's certificates are unusable.
pub fn server() -> ServerTls {
    PKI.server().expect("the run's certificates are good")
}

/// What the suite's clients show, and whom they trust.
///
/// # Panics
///
/// If the run's certificates are unusable.
pub fn client() -> ClientTls {
    PKI.client().expect("the run's certificates are good")
}

/// A server that listens with TLS, if a target of it asks for that.
///
/// # Panics
///
/// As for [`server`].
pub fn trusting<T: AsRef<str>>(builder: verbwire::Builder, targets: &[T]) -> verbwire::Builder {
    match targets.iter().any(|target| is_tls(target.as_ref())) {
        true => builder.tls(&server()),
        false => builder,
    }
}

/// An endpoint of `target` that trusts the suite's servers, if that is with TLS.
///
/// # Panics
///
/// As for [`client`].
pub fn trusted(endpoint: Endpoint, target: &str) -> Endpoint {
    match is_tls(target) {
        true => endpoint.tls(&client()),
        false => endpoint,
    }
}

/// `autofabric://` begins with TLS at addresses, and without at names.
fn is_tls(target: &str) -> bool {
    target.starts_with("tls://") || target.starts_with("autofabric://127.0.0.")
}
