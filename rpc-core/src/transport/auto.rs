//! `auto://`: a first transport on the address that users know, and a second one beside it for who has it.
//!
//! [`Auto`] connects and listens by the first. What is beside it is for those who ask a transport: a channel, which takes a second
//! path when it has the first, and a server, which listens for second paths. Owns neither; the rules are in
//! [`proto::paths`](crate::proto::paths) and [`proto::tickets`](crate::proto::tickets).

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::{Accepting, BoxFuture, Established, Listener, LocalSide, Secrecy, Target, Transport};
use crate::buf::Buffer;
use crate::error::Error;

/// The scheme of these targets.
const SCHEME: &str = "auto";

/// Two transports for one target.
#[derive(Debug, Clone)]
pub struct Auto {
    first: Way,
    beside: Beside,
    /// Of its own targets.
    scheme: &'static str,
}

/// What is beside a first path.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Beside {
    /// Nothing, for this reason.
    Nothing(String),
    /// Connections over another transport.
    Second(Second),
}

/// A transport of second paths.
#[derive(Debug, Clone)]
pub struct Second {
    way: Way,
    /// Where a server listens for them; `None` for the first one's host.
    listen_at: Option<Target>,
}

/// A transport and the scheme of its targets.
#[derive(Clone)]
struct Way {
    scheme: String,
    transport: Arc<dyn Transport>,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scheme)
    }
}

impl Auto {
    /// Over `first`, whose targets have this scheme. `why` says why there is nothing beside it.
    pub fn alone(
        scheme: impl Into<String>,
        first: Arc<dyn Transport>,
        why: impl Into<String>,
    ) -> Self {
        let first = Way { scheme: scheme.into(), transport: first };
        Self { first, beside: Beside::Nothing(why.into()), scheme: SCHEME }
    }

    /// Over `first`, and beside it over `second`; each with the scheme of its targets.
    pub fn new(
        (scheme, first): (impl Into<String>, Arc<dyn Transport>),
        second: (impl Into<String>, Arc<dyn Transport>),
    ) -> Self {
        let way = Way { scheme: second.0.into(), transport: second.1 };
        let beside = Beside::Second(Second { way, listen_at: None });
        Self { beside, ..Self::alone(scheme, first, "") }
    }

    /// Has servers listen for second paths at `target`, and not at any port of the first one's host.
    #[must_use]
    pub fn listening_at(mut self, target: Target) -> Self {
        if let Beside::Second(second) = &mut self.beside {
            second.listen_at = Some(target);
        }
        self
    }

    /// Gives its targets another scheme than `auto`.
    #[must_use]
    pub fn named(self, scheme: &'static str) -> Self {
        Self { scheme, ..self }
    }

    fn first_target(&self, target: &Target) -> Target {
        Target::new(&*self.first.scheme, target.address())
    }
}

impl Second {
    /// The scheme of its targets.
    pub fn scheme(&self) -> &str {
        &self.way.scheme
    }

    /// What makes the connections.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.way.transport
    }

    /// Where a server listens for second paths whose first ones come to `target`: another port, since iWARP shares TCP's.
    pub fn target_beside(&self, target: &Target) -> Target {
        let any_port = || {
            let host = target.address().rsplit_once(':').map_or(target.address(), |(host, _)| host);
            Target::new(self.scheme(), format!("{host}:0"))
        };
        self.listen_at.clone().unwrap_or_else(any_port)
    }
}

impl Transport for Auto {
    fn connect<'a>(
        &'a self,
        target: &'a Target,
        local: LocalSide,
    ) -> BoxFuture<'a, Result<Established, Error>> {
        Box::pin(
            async move { self.first.transport.connect(&self.first_target(target), local).await },
        )
    }

    fn listen<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Box<dyn Listener>, Error>> {
        Box::pin(async move {
            let first = self.first.transport.listen(&self.first_target(target)).await?;
            let local = Target::new(self.scheme, first.local_target().address());
            Ok(Box::new(Listening { first, local }) as Box<dyn Listener>)
        })
    }

    fn alloc(&self, len: usize, deadline: Instant) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.first.transport.alloc(len, deadline)
    }

    fn secrecy(&self) -> Secrecy {
        self.first.transport.secrecy()
    }

    fn beside(&self) -> Option<&Beside> {
        Some(&self.beside)
    }
}

/// The first one's listener, under the name that users know.
struct Listening {
    first: Box<dyn Listener>,
    local: Target,
}

impl Listener for Listening {
    fn local_target(&self) -> &Target {
        &self.local
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Accepting>, Error>> {
        self.first.poll_accept(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::mem::MemTransport;

    fn over(listen_at: Option<Target>) -> Second {
        let way = Way { scheme: "rdma".to_owned(), transport: Arc::new(MemTransport) };
        Second { way, listen_at }
    }

    #[test]
    fn second_paths_are_listened_for_at_another_port_of_the_same_host() {
        for (target, expected) in [
            ("auto://10.0.0.1:7000", "rdma://10.0.0.1:0"),
            ("auto://[::]:7000", "rdma://[::]:0"),
            ("auto://name", "rdma://name:0"),
        ] {
            let target = target.parse().expect("well-formed");
            assert_eq!(over(None).target_beside(&target).to_string(), expected);
            let there = Target::new("rdma", "there:7");
            assert_eq!(over(Some(there.clone())).target_beside(&target), there);
        }
    }

    #[tokio::test]
    async fn a_listener_has_the_name_that_clients_use() {
        let auto = Auto::alone("mem", Arc::new(MemTransport), "a test");
        let target = Target::new("auto", "auto-named");
        let listener = auto.listen(&target).await.expect("a free name");
        assert_eq!(*listener.local_target(), target);
        assert_eq!(listener.targets(), [target]);
    }
}
