//! The callee's side: services, the tasks that drive connections, and their end.
//!
//! * [`Server`]: collects services and settings, binds, serves.
//! * [`Bound`]: a server that listens.
//! * [`Connections`]: those that it serves, each with its paths.
//! * [`Sessions`]: what is kept so that calls that are repeated run once.
//! * [`LoadLimits`]: what runs at a time; [`Open`]: what answers for methods that nobody has described; [`Placing`]: where long payloads land.
//!
//! Inside, [`proto::server`](crate::proto::server) holds the rules. One task per connection, its `driver`,
//! receives requests; each handler runs in a task of its own and hands its answer to the transport by
//! itself. `serving` accepts connections and ends them.

mod authentication;
mod builder;
mod connection;
mod driver;
mod handler;
mod intake;
mod layers;
mod limited;
mod open;
mod outbox;
mod placing;
mod router;
mod seconds;
mod serving;
mod sessions;
mod size;
mod streaming;
mod workers;

pub use authentication::Newcomer;
pub use builder::{Builder, Server};
pub use limited::{Limited, LoadLimits};
pub use open::{Open, OpenService};
pub use placing::{Landing, LongRequest, Placing};
pub use seconds::{Connections, NewcomerCounts, ServedConnection};
pub use serving::Bound;
pub use sessions::Sessions;

pub use crate::proto::sessions::SessionLimits;

pub(crate) use handler::Handler;
#[cfg(all(test, not(loom)))]
pub(crate) use seconds::rig;
pub(crate) use size::{Size, too_large, too_much_metadata};
