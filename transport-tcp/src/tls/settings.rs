//! Who a side says that it is, and whom it trusts.
//!
//! Owns what the next handshake uses. Replaced as a whole, so that no handshake sees half of it.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, ConfigSide, ServerConfig, WantsVerifier};
use verbwire_core::{Error, ErrorKind, Target};

use super::ALPN;
use super::counts::{Counters, HandshakeCounts};
use super::materials::{KeyPair, authorities, provider, roots};

/// A server's side of TLS: the certificate that it shows, and which clients it lets in.
///
/// Clones share what [`reload`](Self::reload) changes, so one is given to the server and another kept. Every method that
/// begins with other settings makes a `ServerTls` of its own.
#[derive(Clone)]
pub struct ServerTls {
    pair: Arc<KeyPair>,
    clients: Clients,
    /// What the next handshake uses.
    current: Arc<Mutex<Arc<ServerConfig>>>,
    counters: Arc<Counters>,
}

/// Which clients are let in.
#[derive(Clone)]
enum Clients {
    /// All: nobody is asked for a certificate.
    Any,
    /// Those with a certificate of one of these authorities, and those without any.
    Asked(Vec<CertificateDer<'static>>),
    /// Those with a certificate of one of these authorities.
    Known(Vec<CertificateDer<'static>>),
}

impl ServerTls {
    /// Shows the first certificate of `chain`, with those behind it, and proves to have its `key`; both in PEM. Lets every
    /// client in.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, in words: no PEM, no certificate or key in it, or they do not belong together.
    pub fn from_pem(chain: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self, Error> {
        let pair = KeyPair::from_pem(chain.as_ref(), key.as_ref())?;
        Self::new(Arc::new(pair), Clients::Any)
    }

    /// Lets only clients in that have a certificate of one of these authorities (PEM): mutual TLS. Handlers see it by
    /// `Request::peer_certificates`.
    ///
    /// # Errors
    ///
    /// As for [`from_pem`](Self::from_pem).
    pub fn require_client_certificates(self, authority: impl AsRef<[u8]>) -> Result<Self, Error> {
        Self::new(self.pair, Clients::Known(authorities(authority.as_ref())?))
    }

    /// Asks clients for a certificate of one of these authorities (PEM), and lets those in that have none. One that does
    /// not hold is refused all the same.
    ///
    /// # Errors
    ///
    /// As for [`from_pem`](Self::from_pem).
    pub fn ask_for_client_certificates(self, authority: impl AsRef<[u8]>) -> Result<Self, Error> {
        Self::new(self.pair, Clients::Asked(authorities(authority.as_ref())?))
    }

    /// Goes on with the settings of `other`: every handshake that begins from now on uses them, at every target of this and
    /// its clones. Connections that are there stay as they are, also those of clients that would not be let in now.
    pub fn reload(&self, other: &Self) {
        let config = other.config();
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// How handshakes ended, over all targets of this and its clones.
    pub fn handshakes(&self) -> HandshakeCounts {
        self.counters.now()
    }

    fn new(pair: Arc<KeyPair>, clients: Clients) -> Result<Self, Error> {
        let current = Arc::new(Mutex::new(Arc::new(server_config(&pair, &clients)?)));
        Ok(Self { pair, clients, current, counters: Arc::default() })
    }

    /// What a handshake that begins now uses.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a handshake by how it ended.
    pub(super) fn count<T>(&self, ended: Result<T, Error>) -> Result<T, Error> {
        self.counters.count(ended.as_ref().err().map(Error::kind));
        ended
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = match &self.clients {
            Clients::Any => "any".to_owned(),
            Clients::Asked(authorities) => format!("asked, {} authorities", authorities.len()),
            Clients::Known(authorities) => format!("known to {} authorities", authorities.len()),
        };
        let chain = self.pair.chain.len();
        f.debug_struct("ServerTls").field("chain", &chain).field("clients", &clients).finish()
    }
}

/// A client's side of TLS: which servers it trusts, and the certificate that it shows, if it has one.
///
/// Clones share what [`reload`](Self::reload) changes. Every method that begins with other settings makes a `ClientTls`
/// of its own.
#[derive(Clone)]
pub struct ClientTls {
    authorities: Arc<Vec<CertificateDer<'static>>>,
    pair: Option<Arc<KeyPair>>,
    name: Option<ServerName<'static>>,
    /// What the next handshake uses.
    current: Arc<Mutex<Arc<ClientConfig>>>,
}

impl ClientTls {
    /// Trusts servers with a certificate of one of these authorities (PEM), and no others: neither the authorities of the
    /// web nor those of the system are known unless their file is given here.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, in words: no PEM, or no certificate in it.
    pub fn from_authority(pem: impl AsRef<[u8]>) -> Result<Self, Error> {
        Self::new(Arc::new(authorities(pem.as_ref())?), None, None)
    }

    /// Shows this certificate to servers that ask for one: a chain and its key, in PEM.
    ///
    /// # Errors
    ///
    /// As for [`ServerTls::from_pem`].
    pub fn identity(self, chain: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self, Error> {
        let pair = KeyPair::from_pem(chain.as_ref(), key.as_ref())?;
        Self::new(self.authorities, Some(Arc::new(pair)), self.name)
    }

    /// The name or address that the server's certificate must be for, in the place of the target's host.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: it is neither a name nor an address.
    pub fn server_name(self, name: &str) -> Result<Self, Error> {
        let name = server_name(name)?;
        Self::new(self.authorities, self.pair, Some(name))
    }

    /// Goes on with the authorities and the certificate of `other`: every handshake that begins from now on, by this or a
    /// clone, uses them. Connections that are there stay as they are. The name that was set stays, too.
    pub fn reload(&self, other: &Self) {
        let config = Arc::clone(&other.current.lock().unwrap_or_else(PoisonError::into_inner));
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn new(
        authorities: Arc<Vec<CertificateDer<'static>>>,
        pair: Option<Arc<KeyPair>>,
        name: Option<ServerName<'static>>,
    ) -> Result<Self, Error> {
        let config = client_config(&authorities, pair.as_deref())?;
        Ok(Self { authorities, pair, name, current: Arc::new(Mutex::new(Arc::new(config))) })
    }

    /// What a handshake that begins now uses, and whose certificate it wants.
    pub(super) fn config_for(
        &self,
        target: &Target,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), Error> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host_of(target.address()))?,
        };
        let config = Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((config, name))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("authorities", &self.authorities.len())
            .field("has_certificate", &self.pair.is_some())
            .field("server_name", &self.name)
            .finish()
    }
}

fn server_config(pair: &KeyPair, clients: &Clients) -> Result<ServerConfig, Error> {
    let verifier = |known: &[CertificateDer<'static>]| {
        Ok::<_, Error>(WebPkiClientVerifier::builder_with_provider(roots(known)?, provider()))
    };
    let built = match clients {
        Clients::Any => None,
        Clients::Asked(known) => Some(verifier(known)?.allow_unauthenticated().build()),
        Clients::Known(known) => Some(verifier(known)?.build()),
    };
    let verifier = built.transpose().map_err(|error| {
        let message = "the authorities for clients are unusable";
        Error::with_source(ErrorKind::InvalidInput, message, error)
    })?;
    let builder = only_13(ServerConfig::builder_with_provider(provider()))?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(pair.chain.clone(), pair.key.clone_key())
        .map_err(|error| unusable("server", error))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

fn client_config(
    authorities: &[CertificateDer<'static>],
    pair: Option<&KeyPair>,
) -> Result<ClientConfig, Error> {
    let builder = only_13(ClientConfig::builder_with_provider(provider()))?;
    let builder = builder.with_root_certificates(roots(authorities)?);
    let mut config = match pair {
        Some(pair) => builder
            .with_client_auth_cert(pair.chain.clone(), pair.key.clone_key())
            .map_err(|error| unusable("client", error))?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// TLS 1.3 and nothing older; see the module above.
fn only_13<S: ConfigSide>(
    builder: ConfigBuilder<S, rustls::WantsVersions>,
) -> Result<ConfigBuilder<S, WantsVerifier>, Error> {
    builder.with_protocol_versions(&[&TLS13]).map_err(|error| {
        Error::with_source(ErrorKind::Unsupported, "this build of rustls has no TLS 1.3", error)
    })
}

fn unusable(whose: &str, error: rustls::Error) -> Error {
    let message = match error {
        rustls::Error::InconsistentKeys(_) => format!(
            "the {whose}'s private key is not that of its certificate: give the key that belongs to the first \
             certificate of the chain"
        ),
        other => format!("the {whose}'s certificate or key is unusable: {other}"),
    };
    Error::new(ErrorKind::InvalidInput, message)
}

fn server_name(name: &str) -> Result<ServerName<'static>, Error> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(ServerName::IpAddress(address.into()));
    }
    ServerName::try_from(name.to_owned()).map_err(|_| {
        let message = format!(
            "\"{name}\" is neither a name nor an address that a certificate can be for: set ClientTls::server_name"
        );
        Error::new(ErrorKind::InvalidInput, message)
    })
}

/// The host of `host:port`, without the brackets of an address of IPv6.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests;
