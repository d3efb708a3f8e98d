//! What goes wrong with TLS, in words: a sentence, and who must act.

use std::io;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use verbwire_core::{Error, ErrorKind};

use crate::handshake::Side;

/// Names of a certificate that a message shows. 8: one may have thousands.
const NAMES: usize = 8;

/// What rustls found wrong with `peer`, or `peer` with this side.
pub(super) fn of(error: TlsError, side: Side, peer: &str) -> Error {
    match error {
        TlsError::InvalidCertificate(why) => {
            Error::new(ErrorKind::Untrusted, certificate(&why, side, peer))
        }
        TlsError::NoCertificatesPresented => Error::new(
            ErrorKind::Untrusted,
            format!(
                "{peer} has shown no certificate, and this server demands one: its ClientTls needs an identity, of an \
                 authority that the server knows"
            ),
        ),
        TlsError::AlertReceived(alert) => alerted(alert, side, peer),
        TlsError::NoApplicationProtocol => Error::new(
            ErrorKind::Incompatible,
            format!(
                "{peer} speaks TLS, but not verbwire inside it (ALPN verbwire/1): is it another program's port or client?"
            ),
        ),
        TlsError::PeerIncompatible(why) => Error::new(
            ErrorKind::Incompatible,
            format!("{peer} cannot do TLS 1.3 as this side does it ({why:?}): upgrade it"),
        ),
        other => Error::with_source(
            ErrorKind::PeerFault,
            format!("{peer} broke the rules of TLS, or its bytes were changed on the way"),
            other,
        ),
    }
}

/// Why the peer's certificate does not hold.
fn certificate(why: &CertificateError, side: Side, peer: &str) -> String {
    let whose = format!("the certificate of {peer}");
    let setting = match side {
        Side::Connecting => "ClientTls::from_authority",
        Side::Accepting => "ServerTls::require_client_certificates or ask_for_client_certificates",
    };
    match why {
        CertificateError::ExpiredContext { time, not_after } => format!(
            "{whose} expired {} ago: renew it there, unless this machine's clock is wrong",
            between(*not_after, *time)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "{whose} is not valid yet, it will be in {}: check the clocks of both machines",
            between(*time, *not_before)
        ),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "{whose} is not for \"{}\" but for {}: connect to a name that it is for, set ClientTls::server_name, or have \
             it made for this one",
            expected.to_str(),
            names(presented)
        ),
        CertificateError::UnknownIssuer => format!(
            "{whose} comes from no authority that this side trusts: give that authority's certificate to {setting}, if \
             it may be trusted"
        ),
        CertificateError::BadSignature => format!(
            "{whose} names an authority that this side trusts, but is not signed by it: has the authority changed its \
             key? then give its new certificate to {setting} as well"
        ),
        CertificateError::InvalidPurposeContext { .. } | CertificateError::InvalidPurpose => {
            let role = match side {
                Side::Connecting => "servers",
                Side::Accepting => "clients",
            };
            format!("{whose} is not made for {role} (extended key usage): have it made for them")
        }
        other => format!("{whose} does not hold: {other}"),
    }
}

/// What the peer found wrong with this side.
fn alerted(alert: AlertDescription, side: Side, peer: &str) -> Error {
    use AlertDescription as Alert;
    let (own, setter) = match side {
        Side::Connecting => ("this client's certificate", "ClientTls::identity"),
        Side::Accepting => ("this server's certificate", "ServerTls::from_pem"),
    };
    let untrusted = |words: String| Error::new(ErrorKind::Untrusted, words);
    match alert {
        Alert::CertificateRequired => untrusted(format!(
            "{peer} demands a certificate of its clients, and none was shown: set ClientTls::identity"
        )),
        Alert::UnknownCA => untrusted(format!(
            "{peer} does not know the authority of {own}: give it that authority's certificate, or another one to {setter}"
        )),
        Alert::CertificateExpired => untrusted(format!(
            "{peer} refuses {own} as expired or not valid yet: renew it and reload, or check the clocks"
        )),
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateUnknown
        | Alert::AccessDenied
        | Alert::DecryptError => {
            untrusted(format!("{peer} refuses {own} ({alert:?}); its log may say why"))
        }
        Alert::NoApplicationProtocol | Alert::ProtocolVersion | Alert::HandshakeFailure => {
            Error::new(
                ErrorKind::Incompatible,
                format!(
                    "{peer} speaks no TLS 1.3 with verbwire inside it ({alert:?}): is it another program's port or client?"
                ),
            )
        }
        other => Error::new(
            ErrorKind::Lost,
            format!("{peer} ended TLS with the alert {other:?}; its log may say why"),
        ),
    }
}

/// A peer that speaks no TLS.
pub(super) fn plaintext(side: Side, peer: &str, said: &[u8], is_ours: bool) -> Error {
    match (is_ours, side) {
        (true, Side::Accepting) => Error::new(
            ErrorKind::Incompatible,
            format!(
                "{peer} speaks verbwire without TLS, and this port is for TLS: have it connect to tls://"
            ),
        ),
        (true, Side::Connecting) => Error::new(
            ErrorKind::Incompatible,
            format!(
                "{peer} speaks verbwire without TLS: have the server listen at tls://, or connect to tcp:// if nothing \
                 secret goes that way"
            ),
        ),
        (false, _) => Error::new(
            ErrorKind::PeerFault,
            format!("{peer} speaks no TLS, it began with \"{}\"", said.escape_ascii()),
        ),
    }
}

/// A peer that went away during the handshake.
pub(super) fn gone(side: Side, peer: &str, received: usize, error: Option<io::Error>) -> Error {
    let advice = match side {
        Side::Connecting => {
            "does the server listen there for tls://, and not for tcp://? its log may say why"
        }
        Side::Accepting => "its log may say why",
    };
    let message = format!(
        "{peer} closed the connection after {received} bytes of the TLS handshake: {advice}"
    );
    match error {
        Some(error) => Error::with_source(ErrorKind::Lost, message, error),
        None => Error::new(ErrorKind::Lost, message),
    }
}

/// A peer that is too slow.
pub(super) fn timed_out(side: Side, peer: &str, received: usize) -> Error {
    let setter = match side {
        Side::Connecting => "connect_timeout",
        Side::Accepting => "handshake_timeout",
    };
    let message = format!(
        "{peer} said {received} bytes of the TLS handshake and did not finish it within {setter}: is it a tls:// \
         target, and not overloaded?"
    );
    Error::new(ErrorKind::TimedOut, message)
}

/// The time between two moments, roughly.
fn between(from: UnixTime, to: UnixTime) -> String {
    let seconds = to.as_secs().saturating_sub(from.as_secs());
    match seconds {
        0..=120 => format!("{seconds} s"),
        121..=7200 => format!("{} min", seconds / 60),
        7201..=172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

/// The names of a certificate.
fn names(presented: &[String]) -> String {
    if presented.is_empty() {
        return "no name at all".to_owned();
    }
    let mut shown = presented[..presented.len().min(NAMES)].join(", ");
    if presented.len() > NAMES {
        shown += &format!(" and {} more", presented.len() - NAMES);
    }
    shown
}
