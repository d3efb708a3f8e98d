//! Which ways two peers have to each other, for people: what a channel or a server says of a connection.
//!
//! Owns the words; what is decided is in [`proto::paths`](crate::proto::paths) and `server::seconds`.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

pub use crate::transport::counted::Traffic;

use crate::transport::counted::Counted;
use crate::transport::{Connection, DeviceInfo, Path};

/// The paths of one connection between a client and a server: the first, and a second beside it if there is one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Paths {
    /// The first, whose end ends the connection.
    pub first: PathInfo,
    /// The one that new calls take.
    pub second: Option<PathInfo>,
    /// Why there is no second path; if there is one, why there was none before.
    pub why_not: String,
    /// How often a second path began to be used.
    pub switches: u64,
}

/// One path.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PathInfo {
    /// Transport and addresses.
    pub path: Path,
    /// The device that carries it, where the transport knows.
    pub device: Option<DeviceInfo>,
    /// When it began.
    pub since: Instant,
    /// What went over it.
    pub traffic: Traffic,
}

impl Paths {
    /// The path that new calls take.
    pub fn current(&self) -> &PathInfo {
        self.second.as_ref().unwrap_or(&self.first)
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.current())?;
        match &self.second {
            Some(_) => write!(f, ", beside {}", self.first.path),
            None => write!(f, " ({})", self.why_not),
        }
    }
}

impl fmt::Display for PathInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        match &self.device {
            Some(device) => write!(f, " by {device}"),
            None => Ok(()),
        }
    }
}

/// A connection with what is said of it.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) connection: Arc<Counted>,
    since: Instant,
}

impl Line {
    pub(crate) fn new(connection: Arc<Counted>) -> Self {
        Self { connection, since: Instant::now() }
    }

    pub(crate) fn info(&self) -> PathInfo {
        let device = self.connection.capability(TypeId::of::<DeviceInfo>());
        PathInfo {
            path: self.connection.path(),
            device: device.and_then(|device| device.downcast_ref().cloned()),
            since: self.since,
            traffic: self.connection.traffic(),
        }
    }
}
