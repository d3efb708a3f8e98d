//! Why a pool gave no buffer, in words.

use std::time::Duration;

use verbwire_core::{Error, ErrorKind};

use super::stock::Amounts;
use crate::nic::NicError;

/// Why a pool gave no buffer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Longer than the longest buffer.
    #[error(
        "a buffer of {len} bytes was asked for and the longest has {longest}: raise `longest` of the pool in RdmaConfig"
    )]
    TooLong {
        /// What was asked for.
        len: usize,
        /// What there is.
        longest: usize,
    },
    /// Everything was in use until the deadline.
    #[error("no buffer of {len} bytes came free within {waited:?}: {why}")]
    TimedOut {
        /// What was asked for.
        len: usize,
        /// How long was waited.
        waited: Duration,
        /// What is in the way.
        why: Shortage,
    },
    /// The device, or the system, does not give the memory.
    #[error("there can be no buffer of {len} bytes: {reason}")]
    Refused {
        /// What was asked for.
        len: usize,
        /// What it said.
        reason: NicError,
    },
    /// The pool is closed.
    #[error(transparent)]
    Closed(Error),
}

/// What was in the way of a buffer when the deadline came.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Shortage {
    /// Buffers that are in use.
    #[error(
        "{in_use} of at most {limit} bytes are in use: raise `cap` of the pool in RdmaConfig (landing.size, or staging), or send less at a time"
    )]
    InUse {
        /// Bytes in use.
        in_use: usize,
        /// Most bytes of the pool.
        limit: usize,
    },
    /// The same in a pool that cannot grow up to its cap.
    #[error("{in_use} bytes are in use and the device gave no more than {given}: {reason}")]
    Refused {
        /// Bytes in use.
        in_use: usize,
        /// What the device gave, in bytes.
        given: usize,
        /// What it said.
        reason: NicError,
    },
    /// The memory that pools of several protection domains have together.
    #[error(
        "{in_use} of the {limit} bytes that untrusted peers with a protection domain each have together are in use: \
         raise landing.size.cap of RdmaConfig, or send less at a time"
    )]
    Shared {
        /// Bytes of all their slabs.
        in_use: usize,
        /// Most bytes.
        limit: usize,
    },
    /// Received messages that this process holds.
    #[error(
        "messages that their receiver still holds pin {pinned} bytes, the budget is {budget}: there, drop them sooner, \
         copy what is kept (a server by place_payloads with Landing::Owned), or raise landing.pinned_budget of RdmaConfig"
    )]
    Pinned {
        /// Bytes of buffers that are held.
        pinned: usize,
        /// The budget.
        budget: usize,
    },
}

impl Shortage {
    /// What is in the way in a pool with these amounts.
    pub(super) fn of(amounts: Amounts, budget: usize, refused: Option<NicError>) -> Self {
        let Amounts { limit, slabs, free, pinned, .. } = amounts;
        let in_use = slabs - free;
        match refused {
            _ if pinned >= budget => Self::Pinned { pinned, budget },
            Some(reason) => Self::Refused { in_use, given: slabs, reason },
            None => Self::InUse { in_use, limit },
        }
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Closed(cause) => cause,
            error => Self::new(ErrorKind::LocalResource, error.to_string()),
        }
    }
}
