//! Who the peer of a connection has proved to be, where its transport asks for proof.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::Connection;

/// The certificates that the peer of a connection has shown, in DER: its own first, then those by which it leads to an
/// authority that this side trusts. That the peer has the key of the first was proved when the connection was made.
///
/// A transport with certificates offers them as a capability of its connections.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerCertificates(Arc<[Bytes]>);

impl PeerCertificates {
    /// A peer's chain, its own certificate first; `None` if it has shown none.
    pub fn new(chain: impl IntoIterator<Item = Bytes>) -> Option<Self> {
        let chain: Arc<[Bytes]> = chain.into_iter().collect();
        (!chain.is_empty()).then_some(Self(chain))
    }

    /// Those of a connection's peer, if it has shown any.
    pub(crate) fn of(connection: &dyn Connection) -> Option<Self> {
        connection.capability(TypeId::of::<Self>())?.downcast_ref::<Self>().cloned()
    }

    /// The peer's own, in DER.
    pub fn own(&self) -> &Bytes {
        &self.0[0]
    }

    /// All of them, the peer's own first, each in DER.
    pub fn chain(&self) -> &[Bytes] {
        &self.0
    }
}

impl fmt::Debug for PeerCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerCertificates(a chain of {})", self.0.len())
    }
}
