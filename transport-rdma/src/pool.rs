//! Registered memory for payloads: where they are sent from, and where they land. No `unsafe`: that is `memory`'s.
//!
//! * [`Staging`]: buffers that are sent from. A user fills one in place, or the transport copies foreign bytes
//!   into one. Peers have no rights on it.
//! * [`Landing`]: regions that a peer is granted, one at a time, for its Writes; what it wrote becomes `Bytes`.
//! * [`Sources`]: from the address of any `Bytes` to the registration that it lies in.
//! * [`PoolSnapshot`]: what is where, and how often what happened.
//!
//! Memory comes in slabs that are registered once, in a few lengths that double (`classes`). A pool begins empty and
//! grows by a slab when somebody waits, up to its cap; slabs stay registered until another length needs
//! their room, or [`Staging::trim`] and [`Landing::trim`] give idle ones up. So calls that repeat register
//! nothing. Asking is first in, first out, and ends by a deadline (`stock` has the rules, `store` the waiting).
//! Where the device refuses more memory, the pool stays as small as it is; who could never be served is told
//! why.
//!
//! # Who owns a landing region
//!
//! ```text
//!          grant                    FIN: Fenced               into_bytes
//!   free ────────► Granted ───────────────────────► Landed ───────────────► Bytes (trusted, or window)
//!    ▲               │  │ quarantine                  │                        │ last one dropped
//!    │   GrantClosed │  ▼                             │ copied out             │
//!    ├───────────────┤ Quarantined                     │                        │
//!    │   GrantClosed │  │                              │                        │
//!    └───────────────┴──┴──────────────────────────────┴────────────────────────┘
//! ```
//!
//! There is no way from `Granted` or `Quarantined` back without a [`GrantClosed`], and none to its bytes without
//! a [`Fenced`]. Dropped without one, the region is never used again, and counted as leaked.
//!
//! # What outlives what
//!
//! Buffers and `Bytes` outlive pool, transport, runtime and device. When the pool is dropped its registrations end,
//! and memory that somebody still holds is freed with the last of it.

mod budget;
mod classes;
mod counts;
mod error;
mod landing;
mod registrar;
mod sources;
mod staging;
mod stock;
mod store;
#[cfg(test)]
mod tests;

pub use budget::Budget;
pub use counts::PoolSnapshot;
pub use error::PoolError;
pub use landing::{
    Fenced, GrantClosed, Granted, Isolation, Landed, Landing, LandingConfig, OutOfGrant,
    QuarantineLevel, Quarantined, SLACK, Target, Tenant,
};
pub use sources::Sources;
pub use staging::{Staging, StagingBuf};

/// How much memory a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize {
    /// The longest payload that must find a buffer, in bytes. 64 MiB: the default of `max_message_size`.
    pub longest: usize,
    /// Most bytes of all slabs; at least one of the longest buffers. 512 MiB: two pools make the 1 GiB that a
    /// server gives to a device, and nothing of it is taken before it is needed.
    pub cap: usize,
    /// About how long a slab is, if its buffers are shorter. 4 MiB: registered in about a millisecond, and
    /// at 1 GiB still few enough to be looked through.
    pub slab_len: usize,
}

impl Default for PoolSize {
    fn default() -> Self {
        Self { longest: 64 << 20, cap: 512 << 20, slab_len: 4 << 20 }
    }
}
