//! Authorities and certificates, made anew in each run.

use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use verbwire_tcp::{ClientTls, ServerTls};

/// An authority.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) chain: String,
    pub(super) key: String,
}

/// When a certificate is valid.
#[derive(Clone, Copy)]
pub(super) enum Valid {
    Now,
    /// Until the end of 2001.
    Once,
    /// From 2090 on.
    Later,
}

impl Authority {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("authority {number}"))
    }

    pub(super) fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("signed"))
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for `names`.
    pub(super) fn issue(&self, names: &[&str], valid: Valid) -> Issued {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        match valid {
            Valid::Now => {}
            Valid::Once => {
                params.not_before = date_time_ymd(2000, 1, 1);
                params.not_after = date_time_ymd(2001, 12, 31);
            }
            Valid::Later => {
                params.not_before = date_time_ymd(2090, 1, 1);
                params.not_after = date_time_ymd(2091, 1, 1);
            }
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        Issued { chain: certificate.pem(), key: key.serialize_pem() }
    }

    /// A server that shows a good certificate for this machine.
    pub(super) fn server(&self) -> ServerTls {
        self.issue(&["127.0.0.1", "localhost"], Valid::Now).server()
    }

    /// A client that trusts this authority.
    pub(super) fn client(&self) -> ClientTls {
        ClientTls::from_authority(self.pem()).expect("its own PEM")
    }
}

impl Issued {
    pub(super) fn server(&self) -> ServerTls {
        ServerTls::from_pem(&self.chain, &self.key).expect("its own PEM")
    }

    /// A client that shows it and trusts `authority`.
    pub(super) fn client_of(&self, authority: &Authority) -> ClientTls {
        authority.client().identity(&self.chain, &self.key).expect("its own PEM")
    }
}
