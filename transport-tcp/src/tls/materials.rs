//! Certificates and keys, from PEM. Owns nothing; no message of it shows a byte of a key.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use verbwire_core::{Error, ErrorKind};

/// A chain, the own certificate first, and its key.
pub(super) struct KeyPair {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl KeyPair {
    /// From PEM.
    pub(super) fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Error> {
        let chain = certificates(chain, "certificate chain")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            let message = match error {
                pem::Error::NoItemsFound => {
                    "there is no private key in what was given as the key: give a PEM file with BEGIN PRIVATE KEY, \
                     without a passphrase"
                        .to_owned()
                }
                other => format!("the private key is no proper PEM: {other}"),
            };
            Error::new(ErrorKind::InvalidInput, message)
        })?;
        Ok(Self { chain, key })
    }
}

impl Clone for KeyPair {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// What does the cryptography.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The authorities in a PEM file.
pub(super) fn authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    certificates(pem, "authority's certificate")
}

/// Those that vouch for peers.
pub(super) fn roots(authorities: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    for (index, authority) in authorities.iter().enumerate() {
        roots.add(authority.clone()).map_err(|error| {
            let message = format!("authority {} of {} is unusable", index + 1, authorities.len());
            Error::with_source(ErrorKind::InvalidInput, message, error)
        })?;
    }
    Ok(Arc::new(roots))
}

/// All certificates in `pem`, at least one; `what` they are, for the message.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = read.map_err(|error| {
        Error::new(ErrorKind::InvalidInput, format!("the {what} is no proper PEM: {error}"))
    })?;
    if found.is_empty() {
        let message = format!(
            "there is no certificate in the {} bytes that were given as the {what}: give a PEM file with BEGIN CERTIFICATE",
            pem.len()
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(found)
}
