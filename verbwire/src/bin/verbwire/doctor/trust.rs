//! Whom the doctor trusts over TLS and who it says it is: what programs give to `Endpoint::tls`.

use verbwire::Endpoint;
#[cfg(feature = "tls")]
use verbwire::tls::ClientTls;

/// Files in PEM.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Certificates of authorities.
    pub(super) authority: Option<String>,
    /// The own certificate and those that lead to an authority.
    pub(super) chain: Option<String>,
    pub(super) key: Option<String>,
}

/// No TLS, unless there are settings.
#[derive(Debug, Clone, Default)]
pub(super) struct Trust {
    #[cfg(feature = "tls")]
    tls: Option<ClientTls>,
}

impl Trust {
    /// # Errors
    ///
    /// Which file is missing, cannot be read, or does not hold what it should.
    #[cfg(feature = "tls")]
    pub(super) fn read(files: &Files) -> Result<Self, String> {
        let Files { authority, chain, key } = files;
        let identity = match (chain, key) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            _ => return Err("--cert and --key go together".to_owned()),
        };
        let Some(authority) = authority else {
            return match identity {
                None => Ok(Self::default()),
                Some(_) => Err("--cert and --key need --ca, whose servers they are for".to_owned()),
            };
        };
        let words = |error: verbwire::Error| error.to_string();
        let tls = ClientTls::from_authority(pem(authority)?).map_err(words)?;
        let tls = match identity {
            Some((chain, key)) => tls.identity(pem(chain)?, pem(key)?).map_err(words)?,
            None => tls,
        };
        Ok(Self { tls: Some(tls) })
    }

    /// # Errors
    ///
    /// There are files, and this build has no TLS.
    #[cfg(not(feature = "tls"))]
    pub(super) fn read(files: &Files) -> Result<Self, String> {
        match files {
            Files { authority: None, chain: None, key: None } => Ok(Self::default()),
            _ => Err("this build has no feature tls".to_owned()),
        }
    }

    /// The scheme of what `auto://` begins with.
    pub(super) fn first_scheme(&self) -> &'static str {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return "tls";
        }
        "tcp"
    }

    /// `endpoint` with the settings, where its scheme has use for them.
    pub(super) fn give(&self, scheme: &str, endpoint: Endpoint) -> Endpoint {
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls.as_ref().filter(|_| ["tls", "auto"].contains(&scheme)) {
            return endpoint.tls(tls);
        }
        #[cfg(not(feature = "tls"))]
        let _without_use = scheme;
        endpoint
    }
}

#[cfg(feature = "tls")]
fn pem(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{path}: {error}"))
}
