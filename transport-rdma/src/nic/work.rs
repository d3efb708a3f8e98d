//! Work requests and completions, as plain values.
//!
//! Owns no memory: an [`Sge`] only names it. Who owns it when is the contract of [`nic`](super).

use std::fmt;

use super::{MAX_SGE, QpNumber};
use crate::memory::{Lkey, Rkey};

/// What a completion is recognised by: chosen by who posts, returned by the device as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WrId(pub u64);

/// One run of registered memory in a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of its registration.
    pub lkey: Lkey,
}

/// A work request for the send queue.
#[derive(Debug, Clone)]
pub struct SendWr {
    /// Returned by its completion.
    pub id: WrId,
    /// What to do.
    pub op: SendOp,
    /// The memory, in order.
    pub sges: Sges,
    /// Whether success makes a completion. Failure always does.
    pub signal: Signal,
    /// Whether the bytes travel in the work request, so that the memory is free when the post returns.
    pub inline: Inline,
}

/// What a send-queue work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOp {
    /// Sends to the peer's next receive.
    Send,
    /// Writes to the peer's memory.
    Write {
        /// First byte at the peer.
        address: u64,
        /// Key of the peer's registration.
        rkey: Rkey,
    },
    /// Binds a window: from now on the peer may write there. Has no memory of its own, and is carried out before what
    /// is posted behind it leaves.
    Bind {
        /// The key that the peer will use: not the one that the window had last, and otherwise any of its own.
        rkey: Rkey,
        /// Key of the memory's registration, which must allow it ([`Access::Windows`](super::Access)).
        lkey: Lkey,
        /// First byte.
        address: u64,
        /// Length in bytes, not 0.
        len: u64,
    },
    /// Ends the rights that a bound window gives. Writes that arrive later are refused, which ends the connection.
    Invalidate {
        /// The key that it was bound under.
        rkey: Rkey,
    },
}

/// Whether a work request makes a completion when it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// It does (`IBV_SEND_SIGNALED`).
    Yes,
    /// It does not: a later signalled one covers it.
    No,
}

/// Whether a work request carries its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inline {
    /// It does (`IBV_SEND_INLINE`).
    Yes,
    /// The NIC fetches them.
    No,
}

/// A work request for the receive queue.
#[derive(Debug, Clone, Copy)]
pub struct RecvWr {
    /// Returned by its completion.
    pub id: WrId,
    /// Where the message goes.
    pub sge: Sge,
}

/// The scatter/gather list of a work request, held in place: no allocation per message.
#[derive(Debug, Clone, Copy)]
pub struct Sges {
    entries: [Sge; MAX_SGE],
    count: usize,
}

impl Sges {
    /// A list of one entry.
    pub fn one(sge: Sge) -> Self {
        Self { entries: [sge; MAX_SGE], count: 1 }
    }

    /// A list of none, for work requests without memory of their own.
    pub fn none() -> Self {
        let entry = Sge { address: 0, len: 0, lkey: Lkey(0) };
        Self { entries: [entry; MAX_SGE], count: 0 }
    }

    /// Appends an entry. `false` if the list is full.
    pub fn push(&mut self, sge: Sge) -> bool {
        let Some(slot) = self.entries.get_mut(self.count) else { return false };
        *slot = sge;
        self.count += 1;
        true
    }

    /// The entries in order.
    pub fn as_slice(&self) -> &[Sge] {
        &self.entries[..self.count]
    }

    /// Bytes over all entries.
    pub fn total_len(&self) -> usize {
        self.as_slice().iter().map(|sge| sge.len as usize).sum()
    }
}

/// A work completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wc {
    /// The work request's id.
    pub id: WrId,
    /// Its queue pair.
    pub qp: QpNumber,
    /// Received bytes (receives; 0 for sends), or why it failed.
    pub result: Result<u32, WcStatus>,
}

/// Why a work request failed. Numbers of `enum ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

impl WcStatus {
    /// The receive buffer was shorter than the message.
    pub const LOCAL_LENGTH: Self = Self(1);
    /// The queue pair could not carry the work request out: what soft-RoCE says of a receive where others say
    /// [`LOCAL_LENGTH`](Self::LOCAL_LENGTH), and soft-iWARP of a send whose stream has broken.
    pub const LOCAL_QP_OPERATION: Self = Self(2);
    /// Memory of this side that its registration does not allow.
    pub const LOCAL_PROTECTION: Self = Self(4);
    /// Not executed: the queue pair was in the error state.
    pub const FLUSHED: Self = Self(5);
    /// A memory window could not be bound.
    pub const WINDOW_BIND: Self = Self(6);
    /// The peer refused the request.
    pub const REMOTE_INVALID_REQUEST: Self = Self(9);
    /// Memory of the peer that its registration does not allow.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The peer could not carry out the request: its receive was too short or not accessible.
    pub const REMOTE_OPERATION: Self = Self(11);
    /// The peer did not answer.
    pub const RETRY_EXCEEDED: Self = Self(12);
    /// The peer had no receive posted.
    pub const RNR_RETRY_EXCEEDED: Self = Self(13);
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match *self {
            Self::LOCAL_LENGTH => "the message was longer than the receive buffer",
            Self::LOCAL_QP_OPERATION => "the queue pair could not carry out a work request",
            Self::LOCAL_PROTECTION => {
                "local protection error: memory that is not registered for this"
            }
            Self::FLUSHED => "flushed: the queue pair was in the error state",
            Self::WINDOW_BIND => "the device refused to bind a memory window that it says it has",
            Self::REMOTE_INVALID_REQUEST => "the peer refused the request as invalid",
            Self::REMOTE_ACCESS => "remote access error: no right to that memory of the peer",
            Self::REMOTE_OPERATION => "the peer's receive could not take the message",
            Self::RETRY_EXCEEDED => "the peer did not answer (retries exceeded): is the path up?",
            Self::RNR_RETRY_EXCEEDED => "the peer had no receive posted (RNR retries exceeded)",
            Self(number) => return write!(f, "completion status {number}"),
        };
        f.write_str(words)
    }
}
