//! What the network knows of a connection, or of an attempt.

use std::task::Waker;

use verbwire_core::Error;

use crate::fabric::host::HostId;
use crate::fabric::qp::QpId;

/// Which connection of the fabric. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::fabric) struct ConnId(pub(super) u64);

/// One side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fabric) struct EndId {
    pub(in crate::fabric) conn: ConnId,
    pub(in crate::fabric) role: Role,
}

/// The two sides of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fabric) enum Role {
    /// Connects.
    Active,
    /// Accepts.
    Passive,
}

/// A message of the connection manager that arrives.
#[derive(Debug)]
pub(in crate::fabric) enum CmEvent {
    Request(ConnId),
    Answer(ConnId),
    Established(ConnId),
    Refusal(ConnId, Vec<u8>),
    /// The connection, or the attempt, is over for this side.
    Over(EndId, Error),
    /// The attempt is, if it has not come to an end.
    TimedOut(EndId, Error),
}

/// A connection, or an attempt.
pub(in crate::fabric) struct Conn {
    pub(in crate::fabric) active: End,
    pub(in crate::fabric) passive: End,
}

/// What the network knows of one side.
pub(in crate::fabric) struct End {
    pub(in crate::fabric) waker: Option<Waker>,
    /// The accepting side's is known once the request has arrived.
    pub(super) host: Option<HostId>,
    pub(super) address: String,
    pub(super) qp: Option<QpId>,
    /// What this side tells the other.
    pub(super) private_data: Vec<u8>,
    pub(super) outcome: Outcome,
    pub(super) over: Option<Error>,
    pub(super) holder: Holder,
}

/// What became of an attempt, as one side sees it.
pub(super) enum Outcome {
    Pending,
    /// With the other side's private data.
    Known(Result<Vec<u8>, Error>),
    Taken,
}

/// Whether someone still holds a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Held,
    /// It has disconnected; the other side was told.
    Closing,
    Gone,
}

impl EndId {
    pub(super) fn other(self) -> Self {
        let role = match self.role {
            Role::Active => Role::Passive,
            Role::Passive => Role::Active,
        };
        Self { role, ..self }
    }
}

impl Conn {
    pub(super) fn side(&mut self, role: Role) -> &mut End {
        match role {
            Role::Active => &mut self.active,
            Role::Passive => &mut self.passive,
        }
    }
}

impl End {
    pub(super) fn new(host: Option<HostId>, address: String) -> Self {
        Self {
            waker: None,
            host,
            address,
            qp: None,
            private_data: Vec::new(),
            outcome: Outcome::Pending,
            over: None,
            holder: Holder::Held,
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        matches!(self.outcome, Outcome::Pending) && self.over.is_none()
    }

    pub(super) fn end(&mut self, error: Error) {
        if matches!(self.outcome, Outcome::Pending) {
            self.outcome = Outcome::Known(Err(error.clone()));
        }
        self.over.get_or_insert(error);
    }
}
