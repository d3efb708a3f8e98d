//! Targets: `scheme://address`.
//!
//! Splits and checks the form; whether there is such a host is the transport's business.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Where to connect or listen: a transport's scheme and an address in its form.
///
/// `tcp://host:port`, `unix:///path/to/socket`, `mem://name`; `host:port` alone is `auto://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    scheme: String,
    address: String,
}

impl Target {
    /// A target from its parts.
    pub fn new(scheme: impl Into<String>, address: impl Into<String>) -> Self {
        Self { scheme: scheme.into(), address: address.into() }
    }

    /// The transport's name.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The part behind `://`.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |why: &str| {
            let message = format!("target \"{text}\" {why}, write for example tcp://10.0.0.1:7000");
            Error::new(ErrorKind::InvalidInput, message)
        };
        let Some((scheme, address)) = text.split_once("://") else {
            return match is_host_and_port(text) {
                true => Ok(Self::new("auto", text)),
                false => Err(invalid("is neither host:port nor names a transport")),
            };
        };
        if scheme.is_empty() || !scheme.bytes().all(|byte| byte.is_ascii_lowercase()) {
            return Err(invalid("has a transport name that is not lower-case letters"));
        }
        if address.is_empty() {
            return Err(invalid("has no address"));
        }
        Ok(Self::new(scheme, address))
    }
}

/// Whether somebody may mean this by an address of a machine.
fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
    })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_print_as_they_parse() {
        for text in ["tcp://127.0.0.1:7000", "tcp://[::1]:0", "unix:///run/x.sock", "mem://a"] {
            assert_eq!(text.parse::<Target>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn an_address_alone_means_the_best_way_there_is() {
        for text in ["127.0.0.1:7000", "server:0", "[::1]:7000"] {
            let target = text.parse::<Target>().expect(text);
            assert_eq!((target.scheme(), target.address()), ("auto", text));
        }
    }

    #[test]
    fn a_target_that_does_not_parse_says_what_to_write() {
        for text in [
            "",
            "127.0.0.1",
            "host:",
            ":7000",
            "a:b",
            "a/b:1",
            "a:70000",
            "://x",
            "TCP://x",
            "tcp://",
        ] {
            let error = text.parse::<Target>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(
                error.to_string().ends_with("write for example tcp://10.0.0.1:7000"),
                "{error}"
            );
        }
    }
}
