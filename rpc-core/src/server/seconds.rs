//! Second paths of a server's connections: where they are listened for, who is offered one, and who is let in.
//!
//! ```text
//!   client                                server
//!     │  first path: Offer ──────────────► Offering: a ticket, and where Second listens
//!     │  second path: connect, ticket ───► Second's listener: Connections::admit, before the handshake
//!     │  HELLO ◄─────────────────────────► the same client? then a driver of its own, under its first path
//! ```
//!
//! A second path belongs to its first: it counts as no connection of its own, ends with it, and drains beside it. The rules of
//! tickets are in [`proto::tickets`](crate::proto::tickets).

mod accepting;
mod connections;
mod listening;
mod offering;

pub(super) use accepting::accept_second;
pub(super) use connections::Entry;
pub use connections::{Connections, ServedConnection};
pub(super) use listening::{Second, SecondListener};
pub(super) use offering::Offering;

use std::sync::Arc;

use crate::transport::{Target, Transport};

/// A place to listen at, and what may be offered beside it. A pair of a transport and a target is one without second paths.
#[must_use]
pub struct Place {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) target: Target,
    pub(super) beside: Beside,
}

/// What clients of a place may be offered.
pub(super) enum Beside {
    /// Nothing, for this reason.
    Nothing(String),
    /// Connections over this, at an address of its own.
    Listener(Arc<dyn Transport>, Target),
}

impl Place {
    /// A place without second paths.
    pub fn new(transport: Arc<dyn Transport>, target: Target) -> Self {
        let why = format!("the server listens at {target}, which has one path; bind auto:// there");
        Self { transport, target, beside: Beside::Nothing(why) }
    }

    /// Also listens at `target` for second paths of connections that were made here. If that cannot be listened at, the
    /// server serves without, and tries again when a client asks.
    pub fn with_second(self, transport: Arc<dyn Transport>, target: Target) -> Self {
        Self { beside: Beside::Listener(transport, target), ..self }
    }

    /// Says why there are no second paths.
    pub fn without_second(self, why: impl Into<String>) -> Self {
        Self { beside: Beside::Nothing(why.into()), ..self }
    }
}

impl From<(Arc<dyn Transport>, Target)> for Place {
    fn from((transport, target): (Arc<dyn Transport>, Target)) -> Self {
        Self::new(transport, target)
    }
}

/// What the connections of a listener may be offered.
#[derive(Clone)]
pub(super) enum Upgrade {
    /// Nothing, for this reason, which stays.
    Never(Arc<str>),
    /// What this listens at.
    To(Arc<Second>),
}

#[cfg(all(test, not(loom)))]
mod tests;
