//! Addresses of the fabric, and who listens at them.

use std::collections::VecDeque;
use std::mem;
use std::task::{Context, Poll, Waker};

use verbwire_core::{Error, ErrorKind};

use super::conn::{CmEvent, ConnId, EndId, Holder, Role};
use crate::fabric::host::{HostId, Life};
use crate::fabric::network::Network;

/// Requests that wait at one address; more are refused, as by a real backlog.
const BACKLOG: usize = 128;

/// The first of the ports that the fabric chooses.
const FIRST_EPHEMERAL: u16 = 49_152;

/// An address that is listened at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::fabric) struct ListenAddress {
    host: HostId,
    port: u16,
}

/// The requests at one address.
#[derive(Default)]
pub(in crate::fabric) struct Listening {
    pub(in crate::fabric) waker: Option<Waker>,
    backlog: VecDeque<ConnId>,
}

/// A request that was taken from its backlog.
pub(super) struct Request {
    pub(super) conn: ConnId,
    pub(super) peer: String,
    pub(super) private_data: Vec<u8>,
}

/// Splits `name:port`.
pub(super) fn parse(address: &str) -> Result<(&str, u16), Error> {
    let parts = address.rsplit_once(':');
    parts.and_then(|(name, port)| Some((name, port.parse().ok()?))).ok_or_else(|| {
        let message = format!("{address} is no address of a fabric: write host:port");
        Error::new(ErrorKind::InvalidInput, message)
    })
}

impl Network {
    /// Whether `address` can be reached from `host`.
    pub(super) fn resolve(&mut self, host: HostId, address: &str) -> Result<(), Error> {
        let (name, _port) = parse(address)?;
        if self.host(host).life == Life::Dead {
            return Err(Error::new(ErrorKind::Lost, "this host is dead"));
        }
        if self.knows_host(name) {
            return Ok(());
        }
        let message = format!("resolving {address}: no host {name} on this fabric");
        Err(Error::new(ErrorKind::Unreachable, message))
    }

    /// Begins to listen; returns the address with its port.
    pub(super) fn listen(
        &mut self,
        host: HostId,
        address: &str,
    ) -> Result<(ListenAddress, String), Error> {
        let (name, port) = parse(address)?;
        let own = self.host(host).name.clone();
        if self.host(host).life == Life::Dead {
            return Err(Error::new(ErrorKind::Lost, "this host is dead"));
        }
        if name != own {
            let message =
                format!("listening at {address}: the address of host {own} is {own}:port");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let port = if port == 0 { self.free_port(host) } else { port };
        let key = ListenAddress { host, port };
        if self.listeners.contains_key(&key) {
            let message = format!("listening at {address}: the port is in use, take another");
            return Err(Error::new(ErrorKind::LocalResource, message));
        }
        self.listeners.insert(key, Listening::default());
        Ok((key, format!("{own}:{port}")))
    }

    pub(super) fn ephemeral_address(&mut self, host: HostId) -> String {
        let port = self.free_port(host);
        format!("{}:{port}", self.host(host).name)
    }

    fn free_port(&mut self, host: HostId) -> u16 {
        loop {
            let next = &mut self.host(host).next_port;
            let port = mem::replace(next, next.checked_add(1).unwrap_or(FIRST_EPHEMERAL));
            if !self.listeners.contains_key(&ListenAddress { host, port }) {
                return port;
            }
        }
    }

    /// A connect request has arrived.
    pub(super) fn handle_request(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let target = parse(&conn.passive.address).ok().map(|(name, port)| (name.to_owned(), port));
        let active = EndId { conn: id, role: Role::Active };
        let Some((host, port)) =
            target.and_then(|(name, port)| Some((self.find_host(&name)?, port)))
        else {
            self.refuse_unseen(id);
            return self.give_up(active);
        };
        let listening = self.listeners.get_mut(&ListenAddress { host, port });
        match listening.filter(|listening| listening.backlog.len() < BACKLOG) {
            Some(listening) => {
                listening.backlog.push_back(id);
                self.after.wake(&mut listening.waker);
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.passive.host = Some(host);
                }
            }
            None => {
                self.refuse_unseen(id);
                let words = b"nothing listens there, or its backlog is full";
                self.send_cm(CmEvent::Refusal(id, words.to_vec()));
            }
        }
    }

    /// Nobody on the accepting side will ever hold this.
    fn refuse_unseen(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.passive.holder = Holder::Gone;
        }
        self.forget_left(id);
    }

    /// The next request at an address.
    pub(super) fn poll_request(
        &mut self,
        key: ListenAddress,
        cx: &Context<'_>,
    ) -> Poll<Result<Request, Error>> {
        let Some(listening) = self.listeners.get_mut(&key) else {
            return Poll::Ready(Err(Error::new(ErrorKind::Lost, "this host is dead")));
        };
        while let Some(id) = listening.backlog.pop_front() {
            if let Some(conn) = self.conns.get(&id) {
                let (peer, data) = (conn.active.address.clone(), conn.active.private_data.clone());
                return Poll::Ready(Ok(Request { conn: id, peer, private_data: data }));
            }
        }
        self.after.wait(&mut listening.waker, cx);
        Poll::Pending
    }

    /// Ends listening; requests that wait are refused.
    pub(super) fn unlisten(&mut self, key: ListenAddress) {
        let Some(listening) = self.listeners.remove(&key) else { return };
        self.after.discard(listening.waker);
        for id in listening.backlog {
            self.leave(EndId { conn: id, role: Role::Passive });
        }
    }

    /// Ends all listening on a host that is dead: nobody is refused.
    pub(super) fn close_listeners(&mut self, host: HostId) {
        let keys: Vec<ListenAddress> =
            self.listeners.keys().filter(|key| key.host == host).copied().collect();
        for key in keys {
            let Some(mut listening) = self.listeners.remove(&key) else { continue };
            self.after.wake(&mut listening.waker);
            for id in listening.backlog {
                self.refuse_unseen(id);
            }
        }
    }
}
