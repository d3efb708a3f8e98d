//! Addresses: as targets write them, as the standard library has them, and as C does.

use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use verbwire_core::{Error, ErrorKind};

/// A socket address in C's form.
pub(super) struct RawAddress {
    storage: libc::sockaddr_storage,
}

impl RawAddress {
    pub(super) fn new(address: SocketAddr) -> Self {
        // SAFETY: the struct is plain numbers, for which zeros are a value.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let place = &raw mut storage;
        match address {
            SocketAddr::V4(address) => {
                let raw = libc::sockaddr_in {
                    sin_family: FAMILY_V4,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage has the size and alignment for every kind of address.
                unsafe { place.cast::<libc::sockaddr_in>().write(raw) }
            }
            SocketAddr::V6(address) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: FAMILY_V6,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: as above.
                unsafe { place.cast::<libc::sockaddr_in6>().write(raw) }
            }
        }
        Self { storage }
    }

    pub(super) fn from_storage(storage: &libc::sockaddr_storage) -> Self {
        Self { storage: *storage }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    /// The standard library's form; `None` if it is no IP address.
    pub(super) fn get(&self) -> Option<SocketAddr> {
        let place = &raw const self.storage;
        match self.storage.ss_family {
            FAMILY_V4 => {
                // SAFETY: the storage has the size and alignment, and its family says what it holds.
                let raw = unsafe { place.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(raw.sin_port)))
            }
            FAMILY_V6 => {
                // SAFETY: as above.
                let raw = unsafe { place.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(raw.sin6_port)))
            }
            _ => None,
        }
    }
}

/// `AF_INET` and `AF_INET6`, which C has as wider numbers than the field for them.
const FAMILY_V4: libc::sa_family_t = 2;
const FAMILY_V6: libc::sa_family_t = 10;
const _: () = assert!(libc::AF_INET == 2 && libc::AF_INET6 == 10);

/// The addresses that `host:port` stands for, in the system's order.
///
/// # Errors
///
/// `InvalidInput` if it has not that form; `Unreachable` if the name is unknown.
pub(super) async fn look_up(address: &str) -> Result<Vec<SocketAddr>, Error> {
    let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(_))) {
        let message = format!("{address} is no address: write rdma://host:port");
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    let found = tokio::net::lookup_host(address).await.map_err(|error| {
        Error::with_source(ErrorKind::Unreachable, format!("failed to look up {address}"), error)
    })?;
    let found: Vec<SocketAddr> = found.collect();
    if found.is_empty() {
        let message = format!("{address} stands for no address: check the name");
        return Err(Error::new(ErrorKind::Unreachable, message));
    }
    Ok(found)
}

/// An address for people.
pub(super) fn shown(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["10.9.0.1:7000", "[fe80::1]:0", "0.0.0.0:65535"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(RawAddress::new(address).get(), Some(address));
        }
        // SAFETY: as in `RawAddress::new`.
        let nothing: libc::sockaddr_storage = unsafe { zeroed() };
        assert_eq!(RawAddress::from_storage(&nothing).get(), None);
    }

    #[tokio::test]
    async fn what_is_no_address_is_told_how_to_write_one() {
        for text in ["10.9.0.1", "host", "host:port", "10.9.0.1:70000"] {
            let error = look_up(text).await.expect_err("no address");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("rdma://host:port"), "{error}");
        }
    }
}
