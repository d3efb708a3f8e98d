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
mod newcomers;
mod offering;

pub(super) use accepting::accept_second;
pub(super) use connections::Entry;
pub use connections::{Connections, ServedConnection};
pub(super) use listening::{Second, SecondListener};
pub(super) use newcomers::Fate;
pub use newcomers::NewcomerCounts;
pub(super) use offering::Offering;

use std::sync::Arc;

/// What the connections of a listener may be offered.
#[derive(Clone)]
pub(super) enum Upgrade {
    /// Nothing, for this reason, which stays.
    Never(Arc<str>),
    /// What this listens at.
    To(Arc<Second>),
}

#[cfg(all(test, not(loom)))]
pub(crate) mod rig;
#[cfg(all(test, not(loom)))]
mod tests;
