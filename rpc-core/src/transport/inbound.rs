//! What transports with frames share of receiving: limits, and the memory of bodies.
//!
//! Pure: how bytes come is each transport's business. The rules are those of `docs/wire.md`, the same on a
//! byte stream and over RDMA.
//!
//! * [`InboundLimits`]: which lengths this side accepts.
//! * [`Bodies`]: bodies that arrive in pieces, in turns with those of other calls.
//! * [`LandingPool`] and [`SmallBodies`]: the memory of long and of short bodies.
//! * [`FrameError`]: what a peer can do wrong.

mod bodies;
mod error;
mod landing;
mod limits;
mod small;

pub use bodies::{Bodies, Piece};
pub use error::FrameError;
pub use landing::LandingPool;
pub use limits::InboundLimits;
pub use small::SmallBodies;
