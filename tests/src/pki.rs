//! The certificates of the suite's servers and clients: one authority for a run, which its child processes are given too.

use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use verbwire::tls::{ClientTls, ServerTls};
use verbwire::{Endpoint, Error};

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
        let params = CertificateParams::new(["127.0.0.1".to_owned()])?;
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

/// A server that listens with TLS where its target asks for it, and trusts the suite's clients.
///
/// # Panics
///
/// If the run's certificates are unusable.
pub fn trusting(builder: verbwire::Builder) -> verbwire::Builder {
    builder.tls(&PKI.server().expect("the run's certificates are good"))
}

/// An endpoint of `target` that trusts the suite's servers, if that is with TLS.
///
/// # Panics
///
/// If the run's certificates are unusable.
pub fn trusted(endpoint: Endpoint, target: &str) -> Endpoint {
    if !target.starts_with("tls://") {
        return endpoint;
    }
    endpoint.tls(&PKI.client().expect("the run's certificates are good"))
}
